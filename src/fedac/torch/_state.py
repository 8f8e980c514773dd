"""What is kept of one parameter: names, types and first values."""

from __future__ import annotations

import copy
import warnings
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import asdict
from functools import cached_property
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from fedac.algorithms import Algorithm
from fedac.algorithms.acceleration import not_accelerated
from fedac.algorithms.algorithm import serve_mean
from fedac.algorithms.checks import check_decay, fingerprint
from fedac.algorithms.hyperparameters import Hyperparameters
from fedac.errors import InputError, NotAcceleratedWarning, unknown_name
from fedac.federation.checkpoint import require_same_rule
from fedac.federation.schedule import Decay
from fedac.torch._communication import (
    plain_settings,
    require_supported,
    require_weight_decay,
    upgrade,
)
from fedac.torch._fused_step import Batches
from fedac.validate import require_count, require_positive

# What is kept from round to round, and the field of the record with its names.
PARTS = {"sent": "sequences", "memory": "memory", "server": "server"}


def ends_with_mean(algorithm: Algorithm) -> bool:
    """Check whether the mean of what workers work on is all that ends a round.

    >>> from fedac.algorithms import get
    >>> [ends_with_mean(get(name)) for name in ("fedac-i", "fedprox(0.1)", "scaffold", "diloco")]
    [True, False, False, False]
    """
    keeps = algorithm.memory or algorithm.server
    return algorithm.is_plain and algorithm.serve is serve_mean and not keeps


@torch.no_grad()
def write(tensors: Sequence[Tensor], values: Sequence[Tensor]) -> None:
    """Copy values into tensors; some values may be tensors that are written to.

    >>> x, y = torch.tensor([1.0]), torch.tensor([2.0])
    >>> write([x, y], [y, x])
    >>> x, y
    (tensor([2.]), tensor([1.]))
    """
    copies = values if len(values) == 1 else [value.clone() for value in values]
    for tensor, value in zip(tensors, copies, strict=True):
        tensor.copy_(value)


def on_its_own(tensor: Tensor) -> Tensor:
    """Return a tensor to be saved: a copy if its memory holds more, which would be saved too.

    >>> w = torch.zeros(1000)[:2]
    >>> w.untyped_storage().nbytes(), on_its_own(w).untyped_storage().nbytes()
    (4000, 8)
    """
    return tensor if tensor.untyped_storage().nbytes() == tensor.nbytes else tensor.clone()


def is_half(p: Tensor) -> bool:
    """Check whether a parameter has too few digits for its sequences."""
    return p.dtype in (torch.bfloat16, torch.float16)


def sequence_dtype(p: Tensor) -> torch.dtype:
    """Return the type of a parameter's sequences."""
    return torch.float32 if is_half(p) else p.dtype


def version(p: Tensor) -> tuple[int, int]:
    """Return what changes when a parameter is written to, or its memory replaced."""
    return p._version, p.data_ptr()


def first_values(algorithm: Algorithm, p: Tensor, hp: Hyperparameters) -> dict[str, Tensor]:
    """Return what is kept of a parameter at first, by name."""
    sequences, server = algorithm.split(algorithm.start(p.detach().to(sequence_dtype(p))))
    memory = algorithm.begin_memory(sequences)
    return {
        **dict(zip(algorithm.local_sequences, algorithm.enter(sequences, memory, hp), strict=True)),
        **dict(zip(keys(algorithm, "sent"), sequences, strict=True)),
        **dict(zip(keys(algorithm, "memory"), memory, strict=True)),
        **dict(zip(keys(algorithm, "server"), server, strict=True)),
    }


def keys(algorithm: Algorithm, part: str) -> list[str]:
    """Return the names in `state[p]` of a part of what is kept from round to round.

    >>> from fedac.algorithms import get
    >>> keys(get("scaffold"), "sent"), keys(get("scaffold"), "memory")
    (['sent/w', 'sent/c'], ['memory/c_m'])
    """
    return [f"{part}/{name}" for name in getattr(algorithm, PARTS[part])]


def is_complete(state: dict[str, Tensor], local: set[str], others: set[str], own: bool) -> bool:
    """Check for all tensors of a parameter, and no others; its `own` sequence is in itself."""
    missing = (local | others) - set(state)
    return set(state) <= local | others and (not missing or (own and missing == local))


def all_equal(values: Sequence[Tensor], others: Sequence[Tensor]) -> bool:
    """Compare tensors pairwise."""
    return len(values) == len(others) and all(map(torch.equal, values, others))


# --- What becomes of the state of a user's own optimizer (momentum, say) when a round ends.

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


# --- What an optimizer keeps by parameter and by group, and how it is saved and loaded.


