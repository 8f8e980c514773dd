"""The server: any algorithm with local steps as a Flower strategy that survives bad clients.

A round sends all sequences to the clients, waits for K local steps on each, checks every reply,
aggregates the good ones and moves the server by the algorithm's rule. Flower's hooks do all of it;
`FederationRun` calls them round after round.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Mapping
from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import Any

from flwr.app import ArrayRecord, ConfigRecord, Message, MessageType, MetricRecord, RecordDict
from flwr.serverapp import Grid
from flwr.serverapp.strategy import Strategy

from fedac.algorithms import Algorithm, get
from fedac.algorithms.contract import check_decay
from fedac.algorithms.couplings import Hyperparameters
from fedac.algorithms.linear import boundary_form, linear_form
from fedac.averaging import mean_by_key, require_weighting
from fedac.decay import Decay
from fedac.errors import InputError
from fedac.flower.aggregate import Aggregation
from fedac.flower.checks import read_like
from fedac.flower.exchange import TrainingRound, wait_for_nodes
from fedac.flower.history import Dropped, History
from fedac.flower.messages import (
    ARRAYS,
    CONFIG,
    TASK,
    NamedArrays,
    NDArray,
    from_record,
    to_record,
    with_prefix,
)
from fedac.flower.packets import unpack
from fedac.flower.replies import Reply, sort_replies
from fedac.flower.run import EvaluateFn, FederationResult, FederationRun
from fedac.flower.server import ServerMemory, begin_server, idle_message, output_of, serve
from fedac.flower.task import Task
from fedac.require import require_count, require_positive
from fedac.rounding import FLOAT32
from fedac.wire import require_wire, require_wire_seed

# A child of Flower's logger: `flwr run --stream` and `flwr log` show its lines.
log = logging.getLogger("flwr.fedac")

CLOCK_SKEW = 60.0  # seconds by which messages outlive their deadline, in case clocks disagree


class LocalStrategy(Strategy):
    """An algorithm with local steps as a Flower strategy.

    Parameters
    ----------
    algorithm : str or Algorithm
        A name ("fedac-i", "scaffold", "fedac-i+cv+nesterov(1,0.3)", ...), or a record, also one of
        your own: clients get its coefficients and need nothing else.
    eta : float or Decay
        Step size; a `Decay` falls from round to round.
    mu : float
        Strong-convexity estimate, for the coupling.
    local_steps : int
        Steps between two synchronizations, K.
    seed : int
        Seed of the clients' draws and of the choice of clients.
    min_nodes : int
        How many nodes to wait for before the first round, n.
    quorum : int, optional
        How many good replies a round needs, k of n; by default more than half of `min_nodes`.
    sample : int, optional
        How many nodes to ask in a round; by default all of them.
    deadline : float
        Seconds that a round's training, and its evaluation, wait for replies; also how long to
        wait for nodes.
    retries : int
        Extra attempts of a round below the quorum, before `QuorumError`; unasked nodes go first.
    weighting : "uniform" or "examples"
        The algorithm averages uniformly; "examples" weights clients by their "num-examples".
    aggregation : "mean", "median", "trimmed-mean" or "clipped-mean"
        See `fedac.flower.aggregate` for what the robust rules cost, and for `trim` and `clip_norm`.
    evaluate_every : int
        Rounds between evaluations of the output on the clients; the last round is always
        evaluated, unless this is 0.
    wire : "float32", "bfloat16" or "int8"
        Whether clients reply with arrays as they are, or rounded to half or a quarter of float32's
        bytes (`fedac.wire`).
    wire_seed : int
        The seed of the draws by which "int8" rounds.
    checkpoint : path, optional
        File to write after every round.
    resume_from : path, optional
        Checkpoint to continue from; `initial_arrays` then only has to be of the same model.

    Attributes
    ----------
    hp : Hyperparameters
        The algorithm's hyperparameters in the first round.
    history : History
        The rounds of the last run.
    training : TrainingRound, optional
        The training round in progress, for the hooks.
    server : ServerMemory
        What the server keeps besides the sequences, which the hooks move from round to round.
    last_round : int, optional
        The last round of the run, which is always evaluated.

    Examples
    --------
    >>> strategy = LocalStrategy("fedac-ii", eta=0.5, mu=0.5, local_steps=4, min_nodes=8)
    >>> strategy.hp.gamma, strategy.quorum
    (0.5, 5)
    """

    def __init__(
        self,
        algorithm: str | Algorithm,
        *,
        eta: float | Decay,
        mu: float,
        local_steps: int,
        seed: int = 0,
        min_nodes: int = 2,
        quorum: int | None = None,
        sample: int | None = None,
        deadline: float = 600.0,
        retries: int = 2,
        weighting: str = "uniform",
        aggregation: str = "mean",
        trim: float | None = None,
        clip_norm: float | None = None,
        evaluate_every: int = 1,
        wire: str = FLOAT32,
        wire_seed: int = 0,
        checkpoint: str | Path | None = None,
        resume_from: str | Path | None = None,
    ) -> None:
        self.algorithm = get(algorithm)
        if self.algorithm.minibatch:
            raise InputError(f"'{self.algorithm.name}' takes no local steps; use local_steps=1")
        self.local_steps = require_count("local_steps", local_steps)
        self.eta = eta if isinstance(eta, Decay) else require_positive("eta", eta)
        self.mu = require_positive("mu", mu)
        if isinstance(eta, Decay):
            check_decay(self.algorithm, eta=eta.start, mu=self.mu, K=self.local_steps)
        self.hp = self.hyperparameters(1)
        linear_form(self.algorithm, self.hp)  # refuse what cannot be sent
        boundary_form(self.algorithm, self.hp, self.local_steps)
        self.seed = require_count("seed", seed, least=0)
        if self.seed >= 2**63:  # what a ConfigRecord cannot hold
            raise InputError(f"seed must be at most 2^63 - 1, got {seed}")
        self.min_nodes = require_count("min_nodes", min_nodes)
        self.sample = None if sample is None else require_count("sample", sample)
        self.algorithm.require_all(some=self.sample is not None)
        asked = self.min_nodes if self.sample is None else min(self.sample, self.min_nodes)
        self.quorum = asked // 2 + 1 if quorum is None else require_count("quorum", quorum)
        if self.quorum > asked:
            raise InputError(f"quorum={self.quorum} is impossible: only {asked} nodes are asked")
        self.deadline = require_positive("deadline", deadline)
        self.retries = require_count("retries", retries, least=0)
        self.weighting = require_weighting(weighting)
        self.aggregation = Aggregation(rule=aggregation, trim=trim, clip_norm=clip_norm)
        if weighting == "examples" and aggregation != "mean":
            raise InputError(f"aggregation='{aggregation}' has no weights; use weighting='uniform'")
        self.aggregation.require_quorum(self.quorum)
        self.evaluate_every = require_count("evaluate_every", evaluate_every, least=0)
        self.wire, self.wire_seed = require_wire(wire), require_wire_seed(wire_seed)
        self.checkpoint = None if checkpoint is None else Path(checkpoint)
        self.resume_from = None if resume_from is None else Path(resume_from)
        self.history = History()
        self.training: TrainingRound | None = None
        self.server = ServerMemory()
        self.last_round: int | None = None

    def configure_train(
        self, server_round: int, arrays: ArrayRecord, config: ConfigRecord, grid: Grid
    ) -> list[Message]:
        """Return the messages of a round; `arrays` holds all sequences.

        Called again with the same arrays, it asks the nodes that have no good reply yet.
        """
        # Before the first round wait for all nodes, later only for what a round needs.
        wanted = self.min_nodes if self.training is None else self.quorum
        training = self.begin_round(server_round, arrays)
        connected = wait_for_nodes(grid, wanted, self.deadline)
        if len(connected) < wanted:
            log.warning("round %d: %d of %d nodes connected", server_round, len(connected), wanted)
        nodes = training.choose(connected, sample=self.sample, seed=self.seed)
        return self.messages(MessageType.TRAIN, server_round, arrays, config, nodes)

    def aggregate_train(
        self, server_round: int, replies: Iterable[Message]
    ) -> tuple[ArrayRecord | None, MetricRecord | None]:
        """Return the aggregate of the round's good replies so far, or None below the quorum."""
        training = self.training
        if training is None or training.number != server_round:
            raise InputError(f"round {server_round}: aggregate_train needs configure_train first")
        read = read_like if self.wire == FLOAT32 else partial(unpack, self.algorithm, self.wire)
        new, bad = sort_replies(replies, server_round, training.before, read)
        training.good |= new
        self.drop(server_round, bad, during="training")
        if len(training.good) < self.quorum:
            return None, None
        training.finished = True
        good = [training.good[node] for node in sorted(training.good)]
        weights = [reply.weight for reply in good] if self.weighting == "examples" else None
        hp, before = self.hyperparameters(server_round), training.before
        idle = idle_message(self.algorithm, before, hp, self.local_steps)
        mean = self.aggregation([reply.arrays for reply in good], idle, weights)
        after, self.server.arrays = serve(
            self.algorithm, mean, before, training.kept, hp, server_round - 1, training.share
        )
        if self.algorithm.memory:
            self.server.labels.use(server_round, training.good)
            self.warn_of_lost_memory(training)
        return to_record(after), _mean_metrics(good)

    def configure_evaluate(
        self, server_round: int, arrays: ArrayRecord, config: ConfigRecord, grid: Grid
    ) -> list[Message]:
        """Return the messages of an evaluation of the output, by the nodes that have just trained.

        There are none in a round that is not evaluated.
        """
        every = self.evaluate_every
        if not every or (server_round % every and server_round != self.last_round):
            return []
        output = to_record(self.output(server_round, from_record(arrays)))
        trained = self.training.good if self.training else {}
        nodes = sorted(trained or grid.get_node_ids())
        return self.messages(MessageType.EVALUATE, server_round, output, config, nodes)

    def aggregate_evaluate(
        self, server_round: int, replies: Iterable[Message]
    ) -> MetricRecord | None:
        """Return the means of the clients' metrics, weighted by their examples."""
        good, bad = sort_replies(replies, server_round)
        self.drop(server_round, bad, during="evaluation")
        return _mean_metrics(list(good.values())) if good else None

    def summary(self) -> None:
        """Log the settings of this strategy."""
        numbers = " ".join(f"{name}={value:g}" for name, value in asdict(self.hp).items())
        if isinstance(self.eta, Decay):
            numbers += f" in the first round, eta falls by {self.eta.by}"
        log.info(
            "%s: %s, %d local steps, quorum %d of %d, deadline %g s, %s weights, %s",
            self.algorithm.label, numbers, self.local_steps, self.quorum, self.min_nodes,
            self.deadline, self.weighting, self.aggregation.rule,
        )  # fmt: skip
        if self.wire != FLOAT32:
            log.info("replies are rounded to %s", self.wire)
        if self.algorithm.memory or self.algorithm.server:
            log.info(
                "every message has %s; clients remember %s; the server keeps %s",
                *(
                    ", ".join(names) or "nothing"
                    for names in (
                        self.algorithm.sequences, self.algorithm.memory, self.algorithm.server
                    )
                ),
            )  # fmt: skip

    def start(
        self,
        grid: Grid,
        initial_arrays: ArrayRecord,
        num_rounds: int = 3,
        timeout: float | None = None,
        train_config: ConfigRecord | None = None,
        evaluate_config: ConfigRecord | None = None,
        evaluate_fn: EvaluateFn | None = None,
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
        train_config, evaluate_config : ConfigRecord, optional
            Entries of your own for the clients.
        evaluate_fn : callable, optional
            ``evaluate_fn(round, arrays) -> MetricRecord``, called with the output on the server.

        Raises
        ------
        QuorumError
            If a round has too few good replies after all retries; its `result` holds the earlier
            rounds.
        """
        deadline = self.deadline if timeout is None else require_positive("timeout", timeout)
        run = FederationRun(
            self,
            grid,
            num_rounds=require_count("num_rounds", num_rounds, least=0),
            deadline=min(self.deadline, deadline),
            train_config=train_config or ConfigRecord(),
            evaluate_config=evaluate_config or ConfigRecord(),
            evaluate_fn=evaluate_fn,
        )
        self.summary()
        return run.start(initial_arrays)

    def begin_round(self, server_round: int, arrays: ArrayRecord) -> TrainingRound:
        """Return the round in progress, or begin a new one if its number or arrays differ."""
        now = self.training
        if now is None or now.finished or (now.number, now.sent) != (server_round, arrays):
            before = from_record(arrays)
            if not all(with_prefix(name, before) for name in self.algorithm.sequences):
                raise InputError(
                    f"a round needs all sequences ({', '.join(self.algorithm.sequences)}): call "
                    "strategy.start, or start with to_record(initial_sequences(algorithm, arrays))"
                )
            if server_round == 1:  # also in Flower's own loop, which has no other beginning
                self.server = begin_server(self.algorithm, before)
            now = TrainingRound(server_round, arrays, before, self.server.arrays)
            self.training = now
        return now

    def drop(self, server_round: int, reasons: Mapping[int, str], *, during: str) -> None:
        """Log the nodes whose replies are not used and why, and list them in the history."""
        for node, reason in reasons.items():
            log.warning("round %d: %s: dropped node %d: %s", server_round, during, node, reason)
            drop = Dropped(round=server_round, node=node, reason=reason, during=during)
            self.history.dropped.append(drop)

    def warn_of_lost_memory(self, training: TrainingRound) -> None:
        """Log which of the clients that were used had lost their memory."""
        nodes = [node for node, reply in sorted(training.good.items()) if reply.memory_lost]
        if nodes:
            log.warning(
                "round %d: %d of %d clients had lost their memory and began anew: %s",
                training.number, len(nodes), len(training.good),
                ", ".join(f"node {node}" for node in nodes[:5]) + ", ..." * (len(nodes) > 5),
            )  # fmt: skip

    def hyperparameters(self, server_round: int) -> Hyperparameters:
        """Return the algorithm's hyperparameters in a round, counted from 1."""
        eta = self.eta.at(server_round - 1) if isinstance(self.eta, Decay) else self.eta
        return self.algorithm.couple(eta=eta, mu=self.mu, K=self.local_steps)

    def messages(
        self,
        kind: str,
        server_round: int,
        arrays: ArrayRecord,
        config: ConfigRecord,
        nodes: Iterable[int],
    ) -> list[Message]:
        """Return one message per node, with the task of a round.

        If the algorithm has memory, every task names the one that its node should use.
        """
        task = Task(
            algorithm=self.algorithm,
            hp=self.hyperparameters(server_round),
            round=server_round,
            first_step=(server_round - 1) * self.local_steps,
            local_steps=self.local_steps,
            seed=self.seed,
            wire=self.wire,
            wire_seed=self.wire_seed,
        )
        record = task.to_record()
        content = RecordDict({ARRAYS: arrays, TASK: record, CONFIG: config})
        group, ttl = str(server_round), self.deadline + CLOCK_SKEW

        def content_for(node: int) -> RecordDict:
            if not self.algorithm.memory or kind != MessageType.TRAIN:
                return content
            label = self.server.labels.of_node(node).to_record()
            return RecordDict({**content, TASK: ConfigRecord({**record, **label})})

        return [Message(content_for(node), node, kind, group_id=group, ttl=ttl) for node in nodes]

    def output(self, server_round: int, arrays: NamedArrays) -> dict[str, NDArray]:
        """Return the algorithm's output after a round, with the names of the initial arrays."""
        t = server_round * self.local_steps
        return output_of(self.algorithm, arrays, self.server.arrays, self.hp, t)

    def settings(self) -> dict[str, Any]:
        """Return what decides the result of a run besides the algorithm, for checkpoints."""
        return {
            "decay": self.eta.by if isinstance(self.eta, Decay) else None,
            "local_steps": self.local_steps,
            "seed": self.seed,
            "sample": self.sample,
            "weighting": self.weighting,
            "aggregation": self.aggregation.rule,
            "trim": self.aggregation.trim,
            "clip_norm": self.aggregation.clip_norm,
            "wire": self.wire,
            "wire_seed": self.wire_seed,
        }


class FedAc(LocalStrategy):
    """FedAc-I (label alg:fedac), short for ``LocalStrategy("fedac-i", ...)``.

    Parameters are those of `LocalStrategy`.

    Examples
    --------
    >>> strategy = FedAc(eta=0.5, mu=0.5, local_steps=4, min_nodes=8, quorum=6)
    >>> strategy.algorithm.name, strategy.hp.gamma
    ('fedac-i', 0.5)
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


def _mean_metrics(replies: list[Reply]) -> MetricRecord:
    means = mean_by_key([reply.metrics for reply in replies], [reply.weight for reply in replies])
    return MetricRecord({name: float(mean) for name, mean in means.items()})
