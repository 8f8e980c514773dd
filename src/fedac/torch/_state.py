# SPDX-License-Identifier: Apache-2.0
"""Optimizer state: an algorithm's sequences for every parameter, saved and loaded."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Sequence
from dataclasses import asdict
from functools import cached_property, lru_cache
from typing import TYPE_CHECKING, Any

import torch
import torch.distributed as dist
from torch import Tensor

from fedac.algorithms import Algorithm
from fedac.algorithms.algorithm import serve_mean
from fedac.algorithms.checks import check_decay, fingerprint, not_accelerated
from fedac.algorithms.hyperparameters import Hyperparameters
from fedac.errors import InputError, NotAcceleratedWarning
from fedac.federation.checkpoint import require_same_rule
from fedac.federation.schedule import Decay
from fedac.torch._local_step import Batches
from fedac.validate import require_count, require_nonnegative, require_positive

if TYPE_CHECKING:
    from fedac.torch._any_optimizer import InnerOptimizer

# Parts of the state kept from round to round, and the field of the algorithm that names them.
PARTS = {"sent": "sequences", "memory": "memory", "server": "server"}
SETTINGS = ("lr", "mu", "local_steps", "weight_decay")
# Schedulers end near 0, not at 0: LinearLR at -5e-19, for example.
ROUNDING = 1e-12
# Options of other optimizers that ours would silently ignore.
UNSUPPORTED = ("momentum", "dampening", "nesterov", "betas", "maximize", "foreach")


def plain_settings(group: dict[str, Any]) -> dict[str, Any]:
    """Return lr, mu, local_steps and weight_decay of a group as Python numbers.

    NumPy's numbers and tensors cannot be saved. For a `Decay`, take the lr of the first round.
    """
    settings = {name: group[name] for name in SETTINGS}
    if isinstance(settings["lr"], Decay):
        settings["lr"] = settings["lr"].start
    return {n: v.item() if hasattr(v, "item") else v for n, v in settings.items()}


@lru_cache(maxsize=256, typed=True)
def couple(
    algorithm: Algorithm, lr: float, mu: float, local_steps: int, weight_decay: float
) -> Hyperparameters:
    """Return the hyperparameters of an algorithm; cached, so settings are checked once."""
    require_positive("lr", lr)
    if lr * require_nonnegative("weight_decay", weight_decay) >= 1:
        raise InputError(
            f"lr * weight_decay must be below 1, got {lr} * {weight_decay}: a step would flip the "
            "signs of the parameters"
        )
    return algorithm.couple(
        eta=lr, mu=require_positive("mu", mu), K=require_count("local_steps", local_steps)
    )


def is_paused(group: dict[str, Any]) -> bool:
    """Check whether lr is 0, up to a scheduler's rounding."""
    return bool(abs(group["lr"]) <= ROUNDING * group.get("initial_lr", 0.0))


def ends_with_mean(algorithm: Algorithm) -> bool:
    """Check whether a round ends with the mean of the local sequences, as in FedAvg and FedAc."""
    keeps = algorithm.memory or algorithm.server
    return algorithm.is_plain and algorithm.serve is serve_mean and not keeps


@torch.no_grad()
def write(tensors: Sequence[Tensor], values: Sequence[Tensor]) -> None:
    """Copy values into tensors; a value may be one of the tensors."""
    copies = values if len(values) == 1 else [value.clone() for value in values]
    for tensor, value in zip(tensors, copies, strict=True):
        tensor.copy_(value)


def without_storage_of_others(tensor: Tensor) -> Tensor:
    """Return a tensor to save: a copy if its storage holds more, which would be saved too."""
    return tensor if tensor.untyped_storage().nbytes() == tensor.nbytes else tensor.clone()


def is_half(p: Tensor) -> bool:
    """Check whether a parameter has too few digits for its sequences."""
    return p.dtype in (torch.bfloat16, torch.float16)


def sequence_dtype(p: Tensor) -> torch.dtype:
    """Return the type of a parameter's sequences."""
    return torch.float32 if is_half(p) else p.dtype


def version(p: Tensor) -> tuple[int, int]:
    """Return a value that changes when a parameter is written to or its memory replaced."""
    return p._version, p.data_ptr()


