"""Any optimizer of PyTorch as the local rule of a method: its parameters are averaged and served.

The user's optimizer takes the local steps. Hooks of it count them here, and begin the state of a
parameter before it first moves. The rest is a method whose local rule is SGD, and whose sequence is
the parameter itself, so rounds, faults, checkpoints and the wire are those of every method.
"""

from __future__ import annotations

import gc
import sys
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from fedac.algorithms import Algorithm, compose, get
from fedac.algorithms.catalog import MEMORIES, SERVER_RULES, WELL_KNOWN
from fedac.algorithms.server import ServerRule
from fedac.errors import InputError, unknown_name
from fedac.torch._optimizer import LocalOptimizer, uncompiled
from fedac.torch._state import Inside, is_half, version
from fedac.validate import parse_piece

# The attribute of a user's optimizer that has ours.
OURS = "_synchronized_by_fedac"
# An attribute of all that `torch.optim.Optimizer.__init__` has made.
HOOKS = "_optimizer_step_pre_hooks"


class ForeignOptimizer(LocalOptimizer):
    """What synchronization needs to know of a user's optimizer; `synchronize` makes it.

    Parameters
    ----------
    optimizer : torch.optim.Optimizer
        The user's.
    local_steps : int
        Steps between two synchronizations, K.
    server : str or ServerRule, optional
        What is done with the average, "nesterov(0.7,0.9)" say.
    state : "local" or "average" or "reset"
        What becomes of the optimizer's own state when a round ends.

    Examples
    --------
    >>> w = torch.nn.Parameter(torch.ones(2))
    >>> adamw = torch.optim.AdamW([w])
    >>> ForeignOptimizer(adamw, local_steps=8, server="nesterov(0.7, 0.9)").algorithm
    <Algorithm fedavg+nesterov(0.7,0.9)>
    """

    inside: Inside

    def __init__(
        self,
        optimizer: torch.optim.Optimizer,
        *,
        local_steps: int,
        server: str | ServerRule | None = None,
        state: str = "local",
    ) -> None:
        algorithm = _method(server)
        self.inside = Inside(optimizer, state)
        groups = [{"params": group["params"]} for group in optimizer.param_groups]
        # The step size is the user's optimizer's. For server rules that count in units of it, a
        # unit is 1.
        super().__init__(groups, algorithm, lr=1.0, local_steps=local_steps)
        self._hooks: list[torch.utils.hooks.RemovableHandle] = []
        if (previous := vars(optimizer).get(OURS)) is not None:
            self._continue(previous)

    def attach(self) -> None:
        """Follow the steps of the user's optimizer from now on, in place of an earlier one."""
        optimizer = self.inside.optimizer
        if (previous := vars(optimizer).get(OURS)) is not None:
            for hook in previous._hooks:
                hook.remove()
            previous.is_replaced = previous is not self
        self._hooks = [
            optimizer.register_step_pre_hook(self._before_step),
            optimizer.register_step_post_hook(self._count_step),
        ]
        setattr(optimizer, OURS, self)

    def step(self, closure: Callable[[], Any] | None = None) -> Any:
        """Refuse: the user's optimizer takes the steps."""
        raise InputError(f"call step of the {type(self.inside.optimizer).__name__} instead")

    def _switch(self, *, training: bool) -> None:
        raise InputError("the parameters are always the local ones: there is nothing to switch")

    @uncompiled
    def _before_step(self, *_: Any) -> None:
        if len(self.inside.optimizer.param_groups) != len(self.param_groups):
            raise InputError("parameters were added; call synchronize again in all processes")
        for p in self.parameters():
            if p.requires_grad:
                self.sequences(p)  # they begin here, if there are any besides the parameter
                self.versions[p] = version(p)  # it is trained, also if it is frozen later

    @uncompiled
    @torch.no_grad()
    def _count_step(self, optimizer: torch.optim.Optimizer, *_: Any) -> None:
        # A fused optimizer is called by a GradScaler also if gradients are infinite, and stays
        # where it is.
        found_inf = getattr(optimizer, "found_inf", None)
        if found_inf is not None and found_inf.item():
            return
        for p in filter(is_half, self.versions):
            _follow(p, *self.sequences(p))
        for group in self.param_groups:
            group["taken"] += 1
        self.steps += 1
        if self.after_step is not None:
            self.after_step()

    def _continue(self, previous: ForeignOptimizer) -> None:
        """Go on where an earlier call of `synchronize` is; another server rule begins anew."""
        self.steps, self.inside.first = previous.steps, previous.inside.first
        self.versions |= previous.versions
        if previous.algorithm.name != self.algorithm.name:
            return
        self.rounds, self.takes_mean = previous.rounds, previous.takes_mean
        for p in set(self.parameters()) & set(previous.state):
            self.state[p] = dict(previous.state[p])
        for mine, theirs in zip(self.param_groups, previous.param_groups, strict=False):
            mine["taken"] = theirs["taken"]


