"""The paper's algorithms as PyTorch optimizers.

While training, parameters hold w_md, where the gradient is to be taken; `eval` puts the output
(w_ag of FedAc) in its place and `train` puts w_md back.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any

import torch
from fedac.algorithms import FEDAC_I, FEDAC_II, FEDAC_VANILLA, FEDAVG, Algorithm, fedac
from fedac.algorithms.linear import Linear, linear
from fedac.errors import InputError, unknown_name
from fedac.theory.couplings import Hyperparameters
from fedac.torch.combine import Tensors, combine_
from torch import Tensor

VARIANTS = {"I": FEDAC_I, "II": FEDAC_II, "vanilla": FEDAC_VANILLA}


class LocalOptimizer(torch.optim.Optimizer):
    """The local steps of an algorithm; `FedAc` and `LocalSGD` are what users want.

    Parameters
    ----------
    params : iterable
        Parameters or groups of them, as for every optimizer.
    algorithm : Algorithm
        Whose `query` and `update` are followed.
    lr : float
        The step size eta; a scheduler may change it, and the coupling follows.
    mu : float
        Strong-convexity estimate for the coupling.
    local_steps : int
        Steps between two synchronizations, K.
    foreach : bool, optional
        Whether to work on all tensors at once, which suits GPUs, or tensor by tensor, which
        suits the caches of a CPU. By default whatever suits the parameters.
    """

    def __init__(
        self,
        params: Iterable[Any],
        algorithm: Algorithm,
        *,
        lr: float,
        mu: float,
        local_steps: int,
        foreach: bool | None = None,
    ) -> None:
        if algorithm.minibatch:
            raise InputError(f"'{algorithm.name}' takes no local steps; use torch.optim.SGD")
        self.algorithm = algorithm
        self.foreach = foreach
        self.steps = 0
        self._versions: dict[Tensor, int] = {}
        algorithm.couple(eta=lr, mu=mu, K=local_steps)  # refuse bad numbers now
        super().__init__(params, {"lr": lr, "mu": mu, "local_steps": local_steps, "training": True})

    @torch.no_grad()
    def step(self, closure: Callable[[], Any] | None = None) -> Any:
        """Take one local step with the gradients at the parameters."""
        self._require_training()
        loss = None
        if closure is not None:
            with torch.enable_grad():
                loss = closure()
        for group in self.param_groups:
            moved = [p for p in group["params"] if p.grad is not None]
            for p in moved:
                self._require_untouched(p)
            coefficients = linear(self.algorithm, self.hyperparameters(group))
            for some in self._batches(moved):
                self._advance(some, coefficients)
        self.steps += 1
        return loss

    @torch.no_grad()
    def eval(self) -> None:
        """Put the algorithm's output into the parameters, to be evaluated or saved."""
        for group in self.param_groups:
            if group["training"]:
                hp = self.hyperparameters(group)
                for p in group["params"]:
                    state = tuple(self.sequences(p))
                    self._set(p, self.algorithm.output(state, hp, self.steps))
                group["training"] = False

    @torch.no_grad()
    def train(self) -> None:
        """Put w_md back into the parameters, to go on training."""
        for group in self.param_groups:
            if not group["training"]:
                group["training"] = True
                self._show_query(group)

    def restart(self) -> None:
        """Start all sequences at the parameters as they are now."""
        self.state.clear()
        self._versions.clear()
        for group in self.param_groups:
            group["training"] = True

    def hyperparameters(self, group: dict[str, Any]) -> Hyperparameters:
        """Return the hyperparameters of a group at its present learning rate."""
        return self.algorithm.couple(eta=float(group["lr"]), mu=group["mu"], K=group["local_steps"])

    def sequences(self, p: Tensor) -> list[Tensor]:
        """Return the sequences of one parameter, in the algorithm's order."""
        names = self.algorithm.sequences
        if names == ("w",) and not _is_short(p):
            return [p]  # a single sequence is the parameter itself: no copy is needed
        state = self.state[p]
        if not state:
            start = p.detach().to(_state_dtype(p))
            for name, value in zip(names, self.algorithm.start(start), strict=True):
                state[name] = value.clone(memory_format=torch.preserve_format)
            self._versions[p] = p._version
        return [state[name] for name in names]

    @torch.no_grad()
    def set_sequences(self, p: Tensor, values: Sequence[Tensor]) -> None:
        """Replace the sequences of one parameter, and the parameter that shows them."""
        for mine, value in zip(self.sequences(p), values, strict=True):
            mine.copy_(value)

    @torch.no_grad()
    def refresh(self) -> None:
        """Let the parameters follow sequences that were changed."""
        for group in self.param_groups:
            if group["training"]:
                self._show_query(group)
            else:
                group["training"] = True
                self.eval()

    def add_param_group(self, param_group: dict[str, Any]) -> None:
        """Add parameters; their numbers are checked like those of the first ones."""
        super().add_param_group(param_group)
        self.hyperparameters(self.param_groups[-1])

    def state_dict(self) -> dict[str, Any]:
        """Return all that `load_state_dict` needs, the number of steps included."""
        return super().state_dict() | {"algorithm": self.algorithm.name, "steps": self.steps}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Take over the state of another optimizer of the same algorithm.

        Restore the model's parameters too: they hold what they held when it was saved.
        """
        name = state_dict.get("algorithm")
        if name != self.algorithm.name:
            raise InputError(
                f"this is the state of algorithm {name!r}, not of '{self.algorithm.name}'"
            )
        plain = {key: state_dict[key] for key in ("state", "param_groups")}
        super().load_state_dict(plain)
        self.steps = int(state_dict["steps"])
        # The base class casts states to the parameters' precision; ours may be finer.
        saved = [state_dict["state"].get(index) for group in state_dict["param_groups"]
                 for index in group["params"]]  # fmt: skip
        for p, state in zip(self._all(), saved, strict=True):
            if state:
                for key, value in state.items():
                    self.state[p][key] = value.detach().to(p.device, copy=True)
            self._versions[p] = p._version

    def _all(self) -> list[Tensor]:
        return [p for group in self.param_groups for p in group["params"]]

    def _batches(self, params: list[Tensor]) -> list[list[Tensor]]:
        """Split parameters into those that are worked on at once."""
        together = [p for p in params if (p.is_cuda if self.foreach is None else self.foreach)]
        kinds: dict[tuple[torch.device, torch.dtype], list[Tensor]] = {}
        for p in together:
            kinds.setdefault((p.device, p.dtype), []).append(p)
        alone = [[p] for p in params if not any(p is other for other in together)]
        return [*kinds.values(), *alone]

    def _advance(self, params: list[Tensor], coefficients: Linear) -> None:
        """Take the step of some parameters: new sequences first, then where to look next."""
        states: list[Tensors] = [
            list(sequence) for sequence in zip(*map(self.sequences, params), strict=True)
        ]
        gradients: Tensors = [_gradient(p) for p in params]
        w_md: Tensors = params
        if states[0][0] is params[0]:
            w_md = states[0]
        elif _is_short(params[0]):
            # What the parameters hold is rounded; the sequences know better.
            w_md = [torch.empty_like(sequence) for sequence in states[0]]
            combine_(w_md, list(zip(coefficients.query, states, strict=True)), foreach=False)
        old = list(states)
        for s, row in enumerate(coefficients.update):
            state = states[s]
            # A sequence that a later one still needs must be kept.
            if any(later[s] != 0 for later in coefficients.update[s + 1 :]):
                old[s] = [sequence.clone() for sequence in state]
            terms = [*old[:s], state, *old[s + 1 :], w_md, gradients]
            combine_(state, list(zip(row, terms, strict=True)), foreach=len(params) > 1)
        self._show(params, states, coefficients.query)

    def _show_query(self, group: dict[str, Any]) -> None:
        """Put w_md into the parameters of a group."""
        query = linear(self.algorithm, self.hyperparameters(group)).query
        for p in group["params"]:
            self._show([p], [[sequence] for sequence in self.sequences(p)], query)

    def _show(
        self, params: list[Tensor], states: Sequence[Tensors], query: tuple[float, ...]
    ) -> None:
        if states[0][0] is not params[0]:
            combine_(params, list(zip(query, states, strict=True)), foreach=len(params) > 1)
        for p in params:
            self._versions[p] = p._version

    def _set(self, p: Tensor, value: Tensor) -> None:
        if value is not p:
            p.copy_(value)
        self._versions[p] = p._version

    def _require_training(self) -> None:
        if not all(group["training"] for group in self.param_groups):
            raise InputError(
                "the parameters hold the output, not the point for the next gradient: call "
                "optimizer.train() after optimizer.eval() and before the forward pass"
            )

    def _require_untouched(self, p: Tensor) -> None:
        known = self._versions.get(p)
        if known is not None and known != p._version and self.sequences(p)[0] is not p:
            raise InputError(
                "a parameter was changed since the last step, by other means than this "
                "optimizer; call optimizer.restart() to start from the parameters as they are"
            )


class FedAc(LocalOptimizer):
    """Federated Accelerated SGD (label alg:fedac) as an optimizer.

    Parameters
    ----------
    params, lr, mu, local_steps, foreach
        See `LocalOptimizer`.
    variant : "I", "II" or "vanilla"
        The coupling of the hyperparameters.
    gamma, alpha, beta : float, optional
        All three, instead of a coupling.

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
        lr: float,
        mu: float,
        local_steps: int,
        *,
        variant: str = "I",
        gamma: float | None = None,
        alpha: float | None = None,
        beta: float | None = None,
        foreach: bool | None = None,
    ) -> None:
        own = (gamma, alpha, beta)
        if variant not in VARIANTS:
            raise unknown_name("variant", str(variant), VARIANTS)
        if any(value is not None for value in own):
            if gamma is None or alpha is None or beta is None:
                raise InputError("give all of gamma, alpha and beta, or none of them")
            algorithm = fedac(gamma=gamma, alpha=alpha, beta=beta)
        else:
            algorithm = VARIANTS[variant]
        super().__init__(params, algorithm, lr=lr, mu=mu, local_steps=local_steps, foreach=foreach)


class LocalSGD(LocalOptimizer):
    """FedAvg's local steps: plain SGD, to be synchronized every `local_steps`.

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
        lr: float,
        local_steps: int,
        *,
        foreach: bool | None = None,
    ) -> None:
        super().__init__(params, FEDAVG, lr=lr, mu=1.0, local_steps=local_steps, foreach=foreach)


def _is_short(p: Tensor) -> bool:
    """Say whether a parameter is too coarse to keep sequences in."""
    return p.dtype in (torch.bfloat16, torch.float16)


def _state_dtype(p: Tensor) -> torch.dtype:
    return torch.float32 if _is_short(p) else p.dtype


def _gradient(p: Tensor) -> Tensor:
    gradient = p.grad
    assert gradient is not None
    if gradient.is_sparse:
        raise InputError("sparse gradients are not supported; use sparse=False in the embedding")
    return gradient.to(_state_dtype(p))