def keys(algorithm: Algorithm, part: str) -> list[str]:
    """Return the keys in `state[p]` of one part: ["sent/w", "sent/c"] of SCAFFOLD, for example."""
    return [f"{part}/{name}" for name in getattr(algorithm, PARTS[part])]


def all_keys(algorithm: Algorithm) -> list[str]:
    return [key for part in PARTS for key in keys(algorithm, part)]


class SequenceOptimizer(torch.optim.Optimizer):
    """Keeps the sequences of an algorithm for every parameter; `LocalOptimizer` moves them.

    From the first step on, `state[p]` holds one tensor for each local sequence, by its name. An
    algorithm that works on the parameter itself, such as FedAvg, needs none (`in_place`).

    If a round ends with more than the mean, `state[p]` also holds where the round began ("sent/w"),
    this worker's memory ("memory/c_m") and the server's state ("server/w_u"). Every worker plays
    the server, so "sent" and "server" are the same in all processes.

    A round may move tensors of `state[p]` to other memory, where they lie next to each other
    (`fedac.torch._averaging.move_state`).
    """

    algorithm: Algorithm
    takes_mean: bool  # a round ends with the mean of the local sequences; nothing else is kept
    in_place: bool
    foreach: bool
    steps: int
    rounds: int
    decays: list[Decay | None]  # by group, how lr falls, if it does
    versions: dict[Tensor, tuple[int, int]]  # `version` after the optimizer's last write
    _group_of: dict[Tensor, int]  # the number of a parameter's group
    _batches: Batches
    after_step: Callable[[], object] | None = None  # set by `synchronize`; copies have none
    full_gradient: Callable[[], object] | None = None  # of the user; copies have none
    inner: InnerOptimizer | None = None  # the user's optimizer, if it takes the local steps
    is_replaced = False  # a later call of `synchronize` follows the user's optimizer now
    _has_warned = False  # that FedAc does not accelerate

    def parameters(self) -> list[Tensor]:
        """Return the parameters of all groups."""
        return [p for group in self.param_groups for p in group["params"]]

    def group_of(self, p: Tensor) -> dict[str, Any]:
        return self.param_groups[self._group_of[p]]

    def trained_parameters(self) -> list[Tensor]:
        """Return the parameters that are trained, or have been since the start."""
        return [
            p for p in self.parameters() if p.requires_grad or p in self.state or p in self.versions
        ]

    def is_own_sequence(self, p: Tensor) -> bool:
        """Check whether local steps work on a parameter itself."""
        return self.in_place and not is_half(p)

    def sequences(self, p: Tensor) -> list[Tensor]:
        """Return the local sequences of one parameter, in the algorithm's order."""
        names = self.algorithm.local_sequences
        if self.is_own_sequence(p):
            state = {} if self.takes_mean else self._started(p)
            return [state.get(names[0], p)]  # in eval mode there is a copy
        state = self._started(p)
        return [state[name] for name in names]

    def kept(self, p: Tensor, part: str) -> tuple[Tensor, ...]:
        """Return one part of a parameter's state: "sent", "memory" or "server"."""
        state = self._started(p)
        return tuple(state[key] for key in keys(self.algorithm, part))

    def restart(self) -> None:
        """Start all sequences at the current parameters."""
        self.state.clear()
        self.versions.clear()
        self.rounds = 0
        for group in self.param_groups:
            group.update(training=True, taken=0)

    @torch.no_grad()
    def keep_broadcasts(self) -> None:
        """From now on, store each round's starting point even if the round ends with the mean."""
        if self.takes_mean:  # the last round ended with the current local sequences
            now = {p: self.sequences(p) for p in self.trained_parameters()}
            self.takes_mean = False
            for p, sequences in now.items():
                names = keys(self.algorithm, "sent")
                self.state[p] |= {n: s.clone() for n, s in zip(names, sequences, strict=True)}

    def snapshot(self, p: Tensor) -> list[Tensor]:
        """Return the server's view of one parameter as of the last round, not to be changed.

        A parameter that never moved gets no copies.
        """
        if not self.state.get(p):
            return list(self.algorithm.start(p.detach().to(sequence_dtype(p))))
        if self.takes_mean:
            return self.sequences(p)
        return [*self.kept(p, "sent"), *self.kept(p, "server")]

    @torch.no_grad()
    def set_sequences(
        self, p: Tensor, values: Sequence[Tensor], memory: Sequence[Tensor] = ()
    ) -> None:
        """Replace the sequences of one parameter; call `refresh` when all are set.

        `values` are like the result of `snapshot`; the server's state may be missing. If omitted,
        `memory` is reset.
        """
        frozen = not p.requires_grad and not self.state.get(p)
        first = self.algorithm.start(values[0]) if frozen else ()
        if len(first) == len(values) and all(map(torch.equal, values, first)):
            p.copy_(values[0])  # it does not move, so it needs no copies
            return
        if self.takes_mean:
            write(self.sequences(p), values)
            return
        sent, server = self.algorithm.split(tuple(values))
        write(self.kept(p, "sent"), sent)
        if server:
            write(self.kept(p, "server"), server)
        began = self.kept(p, "sent")
        write(self.kept(p, "memory"), memory or self.algorithm.begin_memory(began))
        self.enter(p)

    @torch.no_grad()
    def enter(self, p: Tensor, hp: Hyperparameters | None = None) -> None:
        """Begin a round with one parameter: `Algorithm.enter`."""
        hp = hp or self.hyperparameters(self.group_of(p)["last"])
        local = self.algorithm.enter(self.kept(p, "sent"), self.kept(p, "memory"), hp)
        write(self.sequences(p), local)

    def hyperparameters(self, settings: dict[str, Any]) -> Hyperparameters:
        return couple(self.algorithm, *(settings[name] for name in SETTINGS))

    def add_param_group(self, param_group: dict[str, Any]) -> None:
        """Add parameters, after checking their settings."""
        for name in UNSUPPORTED:
            if param_group.get(name):
                raise InputError(f"a parameter group can set lr, mu and weight_decay, not {name}")
        given = self.defaults | param_group
        settings = plain_settings(given)
        self.hyperparameters(settings)  # raises if a setting is invalid
        warn_if_not_accelerated(self, settings)
        decay = given["lr"] if isinstance(given["lr"], Decay) else None
        if decay is not None:
            mu, K = settings["mu"], settings["local_steps"]
            check_decay(self.algorithm, eta=decay.start, mu=mu, K=K)
        super().add_param_group(param_group | settings | {"last": settings})
        self.decays.append(decay)
        number = len(self.param_groups) - 1
        self._group_of |= dict.fromkeys(self.param_groups[number]["params"], number)

    def state_dict(self) -> dict[str, Any]:
        """Return the state for `load_state_dict`, steps and rounds included.

        Memory differs between workers, so with memory every process saves and loads its own.
        """
        saved = super().state_dict()
        saved["state"] = {
            index: {name: without_storage_of_others(tensor) for name, tensor in state.items()}
            for index, state in saved["state"].items()
        }
        for group in saved["param_groups"]:
            group.update(plain_settings(group))
        return saved | {"steps": self.steps, "rounds_served": self.rounds, "rules": rules_of(self)}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Continue from the state of another optimizer of the same algorithm.

        Load the model as well, before or after; the next step checks that they match.
        """
        saved = state_dict
        if not {"state", "param_groups", "steps", "rounds_served", "rules"} <= set(saved):
            raise InputError("this is not the state of an optimizer of fedac.torch")
        try:
            require_same_rules(self, saved["rules"])
        except InputError as error:
            raise InputError(f"cannot load this state: {error}") from None
        indices = [index for group in saved["param_groups"] for index in group["params"]]
        states = [saved["state"].get(index) or {} for index in indices]
        local, kept = set(self.algorithm.local_sequences), set(all_keys(self.algorithm))
        keeps_more = any(kept & set(state) for state in states)
        if (
            saved["steps"]
            and ends_with_mean(self.algorithm)
            and not (self.takes_mean or keeps_more)
        ):
            raise InputError(
                "cannot load this state: it was saved with wire='float32', which keeps less; load "
                "it before the call of synchronize"
            )
        takes_mean = self.takes_mean and not keeps_more
        expected = local if takes_mean else local | kept
        for p, state in zip(self.parameters(), states, strict=False):
            missing = expected - set(state)
            in_parameter = self.is_own_sequence(p) and missing == local
            complete = set(state) <= expected and (not missing or in_parameter)
            if state and not (complete and all(v.shape == p.shape for v in state.values())):
                raise InputError("cannot load this state: it belongs to another model")
        self.takes_mean = takes_mean
        # The base class would round the sequences to the parameter's type.
        super().load_state_dict({"state": {}, "param_groups": saved["param_groups"]})
        self.steps, self.rounds = int(saved["steps"]), int(saved["rounds_served"])
        for p, state in zip(self.parameters(), states, strict=True):
            training = self.takes_mean or self.group_of(p)["training"]
            for name, value in state.items():
                if not (name in local and self.is_own_sequence(p) and training):
                    self.state[p][name] = value.detach().to(p.device, sequence_dtype(p), copy=True)

    @cached_property
    def fingerprint(self) -> str:
        """A fingerprint of the algorithm's functions, computed once, at the start.

        An exception raised while it is computed becomes part of it. torchrun stops processes with
        an exception, so a fingerprint computed while a checkpoint is written could be wrong.
        """
        return fingerprint(self.algorithm)

    def __getstate__(self) -> dict[str, Any]:
        own = ("algorithm", "takes_mean", "in_place", "foreach", "steps", "rounds", "decays")
        return super().__getstate__() | {name: getattr(self, name) for name in own}

    def __setstate__(self, state: dict[str, Any]) -> None:
        super().__setstate__(state)
        self.versions = {}  # the parameters are copies now: compare them by value once
        self._batches = Batches(foreach=self.foreach)
        self._group_of = {p: i for i, g in enumerate(self.param_groups) for p in g["params"]}

    def _started(self, p: Tensor) -> dict[str, Tensor]:
        """Return the state of a parameter, created when it is first asked for."""
        state: dict[str, Tensor] = self.state[p]
        if not state:
            algorithm, hp = self.algorithm, self.hyperparameters(self.group_of(p)["last"])
            sent, server = algorithm.split(algorithm.start(p.detach().to(sequence_dtype(p))))
            memory = algorithm.begin_memory(sent)
            local = algorithm.enter(sent, memory, hp)
            first = (
                []
                if self.is_own_sequence(p)
                else list(zip(algorithm.local_sequences, local, strict=True))
            )
            if not self.takes_mean:
                first += zip(all_keys(algorithm), (*sent, *memory, *server), strict=True)
            # New tensors are not copied: the gaps left behind fit nothing else, and cost as much
            # memory as the model.
            taken = {p.data_ptr()}
            for name, value in first:
                state[name] = value.clone() if value.data_ptr() in taken else value
                taken.add(state[name].data_ptr())
            self.versions[p] = version(p)
        return state


def warn_if_not_accelerated(optimizer: SequenceOptimizer, settings: dict[str, Any]) -> None:
    """Warn once, in one process, if a group's settings reduce FedAc to FedAvg."""
    in_group = dist.is_available() and dist.is_initialized()
    if optimizer._has_warned or (in_group and dist.get_rank()):
        return
    text = not_accelerated(
        [(optimizer.algorithm, settings["lr"])], mu=settings["mu"], K=settings["local_steps"],
        eta_name="lr", K_name="local_steps",
    )  # fmt: skip
    if text:
        optimizer._has_warned = True
        warnings.warn(text, NotAcceleratedWarning, stacklevel=5)  # where the optimizer was made


def rules_of(optimizer: SequenceOptimizer) -> list[dict[str, Any]]:
    """Describe the algorithm and the hyperparameters of the last step, by group."""
    return [
        {
            "algorithm": optimizer.algorithm.name,
            "hyperparameters": asdict(optimizer.hyperparameters(group["last"])),
            "fingerprint": optimizer.fingerprint,
            "settings": group["last"],
        }
        for group in optimizer.param_groups
    ]


def require_same_rules(optimizer: SequenceOptimizer, rules: Sequence[dict[str, Any]]) -> None:
    for rule in rules:
        require_same_rule(rule, optimizer.algorithm, optimizer.hyperparameters(rule["settings"]))
