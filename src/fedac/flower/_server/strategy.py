# SPDX-License-Identifier: Apache-2.0
"""The strategies: any algorithm with local steps as a Flower strategy that survives bad clients."""

from __future__ import annotations

import logging
from dataclasses import asdict
from typing import Any

from flwr.app import ArrayRecord, ConfigRecord
from flwr.serverapp import Grid
from flwr.serverapp.strategy import Strategy

from fedac.federation.schedule import Decay
from fedac.flower._server.asynchronous import AsynchronousRun
from fedac.flower._server.hooks import RoundHooks
from fedac.flower._server.result import FederationResult
from fedac.flower._server.round import EvaluateFn, FederationRun, OnRound

log = logging.getLogger("flwr.fedac")


class LocalStrategy(RoundHooks):
    """An algorithm with local steps as a Flower strategy.

    Parameters
    ----------
    algorithm : str or Algorithm
        A name ("fedac-i", "scaffold", "fedac-i+cv+nesterov(1,0.3)", ...), or an `Algorithm`, built
        in or yours: clients get its coefficients and need nothing else.
    eta : float or Decay
        Step size; with a `Decay` it falls from round to round.
    mu : float, optional
        Strong-convexity estimate, for methods whose coupling needs it (FedAc).
    local_steps : int
        Steps between two synchronizations, K.
    seed : int
        Seed of the clients' draws and of client sampling.
    min_nodes : int
        Number of nodes to wait for before the first round, n.
    quorum : int, optional
        Number of good replies that a round needs. Default: more than half of the nodes that it
        asks (and of `min_nodes`, if fewer are connected).
    sample : int or float, optional
        Client sampling: the number of nodes to ask in a round, or a share of the connected ones.
        Default: all. Clients are sampled by their ids, as in the simulator.
    deadline : float or "adaptive"
        Seconds to wait for the replies of a round's training, of its evaluation, and for nodes.
        "adaptive" follows the times seen (`fedac.flower._server.waiting`).
    grace : float, optional
        Seconds to wait for more replies after the quorum. Default: until the deadline.
    retries : int
        Extra attempts of a round below the quorum, before `QuorumError`. They ask new nodes first.
    mode : str
        "rounds"; "deadline(30s)", rounds that end when the wanted number (`sample`) has replied or
        after this time, and throw later replies away; or "buffer(10)", asynchronous rounds: nodes
        get new work as soon as they reply, and the server steps after every 10 good replies, in
        which moves count less the more steps the server has taken meanwhile.
    concurrency : int, optional
        Nodes at work at any time in asynchronous rounds. Default: all.
    oversample : float
        With a deadline: nodes to ask, relative to those wanted.
    weighting : "uniform" or "examples"
        "uniform" weights all clients equally, "examples" by their "num-examples".
    aggregation : "mean" or "median" or "trimmed-mean" or "clipped-mean"
        See `Aggregation` for the robust rules and for `trim` and `clip_norm`.
    evaluate_every : int, optional
        Rounds between evaluations of the output on the clients. The last round is always
        evaluated, unless this is 0. Default: 1; in asynchronous rounds always 0.
    evaluate_sample : int or float, optional
        Number of nodes that evaluate, or a share of the connected ones. Default: the nodes that
        have just trained.
    train_metrics_aggr_fn, evaluate_metrics_aggr_fn : callable, optional
        As in Flower: ``(replies, "num-examples") -> MetricRecord``, with a RecordDict of every good
        reply, without its arrays. Default: means, weighted by `weighting`.
    wire : "float32" or "bfloat16" or "int8"
        Whether clients reply with arrays as they are, or compressed to half or a quarter of
        float32's bytes. `wire_seed` seeds the stochastic rounding of "int8".
    checkpoint : path, optional
        File to write after every round.
    resume : bool
        Continue from `checkpoint` if it exists, otherwise start; `resume_from` is another
        checkpoint to continue from. `initial_arrays` only has to be of the same model.

    Attributes
    ----------
    hp : Hyperparameters
        The algorithm's hyperparameters in the first round.
    history : History
        The rounds of the last run.
    result : FederationResult
        The result so far of the run in progress, or of the last one, however it ended.
    server : dict
        The algorithm's server state, with keys such as ``w_u/0``.

    Examples
    --------
    >>> strategy = LocalStrategy("fedac-ii", eta=0.5, mu=0.125, local_steps=4, min_nodes=8)
    >>> strategy.hp.gamma, strategy.quorum_of(20)
    (1.0, 11)
    """

    def summary(self) -> None:
        """Log the settings of this strategy."""
        algorithm, names = self.algorithm, {"messages": self.algorithm.sent}
        names |= {"only broadcast": algorithm.broadcast_only}
        names |= {"client memory": algorithm.memory, "server state": algorithm.server}
        needed = f"quorum {self.quorum_of(self.min_nodes)} of {self.min_nodes}"
        if self.mode.is_asynchronous:
            needed = f"at least {self.min_nodes} nodes to start"
        log.info(
            "%s: %s%s, %s, %d local steps, %s, deadline %s, %s weights, %s, "
            "replies in %s",
            algorithm.label,
            " ".join(f"{name}={value:g}" for name, value in asdict(self.hp).items()),
            f" (decay by {self.eta.by})" if isinstance(self.eta, Decay) else "",
            self.mode, self.local_steps, needed, self.deadline, self.weighting,
            self.aggregation.rule, self.wire,
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
            The initial model, all floating-point. For PyTorch use `torch_arrays`.
        num_rounds : int
            Rounds of the whole run, or steps of the server in asynchronous rounds. A resumed run
            makes only the remaining ones.
        timeout : float, optional
            A shorter deadline for this run.
        train_config, evaluate_config : ConfigRecord, optional
            Your entries for the clients in training and in evaluations: in the message's "config"
            and, with `client_app`, in ``context.run_config``.
        evaluate_fn : callable, optional
            ``evaluate_fn(round, arrays) -> MetricRecord``, called with the output on the server.
        on_round : callable, optional
            ``on_round(row)``, called with the history's row after every round, once the checkpoint
            is written.
        wrapper : Strategy, optional
            A strategy around this one, such as Flower's differential privacy. Its hooks are called.

        Raises
        ------
        QuorumError
            If a round has too few good replies after all retries. Its `result` holds the earlier
            rounds.
        """
        kind = AsynchronousRun if self.mode.is_asynchronous else FederationRun
        run = kind(
            self,
            grid,
            num_rounds,
            timeout,
            train_config,
            evaluate_config,
            evaluate_fn,
            on_round,
            wrapper,
        )
        run.hooks.summary()
        self.result = run.result
        self._running = True
        try:
            return run.start(initial_arrays)
        finally:
            self._running = False


class FedAc(LocalStrategy):
    """FedAc-I (label alg:fedac), short for ``LocalStrategy("fedac-i", ...)``.

    It has the parameters of `LocalStrategy`.

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