def _method(server: str | ServerRule | None) -> Algorithm:
    """Return plain averages that pass through a server rule, if one is given."""
    if server is None:
        return get("fedavg")
    if not isinstance(server, ServerRule):
        _require_server_rule(server)
    return compose("fedavg", server)


def _require_server_rule(text: str) -> None:
    """Refuse the name of anything else, with what would be right."""
    name = parse_piece(text).name
    if name in SERVER_RULES:
        return
    if name in MEMORIES:
        raise InputError(f"'{text}' is a memory, not a server rule such as nesterov(0.7,0.9)")
    last = WELL_KNOWN[name].pieces[-1] if name in WELL_KNOWN else ""
    if last in SERVER_RULES:
        rule = last + text.strip()[len(name) :]
        raise InputError(f"'{text}' is a whole method; its server rule alone is '{rule}'")
    raise unknown_name("server rule", name, SERVER_RULES)


def _follow(p: Tensor, sequence: Tensor) -> None:
    """Put a step of a half-precision parameter into its sequence.

    Numbers that have not moved keep the digits that the parameter has not.
    """
    sequence.copy_(torch.where(p == sequence.to(p.dtype), sequence, p.to(sequence.dtype)))


def _is_zero(optimizer: object) -> bool:
    """Check for a ZeroRedundancyOptimizer, and for the optimizer that one keeps inside."""
    module = sys.modules.get("torch.distributed.optim.zero_redundancy_optimizer")
    if module is None:  # the import takes seconds, so only if the user has made it
        return False
    kind = module.ZeroRedundancyOptimizer
    found = (thing for thing in gc.get_objects() if issubclass(type(thing), kind))
    return any(optimizer in (zero, zero.optim) for zero in found)


def as_local(optimizer: object, **options: Any) -> LocalOptimizer:
    """Return an optimizer of ours as it is, and any other with what synchronization needs.

    Examples
    --------
    >>> w = torch.nn.Parameter(torch.ones(2))
    >>> as_local(torch.optim.SGD([w]), local_steps=None)
    Traceback (most recent call last):
    fedac.errors.InputError: say how often to synchronize SGD: local_steps=64, for example
    """
    given = {name: value for name, value in options.items() if value is not None}
    kind = type(optimizer).__name__
    wraps = isinstance(optimizer, torch.optim.Optimizer) and HOOKS not in vars(optimizer)
    if wraps:  # hooks of it would never be called, and what it wraps may not be all that it does
        raise InputError(f"{kind} wraps an optimizer; give that one, optimizer.optimizer mostly")
    if _is_zero(optimizer):
        raise InputError(
            "ZeroRedundancyOptimizer lets every process train only some of the parameters, which "
            "cannot be averaged; give an optimizer of all parameters"
        )
    if isinstance(optimizer, ForeignOptimizer):
        raise InputError("give your own optimizer, not the one of its synchronizer")
    if isinstance(optimizer, LocalOptimizer):
        if given:
            raise InputError(
                f"{', '.join(given)}: only for optimizers of PyTorch; a {kind} has its own "
                "local_steps, and its method its server rule"
            )
        return optimizer
    if not isinstance(optimizer, torch.optim.Optimizer):
        raise InputError(f"an optimizer is needed, got {kind}")
    if "local_steps" not in given:
        raise InputError(f"say how often to synchronize {kind}: local_steps=64, for example")
    return ForeignOptimizer(optimizer, **given)
