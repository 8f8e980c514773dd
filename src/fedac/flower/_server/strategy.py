"""The strategies: any algorithm with local steps as a Flower strategy that survives bad clients."""

from __future__ import annotations

import logging
from dataclasses import asdict
from typing import Any

from flwr.app import ArrayRecord, ConfigRecord
from flwr.serverapp import Grid
from flwr.serverapp.strategy import Strategy

from fedac.errors import InputError
from fedac.federation.schedule import Decay
from fedac.flower._server.hooks import RoundHooks
from fedac.flower._server.options import require_callable
from fedac.flower._server.privacy import Wrappers, require_wrappers
from fedac.flower._server.result import FederationResult
from fedac.flower._server.round import EvaluateFn, FederationRun, OnRound
from fedac.validate import require_count, require_positive

log = logging.getLogger("flwr.fedac")


class LocalStrategy(RoundHooks):
    """An algorithm with local steps as a Flower strategy.

    Parameters
    ----------
    algorithm : str or Algorithm
        A name ("fedac-i", "scaffold", "fedac-i+cv+nesterov(1,0.3)", ...), or a record, also one of
        your own: clients get its coefficients and need nothing else.
    eta : float or Decay
        Step size; a `Decay` falls from round to round.
    mu : float, optional
        Strong-convexity estimate, for methods whose coupling needs it (FedAc).
    local_steps : int
        Steps between two synchronizations, K.
    seed : int
        Seed of the clients' draws and of the choice of clients.
    min_nodes : int
        How many nodes to wait for before the first round, n.
    quorum : int, optional
        How many good replies a round needs; by default more than half of the nodes that it asks
        (and of `min_nodes`, if fewer have come).
    sample : int or float, optional
        How many nodes to ask in a round, or which share of those that are connected; by default
        all of them. They are drawn by the clients' own numbers, as in the simulator.
    deadline : float or "adaptive"
        Seconds that a round's training, and its evaluation, wait for replies; also how long to
        wait for nodes. "adaptive" follows the times seen (`fedac.flower._server.waiting`).
    grace : float, optional
        Seconds to wait for further replies once there is a quorum, instead of the whole deadline.
    retries : int
        Extra attempts of a round below the quorum, before `QuorumError`; unasked nodes go first.
    weighting : "uniform" or "examples"
        The algorithm averages uniformly; "examples" weights clients by their "num-examples".
    aggregation : "mean" or "median" or "trimmed-mean" or "clipped-mean"
        See `fedac.flower._server.aggregate` for what the robust rules cost, and for `trim` and
        `clip_norm`.
    evaluate_every : int
        Rounds between evaluations of the output on the clients; the last round is always
        evaluated, unless this is 0.
    evaluate_sample : int or float, optional
        How many nodes evaluate, or which share of those that are connected; by default those that
        have just trained.
    train_metrics_aggr_fn : callable, optional
        As in Flower: ``(replies, "num-examples") -> MetricRecord``, with a RecordDict of every good
        reply, without its arrays. By default means, with the weights of `weighting`.
    evaluate_metrics_aggr_fn : callable, optional
        The same for evaluations.
    wire : "float32" or "bfloat16" or "int8"
        Whether clients reply with arrays as they are, or rounded to half or a quarter of float32's
        bytes (`fedac.wire`).
    wire_seed : int
        The seed of the draws by which "int8" rounds.
    checkpoint : path, optional
        File to write after every round.
    resume : bool
        Whether to continue from `checkpoint` if it exists, and to start otherwise; `initial_arrays`
        then only has to be of the same model.
    resume_from : path, optional
        Another checkpoint to continue from.

    Attributes
    ----------
    hp : Hyperparameters
        The algorithm's hyperparameters in the first round.
    history : History
        The rounds of the last run.
    result : FederationResult
        What the run in progress has so far, or what the last one had, however it ended.
    training : TrainingRound or None
        The training round in progress, for the hooks.
    roster : Roster
        The numbers of the clients, as far as they are known.
    server : ServerMemory
        What the server keeps besides the sequences, which the hooks move from round to round.
    layout : Layout
        How the names of the initial arrays relate to what travels.
    last_round : int or None
        The last round of the run, which is always evaluated.

    Examples
    --------
    >>> strategy = LocalStrategy("fedac-ii", eta=0.5, mu=0.125, local_steps=4, min_nodes=8)
    >>> strategy.hp.gamma, strategy.quorum_of(20)
    (1.0, 11)
    """

    def summary(self) -> None:
        """Log the settings of this strategy."""
        algorithm, names = self.algorithm, {"messages": self.algorithm.sequences}
        names |= {"client memory": algorithm.memory, "server state": algorithm.server}
        log.info(
            "%s: %s%s, %d local steps, quorum %d of %d, deadline %s, %s weights, %s, replies in %s",
            algorithm.label,
            " ".join(f"{name}={value:g}" for name, value in asdict(self.hp).items()),
            f" (decay by {self.eta.by})" if isinstance(self.eta, Decay) else "",
            self.local_steps, self.quorum_of(self.min_nodes), self.min_nodes, self.deadline,
            self.weighting, self.aggregation.rule, self.wire,
        )  # fmt: skip
        log.info("%s", "; ".join(f"{k}: {', '.join(v)}" for k, v in names.items() if v))

    def start(
        self,
        grid: Grid,
        initial_arrays: ArrayRecord,
        num_rounds: int = 3,
        timeout: float | None = None,
        train_config: ConfigRecord | None = None,
        evaluate_config: ConfigRecord | None = None,
        evaluate_fn: EvaluateFn | None = None,
        *,
        on_round: OnRound | None = None,
        wrapper: Strategy | None = None,
    ) -> FederationResult:
        """Run the federation.

        Parameters
        ----------
        grid : Grid
            From Flower, which passes it to the ServerApp.
        initial_arrays : ArrayRecord
            The initial model, all floating-point; use `torch_arrays` for PyTorch.
        num_rounds : int
            Rounds of the whole run; a resumed run makes only the remaining ones.
        timeout : float, optional
            A shorter deadline for this run.
        train_config : ConfigRecord, optional
            Entries of your own for the clients in training: in the message's "config" and, for
            `client_app`, in ``context.run_config``.
        evaluate_config : ConfigRecord, optional
            The same in evaluations.
        evaluate_fn : callable, optional
            ``evaluate_fn(round, arrays) -> MetricRecord``, called with the output on the server.
        on_round : callable, optional
            ``on_round(row)``, called after every round with its row of the history, when its
            metrics are in and the checkpoint is written.
        wrapper : Strategy, optional
            A strategy around this one, Flower's differential privacy say, whose hooks are called.

        Raises
        ------
        QuorumError
            If a round has too few good replies after all retries; its `result` holds the earlier
            rounds.
        """
        hooks: Strategy = self if wrapper is None else wrapper
        if not isinstance(grid, Grid):
            raise InputError(f"grid must be a Grid of Flower, got {type(grid).__name__}")
        for name, config in (("train_config", train_config), ("evaluate_config", evaluate_config)):
            if config is not None and not isinstance(config, ConfigRecord):
                raise InputError(f"{name} must be a ConfigRecord, got {type(config).__name__}")
        run = FederationRun(
            self,
            hooks,
            Wrappers() if wrapper is None else require_wrappers(wrapper, self),
            grid,
            num_rounds=require_count("num_rounds", num_rounds, least=0),
            timeout=None if timeout is None else require_positive("timeout", timeout),
            train_config=train_config or ConfigRecord(),
            evaluate_config=evaluate_config or ConfigRecord(),
            evaluate_fn=require_callable("evaluate_fn", evaluate_fn),
            on_round=require_callable("on_round", on_round) or (lambda row: None),
        )
        hooks.summary()
        self.result = run.result
        self._running = True
        try:
            return run.start(initial_arrays)
        finally:
            self._running = False


class FedAc(LocalStrategy):
    """FedAc-I (label alg:fedac), short for ``LocalStrategy("fedac-i", ...)``.

    Parameters are those of `LocalStrategy`.

    Examples
    --------
    >>> strategy = FedAc(eta=0.5, mu=0.125, local_steps=4, min_nodes=8, quorum=6)
    >>> strategy.algorithm.name, strategy.hp.gamma
    ('fedac-i', 1.0)
    """

    def __init__(self, *, eta: float | Decay, mu: float, local_steps: int, **options: Any) -> None:
        super().__init__("fedac-i", eta=eta, mu=mu, local_steps=local_steps, **options)


class FedAvg(LocalStrategy):
    """FedAvg with K local steps (label alg:fedavg), short for ``LocalStrategy("fedavg", ...)``.

    Examples
    --------
    >>> FedAvg(eta=0.5, local_steps=4).algorithm.name
    'fedavg'
    """

    def __init__(self, *, eta: float | Decay, local_steps: int, **options: Any) -> None:
        super().__init__("fedavg", eta=eta, mu=1.0, local_steps=local_steps, **options)
