# SPDX-License-Identifier: Apache-2.0
"""The local steps of an algorithm as a PyTorch optimizer: `LocalOptimizer`, `FedAc`, `LocalSGD`.

While training, the parameters hold w_md, where the next gradient is taken. `eval` replaces it by
the output (w_ag of FedAc), and `train` puts w_md back.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import replace
from typing import Any, TypeVar, cast

import numpy as np
import torch
from torch import Tensor

from fedac.algorithms import Algorithm, ClientWork, RoundInfo, get
from fedac.algorithms.algorithm import State
from fedac.algorithms.checks import check_functions, needs_mu
from fedac.algorithms.hyperparameters import Hyperparameters
from fedac.algorithms.linear import Linear, linear_form
from fedac.errors import InputError
from fedac.federation.round import leave, serve, squared_moves
from fedac.federation.schedule import Decay
from fedac.torch._local_step import Batches, combine, decayed_form, take_step
from fedac.torch._state import (
    SequenceOptimizer,
    ends_with_mean,
    is_half,
    is_paused,
    plain_settings,
    sequence_dtype,
    version,
    warn_if_not_accelerated,
)

Function = TypeVar("Function", bound=Callable[..., Any])


# Excludes a function and its callees from `torch.compile`. Counts, hashes and step sizes change all
# the time: each would compile the program again.
uncompiled: Callable[[Function], Function] = torch.compiler.disable


class LocalOptimizer(SequenceOptimizer):
    """The local steps of any algorithm; `FedAc` and `LocalSGD` are shorthands for the usual ones.

    Parameters
    ----------
    params : iterable
        Parameters or parameter groups, as for every optimizer. A group may have its own lr, mu and
        weight_decay.
    algorithm : str or Algorithm
        A name, such as "fedac-ii" or "fedac-i+cv+nesterov(1,0.3)", or your own `Algorithm`.
    lr : float or Decay
        The step size eta. A `Decay` lowers it with every synchronization. A scheduler may change it
        at any time: the next step couples again, and a group whose lr is 0 does not move.
    mu : float, optional
        Strong-convexity estimate, for algorithms whose coupling uses it (FedAc). If
        lr mu local_steps >= 1, FedAc degenerates to FedAvg, with a warning.
    local_steps : int
        Steps between two synchronizations, K.
    weight_decay : float
        Decoupled weight decay, as in AdamW: every step multiplies w_ag and w (all iterates, but no
        momentum) by 1 - lr * weight_decay, independently of the gradient.
    foreach : bool
        Whether to process many tensors at once: all of them on a GPU, as many as fit into the cache
        on a CPU.
    full_gradient : callable, optional
        Only for methods that need it, such as MimeLite: a function without arguments that calls
        ``backward()`` on the mean loss over all of this worker's rows. It runs at the end of every
        round, with the parameters at the point where the round began; afterwards the parameters and
        their gradients are what they were.

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
        full_gradient: Callable[[], object] | None = None,
    ) -> None:
        self.algorithm = get(algorithm)
        if self.algorithm.minibatch:
            raise InputError(f"'{self.algorithm.name}' takes no local steps; use torch.optim.SGD")
        _require_full_gradient(self.algorithm, full_gradient)
        self.full_gradient = full_gradient
        settings = {
            "lr": lr,
            "mu": 1.0 if mu is None else mu,
            "local_steps": local_steps,
            "weight_decay": weight_decay,
        }
        if mu is None:
            hp = self.hyperparameters(plain_settings(settings | {"mu": 1e-6}))  # a bad lr first
            if needs_mu(self.algorithm, eta=hp.eta, K=local_steps):
                raise InputError(
                    f"'{self.algorithm.name}' needs mu, a strong-convexity estimate; begin with "
                    "1/(10 lr local_steps)"
                )
        hp = self.hyperparameters(plain_settings(settings))
        linear_form(self.algorithm, hp)  # raises if the local steps are not linear
        self.takes_mean = ends_with_mean(self.algorithm)
        if not self.takes_mean:
            check_functions(self.algorithm, hp, np.ones(2))
        start = self.algorithm.start(1.0)
        sequences, _ = self.algorithm.split(start)
        local = self.algorithm.enter(sequences, self.algorithm.begin_memory(sequences), hp)
        w_md = self.algorithm.query(local, hp)
        if abs(w_md - 1) > 1e-12:
            raise InputError(f"'{self.algorithm.name}' does not take its first gradient at w_0")
        # Whether the parameter is the only sequence, the query point and the output. With a server
        # rule the output may differ: in eval mode there is a copy.
        same_output = not self.takes_mean or self.algorithm.output(start, hp, 1) == 1.0
        self.in_place = self.algorithm.is_plain and local == (w_md,) == (1.0,) and same_output
        self.foreach, self._batches = foreach, Batches(foreach=foreach)
        self.steps = self.rounds = 0
        self.decays, self.versions, self._group_of = [], {}, {}
        # Groups also have "last", the settings of their last step; "taken", the steps since the
        # last average was started; and "counted", by rank its weight in its last round.
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
        ready = [self._prepare(group) for group in self.param_groups if not is_paused(group)]
        for group, settings, hp in ready:
            is_new = settings != group["last"]
            if is_new and not (group["taken"] or self.algorithm.is_plain):
                # The lr has changed since the round began: begin it again with the new one.
                for p in filter(self.state.get, group["params"]):
                    self.enter(p, hp)
            form = decayed_form(self.algorithm, hp, settings["weight_decay"])
            for batch in self._batches.split([p for p in group["params"] if p.grad is not None]):
                self._move(batch, form, group["last"])
            if is_new:
                group["last"] = settings
                # The w_md of parameters without gradients follows a new lr too.
                self._place(group, [p for p in group["params"] if p.grad is None])
            group["taken"] += 1
        self.steps += 1
        if self.after_step is not None:
            self.after_step()
        return loss

    def _prepare(
        self, group: dict[str, Any]
    ) -> tuple[dict[str, Any], dict[str, Any], Hyperparameters]:
        """Return a group with its settings and hyperparameters; raise if it cannot step."""
        settings = plain_settings(group)
        hp = self.hyperparameters(settings)
        if settings != group["last"]:  # a scheduler may have raised lr
            warn_if_not_accelerated(self, settings)
        last = self.versions.get
        for p in group["params"]:
            if (g := p.grad) is not None and g.layout != torch.strided:
                raise InputError(
                    "sparse gradients are not supported; use sparse=False in the embedding"
                )
            if last(p) != version(p):
                self._batches.forget()  # it may have another type now
                self._require_unchanged(group, p)
        return group, settings, hp

    def _move(self, params: list[Tensor], form: Linear, last: dict[str, Any]) -> None:
        """Take a step with some parameters of one type; `last` are the settings of the last one."""
        w_md, g = params, cast(list[Tensor], [p.grad for p in params])
        sequences = self._lists_of_sequences(params)
        if half := is_half(params[0]):
            # The parameters hold w_md rounded, so compute it again from the sequences.
            w_md, g = self._query(last, sequences), [gradient.float() for gradient in g]
        take_step(form, sequences, w_md, g)
        if half:
            torch._foreach_copy_(params, w_md)
        self.versions.update(zip(params, map(version, params), strict=True))

    def _lists_of_sequences(self, params: list[Tensor]) -> list[list[Tensor]]:
        """Return one list of tensors per sequence, for parameters of one type."""
        if self.is_own_sequence(params[0]):
            if not self.takes_mean:
                for p in params:
                    self._started(p)
            return [params]
        states = list(map(self._started, params))
        return [[state[name] for state in states] for name in self.algorithm.local_sequences]

    def eval(self) -> None:
        """Put the algorithm's output into the parameters, to evaluate or save them.

        It does not communicate. Right after a round the output is the same in all processes. Later
        it is what this process would have if the round ended now with it alone.
        ``averages.synchronize()`` in all processes ends the round early; with overlap it is always
        needed.
        """
        self._switch(training=False)

    def train(self) -> None:
        """Put w_md back into the parameters, to continue training."""
        self._switch(training=True)

    def lower_lr(self, r: int) -> None:
        """Apply every `Decay` of lr for round r = 0, 1, ...; call `refresh` afterwards."""
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
        if training:
            for group in groups:
                self._place(group, group["params"])
        else:
            self._place_output([p for group in groups for p in group["params"]])

    def _place(self, group: dict[str, Any], params: Sequence[Tensor]) -> None:
        """Put w_md into parameters of a group in training mode, else the output."""
        # Parameters without a state have not moved, or are their own sequence.
        params = [p for p in params if self.state.get(p)]
        name = self.algorithm.local_sequences[0]
        own = [p for p in params if self.is_own_sequence(p)]
        if group["training"]:
            for p in own:
                if name in self.state[p]:  # set aside in eval mode
                    p.copy_(self.state[p].pop(name))
            others = [p for p in params if not self.is_own_sequence(p)]
            query = linear_form(self.algorithm, self.hyperparameters(group["last"])).query
            for batch in self._batches.split(others):
                sequences = self._lists_of_sequences(batch)
                if is_half(batch[0]):
                    torch._foreach_copy_(batch, self._query(group["last"], sequences))
                else:
                    combine(batch, zip(query, sequences, strict=True))
            self.versions.update(zip(params, map(version, params), strict=True))
        else:
            self._place_output(params)

    def _place_output(self, params: Sequence[Tensor]) -> None:
        """Put the output into parameters, all at once: it may depend on the whole model."""
        params = [p for p in params if self.state.get(p)]
        name = self.algorithm.local_sequences[0]
        for p in filter(self.is_own_sequence, params):
            if name not in self.state[p]:  # the output is about to overwrite the sequence
                with torch.inference_mode(False):
                    self.state[p][name] = p.detach().clone()
        for p, output in zip(params, self._outputs(params), strict=True):
            p.copy_(output)
        self.versions.update(zip(params, map(version, params), strict=True))

    def _query(self, settings: dict[str, Any], sequences: list[list[Tensor]]) -> list[Tensor]:
        """Return w_md of some parameters, given one list of tensors per sequence."""
        query = linear_form(self.algorithm, self.hyperparameters(settings)).query
        w_md = [torch.empty_like(tensor) for tensor in sequences[0]]
        combine(w_md, zip(query, sequences, strict=True))
        return w_md

    @torch.no_grad()
    def full_gradients(self) -> dict[Tensor, Tensor]:
        """Return the gradients of all rows of this worker where the round began."""
        if self.full_gradient is None:
            raise InputError(
                "a copy of an optimizer lacks full_gradient, which may belong to another model; "
                "set optimizer.full_gradient"
            )
        before = [(p, p.detach().clone(), p.grad, version(p)) for p in self.trained_parameters()]
        found = {}
        try:
            for p, *_ in before:
                p.copy_(self.kept(p, "sent")[0])
                p.grad = None
            with torch.enable_grad():
                self.full_gradient()
            if all(p.grad is None for p, *_ in before):
                raise InputError("full_gradient has left no gradients; it must call backward()")
            for p, *_ in before:
                g = torch.zeros_like(p) if p.grad is None else p.grad
                found[p] = g.to(sequence_dtype(p))
        finally:
            for p, value, grad, last in before:
                p.copy_(value)
                p.grad = grad
                if self.versions.get(p) == last:
                    self.versions[p] = version(p)
        return found

    def squared_moves(self, params: Iterable[Tensor], values: Iterable[Tensor]) -> Tensor:
        """Return the squared length of the moves of all parameters, given what is sent of them."""
        given, squares = iter(values), []
        for p in params:
            message = tuple(next(given).reshape(-1) for _ in self.algorithm.sent)
            began = tuple(t.reshape(-1) for t in self.kept(p, "sent"))
            squares.append(squared_moves(self.algorithm, message, began))
        return torch.stack([square.to(squares[0]) for square in squares]).sum()

    @torch.no_grad()
    def _outputs(self, params: Sequence[Tensor]) -> Iterator[Tensor]:
        """Return outputs of parameters, as if this worker ended the round now and alone."""
        algorithm, asks = self.algorithm, self.algorithm.asks
        in_round = any(group["taken"] for group in self.param_groups)
        gradients = self.full_gradients() if "gradient" in asks and in_round else {}

        def leave_alone(p: Tensor) -> State:
            group, sent = self.group_of(p), self.kept(p, "sent")
            if not group["taken"]:
                return algorithm.bases(sent)
            local, memory = tuple(self.sequences(p)), self.kept(p, "memory")
            hp = self.hyperparameters(group["last"])
            done = ClientWork(steps=group["taken"], gradient=gradients.get(p))
            return leave(algorithm, local, sent, memory, hp, done)[0]

        this = RoundInfo(number=self.rounds)
        if "moves" in asks and in_round:
            moved = [p for p in self.parameters() if self.state.get(p)]
            square = float(self.squared_moves(moved, (x for p in moved for x in leave_alone(p))))
            this = replace(this, spread=square, moved=square)
        for p in params:
            group = self.group_of(p)
            hp = self.hyperparameters(group["last"])
            if self.takes_mean:
                state: State = tuple(self.sequences(p))
            else:
                sent, server = self.kept(p, "sent"), self.kept(p, "server")
                if group["taken"]:
                    now = replace(this, steps=group["taken"])
                    sent, server = serve(algorithm, leave_alone(p), sent, server, hp, now)
                state = (*sent, *server)
            yield algorithm.output(state, hp, self.steps)

    def _require_unchanged(self, group: dict[str, Any], p: Tensor) -> None:
        """Reject a parameter that something else has changed: its sequences would not match."""
        if not self.state.get(p) or self.versions.get(p) == version(p):
            return
        kinds = {(tensor.dtype, tensor.device) for tensor in self.state[p].values()}
        same = kinds == {(sequence_dtype(p), p.device)}
        if same and group["training"]:
            (point,) = self._query(group["last"], [[s] for s in self.sequences(p)])
            same = _is_equal_but_for_rounding(p, point)
        elif same:
            (output,) = self._outputs([p])
            same = _is_equal_but_for_rounding(p, output)
        if not same:
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
        options: dict[str, Any] = {"weight_decay": weight_decay, "foreach": foreach}
        super().__init__(params, "fedac-i", lr=lr, mu=mu, local_steps=local_steps, **options)


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
        options: dict[str, Any] = {"weight_decay": weight_decay, "foreach": foreach}
        super().__init__(params, "fedavg", lr=lr, local_steps=local_steps, **options)


def _require_full_gradient(algorithm: Algorithm, full_gradient: object) -> None:
    asks = "gradient" in algorithm.asks
    if asks and not callable(full_gradient):
        raise InputError(
            f"'{algorithm.name}' needs the gradient of all rows of a worker: pass full_gradient=, "
            "a function that calls backward() on their mean loss"
        )
    if full_gradient is not None and not asks:
        raise InputError(f"'{algorithm.name}' needs no full_gradient; leave it out")


def _is_equal_but_for_rounding(p: Tensor, point: Tensor) -> bool:
    """Compare in the parameter's own type; another device may round the last digit differently."""
    eps = torch.finfo(p.dtype).eps
    size = point.nan_to_num(0.0, 0.0, 0.0).abs().max().item() if p.numel() else 0.0
    rounded = point.to(p.dtype)
    return torch.allclose(p, rounded, rtol=8 * eps, atol=8 * eps * size, equal_nan=True)
