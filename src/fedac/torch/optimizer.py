"""The local steps of an algorithm as a PyTorch optimizer.

While training, the parameters hold w_md, where the next gradient is taken. `eval` replaces it by
the output (w_ag of FedAc), and `train` puts w_md back.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import torch
from torch import Tensor

from fedac.algorithms import Algorithm, get
from fedac.algorithms.linear import Linear, linear_form
from fedac.decay import Decay
from fedac.errors import InputError
from fedac.torch.combine import query_program, run, split_into_batches, step_program
from fedac.torch.state import (
    SequenceOptimizer,
    is_half,
    is_paused,
    plain_settings,
    sequence_dtype,
    version,
)


class LocalOptimizer(SequenceOptimizer):
    """The local steps of an algorithm; `FedAc` and `LocalSGD` are short names for the usual ones.

    Parameters
    ----------
    params : iterable
        Parameters or groups of them, as for every optimizer.
    algorithm : str or Algorithm
        A name, such as "fedac-ii", or a record of your own.
    lr : float or Decay
        The step size eta. A `Decay` lets it fall with every synchronization. A scheduler may change
        it at any time: the next step couples anew, and a group whose lr is 0 stands still.
    mu : float
        Strong-convexity estimate for the coupling.
    local_steps : int
        Steps between two synchronizations, K.
    foreach : bool
        Whether to work on many tensors at once: all of them on a GPU, as many as fit into the
        cache on a CPU.

    Attributes
    ----------
    steps : int
        Steps taken so far.

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
        mu: float,
        local_steps: int,
        foreach: bool = True,
    ) -> None:
        self.algorithm = get(algorithm)
        if self.algorithm.minibatch:
            raise InputError(f"'{self.algorithm.name}' takes no local steps; use torch.optim.SGD")
        settings = {"lr": lr, "mu": mu, "local_steps": local_steps}
        hp = self.hyperparameters(settings)
        linear_form(self.algorithm, hp)  # refuse an algorithm that is not linear
        start = self.algorithm.start(1.0)
        if abs(self.algorithm.query(start, hp) - 1) > 1e-12:
            raise InputError(f"'{self.algorithm.name}' does not take its first gradient at w_0")
        # Whether the only sequence is start, query point and output at once.
        points = (self.algorithm.query(start, hp), self.algorithm.output(start, hp, 1))
        self.in_place = start == (1.0,) and points == (1.0, 1.0)
        self.foreach = foreach
        self.steps = 0
        self.decays, self.versions = [], {}
        # Groups also have "last", the settings that their parameters were last set with.
        super().__init__(params, {**settings, "training": True})

    @torch.no_grad()
    def step(self, closure: Callable[[], Any] | None = None) -> Any:
        """Take one local step with the gradients at the parameters."""
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
        coefficients = [linear_form(self.algorithm, self.hyperparameters(g)) for g in groups]
        for group in groups:
            for p in group["params"]:
                if p.grad is not None and p.grad.layout != torch.strided:
                    raise InputError(
                        "sparse gradients are not supported; use sparse=False in the embedding"
                    )
                self._require_unchanged(group, p)
        for group, now in zip(groups, coefficients, strict=True):
            before = linear_form(self.algorithm, self.hyperparameters(group["last"]))
            moving = [p for p in group["params"] if p.grad is not None]
            for batch in split_into_batches(moving, foreach=self.foreach):
                self._move(batch, now, before)
            if group["last"] != (settings := plain_settings(group)):
                group["last"] = settings
                for p in group["params"]:
                    if p.grad is None:  # its w_md follows a new lr too
                        self._place(group, p)
        self.steps += 1
        if self.after_step is not None:
            self.after_step()
        return loss

    def _move(self, params: list[Tensor], now: Linear, before: Linear) -> None:
        """Update the sequences of some parameters, then put their next w_md into them.

        sequences <- update(sequences, w_md, g), p <- query(sequences), as in the algorithm.
        """
        sequences = [list(s) for s in zip(*map(self.sequences, params), strict=True)]
        w_md, g = params, [p.grad for p in params if p.grad is not None]
        half = is_half(params[0])
        program = step_program(now, in_place=self.in_place and not half)
        if half:  # the parameters hold w_md rounded, so recompute it from the sequences
            program = (*query_program(before.query), *program)
            w_md = [torch.empty_like(sequence) for sequence in sequences[0]]
            g = [gradient.float() for gradient in g]
        slots = [*sequences, w_md, g]
        while len(slots) <= max((operation.out for operation in program), default=0):
            slots.append([torch.empty_like(sequence) for sequence in sequences[0]])
        run(program, slots)
        for p, value in zip(params, w_md, strict=True):
            if half:
                p.copy_(value)
            self.versions[p] = version(p)

    def eval(self) -> None:
        """Put the algorithm's output into the parameters, to evaluate or save them."""
        self._switch(training=False)

    def train(self) -> None:
        """Put w_md back into the parameters, to continue training."""
        self._switch(training=True)

    def restart(self) -> None:
        """Start all sequences at the parameters as they are now."""
        self.state.clear()
        self.versions.clear()
        for group in self.param_groups:
            group["training"] = True

    def begin_round(self, r: int) -> None:
        """Set every lr that falls to that of round r, counted from 0, and update the parameters."""
        for group, decay in zip(self.param_groups, self.decays, strict=True):
            if decay is not None:
                group["lr"] = decay.at(r)
                group["last"] = plain_settings(group)
        self.refresh()

    @torch.no_grad()
    def refresh(self) -> None:
        """Update the parameters after their sequences were set."""
        for group in self.param_groups:
            for p in group["params"]:
                self._place(group, p)

    @torch.no_grad()
    def _switch(self, *, training: bool) -> None:
        groups = [group for group in self.param_groups if group["training"] != training]
        for group in groups:
            for p in group["params"]:
                self._require_unchanged(group, p)
        for group in groups:
            group["training"] = training
            for p in group["params"]:
                self._place(group, p)

    def _place(self, group: dict[str, Any], p: Tensor) -> None:
        """Put w_md into a parameter while training, else the output."""
        if self.state.get(p):  # else it has not moved, or is its own sequence
            p.copy_(self._point(group, p))
            self.versions[p] = version(p)

    def _point(self, group: dict[str, Any], p: Tensor) -> Tensor:
        """Return what a parameter should hold."""
        sequences, hp = self.sequences(p), self.hyperparameters(group["last"])
        if not group["training"]:
            output: Tensor = self.algorithm.output(tuple(sequences), hp, self.steps)
            return output
        w_md = torch.empty_like(sequences[0])
        query = linear_form(self.algorithm, hp).query
        run(query_program(query), [[tensor] for tensor in (*sequences, w_md)])
        return w_md

    def _require_unchanged(self, group: dict[str, Any], p: Tensor) -> None:
        """Refuse a parameter that something else has changed: its sequences would not match."""
        if not self.state.get(p) or self.versions.get(p) == version(p):
            return
        sequence = self.sequences(p)[0]
        same_kind = (sequence.dtype, sequence.device) == (sequence_dtype(p), p.device)
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
    >>> optimizer = FedAc([w], lr=0.5, mu=0.5, local_steps=4)
    >>> for _ in range(60):
    ...     optimizer.zero_grad()
    ...     (w**2 / 2).sum().backward()
    ...     optimizer.step()
    >>> optimizer.eval()
    >>> round(w.item(), 3)
    0.0
    """

    def __init__(
        self,
        params: Iterable[Any],
        lr: float | Decay,
        mu: float,
        local_steps: int,
        *,
        foreach: bool = True,
    ) -> None:
        super().__init__(params, "fedac-i", lr=lr, mu=mu, local_steps=local_steps, foreach=foreach)


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
        self, params: Iterable[Any], lr: float | Decay, local_steps: int, *, foreach: bool = True
    ) -> None:
        # FedAvg has no use for mu.
        super().__init__(params, "fedavg", lr=lr, mu=1.0, local_steps=local_steps, foreach=foreach)


def _is_equal_but_for_rounding(p: Tensor, point: Tensor) -> bool:
    """Compare in the parameter's own type; another device may round the last digit differently."""
    eps = torch.finfo(p.dtype).eps
    size = point.nan_to_num(0.0, 0.0, 0.0).abs().max().item() if p.numel() else 0.0
    rounded = point.to(p.dtype)
    return torch.allclose(p, rounded, rtol=8 * eps, atol=8 * eps * size, equal_nan=True)
