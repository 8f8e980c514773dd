"""What an optimizer keeps by parameter and by group, and how it is saved and loaded."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

from fedac.algorithms import Algorithm
from fedac.algorithms.contract import check_decay
from fedac.algorithms.couplings import Hyperparameters
from fedac.checkpoints import describe_rule, require_same_rule
from fedac.decay import Decay
from fedac.errors import InputError
from fedac.require import require_count, require_positive

# Schedulers end near 0, not at 0: LinearLR at -5e-19, say.
ROUNDING = 1e-12
# What groups of other optimizers may hold; ours would silently ignore it.
UNSUPPORTED = ("weight_decay", "momentum", "dampening", "nesterov", "betas", "maximize", "foreach")


class SequenceOptimizer(torch.optim.Optimizer):
    """Keeps the sequences of an algorithm for every parameter; `LocalOptimizer` moves them.

    `state[p]` holds one tensor per sequence from the first step on. An algorithm whose only
    sequence is the parameter itself, such as FedAvg, keeps nothing (`in_place`).
    """

    algorithm: Algorithm
    in_place: bool
    foreach: bool
    steps: int
    # By group, how lr falls, if it does.
    decays: list[Decay | None]
    # By parameter, what `version` returned when the optimizer last wrote to it.
    versions: dict[Tensor, tuple[int, int]]
    # Called at the end of every step: `synchronize` sets it. Copies of the optimizer have none.
    after_step: Callable[[], object] | None = None

    def parameters(self) -> list[Tensor]:
        """Return the parameters of all groups."""
        return [p for group in self.param_groups for p in group["params"]]

    def trained_parameters(self) -> list[Tensor]:
        """Return the parameters that are trained, or have been since the start."""
        started = {*self.state, *self.versions}
        return [p for p in self.parameters() if p.requires_grad or p in started]

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

    def hyperparameters(self, group: dict[str, Any]) -> Hyperparameters:
        """Return the algorithm's hyperparameters for a group, or say which setting is wrong."""
        settings = plain_settings(group)
        return self.algorithm.couple(
            eta=require_positive("lr", settings["lr"]),
            mu=require_positive("mu", settings["mu"]),
            K=require_count("local_steps", settings["local_steps"]),
        )

    def add_param_group(self, param_group: dict[str, Any]) -> None:
        """Add parameters; their settings are checked like those of the first group."""
        for name in UNSUPPORTED:
            if param_group.get(name):
                advice = "; add an l2 term to the loss instead" if name == "weight_decay" else ""
                raise InputError(f"a parameter group can set lr and mu, not {name}{advice}")
        given = self.defaults | param_group
        settings = plain_settings(given)
        self.hyperparameters(settings)  # refuse what is impossible
        decay = given["lr"] if isinstance(given["lr"], Decay) else None
        if decay is not None:
            mu, K = settings["mu"], settings["local_steps"]
            check_decay(self.algorithm, eta=decay.start, mu=mu, K=K)
        super().add_param_group(param_group | settings | {"last": settings})
        self.decays.append(decay)

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
        if not {"state", "param_groups", "steps"} < set(state_dict):
            raise InputError("this is not the state of an optimizer of fedac.torch")
        saved = upgrade(state_dict, "param_groups")
        try:
            self.require_same_rules(saved["rules"])
        except InputError as error:
            raise InputError(f"cannot load this state: {error}") from None
        indices = [index for group in saved["param_groups"] for index in group["params"]]
        states = [saved["state"].get(index) or {} for index in indices]
        names = set(self.algorithm.sequences)
        for p, state in zip(self.parameters(), states, strict=False):
            if state and (set(state) != names or any(v.shape != p.shape for v in state.values())):
                raise InputError("cannot load this state: it belongs to another model")
        # The base class would round the sequences to the parameter's type.
        super().load_state_dict({"state": {}, "param_groups": saved["param_groups"]})
        self.steps = int(saved["steps"])
        for p, state in zip(self.parameters(), states, strict=True):
            for name, value in state.items():
                if not self.in_place or is_half(p):
                    self.state[p][name] = value.detach().to(p.device, sequence_dtype(p), copy=True)

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
        own = ("algorithm", "in_place", "foreach", "steps", "decays")
        return super().__getstate__() | {name: getattr(self, name) for name in own}

    def __setstate__(self, state: dict[str, Any]) -> None:
        super().__setstate__(state)
        self.versions = {}  # the parameters are copies now: compare them by value once

    def _start(self, p: Tensor) -> tuple[Tensor, ...]:
        return self.algorithm.start(p.detach().to(sequence_dtype(p)))


def upgrade(saved: dict[str, Any], groups: str) -> dict[str, Any]:
    """Return a saved state as it is now; `groups` is the name of its groups.

    Before version 3, "last" was "shown", None at first, and a paused group had no rule.
    """
    saved = saved | {groups: [dict(group) for group in saved[groups]]}
    for group in saved[groups]:
        if "shown" in group:
            group["last"] = group.pop("shown") or plain_settings(group)
    if "rules" not in saved:
        rule = {"algorithm": saved["algorithm"]}
        saved["rules"] = [
            rule | {"hyperparameters": hp, "settings": plain_settings(group)}
            for hp, group in zip(saved["coupling"], saved[groups], strict=True)
            if hp is not None
        ]
    return saved


def plain_settings(group: dict[str, Any]) -> dict[str, Any]:
    """Return the settings of a group as Python's numbers: NumPy's and tensors cannot be saved.

    An lr that falls is that of the first round.
    """
    settings = {name: group[name] for name in ("lr", "mu", "local_steps")}
    if isinstance(settings["lr"], Decay):
        settings["lr"] = settings["lr"].start
    return {n: v.item() if hasattr(v, "item") else v for n, v in settings.items()}


def is_paused(group: dict[str, Any]) -> bool:
    """Check whether lr is 0, up to a scheduler's rounding."""
    return bool(abs(group["lr"]) <= ROUNDING * group.get("initial_lr", 0.0))


def is_half(p: Tensor) -> bool:
    """Check whether a parameter has too few digits for its sequences."""
    return p.dtype in (torch.bfloat16, torch.float16)


def sequence_dtype(p: Tensor) -> torch.dtype:
    """Return the type of a parameter's sequences."""
    return torch.float32 if is_half(p) else p.dtype


def version(p: Tensor) -> tuple[int, int]:
    """Return what changes when a parameter is written to, or its memory replaced."""
    return p._version, p.data_ptr()