class SequenceOptimizer(torch.optim.Optimizer):
    """Keeps the sequences of an algorithm for every parameter; `LocalOptimizer` moves them.

    From the first step on, `state[p]` holds one tensor for each of what local steps work on, by its
    name. An algorithm that works on the parameter itself, such as FedAvg, keeps none (`in_place`).

    If more than the mean ends a round, `state[p]` also holds where the round began ("sent/w"), what
    this worker remembers ("memory/c_m") and what the server keeps to itself ("server/w_u"). Every
    worker plays the server, so "sent" and "server" are the same in all processes.

    A round may move tensors of `state[p]` to other memory, where they lie next to each other
    (`fedac.torch._round`).
    """

    algorithm: Algorithm
    # Whether the mean of what workers work on is all that ends a round, and all that is kept of it.
    takes_mean: bool
    in_place: bool
    foreach: bool
    steps: int
    rounds: int
    # By group, how lr falls, if it does.
    decays: list[Decay | None]
    # By parameter, what `version` returned when the optimizer last wrote to it.
    versions: dict[Tensor, tuple[int, int]]
    # By parameter, the number of its group.
    _group_of: dict[Tensor, int]
    _batches: Batches
    # Called at the end of every step: `synchronize` sets it. Copies of the optimizer have none.
    after_step: Callable[[], object] | None = None
    # The user's optimizer, if it takes the local steps.
    inside: Inside | None = None
    # Whether a later one follows the user's optimizer now.
    is_replaced = False
    # Whether it has said that FedAc does not accelerate.
    _has_warned = False

    def parameters(self) -> list[Tensor]:
        """Return the parameters of all groups."""
        return [p for group in self.param_groups for p in group["params"]]

    def group_of(self, p: Tensor) -> dict[str, Any]:
        """Return the group of a parameter."""
        return self.param_groups[self._group_of[p]]

    def trained_parameters(self) -> list[Tensor]:
        """Return the parameters that are trained, or have been since the start."""
        return [
            p for p in self.parameters() if p.requires_grad or p in self.state or p in self.versions
        ]

    def sequences(self, p: Tensor) -> list[Tensor]:
        """Return what the local steps of one parameter work on, in the algorithm's order."""
        names = self.algorithm.local_sequences
        if self.is_own_sequence(p):
            state = {} if self.takes_mean else self._started(p)
            return [state.get(names[0], p)]  # while evaluating there is a copy
        state = self._started(p)
        return [state[name] for name in names]

    def kept(self, p: Tensor, part: str) -> tuple[Tensor, ...]:
        """Return what is kept of one parameter from round to round; for `part` see `PARTS`."""
        state = self._started(p)
        return tuple(state[name] for name in keys(self.algorithm, part))

    def is_own_sequence(self, p: Tensor) -> bool:
        """Check whether local steps work on a parameter itself."""
        return self.in_place and not is_half(p)

    @torch.no_grad()
    def keep_broadcasts(self) -> None:
        """From now on keep where a round began, also if the mean is all that ends it.

        The last round ended with what local steps work on now.
        """
        if self.takes_mean:
            now = {p: self.sequences(p) for p in self.trained_parameters()}
            self.takes_mean = False
            for p, sequences in now.items():
                names = keys(self.algorithm, "sent")
                self.state[p] |= {n: s.clone() for n, s in zip(names, sequences, strict=True)}

    def snapshot(self, p: Tensor) -> list[Tensor]:
        """Return what the server holds of one parameter, as of the last round; only to be read.

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

        What the server keeps to itself may follow them. Without `memory`, it begins anew.
        """
        frozen = not p.requires_grad and not self.state.get(p)
        if frozen and all_equal(values, self.algorithm.start(values[0])):
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
        """Begin a round with what was broadcast, and what this worker remembers of a parameter."""
        hp = hp or self.hyperparameters(self.group_of(p)["last"])
        local = self.algorithm.enter(self.kept(p, "sent"), self.kept(p, "memory"), hp)
        write(self.sequences(p), local)

    def hyperparameters(self, group: dict[str, Any]) -> Hyperparameters:
        """Return the algorithm's hyperparameters for a group, or say which setting is wrong."""
        settings = plain_settings(group)
        require_weight_decay(settings)
        return self.algorithm.couple(
            eta=require_positive("lr", settings["lr"]),
            mu=require_positive("mu", settings["mu"]),
            K=require_count("local_steps", settings["local_steps"]),
        )

    def warn_if_not_accelerated(self, settings: dict[str, Any]) -> None:
        """Say once, and in one process, that a group's settings make FedAc FedAvg."""
        if self._has_warned or (dist.is_available() and dist.is_initialized() and dist.get_rank()):
            return
        text = not_accelerated(
            [(self.algorithm, settings["lr"])], mu=settings["mu"], K=settings["local_steps"],
            eta_name="lr", K_name="local_steps",
        )  # fmt: skip
        if text:
            self._has_warned = True
            warnings.warn(text, NotAcceleratedWarning, stacklevel=5)  # who made the optimizer

    def add_param_group(self, param_group: dict[str, Any]) -> None:
        """Add parameters; their settings are checked like those of the first group."""
        require_supported(param_group)
        given = self.defaults | param_group
        settings = plain_settings(given)
        self.hyperparameters(settings)  # refuse what is impossible
        self.warn_if_not_accelerated(settings)
        decay = given["lr"] if isinstance(given["lr"], Decay) else None
        if decay is not None:
            mu, K = settings["mu"], settings["local_steps"]
            check_decay(self.algorithm, eta=decay.start, mu=mu, K=K)
        super().add_param_group(param_group | settings | {"last": settings})
        self.decays.append(decay)
        self._find_groups()

    def state_dict(self) -> dict[str, Any]:
        """Return all that `load_state_dict` needs, steps and rounds included.

        What a worker remembers is its own: with memory, every process saves and loads its own.
        """
        saved = super().state_dict()
        saved["state"] = {
            index: {name: on_its_own(tensor) for name, tensor in state.items()}
            for index, state in saved["state"].items()
        }
        for group in saved["param_groups"]:
            group.update(plain_settings(group))
        return saved | {"steps": self.steps, "rounds_served": self.rounds, "rules": self.rules()}

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
        local = set(self.algorithm.local_sequences)
        began = set(keys(self.algorithm, "sent"))
        keeps_more = self.takes_mean and any(began <= set(state) for state in states)
        others = began if keeps_more else set(self._kept_names())
        if saved["steps"] and others == began and not any(began & set(s) for s in states):
            raise InputError(
                "cannot load this state: it was saved with wire='float32', which keeps less; load "
                "it before the call of synchronize"
            )
        for p, state in zip(self.parameters(), states, strict=False):
            complete = is_complete(state, local, others, self.is_own_sequence(p))
            if state and not (complete and all(v.shape == p.shape for v in state.values())):
                raise InputError("cannot load this state: it belongs to another model")
        self.takes_mean = self.takes_mean and not keeps_more
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
        """What identifies the algorithm, found once.

        It takes a while, and an exception meanwhile counts as the algorithm's own. So no process
        should look for it in the middle of a run: torchrun ends some by an exception, and a
        checkpoint that they still write would seem to be of another algorithm.
        """
        return fingerprint(self.algorithm)

    def rules(self) -> list[dict[str, Any]]:
        """Describe the algorithm and the hyperparameters of the last step, by group."""
        return [
            {
                "algorithm": self.algorithm.name,
                "hyperparameters": asdict(self.hyperparameters(group["last"])),
                "fingerprint": self.fingerprint,
                "settings": group["last"],
            }
            for group in self.param_groups
        ]

    def require_same_rules(self, rules: Sequence[dict[str, Any]]) -> None:
        """Refuse the rules of another algorithm."""
        for rule in rules:
            require_same_rule(rule, self.algorithm, self.hyperparameters(rule["settings"]))

    def __getstate__(self) -> dict[str, Any]:
        own = ("algorithm", "takes_mean", "in_place", "foreach", "steps", "rounds", "decays")
        return super().__getstate__() | {name: getattr(self, name) for name in own}

    def __setstate__(self, state: dict[str, Any]) -> None:
        super().__setstate__(state)
        self.versions = {}  # the parameters are copies now: compare them by value once
        self._batches = Batches(foreach=self.foreach)
        self._find_groups()

    def _find_groups(self) -> None:
        numbered = enumerate(self.param_groups)
        self._group_of = {p: i for i, group in numbered for p in group["params"]}

    def _started(self, p: Tensor) -> dict[str, Tensor]:
        """Return the state of a parameter, which starts when it is first asked for."""
        state: dict[str, Tensor] = self.state[p]
        if not state:
            hp = self.hyperparameters(self.group_of(p)["last"])
            first = first_values(self.algorithm, p, hp)
            names = () if self.is_own_sequence(p) else self.algorithm.local_sequences
            # What is new already is not copied: the gaps that it would leave fit nothing else, and
            # cost as much memory as the model.
            taken = {p.data_ptr()}
            for name in (*names, *self._kept_names()):
                value = first[name]
                state[name] = value.clone() if value.data_ptr() in taken else value
                taken.add(state[name].data_ptr())
            self.versions[p] = version(p)
        return state

    def _kept_names(self) -> list[str]:
        """Return the names in `state[p]` of all that is kept from round to round."""
        return [] if self.takes_mean else [n for part in PARTS for n in keys(self.algorithm, part)]
