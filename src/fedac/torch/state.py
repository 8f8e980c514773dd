"""What an optimizer keeps for every parameter, and how it is saved and loaded."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from fedac.algorithms import Algorithm
from fedac.algorithms.couplings import Hyperparameters
from fedac.checkpoints import describe_rule, require_same_rule
from fedac.errors import InputError
from fedac.torch.settings import ParamGroup, check_settings, plain_settings, require_supported


class SequenceOptimizer(torch.optim.Optimizer):
    """Keeps the sequences of an algorithm for every parameter; `LocalOptimizer` moves them.

    `state[p]` holds one tensor per sequence from the first step on. An algorithm whose only
    sequence is the parameter itself, such as FedAvg, keeps nothing (`in_place`).
    """

    algorithm: Algorithm
    in_place: bool
    foreach: bool
    steps: int
    # By parameter, what `version` returned when the optimizer last wrote to it.
    versions: dict[Tensor, tuple[int, int]]

    def parameters(self) -> list[Tensor]:
        """Return the parameters of all groups."""
        return [p for group in self.param_groups for p in group["params"]]

    def is_trained(self, p: Tensor) -> bool:
        """Check whether a parameter is trained, or has been since the start."""
        return p.requires_grad or bool(self.state.get(p)) or p in self.versions

    def sequences(self, p: Tensor) -> list[Tensor]:
        """Return the sequences of one parameter, in the algorithm's order."""
        if self.in_place and not is_half(p):
            return [p]
        state, names = self.state[p], self.algorithm.sequences
        if not state:
            for name, value in zip(names, self._start(p), strict=True):
                state[name] = value.clone(memory_format=torch.preserve_format)
            self.versions[p] = version(p)
        return [state[name] for name in names]

    def snapshot(self, p: Tensor) -> list[Tensor]:
        """Return the sequences, to be read only: a parameter that never moved gets no copies."""
        return self.sequences(p) if self.state.get(p) else list(self._start(p))

    @torch.no_grad()
    def set_sequences(self, p: Tensor, values: Sequence[Tensor]) -> None:
        """Replace the sequences of one parameter; call `refresh` when all are set."""
        frozen = not p.requires_grad and not self.state.get(p)
        if frozen and all(torch.equal(values[0], value) for value in values):
            p.copy_(values[0])  # it does not move, so it needs no copies
            return
        for mine, value in zip(self.sequences(p), values, strict=True):
            mine.copy_(value)

    def hyperparameters(self, group: ParamGroup) -> Hyperparameters:
        """Return the algorithm's hyperparameters for the settings of a group."""
        settings = check_settings(group)
        return self.algorithm.couple(
            eta=settings["lr"], mu=settings["mu"], K=settings["local_steps"]
        )

    def add_param_group(self, param_group: ParamGroup) -> None:
        """Add parameters; their settings are checked like those of the first group."""
        require_supported(param_group)
        settings = check_settings(self.defaults | param_group)
        self.hyperparameters(settings)  # refuse what the coupling refuses
        super().add_param_group(param_group | settings | {"last": settings})

    def state_dict(self) -> dict[str, Any]:
        """Return all that `load_state_dict` needs, the number of steps included."""
        saved = super().state_dict()
        for group in saved["param_groups"]:
            group.update(plain_settings(group))
        return saved | {"steps": self.steps, "rules": self.rules()}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Continue from the state of another optimizer of the same algorithm.

        Load the model as well, before or after; the next step checks that they match.
        """
        saved = dict(state_dict)
        if not {"state", "param_groups", "steps"} < set(saved):
            raise InputError("this is not the state of an optimizer of fedac.torch")
        saved["param_groups"] = groups = upgrade_groups(saved["param_groups"])
        try:
            self.require_same_rules(read_rules(saved, groups))
        except InputError as error:
            raise InputError(f"cannot load this state: {error}") from None
        states = [saved["state"].get(index) or {} for g in groups for index in g["params"]]
        names = set(self.algorithm.sequences)
        for p, state in zip(self.parameters(), states, strict=False):
            if state and (set(state) != names or any(v.shape != p.shape for v in state.values())):
                raise InputError("cannot load this state: it belongs to another model")
        super().load_state_dict({key: saved[key] for key in ("state", "param_groups")})
        self.steps = int(saved["steps"])
        for p, state in zip(self.parameters(), states, strict=True):
            # The base class has rounded the sequences to the parameter's type.
            for name, value in state.items():
                self.state[p][name] = value.detach().to(p.device, sequence_dtype(p), copy=True)
            if self.in_place and not is_half(p):
                self.state.pop(p, None)

    def rules(self) -> list[dict[str, Any]]:
        """Describe the algorithm and the hyperparameters of the last step, by group."""
        return [
            describe_rule(self.algorithm, self.hyperparameters(group["last"]))
            | {"settings": group["last"]}
            for group in self.param_groups
        ]

    def require_same_rules(self, rules: Sequence[dict[str, Any]]) -> None:
        """Refuse the rules of another algorithm."""
        for rule in rules:
            require_same_rule(rule, self.algorithm, self.hyperparameters(rule["settings"]))

    def __getstate__(self) -> dict[str, Any]:
        own = ("algorithm", "in_place", "foreach", "steps")
        return super().__getstate__() | {name: getattr(self, name) for name in own}

    def __setstate__(self, state: dict[str, Any]) -> None:
        super().__setstate__(state)
        self.versions = {}  # the parameters are copies now: compare them by value once

    def _start(self, p: Tensor) -> tuple[Tensor, ...]:
        return self.algorithm.start(p.detach().to(sequence_dtype(p)))


def read_rules(saved: dict[str, Any], groups: Sequence[ParamGroup]) -> list[dict[str, Any]]:
    """Return the rules of a saved state; before version 3 there was none for a paused group."""
    if "rules" in saved:
        rules: list[dict[str, Any]] = saved["rules"]
        return rules
    return [
        {"algorithm": saved["algorithm"], "hyperparameters": hp, "settings": plain_settings(group)}
        for hp, group in zip(saved["coupling"], groups, strict=True)
        if hp is not None
    ]


def upgrade_groups(groups: Sequence[ParamGroup]) -> list[ParamGroup]:
    """Return saved groups as they are now: before version 3, "last" was "shown", None at first."""
    upgraded = [dict(group) for group in groups]
    for group in upgraded:
        if "shown" in group:
            group["last"] = group.pop("shown") or plain_settings(group)
    return upgraded


def is_half(p: Tensor) -> bool:
    """Check whether a parameter has too few digits for its sequences."""
    return p.dtype in (torch.bfloat16, torch.float16)


def sequence_dtype(p: Tensor) -> torch.dtype:
    """Return the type of a parameter's sequences."""
    return torch.float32 if is_half(p) else p.dtype


def version(p: Tensor) -> tuple[int, int]:
    """Return what changes when a parameter is written to, or its memory replaced."""
    return p._version, p.data_ptr()
