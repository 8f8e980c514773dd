"""The paper's algorithms as PyTorch optimizers.

While training, parameters hold w_md, where the gradient is to be taken; `eval` puts the output
(w_ag of FedAc) in its place and `train` puts w_md back.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import asdict
from typing import Any

import torch
from torch import Tensor

from fedac.algorithms import Algorithm
from fedac.algorithms.couplings import Hyperparameters
from fedac.algorithms.linear import Linear, linear_form
from fedac.errors import InputError
from fedac.require import require_count, require_positive
from fedac.torch.combine import carry_out, carry_out_together, kept, query_plan, step_plan
from fedac.torch.precision import gradient, is_rounded, is_short, state_dtype, version

# A lr this small beside the usual one is a scheduler's 0: LinearLR ends at -5e-19, say.
ROUNDING = 1e-12
# What groups of other optimizers may hold, and what is for all groups of ours together.
FOREIGN = ("weight_decay", "momentum", "dampening", "nesterov", "betas", "maximize")
COMMON = ("variant", "gamma", "alpha", "beta", "foreach")
# Numbers that a CPU works on at once: four of each are a megabyte in float32.
BATCH = 2**16


class LocalOptimizer(torch.optim.Optimizer):
    """The local steps of an algorithm; `FedAc` and `LocalSGD` are what users want.

    Parameters
    ----------
    params : iterable
        Parameters or groups of them, as for every optimizer.
    algorithm : Algorithm
        Whose `query` and `update` are followed.
    lr : float
        The step size eta. A scheduler may change it: the coupling follows at the next step, w_md
        from then on, and a group whose lr is 0 rests.
    mu : float
        Strong-convexity estimate for the coupling.
    local_steps : int
        Steps between two synchronizations, K.
    foreach : bool
        Whether to work on many tensors at once (all on a GPU, as many as fit into the cache on a
        CPU), or tensor by tensor.

    Attributes
    ----------
    steps : int
        Steps taken so far.
    """

    def __init__(
        self,
        params: Iterable[Any],
        algorithm: Algorithm,
        *,
        lr: float,
        mu: float,
        local_steps: int,
        foreach: bool = True,
    ) -> None:
        if algorithm.minibatch:
            raise InputError(f"'{algorithm.name}' takes no local steps; use torch.optim.SGD")
        self.algorithm = algorithm
        self.foreach = foreach
        self.steps = 0
        self._versions: dict[Tensor, tuple[int, int]] = {}
        numbers = _numbers({"lr": lr, "mu": mu, "local_steps": local_steps})
        hp = self.hyperparameters(numbers)
        linear_form(algorithm, hp)
        if abs(algorithm.query(algorithm.start(1.0), hp) - 1) > 1e-12:
            raise InputError(f"'{algorithm.name}' takes its first gradient elsewhere than at w_0")
        self._in_place = _is_its_own_state(algorithm, hp)
        # `shown` are the numbers by which the parameters were last set.
        super().__init__(params, {**numbers, "training": True, "shown": None})

    @torch.no_grad()
    def step(self, closure: Callable[[], Any] | None = None) -> Any:
        """Take one local step with the gradients at the parameters."""
        if not all(group["training"] for group in self.param_groups):
            raise InputError(
                "the parameters hold the output, not the point for the next gradient: call "
                "optimizer.train() after optimizer.eval() and before the forward pass"
            )
        loss = None
        if closure is not None:
            with torch.enable_grad():
                loss = closure()
        # All is checked before anything moves: a step that is refused changes nothing.
        moves = []
        for group in self.param_groups:
            if not self.rests(group):
                for p in group["params"]:
                    _require_dense(p)
                    self._require_untouched(group, p)
                moved = [p for p in group["params"] if p.grad is not None]
                moves.append(
                    (group, moved, linear_form(self.algorithm, self.hyperparameters(group)))
                )
        for group, moved, coefficients in moves:
            shown = self._shown(group).query
            for some in self._batches(moved):
                self._advance(some, coefficients, shown)
            self._set_shown(group)
        self.steps += 1
        return loss

    def eval(self) -> None:
        """Put the algorithm's output into the parameters, to be evaluated or saved."""
        self._switch(training=False)

    def train(self) -> None:
        """Put w_md back into the parameters, to go on training."""
        self._switch(training=True)

    def restart(self) -> None:
        """Start all sequences at the parameters as they are now."""
        self.state.clear()
        self._versions.clear()
        for group in self.param_groups:
            group.update(training=True, shown=None)

    def hyperparameters(self, group: dict[str, Any]) -> Hyperparameters:
        """Return the hyperparameters of a group at its present learning rate."""
        numbers = _numbers(group)
        K = numbers["local_steps"]
        return self.algorithm.couple(eta=numbers["lr"], mu=numbers["mu"], K=K)

    def rests(self, group: dict[str, Any]) -> bool:
        """Say whether a group's lr is 0, or what a scheduler's rounding has made of it."""
        return bool(abs(group["lr"]) <= ROUNDING * self._usual_lr(group))

    def sequences(self, p: Tensor) -> list[Tensor]:
        """Return the sequences of one parameter, in the algorithm's order."""
        if self._in_place and not is_short(p):
            return [p]  # a single sequence is the parameter itself: no copy is needed
        names = self.algorithm.sequences
        state = self.state[p]
        if not state:
            # What is made in inference mode could not be changed outside of it.
            with torch.inference_mode(False), torch.no_grad():
                for name, value in zip(names, self._start(p), strict=True):
                    state[name] = value.clone(memory_format=torch.preserve_format)
            self._versions[p] = version(p)
        return [state[name] for name in names]

    def moves(self, p: Tensor) -> bool:
        """Say whether a parameter is trained, or was since the start."""
        return p.requires_grad or bool(self.state.get(p)) or p in self._versions

    def snapshot(self, p: Tensor) -> list[Tensor]:
        """Return the sequences to be read only: one that has not moved yet needs no copies."""
        return self.sequences(p) if self.state.get(p) else list(self._start(p))

    @torch.no_grad()
    def set_sequences(self, p: Tensor, values: Sequence[Tensor]) -> None:
        """Replace the sequences of one parameter; then call `refresh`."""
        frozen = not p.requires_grad and not self.state.get(p)
        if frozen and all(torch.equal(values[0], value) for value in values):
            p.copy_(values[0])  # it will not move: it needs no copies
            return
        for mine, value in zip(self.sequences(p), values, strict=True):
            mine.copy_(value)

    @torch.no_grad()
    def refresh(self) -> None:
        """Let the parameters follow sequences that were changed."""
        for group in self.param_groups:
            group["shown"] = self._shown_numbers(group)
            for p in group["params"]:
                self._show(group, p)

    def add_param_group(self, param_group: dict[str, Any]) -> None:
        """Add parameters; their numbers are checked like those of the first ones."""
        if isinstance(param_group, dict):  # else the base class complains
            _require_ours(param_group)
            numbers = _numbers(self.defaults | param_group)
            self.hyperparameters(numbers)
            param_group = param_group | numbers
        super().add_param_group(param_group)
        if any(p.is_complex() for p in self.param_groups[-1]["params"]):
            del self.param_groups[-1]
            raise InputError("complex parameters are not supported; train real and imaginary parts")

    def state_dict(self) -> dict[str, Any]:
        """Return all that `load_state_dict` needs, the number of steps included."""
        packed = super().state_dict()
        for group in packed["param_groups"]:
            group.update(_plain(group))  # schedulers may make NumPy's numbers of them
        return packed | {
            "algorithm": self.algorithm.name,
            "steps": self.steps,
            "coupling": self.coupling(),
        }

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Take over the state of another optimizer of the same algorithm.

        Restore the model too, before or after: its parameters hold what they held when it was
        saved, and the next step makes sure of that.
        """
        needed = {"state", "param_groups", "algorithm", "steps", "coupling"}
        missing = needed - set(state_dict if isinstance(state_dict, dict) else ())
        if missing:
            raise InputError(f"this is not the state of an optimizer of fedac: no {min(missing)!r}")
        self.require_same_rules(
            state_dict["algorithm"], state_dict["param_groups"], state_dict["coupling"]
        )
        saved = [
            state_dict["state"].get(index)
            for group in state_dict["param_groups"]
            for index in group["params"]
        ]
        names = set(self.algorithm.sequences)
        for p, state in zip(self.parameters(), saved, strict=False):
            if state and (set(state) != names or any(v.shape != p.shape for v in state.values())):
                raise InputError("this is the state of another model: its shapes differ")
        super().load_state_dict({key: state_dict[key] for key in ("state", "param_groups")})
        self.steps = int(state_dict["steps"])
        # The base class casts states to the parameters' precision; ours may be finer.
        for p, state in zip(self.parameters(), saved, strict=True):
            for key, value in (state or {}).items():
                self.state[p][key] = value.detach().to(p.device, state_dtype(p), copy=True)
            if self._in_place and not is_short(p):
                self.state.pop(p, None)

    def parameters(self) -> list[Tensor]:
        """Return the parameters of all groups."""
        return [p for group in self.param_groups for p in group["params"]]

    def coupling(self) -> list[dict[str, float] | None]:
        """Return the hyperparameters by group, None for a group that rests, to compare them."""
        return [
            None if self.rests(group) else asdict(self.hyperparameters(group))
            for group in self.param_groups
        ]

    def numbers(self) -> list[dict[str, Any]]:
        """Return the numbers by group, those of the parameters' last setting among them."""
        return [_plain(group) | {"shown": group["shown"]} for group in self.param_groups]

    def require_same_rules(
        self,
        name: str,
        groups: Sequence[dict[str, Any]],
        coupling: Sequence[dict[str, float] | None],
    ) -> None:
        """Refuse a state that another algorithm has made, or numbers that are not ours."""
        if name != self.algorithm.name:
            raise InputError(
                f"this is the state of algorithm {name!r}, not of '{self.algorithm.name}'"
            )
        for group, theirs in zip(groups, coupling, strict=True):
            if theirs is not None:
                mine = asdict(self.hyperparameters(group))
                for key, value in mine.items():
                    if not math.isclose(value, theirs[key], rel_tol=1e-9):
                        raise InputError(
                            f"this is a state made with {key}={theirs[key]:g}, not {value:g}"
                        )

    def __getstate__(self) -> dict[str, Any]:
        own = ("algorithm", "foreach", "steps", "_in_place")
        return super().__getstate__() | {name: getattr(self, name) for name in own}

    def __setstate__(self, state: dict[str, Any]) -> None:
        super().__setstate__(state)
        self._versions = {}  # parameters are others now: compare them once by value

    def _start(self, p: Tensor) -> tuple[Tensor, ...]:
        return self.algorithm.start(p.detach().to(state_dtype(p)))

    def _shown(self, group: dict[str, Any]) -> Linear:
        """Return the coefficients by which the parameters of a group were last set."""
        return linear_form(self.algorithm, self._shown_by(group))

    def _shown_by(self, group: dict[str, Any]) -> Hyperparameters:
        return self.hyperparameters(self._shown_numbers(group))

    def _shown_numbers(self, group: dict[str, Any]) -> dict[str, Any]:
        if group["shown"] is not None:
            return dict(group["shown"])
        # Before the first step any lr will do but 0, where a scheduler may have started.
        return _plain(group | ({"lr": self._usual_lr(group)} if self.rests(group) else {}))

    def _usual_lr(self, group: dict[str, Any]) -> float:
        """Return the lr that a scheduler started from, or that of the optimizer."""
        return float(group.get("initial_lr") or self.defaults["lr"])

    def _set_shown(self, group: dict[str, Any]) -> None:
        """Remember the numbers of a step; where they are new, resting parameters follow too."""
        numbers = _plain(group)
        if group["shown"] == numbers:
            return
        group["shown"] = numbers
        for p in group["params"]:
            if p.grad is None:
                self._show(group, p)

    def _batches(self, params: list[Tensor]) -> list[list[Tensor]]:
        """Split parameters into those that are worked on at once."""
        if not self.foreach:
            return [[p] for p in params]
        batches: list[list[Tensor]] = []
        filling: dict[tuple[torch.device, torch.dtype], tuple[list[Tensor], int]] = {}
        for p in params:
            kind = (p.device, p.dtype)
            batch, size = filling.get(kind, ([], 0))
            if not batch or (p.is_cpu and size + p.numel() > BATCH):
                batch, size = [], 0
                batches.append(batch)
            batch.append(p)
            filling[kind] = (batch, size + p.numel())
        return batches

    def _advance(
        self, params: list[Tensor], coefficients: Linear, shown: tuple[float, ...]
    ) -> None:
        """Take the step of some parameters: new sequences first, then where to look next."""
        short = is_short(params[0])
        S = len(shown)
        plan = step_plan(coefficients, in_place=self._in_place and not short)
        copies = range(S + 2, 2 * S + 2)
        needed = kept(plan, S + 2)
        if short:
            # What the parameters hold is rounded; the sequences know better.
            plan = (*query_plan(shown), *plan)
        slots = []
        for p in params:
            sequences = self.sequences(p)
            w_md = torch.empty_like(sequences[0]) if short else p
            old = [torch.empty_like(w_md) if slot in needed else w_md for slot in copies]
            slots.append([*sequences, w_md, gradient(p), *old])
        if len(params) == 1:
            carry_out(plan, slots[0])
        else:
            carry_out_together(plan, [list(slot) for slot in zip(*slots, strict=True)])
        for p, values in zip(params, slots, strict=True):
            self._set(p, values[S])

    @torch.no_grad()
    def _switch(self, *, training: bool) -> None:
        groups = [group for group in self.param_groups if group["training"] != training]
        for group in groups:
            for p in group["params"]:
                self._require_untouched(group, p)
        for group in groups:
            group["training"] = training
            for p in group["params"]:
                self._show(group, p)

    def _show(self, group: dict[str, Any], p: Tensor) -> None:
        """Put into a parameter what it holds while training, or while evaluating."""
        if not self.state.get(p):
            return  # it is where it started, or its own sequence
        sequences = self.sequences(p)
        if not group["training"]:
            hp = self._shown_by(group)
            self._set(p, self.algorithm.output(tuple(sequences), hp, self.steps))
        else:
            w_md = torch.empty_like(sequences[0]) if is_short(p) else p
            carry_out(query_plan(self._shown(group).query), [*sequences, w_md])
            self._set(p, w_md)

    def _set(self, p: Tensor, value: Tensor) -> None:
        if value is not p:
            p.copy_(value)
        self._versions[p] = version(p)

    def _require_untouched(self, group: dict[str, Any], p: Tensor) -> None:
        """Refuse a parameter that others have changed: the sequences would know nothing of it."""
        if not self.state.get(p) or self._versions.get(p) == version(p):
            return
        sequences = tuple(self.sequences(p))
        if (sequences[0].dtype, sequences[0].device) != (state_dtype(p), p.device):
            raise InputError(
                "a parameter was moved to another type or device after the first step; convert "
                "the model first and make the optimizer then, or call optimizer.restart()"
            )
        hp = self._shown_by(group)
        if group["training"]:
            told = self.algorithm.query(sequences, hp)
        else:
            told = self.algorithm.output(sequences, hp, self.steps)
        if not is_rounded(p, told, sequences, sum(map(abs, linear_form(self.algorithm, hp).query))):
            raise InputError(
                "a parameter was changed by other means than this optimizer; call "
                "optimizer.restart() to start from the parameters as they are, or restore the "
                "model that belongs to the optimizer's state"
            )
        self._versions[p] = version(p)


