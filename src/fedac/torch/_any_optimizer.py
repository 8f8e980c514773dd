# SPDX-License-Identifier: Apache-2.0
"""Any PyTorch optimizer as the local rule of a method: its parameters are averaged and served.

The user's optimizer takes the local steps. Hooks count them here and create the state of a
parameter before it first moves. The rest is a method whose local rule is SGD and whose sequence is
the parameter itself, so rounds, faults, checkpoints and compression work as for every method.
"""

from __future__ import annotations

import copy
import gc
import sys
from collections.abc import Callable, Collection, Mapping
from typing import Any

import torch
from torch import Tensor

from fedac.algorithms import compose, get
from fedac.algorithms.catalog import MEMORIES, SERVER_RULES, WELL_KNOWN
from fedac.algorithms.server import ServerRule
from fedac.errors import InputError
from fedac.torch._optimizer import LocalOptimizer, uncompiled
from fedac.torch._state import is_half, version
from fedac.validate import parse_piece, unknown_name

STATES = ("local", "average", "reset")
OURS = "_synchronized_by_fedac"  # attribute of a user's optimizer, its `WrappedOptimizer`
HOOKS = "_optimizer_step_pre_hooks"  # attribute that `torch.optim.Optimizer.__init__` creates


class InnerOptimizer:
    """A user's optimizer, which takes the local steps, and what happens to its state.

    When a round ends, the state (momentum, for example) stays local, is averaged too, or is reset
    to its initial value: empty, for most optimizers that have taken no step.
    """

    # By parameter group, the entries of the state to average, once all ranks have agreed on them.
    names: list[list[str]] | None = None

    def __init__(self, optimizer: torch.optim.Optimizer, state: str) -> None:
        if state not in STATES:
            raise unknown_name("state", str(state), STATES)
        self.optimizer, self.state = optimizer, state
        # Some optimizers, Adagrad for one, create their state at the start and only there.
        self.first = _copy(optimizer.state)

    @property
    def title(self) -> str:
        """A description that must match between processes, and in checkpoints."""
        return f"{type(self.optimizer).__name__} with state='{self.state}'"

    def find_names(self) -> list[list[str]]:
        """Return by parameter group the names of tensors with the shapes of their parameters."""
        state = self.optimizer.state
        return [
            sorted({n for p in g["params"] for n in state.get(p, {}) if self._is_like(p, n)})
            for g in self.optimizer.param_groups
        ]

    def averaged(self, trained: Collection[Tensor]) -> list[Tensor]:
        """Return the tensors to average; zeros where this rank has no state (yet)."""
        return [
            self.optimizer.state[p][n] if self._is_like(p, n) else torch.zeros_like(p)
            for group, names in zip(self.optimizer.param_groups, self.names or (), strict=False)
            for p in group["params"]
            if p in trained
            for n in names
        ]

    def end_round(self, *, used: bool) -> None:
        """Reset the state if asked to, or if it is why this worker was left out of the mean."""
        if self.state == "reset" or not (used or _is_finite(self.optimizer.state)):
            self.reset()

    def reset(self) -> None:
        self.optimizer.state.clear()
        self.optimizer.state.update(_copy(self.first))

    def require_fit(self, saved: dict[str, Any]) -> None:
        """Reject a state dict that could not be loaded, before any process begins to load."""
        try:
            indices = [index for group in saved["param_groups"] for index in group["params"]]
            states = [saved["state"].get(index, {}) for index in indices]
            damaged = not all(isinstance(state, dict) for state in states)
            theirs = [len(group["params"]) for group in saved["param_groups"]]
        except (AttributeError, KeyError, TypeError):
            damaged = True
        if damaged:
            raise InputError("the state of its optimizer is damaged")
        mine = [len(group["params"]) for group in self.optimizer.param_groups]
        if theirs != mine:
            raise InputError(f"its groups have {theirs} parameters, not {mine}")

    def load(self, saved: dict[str, Any]) -> None:
        """Continue from a state dict, bit for bit."""
        self.optimizer.load_state_dict(saved)
        self.names = None
        params = [p for group in self.optimizer.param_groups for p in group["params"]]
        indices = [index for group in saved["param_groups"] for index in group["params"]]
        for p, index in zip(params, indices, strict=True):
            mine = self.optimizer.state.get(p, {})
            for name, value in saved["state"].get(index, {}).items():
                # PyTorch has converted it to the type of the parameter.
                if isinstance(value, Tensor) and mine[name].dtype != value.dtype:
                    mine[name] = value.to(mine[name].device, copy=True)
        if self.state == "reset":  # a checkpoint is written when a round has just reset it
            self.first = _copy(self.optimizer.state)

    def _is_like(self, p: Tensor, name: str) -> bool:
        """Check for a tensor like its parameter; a scalar parameter's step count is not one."""
        value = self.optimizer.state.get(p, {}).get(name)
        floating = isinstance(value, Tensor) and value.is_floating_point()
        return floating and value.shape == p.shape and name != "step"


def _copy(state: Any) -> dict[Tensor, Any]:
    return {p: copy.deepcopy(mine) for p, mine in state.items()}


def _is_finite(value: Any) -> bool:
    """Check all tensors of a state, which may be nested."""
    if isinstance(value, Mapping):
        return all(map(_is_finite, value.values()))
    if isinstance(value, list | tuple):
        return all(map(_is_finite, value))
    return not isinstance(value, Tensor) or bool(torch.isfinite(value).all())


