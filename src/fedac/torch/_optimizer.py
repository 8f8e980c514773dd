"""What `torch.compile` leaves alone."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from functools import lru_cache
from typing import Any, TypeVar, cast

import numpy as np
import torch
from torch import Tensor

from fedac.algorithms import Algorithm, get
from fedac.algorithms.checks import check_functions, needs_mu
from fedac.algorithms.hyperparameters import Hyperparameters
from fedac.algorithms.linear import Linear, linear_form
from fedac.errors import InputError
from fedac.federation.schedule import Decay
from fedac.torch._communication import is_paused, plain_settings
from fedac.torch._fused_step import Batches, Program, query_program, run, step_program
from fedac.torch._round import output
from fedac.torch._state import SequenceOptimizer, ends_with_mean, is_half, sequence_dtype, version

Function = TypeVar("Function", bound=Callable[..., Any])


def uncompiled(function: Function) -> Function:
    """Let `torch.compile` call a function as it is, with all that it calls.

    Counts, hashes and step sizes change all the time: each would compile the program anew.
    """
    disabled: Function = torch.compiler.disable(function)  # type: ignore[no-untyped-call]
    return disabled


# --- Decoupled weight decay: iterates shrink, apart from the gradient's step.
#
# As in AdamW, parameters shrink by lr * weight_decay in every step, whatever the gradient is. An
# algorithm with several sequences lets all of its iterates shrink alike, and so w_md too, which is
# an
# average of them.


@lru_cache(maxsize=256)
def decayed_form(algorithm: Algorithm, hp: Hyperparameters, weight_decay: float) -> Linear:
    """Return the coefficients of a step with weight decay.

    Every step makes an iterate an average of iterates plus a multiple of the gradient. The average
    is multiplied by 1 - eta * weight_decay, the gradient is not.

    An iterate is a sequence that starts at w_0 (or at a multiple of it). Others start at 0:
    momentum, sums of gradients or of iterates, corrections. They take their steps as ever. So does
    a sequence that no step moves, such as the point where the round began.

    Examples
    --------
    >>> from fedac.algorithms import FEDAVG, get
    >>> hp = FEDAVG.couple(eta=0.5, mu=1.0, K=1)
    >>> decayed_form(FEDAVG, hp, 0.1).update  # of w, w_md and g: w <- 0.95 w_md - 0.5 g
    ((0.0, 0.95, -0.5),)
    >>> decayed_form(get("momentum(0.9)"), hp, 0.1).update  # w <- 0.95 w - 0.5 u; u <- 0.9 u + g
    ((0.0, -0.45, 0.95, -0.5), (0.0, 0.9, 0.0, 1.0))
    """
    form = linear_form(algorithm, hp)
    if weight_decay == 0:
        return form
    sequences, _ = algorithm.split(algorithm.start(1.0))
    starts = algorithm.enter(sequences, algorithm.begin_memory(sequences), hp)
    is_iterate = [*(start != 0 for start in starts), True, False]  # w_md is one, g is none
    keep = 1 - hp.eta * weight_decay
    rows = []
    for s, row in enumerate(form.update):
        stays = all(factor == (column == s) for column, factor in enumerate(row))
        if is_iterate[s] and not stays:
            pairs = zip(row, is_iterate, strict=True)
            row = tuple(keep * factor if iterate else factor for factor, iterate in pairs)
        rows.append(row)
    return Linear(query=form.query, update=tuple(rows))


# --- The local steps of an algorithm as a PyTorch optimizer.
#
# While training, the parameters hold w_md, where the next gradient is taken. `eval` replaces it by
# the output (w_ag of FedAc), and `train` puts w_md back.


class LocalOptimizer(SequenceOptimizer):
    """The local steps of an algorithm; `FedAc` and `LocalSGD` are short names for the usual ones.

    Parameters
    ----------
    params : iterable
        Parameters or groups of them, as for every optimizer. A group may have its own lr, mu and
        weight_decay.
    algorithm : str or Algorithm
        A name, such as "fedac-ii" or "fedac-i+cv+nesterov(1,0.3)", or a record of your own.
    lr : float or Decay
        The step size eta. A `Decay` lets it fall with every synchronization. A scheduler may change
        it at any time: the next step couples anew, and a group whose lr is 0 stands still.
    mu : float, optional
        Strong-convexity estimate, for algorithms whose coupling uses it (FedAc's). Where
        lr mu local_steps >= 1, FedAc is FedAvg, and a warning says so once.
    local_steps : int
        Steps between two synchronizations, K.
    weight_decay : float
        Decoupled weight decay, as in AdamW: every step multiplies w_ag and w (all iterates, but no
        momentum) by 1 - lr * weight_decay, apart from what the gradient does
        (`fedac.torch._optimizer`).
    foreach : bool
        Whether to work on many tensors at once: all of them on a GPU, as many as fit into the
        cache on a CPU.

    Attributes
    ----------
    steps : int
        Steps taken so far.
    rounds : int
        Rounds that a `Synchronizer` has ended so far.

    Examples
    --------
    >>> w = torch.nn.Parameter(torch.tensor([4.0]))
    >>> optimizer = LocalOptimizer([w], "fedac-ii", lr=0.1, mu=0.5, local_steps=4)
    >>> w.grad = torch.tensor([2.0])
    >>> optimizer.step()
    >>> optimizer.eval()
    >>> w.data  # w_ag = w_md - lr * gradient
    tensor([3.8000])
    """

    def __init__(
        self,
        params: Iterable[Any],
        algorithm: str | Algorithm,
        *,
        lr: float | Decay,
        mu: float | None = None,
        local_steps: int,
        weight_decay: float = 0.0,
        foreach: bool = True,
    ) -> None:
        self.algorithm = get(algorithm)
        if self.algorithm.minibatch:
            raise InputError(f"'{self.algorithm.name}' takes no local steps; use torch.optim.SGD")
        settings = {
            "lr": lr,
            "mu": 1.0 if mu is None else mu,
            "local_steps": local_steps,
            "weight_decay": weight_decay,
        }
        if mu is None:
            hp = self.hyperparameters(settings | {"mu": 1e-6})  # refuses a bad lr first
            if needs_mu(self.algorithm, eta=hp.eta, K=local_steps):
                raise InputError(
                    f"'{self.algorithm.name}' needs mu, a strong-convexity estimate; begin with "
                    "1/(10 lr local_steps)"
                )
        hp = self.hyperparameters(settings)
        linear_form(self.algorithm, hp)  # refuse an algorithm that is not linear
        self.takes_mean = ends_with_mean(self.algorithm)
        if not self.takes_mean:
            check_functions(self.algorithm, hp, np.ones(2))
        self.in_place = self._works_in_place(hp)
        self.foreach, self._batches = foreach, Batches(foreach=foreach)
        self.steps = self.rounds = 0
        self.decays, self.versions, self._group_of = [], {}, {}
        # Groups also have "last", the settings that their parameters were last set with, "taken",
        # the steps that their parameters took since the last average was started, and "counted", by
        # rank how much it counted in the last round that it was in.
        super().__init__(params, {**settings, "training": True, "taken": 0, "counted": []})

    def step(self, closure: Callable[[], Any] | None = None) -> Any:
        """Take one local step with the gradients at the parameters."""
        return self._step(closure)

    @uncompiled
    @torch.no_grad()
    def _step(self, closure: Callable[[], Any] | None) -> Any:
        if not all(group["training"] for group in self.param_groups):
            raise InputError(
                "the parameters hold the output: call optimizer.train() after optimizer.eval(), "
                "before the forward pass"
            )
        loss = None
        if closure is not None:
            with torch.enable_grad():
                loss = closure()
        # Check everything before anything moves, so that a refused step changes nothing.
        groups = [group for group in self.param_groups if not is_paused(group)]
        coefficients = [self._step_form(group) for group in groups]
        for group in groups:
            self._require_ready(group)
        for group, now in zip(groups, coefficients, strict=True):
            before = linear_form(self.algorithm, self.hyperparameters(group["last"]))
            self._enter_again(group)
            for batch in self._batches.split([p for p in group["params"] if p.grad is not None]):
                self._move(batch, now, before)
            if group["last"] != (settings := plain_settings(group)):
                group["last"] = settings
                # The others' w_md follows a new lr too.
                self._place(group, [p for p in group["params"] if p.grad is None])
            group["taken"] += 1
        self.steps += 1
        if self.after_step is not None:
            self.after_step()
        return loss

    def _step_form(self, group: dict[str, Any]) -> Linear:
        """Return the coefficients of a group's step."""
        hp, settings = self.hyperparameters(group), plain_settings(group)
        if settings != group["last"]:  # a scheduler may have raised lr
            self.warn_if_not_accelerated(settings)
        return decayed_form(self.algorithm, hp, settings["weight_decay"])

    def _require_ready(self, group: dict[str, Any]) -> None:
        """Refuse gradients that no step can use, and parameters that something else has changed."""
        last = self.versions.get
        for p in group["params"]:
            if (g := p.grad) is not None and g.layout != torch.strided:
                raise InputError(
                    "sparse gradients are not supported; use sparse=False in the embedding"
                )
            if last(p) != version(p):
                self._batches.forget()  # it may have another type now
                self._require_unchanged(group, p)

    def _move(self, params: list[Tensor], now: Linear, before: Linear) -> None:
        """Update the sequences of some parameters, then put their next w_md into them.

        sequences <- update(sequences, w_md, g), p <- query(sequences), as in the algorithm.
        """
        half, many = is_half(params[0]), len(params) > 1
        sequences = self._lists_of_sequences(params)
        w_md, g = params, cast(list[Tensor], [p.grad for p in params])
        program = step_program(now, in_place=self.in_place and not half, many=many)
        if half:  # the parameters hold w_md rounded, so recompute it from the sequences
            program = (*query_program(before.query), *program)
            w_md = [torch.empty_like(sequence) for sequence in sequences[0]]
            g = [gradient.float() for gradient in g]
        slots = [*sequences, w_md, g]
        while len(slots) <= max((operation.out for operation in program), default=0):
            slots.append([torch.empty_like(sequence) for sequence in sequences[0]])
        run(program, slots)
        if half:
            torch._foreach_copy_(params, w_md)
        self.versions.update(zip(params, map(version, params), strict=True))

    def _lists_of_sequences(self, params: list[Tensor]) -> list[list[Tensor]]:
        """Return by sequence those of some parameters, which are all of one type."""
        if self.is_own_sequence(params[0]):
            return [[self.sequences(p)[0] for p in params]]
        states = list(map(self._started, params))
        return [[state[name] for state in states] for name in self.algorithm.local_sequences]

    def eval(self) -> None:
        """Put the algorithm's output into the parameters, to evaluate or save them.

        It asks no other process. Right after a round the output is the same in all of them; in the
        middle of one it is what this process would have if the round ended now with it alone, and
        differs from process to process. ``averages.synchronize()``, called in all of them,
        ends the round early; with overlap it is always needed.
        """
        self._switch(training=False)

    def train(self) -> None:
        """Put w_md back into the parameters, to continue training."""
        self._switch(training=True)

    def restart(self) -> None:
        """Start all sequences at the parameters as they are now."""
        self.state.clear()
        self.versions.clear()
        self.rounds = 0
        for group in self.param_groups:
            group.update(training=True, taken=0)

    def begin_round(self, r: int) -> None:
        """Set every lr that falls to that of round r, counted from 0, and update the parameters."""
        self.lower_lr(r)
        self.refresh()

    def lower_lr(self, r: int) -> None:
        """Set every lr that falls to that of round r; call `refresh` afterwards."""
        for group, decay in zip(self.param_groups, self.decays, strict=True):
            if decay is not None:
                group["lr"] = decay.at(r)
                group["last"] = plain_settings(group)

    @torch.no_grad()
    def refresh(self) -> None:
        """Update the parameters after their sequences were set."""
        for group in self.param_groups if self.state else ():
            self._place(group, group["params"])

    @torch.no_grad()
    def _switch(self, *, training: bool) -> None:
        groups = [group for group in self.param_groups if group["training"] != training]
        for group in groups:
            for p in group["params"]:
                self._require_unchanged(group, p)
        for group in groups:
            group["training"] = training
            self._place(group, group["params"])

    def _place(self, group: dict[str, Any], params: Sequence[Tensor]) -> None:
        """Put w_md into parameters of a group while training, else the output."""
        # The others have not moved, or need nothing but themselves.
        params = [p for p in params if self.state.get(p)]
        if group["training"]:
            self._place_query(group, params)
        else:
            for p in params:
                self._keep_sequence(p)
                p.copy_(output(self, group, p))
        self.versions.update(zip(params, map(version, params), strict=True))

    def _place_query(self, group: dict[str, Any], params: Sequence[Tensor]) -> None:
        """Put w_md into parameters that have a state."""
        program = self._query_program(group)
        for batch in self._batches.split(params):
            if self.is_own_sequence(batch[0]):
                self._put_sequence_back(batch)
                continue
            sequences, w_md = self._lists_of_sequences(batch), batch
            if half := is_half(batch[0]):
                w_md = [torch.empty_like(sequence) for sequence in sequences[0]]
            run(program, [*sequences, w_md])
            if half:
                torch._foreach_copy_(batch, w_md)

    def _keep_sequence(self, p: Tensor) -> None:
        """Copy a parameter that is its own sequence, before the output overwrites it."""
        (name, *_) = self.algorithm.local_sequences
        if self.is_own_sequence(p) and name not in self.state[p]:
            with torch.inference_mode(False):
                self.state[p][name] = p.detach().clone()

    def _put_sequence_back(self, params: Sequence[Tensor]) -> None:
        """Undo `_keep_sequence`."""
        (name, *_) = self.algorithm.local_sequences
        for p in params:
            if name in self.state[p]:
                p.copy_(self.state[p].pop(name))

    def _point(self, group: dict[str, Any], p: Tensor) -> Tensor:
        """Return what a parameter should hold."""
        if not group["training"]:
            return output(self, group, p)
        sequences = self.sequences(p)
        w_md = torch.empty_like(sequences[0])
        run(self._query_program(group), [[tensor] for tensor in (*sequences, w_md)])
        return w_md

    def _query_program(self, group: dict[str, Any]) -> Program:
        hp = self.hyperparameters(group["last"])
        return query_program(linear_form(self.algorithm, hp).query)

    def _works_in_place(self, hp: Hyperparameters) -> bool:
        """Check whether the only sequence is start and query point at once, and the output too.

        With a server rule the output may differ: while evaluating, there is a copy.
        """
        algorithm, start = self.algorithm, self.algorithm.start(1.0)
        sequences, _ = algorithm.split(start)
        local = algorithm.enter(sequences, algorithm.begin_memory(sequences), hp)
        w_md = algorithm.query(local, hp)
        if abs(w_md - 1) > 1e-12:
            raise InputError(f"'{algorithm.name}' does not take its first gradient at w_0")
        same_output = not self.takes_mean or algorithm.output(start, hp, 1) == 1.0
        return algorithm.is_plain and local == (1.0,) and w_md == 1.0 and same_output

    def _enter_again(self, group: dict[str, Any]) -> None:
        """Begin the round with the lr of its first step, which may be newer than the broadcast."""
        if self.algorithm.is_plain or group["taken"] or group["last"] == plain_settings(group):
            return
        hp = self.hyperparameters(group)
        for p in group["params"]:
            if self.state.get(p):
                self.enter(p, hp)

    def _require_unchanged(self, group: dict[str, Any], p: Tensor) -> None:
        """Refuse a parameter that something else has changed: its sequences would not match."""
        if not self.state.get(p) or self.versions.get(p) == version(p):
            return
        kinds = {(tensor.dtype, tensor.device) for tensor in self.state[p].values()}
        same_kind = kinds == {(sequence_dtype(p), p.device)}
        if not (same_kind and _is_equal_but_for_rounding(p, self._point(group, p))):
            raise InputError(
                "a parameter was changed, converted or moved by something other than this "
                "optimizer; call optimizer.restart() to start from the parameters as they are, or "
                "load the model that belongs to the optimizer's state"
            )
        self.versions[p] = version(p)


class FedAc(LocalOptimizer):
    """FedAc-I, Federated Accelerated SGD (label alg:fedac): "fedac-i" of `LocalOptimizer`.

    Examples
    --------
    >>> w = torch.nn.Parameter(torch.tensor([4.0]))
    >>> optimizer = FedAc([w], lr=0.5, mu=0.25, local_steps=4)
    >>> for _ in range(60):
    ...     optimizer.zero_grad()
    ...     (w**2 / 2).sum().backward()
    ...     optimizer.step()
    >>> optimizer.eval()
    >>> abs(w.item()) < 1e-3
    True
    """

    def __init__(
        self,
        params: Iterable[Any],
        lr: float | Decay,
        mu: float,
        local_steps: int,
        weight_decay: float = 0.0,
        *,
        foreach: bool = True,
    ) -> None:
        super().__init__(
            params,
            "fedac-i",
            lr=lr,
            mu=mu,
            local_steps=local_steps,
            weight_decay=weight_decay,
            foreach=foreach,
        )


class LocalSGD(LocalOptimizer):
    """Plain SGD to be synchronized every `local_steps`: "fedavg" of `LocalOptimizer`.

    Examples
    --------
    >>> w = torch.nn.Parameter(torch.tensor([4.0]))
    >>> optimizer = LocalSGD([w], lr=0.5, local_steps=4)
    >>> (w**2 / 2).sum().backward()
    >>> optimizer.step()
    >>> w.data
    tensor([2.])
    """

    def __init__(
        self,
        params: Iterable[Any],
        lr: float | Decay,
        local_steps: int,
        weight_decay: float = 0.0,
        *,
        foreach: bool = True,
    ) -> None:
        super().__init__(
            params,
            "fedavg",
            lr=lr,
            local_steps=local_steps,
            weight_decay=weight_decay,
            foreach=foreach,
        )


def _is_equal_but_for_rounding(p: Tensor, point: Tensor) -> bool:
    """Compare in the parameter's own type; another device may round the last digit differently."""
    eps = torch.finfo(p.dtype).eps
    size = point.nan_to_num(0.0, 0.0, 0.0).abs().max().item() if p.numel() else 0.0
    rounded = point.to(p.dtype)
    return torch.allclose(p, rounded, rtol=8 * eps, atol=8 * eps * size, equal_nan=True)