def _numbers(group: dict[str, Any]) -> dict[str, Any]:
    """Return the numbers of a group as Python's own, or say which is impossible."""
    lr = group["lr"]
    return {
        "lr": require_positive("lr", lr.item() if isinstance(lr, Tensor) else lr),
        "mu": require_positive("mu", group["mu"]),
        "local_steps": require_count("local_steps", group["local_steps"]),
    }


def _plain(group: dict[str, Any]) -> dict[str, Any]:
    """Return the numbers of a group as Python's own, whatever they are."""
    return {
        "lr": float(group["lr"]),
        "mu": float(group["mu"]),
        "local_steps": int(group["local_steps"]),
    }


def _require_ours(group: dict[str, Any]) -> None:
    """Refuse what we would silently ignore."""
    for name in (*FOREIGN, *COMMON):
        if group.get(name):
            advice = "give it to the optimizer, for all groups"
            if name in FOREIGN:
                advice = "there is none here; for weight decay add an l2 term to the loss"
            raise InputError(f"a parameter group may have its own lr and mu, not {name}: {advice}")


def _is_its_own_state(algorithm: Algorithm, hp: Hyperparameters) -> bool:
    """Say whether an algorithm's only sequence is start, query point and output at once."""
    return (
        algorithm.start(1.0) == (1.0,)
        and algorithm.query((1.0,), hp) == 1.0
        and algorithm.output((1.0,), hp, 1) == 1.0
    )


def _require_dense(p: Tensor) -> None:
    if p.grad is not None and p.grad.layout != torch.strided:
        raise InputError("sparse gradients are not supported; use sparse=False in the embedding")