class WrappedOptimizer(LocalOptimizer):
    """A user's optimizer as a `LocalOptimizer`; `synchronize` creates it."""

    inner: InnerOptimizer

    def __init__(
        self,
        optimizer: torch.optim.Optimizer,
        *,
        local_steps: int,
        server: str | ServerRule | None = None,
        state: str = "local",
    ) -> None:
        if not (server is None or isinstance(server, ServerRule)):
            _require_server_rule(server)
        algorithm = get("fedavg") if server is None else compose("fedavg", server)
        self.inner = InnerOptimizer(optimizer, state)
        groups = [{"params": group["params"]} for group in optimizer.param_groups]
        # The user's optimizer has the step size. Server rules that count in units of it get 1.
        super().__init__(groups, algorithm, lr=1.0, local_steps=local_steps)
        self._hooks: list[torch.utils.hooks.RemovableHandle] = []
        if (previous := vars(optimizer).get(OURS)) is None:
            return
        # Continue from the earlier call of `synchronize`; another server rule starts afresh.
        self.steps, self.inner.first = previous.steps, previous.inner.first
        self.versions |= previous.versions
        if previous.algorithm.name == algorithm.name:
            self.rounds, self.takes_mean = previous.rounds, previous.takes_mean
            for p in set(self.parameters()) & set(previous.state):
                self.state[p] = dict(previous.state[p])
            for mine, theirs in zip(self.param_groups, previous.param_groups, strict=False):
                mine["taken"] = theirs["taken"]

    def attach(self) -> None:
        """Follow the steps of the user's optimizer from now on, and detach an earlier wrapper."""
        optimizer = self.inner.optimizer
        if (previous := vars(optimizer).get(OURS)) is not None:
            for hook in previous._hooks:
                hook.remove()
            previous.is_replaced = previous is not self
        self._hooks = [
            optimizer.register_step_pre_hook(self._before_step),
            optimizer.register_step_post_hook(self._after_step),
        ]
        setattr(optimizer, OURS, self)

    def step(self, closure: Callable[[], Any] | None = None) -> Any:
        """Refuse: the user's optimizer takes the steps."""
        raise InputError(f"call step of the {type(self.inner.optimizer).__name__} instead")

    def _switch(self, *, training: bool) -> None:
        raise InputError("the parameters are always the local ones: there is nothing to switch")

    @uncompiled
    def _before_step(self, *_: Any) -> None:
        if len(self.inner.optimizer.param_groups) != len(self.param_groups):
            raise InputError("parameters were added; call synchronize again in all processes")
        for p in self.parameters():
            if p.requires_grad:
                self.sequences(p)  # creates its state, if it needs any
                self.versions[p] = version(p)  # it is trained, even if it is frozen later

    @uncompiled
    @torch.no_grad()
    def _after_step(self, optimizer: torch.optim.Optimizer, *_: Any) -> None:
        # A GradScaler calls a fused optimizer even if gradients are infinite; it does not move.
        found_inf = getattr(optimizer, "found_inf", None)
        if found_inf is not None and found_inf.item():
            return
        for p in filter(is_half, self.versions):
            # Numbers that have not moved keep the digits that a half-precision parameter lacks.
            (sequence,) = self.sequences(p)
            moved = p != sequence.to(p.dtype)
            sequence.copy_(torch.where(moved, p.to(sequence.dtype), sequence))
        for group in self.param_groups:
            group["taken"] += 1
        self.steps += 1
        if self.after_step is not None:
            self.after_step()


def _require_server_rule(text: str) -> None:
    """Reject the name of anything but a server rule, and suggest the right one."""
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


def _is_zero(optimizer: object) -> bool:
    """Check for a ZeroRedundancyOptimizer, or for the optimizer inside one."""
    module = sys.modules.get("torch.distributed.optim.zero_redundancy_optimizer")
    if module is None:  # the import takes seconds, so only if the user has imported it
        return False
    kind = module.ZeroRedundancyOptimizer
    found = (thing for thing in gc.get_objects() if issubclass(type(thing), kind))
    return any(optimizer in (zero, zero.optim) for zero in found)


def as_local(optimizer: object, **options: Any) -> LocalOptimizer:
    """Return an optimizer of ours as it is, and wrap any other; options may be None."""
    given = {name: value for name, value in options.items() if value is not None}
    kind = type(optimizer).__name__
    if not isinstance(optimizer, torch.optim.Optimizer):
        raise InputError(f"an optimizer is needed, got {kind}")
    if HOOKS not in vars(optimizer):  # hooks would never run, and it may do more than it wraps
        raise InputError(f"{kind} wraps an optimizer; pass that one, usually optimizer.optimizer")
    if isinstance(optimizer, WrappedOptimizer):
        raise InputError("pass your own optimizer, not the one of its synchronizer")
    if isinstance(optimizer, LocalOptimizer):
        if given:
            raise InputError(
                f"{', '.join(given)}: only for optimizers of PyTorch; a {kind} has its own "
                "local_steps, and its method its server rule"
            )
        return optimizer
    if _is_zero(optimizer):
        raise InputError(
            "with ZeroRedundancyOptimizer every process trains only some of the parameters, which "
            "cannot be averaged; pass an optimizer of all parameters"
        )
    if "local_steps" not in given:
        raise InputError(f"say how often to synchronize {kind}: local_steps=64, for example")
    return WrappedOptimizer(optimizer, **given)
