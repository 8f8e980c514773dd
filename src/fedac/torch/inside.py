"""What becomes of the state of a user's own optimizer (momentum, say) when a round ends."""

from __future__ import annotations

import copy
from collections.abc import Collection, Mapping
from typing import Any

import torch
from torch import Tensor

from fedac.errors import InputError, unknown_name

STATES = ("local", "average", "reset")


class Inside:
    """An optimizer of the user's, which takes the local steps, and the state that it keeps.

    Parameters
    ----------
    optimizer : torch.optim.Optimizer
        The user's.
    state : "local" or "average" or "reset"
        Whether its state stays as it is when a round ends, is averaged too, or becomes what it is
        now: empty, for most optimizers that have taken no step.

    Attributes
    ----------
    names : list of list of str, optional
        By parameter group, what of the state is averaged, once all ranks have agreed on it.

    Examples
    --------
    >>> w = torch.nn.Parameter(torch.ones(2))
    >>> inside = Inside(torch.optim.SGD([w], lr=0.5, momentum=0.9), "average")
    >>> w.grad = torch.ones(2)
    >>> inside.optimizer.step()
    >>> inside.find_names()
    [['momentum_buffer']]
    """

    names: list[list[str]] | None = None

    def __init__(self, optimizer: torch.optim.Optimizer, state: str) -> None:
        if state not in STATES:
            raise unknown_name("state", str(state), STATES)
        self.optimizer, self.state = optimizer, state
        # Some optimizers, Adagrad for one, make their state at the start and only there.
        self.first = _copy(optimizer.state)

    @property
    def title(self) -> str:
        """What processes and checkpoints must have in common."""
        return f"{type(self.optimizer).__name__} with state='{self.state}'"

    def find_names(self) -> list[list[str]]:
        """Return by parameter group the names of tensors with the shapes of their parameters."""
        state = self.optimizer.state
        return [
            sorted({n for p in g["params"] for n in state.get(p, {}) if self._is_like(p, n)})
            for g in self.optimizer.param_groups
        ]

    def averaged(self, trained: Collection[Tensor]) -> list[Tensor]:
        """Return what travels with a message; zeros where this rank has no state (yet)."""
        return [
            self.optimizer.state[p][n] if self._is_like(p, n) else torch.zeros_like(p)
            for group, names in zip(self.optimizer.param_groups, self.names or (), strict=False)
            for p in group["params"]
            if p in trained
            for n in names
        ]

    def end_round(self, *, used: bool) -> None:
        """Reset the state if it is to be, or if it is the reason why this worker was left out."""
        if self.state == "reset" or not (used or _is_finite(self.optimizer.state)):
            self.reset()

    def reset(self) -> None:
        """Return to the first state."""
        self.optimizer.state.clear()
        self.optimizer.state.update(_copy(self.first))

    def require_fit(self, saved: dict[str, Any]) -> None:
        """Refuse a state dict that is damaged, or has other parameter groups.

        A process that fails otherwise would leave the others waiting, and be half changed.
        """
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
        """Check for a tensor like its parameter; a scalar's count of steps is not one."""
        value = self.optimizer.state.get(p, {}).get(name)
        floating = isinstance(value, Tensor) and value.is_floating_point()
        return floating and value.shape == p.shape and name != "step"


def _copy(state: Any) -> dict[Tensor, Any]:
    return {p: copy.deepcopy(mine) for p, mine in state.items()}


def _is_finite(value: Any) -> bool:
    """Check all tensors in a state; an optimizer may keep lists, or numbers beside parameters."""
    if isinstance(value, Mapping):
        return all(map(_is_finite, value.values()))
    if isinstance(value, list | tuple):
        return all(map(_is_finite, value))
    return not isinstance(value, Tensor) or bool(torch.isfinite(value).all())
