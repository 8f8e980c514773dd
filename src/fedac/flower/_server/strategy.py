"""What a user decides about a federation, checked before any node is asked."""

from __future__ import annotations

import inspect
import logging
import math
import warnings
from collections.abc import Callable, Iterable, Mapping
from dataclasses import asdict, dataclass, replace
from functools import cached_property, partial
from pathlib import Path
from typing import Any, TypeVar

from flwr.app import ArrayRecord, ConfigRecord, Message, MessageType, MetricRecord, RecordDict
from flwr.serverapp import Grid
from flwr.serverapp.strategy import Strategy

from fedac.algorithms import Algorithm, RoundInfo, get
from fedac.algorithms.acceleration import not_accelerated
from fedac.algorithms.checks import check_decay, needs_mu
from fedac.algorithms.hyperparameters import Hyperparameters
from fedac.algorithms.linear import boundary_form, linear_form
from fedac.errors import InputError, NotAcceleratedWarning, unknown_name
from fedac.federation.averaging import mean_by_key, require_weighting
from fedac.federation.compression import FLOAT32, require_wire, require_wire_seed
from fedac.federation.schedule import Decay
from fedac.flower._arrays import (
    ARRAYS,
    CONFIG,
    ROUND,
    WEIGHT,
    Layout,
    NamedArrays,
    NDArray,
    from_record,
    to_record,
    with_task,
)
from fedac.flower._packets import unpack
from fedac.flower._server.aggregate import Aggregation, distance
from fedac.flower._server.nodes import Roster, count_of, require_sample
from fedac.flower._server.privacy import OWN_LOOP, Wrappers, require_wrappers
from fedac.flower._server.replies import Reader, Reply, Sorted, read_like, sort_replies
from fedac.flower._server.result import Dropped, FederationResult, History
from fedac.flower._server.round import ServerMemory, output_of, problem_of, rescale_changes, serve
from fedac.flower._server.run import EvaluateFn, FederationRun, OnRound, TrainingRound
from fedac.flower._server.waiting import CLOCK_SKEW, Deadline, wait_for_nodes
from fedac.flower._task import Task
from fedac.validate import require_count, require_positive

# From the replies without their arrays, and the name of the weight, to metrics, as in Flower.
MetricsFn = Callable[[list[RecordDict], str], MetricRecord]
T = TypeVar("T")


class Options:
    """The options of a `LocalStrategy`; see there."""

    def __init__(
        self,
        algorithm: str | Algorithm,
        *,
        eta: float | Decay,
        mu: float | None = None,
        local_steps: int,
        seed: int = 0,
        min_nodes: int = 2,
        quorum: int | None = None,
        sample: float | None = None,
        deadline: float | str = 600.0,
        grace: float | None = None,
        retries: int = 2,
        weighting: str = "uniform",
        aggregation: str = "mean",
        trim: float | None = None,
        clip_norm: float | None = None,
        evaluate_every: int = 1,
        evaluate_sample: float | None = None,
        train_metrics_aggr_fn: MetricsFn | None = None,
        evaluate_metrics_aggr_fn: MetricsFn | None = None,
        wire: str = FLOAT32,
        wire_seed: int = 0,
        checkpoint: str | Path | None = None,
        resume: bool = False,
        resume_from: str | Path | None = None,
        **others: Any,
    ) -> None:
        refuse_unknown(others, [*inspect.signature(Options).parameters][1:-1])
        self.algorithm = get(algorithm)
        if self.algorithm.minibatch:
            raise InputError(f"'{self.algorithm.name}' takes no local steps; use local_steps=1")
        self.local_steps = require_count("local_steps", local_steps)
        self.eta = eta if isinstance(eta, Decay) else require_positive("eta", eta)
        first = eta.start if isinstance(eta, Decay) else eta
        if mu is None and needs_mu(self.algorithm, eta=first, K=self.local_steps):
            raise InputError(
                f"'{self.algorithm.name}' needs mu, a strong-convexity estimate; begin with "
                "1/(10 eta local_steps)"
            )
        self.mu = 1.0 if mu is None else require_positive("mu", mu)
        if isinstance(eta, Decay):
            check_decay(self.algorithm, eta=eta.start, mu=self.mu, K=self.local_steps)
        self.hp = self.hyperparameters(1)
        linear_form(self.algorithm, self.hp)  # refuse what cannot be sent
        boundary_form(self.algorithm, self.hp, self.local_steps)
        self.seed = require_count("seed", seed, least=0)
        if self.seed >= 2**63:  # what a ConfigRecord cannot hold
            raise InputError(f"seed must be at most 2^63 - 1, got {seed}")
        self.min_nodes = require_count("min_nodes", min_nodes)
        everybody = isinstance(sample, float) and sample == 1
        self.sample = None if everybody else require_sample("sample", sample)
        self.algorithm.require_all(some=self.sample is not None)
        self.quorum = None if quorum is None else require_count("quorum", quorum)
        asked = min(count_of(self.sample, self.min_nodes), self.min_nodes)
        if self.quorum_of(asked) > asked:
            raise InputError(
                f"quorum={self.quorum} is impossible: a round may ask only {asked} nodes; give "
                "min_nodes (and sample) as many or more"
            )
        self.deadline = Deadline(deadline)
        self.grace = None if grace is None else require_positive("grace", grace)
        self.retries = require_count("retries", retries, least=0)
        self.weighting = require_weighting(weighting)
        self.aggregation = Aggregation(rule=aggregation, trim=trim, clip_norm=clip_norm)
        if weighting == "examples" and aggregation != "mean":
            raise InputError(f"aggregation='{aggregation}' has no weights; use weighting='uniform'")
        # What clients send adds up, in c or in memories: it must arrive as it was sent.
        self.adds_up = bool(self.algorithm.changes or self.algorithm.echoes)
        if self.adds_up and aggregation != "mean":
            raise InputError(
                f"aggregation='{aggregation}' and '{self.algorithm.name}' do not go together: "
                "control variates add up over rounds, and with them what a liar gets past a robust "
                "rule; use an algorithm without them, 'fedavg' or 'fedac-i' say"
            )
        self.aggregation.require_quorum(self.quorum_of(asked))
        self.evaluate_every = require_count("evaluate_every", evaluate_every, least=0)
        self.evaluate_sample = require_sample("evaluate_sample", evaluate_sample)
        self.train_metrics_aggr_fn = require_callable(
            "train_metrics_aggr_fn", train_metrics_aggr_fn
        )
        self.evaluate_metrics_aggr_fn = require_callable(
            "evaluate_metrics_aggr_fn", evaluate_metrics_aggr_fn
        )
        self.wire, self.wire_seed = require_wire(wire), require_wire_seed(wire_seed)
        self.checkpoint = None if checkpoint is None else Path(checkpoint)
        if not isinstance(resume, bool):
            raise InputError(f"resume must be True or False, got {resume!r}; see resume_from")
        if resume and (self.checkpoint is None or resume_from is not None):
            raise InputError("resume=True continues from checkpoint=...; give that, and no other")
        self.resume = resume
        self.resume_from = None if resume_from is None else Path(resume_from)
        warn_if_not_accelerated(self.algorithm, eta=self.hp.eta, mu=self.mu, K=self.local_steps)

    @property
    def source(self) -> Path | None:
        """The checkpoint that a run continues from, if there is one."""
        if self.resume and self.checkpoint is not None and self.checkpoint.exists():
            return self.checkpoint
        return self.resume_from

    def quorum_of(self, asked: int) -> int:
        """Return how many good replies a round needs that asks so many nodes."""
        if self.quorum is not None:
            return self.quorum
        expected = min(count_of(self.sample, self.min_nodes), self.min_nodes)
        return max(asked, expected) // 2 + 1

    def hyperparameters(self, server_round: int) -> Hyperparameters:
        """Return the algorithm's hyperparameters in a round, counted from 1."""
        eta = self.eta.at(server_round - 1) if isinstance(self.eta, Decay) else self.eta
        return self.algorithm.couple(eta=eta, mu=self.mu, K=self.local_steps)

    def settings(self) -> dict[str, Any]:
        """Return what decides the result of a run besides the algorithm, for checkpoints."""
        return {
            "mu": self.mu,
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


def require_callable(name: str, function: T) -> T:
    """Return a function, or None, or say what was given instead."""
    if function is not None and not callable(function):
        raise InputError(f"{name} must be a function, got {function!r:.60}")
    return function


# --- Options that Flower's strategies call by other names: the error gives ours.

# Flower's name: what to write here.
OURS = {
    "fraction_train": "sample={value}, a share of the nodes (or a number of them)",
    "fraction_evaluate": "evaluate_sample={value} (or evaluate_every=0 for no evaluation)",
    "min_train_nodes": "quorum={value}, the good replies that a round needs",
    "min_evaluate_nodes": "evaluate_sample={value}, a number of nodes (or a share of them)",
    "min_available_nodes": "min_nodes={value}",
    "weighted_by_key": (
        "weighting='examples' to count clients by their 'num-examples', or 'uniform', the default"
    ),
    "arrayrecord_key": "nothing: the key is 'arrays'",
    "configrecord_key": "nothing: the key is 'config'",
    "server_learning_rate": "it with the algorithm, 'fedavg+step(1.0)' say",
    "server_momentum": "it with the algorithm, 'fedavgm(1, 0.9)' say",
    "proximal_mu": "it with the algorithm, 'fedprox(0.1)' say",
    "initial_parameters": "initial_arrays in strategy.start",
    "fraction_fit": "sample={value}, a share of the nodes (or a number of them)",
    "lr": "eta={value}",
    "K": "local_steps={value}",
}
# What belongs to `start`.
LATER = (
    "grid",
    "initial_arrays",
    "num_rounds",
    "timeout",
    "train_config",
    "evaluate_config",
    "evaluate_fn",
    "on_round",
    "wrapper",
)


def refuse_unknown(options: Mapping[str, Any], known: Iterable[str]) -> None:
    """Refuse options that are not ours; those of Flower are translated.

    Examples
    --------
    >>> refuse_unknown({"fraction_train": 0.5}, ["sample"])
    Traceback (most recent call last):
    ...
    fedac.errors.InputError: there is no option 'fraction_train'; write sample=0.5, a share of the \
nodes (or a number of them)
    """
    for name, value in options.items():
        if name in LATER:
            raise InputError(f"there is no option '{name}'; it belongs to strategy.start")
        if name == "fraction_evaluate" and value == 0:
            raise InputError("there is no option 'fraction_evaluate'; write evaluate_every=0")
        if name not in OURS:
            raise unknown_name("option", name, known)
        ours = OURS[name].format(value=repr(value))
        raise InputError(f"there is no option '{name}'; write {ours}")


# --- Say, where a federation is set up, that FedAc will be FedAvg.

log = logging.getLogger("flwr.fedac")


def warn_if_not_accelerated(algorithm: Algorithm, *, eta: float, mu: float, K: int) -> None:
    """Warn whoever makes a strategy, also in the log: `flwr run` shows nothing else."""
    if text := not_accelerated([(algorithm, eta)], mu=mu, K=K, K_name="local_steps"):
        log.warning("%s", text)
        warnings.warn(text, NotAcceleratedWarning, stacklevel=3)


# --- The server: any algorithm with local steps as a Flower strategy that survives bad clients.
#
# A round sends all sequences to the clients, waits for K local steps on each, checks every reply,
# aggregates the good ones and moves the server by the algorithm's rule. Flower's hooks do all of
# it;
# `FederationRun` calls them round after round.

# A child of Flower's logger: `flwr run --stream` and `flwr log` show its lines.
log = logging.getLogger("flwr.fedac")


class LocalStrategy(Options, Strategy):
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

    # Of the run in progress, or of the last one: `start` sets them all.
    training: TrainingRound | None = None
    last_round: int | None = None
    result = cached_property(lambda self: FederationResult())
    history = cached_property(lambda self: History())
    roster = cached_property(lambda self: Roster())
    server = cached_property(lambda self: ServerMemory())
    layout = cached_property(lambda self: Layout())
    _running = False

    def configure_train(
        self, server_round: int, arrays: ArrayRecord, config: ConfigRecord, grid: Grid
    ) -> list[Message]:
        """Return the messages of a round; `arrays` holds all sequences.

        Called again with the same arrays, it asks the nodes that have no good reply yet.
        """
        if not self._running:
            raise InputError(OWN_LOOP)
        # Before the first round wait for all nodes, later only for what a round needs.
        wanted = self.min_nodes if self.training is None else self.training.quorum
        training = self.begin_round(server_round, arrays)
        connected = wait_for_nodes(grid, wanted, self.deadline.seconds)
        if len(connected) < wanted:
            log.warning("round %d: %d of %d nodes connected", server_round, len(connected), wanted)
        self._ask(grid, connected, {**config, ROUND: server_round})
        nodes = training.choose(connected, self.roster, sample=self.sample, seed=self.seed)
        return self.messages(MessageType.TRAIN, server_round, arrays, config, nodes)

    def aggregate_train(
        self, server_round: int, replies: Iterable[Message]
    ) -> tuple[ArrayRecord | None, MetricRecord | None]:
        """Return the aggregate of the round's good replies so far, or None below the quorum."""
        training = self.training
        if training is None or training.number != server_round:
            raise InputError(f"round {server_round}: aggregate_train needs configure_train first")
        found = self._sort(server_round, replies, training)
        training.good |= found.good
        self.drop(server_round, found.bad, during="training")
        while len(training.good) >= training.quorum:
            step = self._step(training, training.good)
            if step.problem is None:
                return self._finish(training, step)
            self._drop_culprits(training, step)
        return None, None

    def _step(self, training: TrainingRound, replies: Mapping[int, Reply]) -> _Step:
        """Return where some replies of a round would take the server."""
        examples = self.weighting == "examples"
        weights, total = training.weigh(replies, self.roster, examples=examples)
        before = training.before
        hp = self.hyperparameters(training.number)
        mean = self.aggregation(
            [replies[node].arrays for node in weights],
            before,
            [*weights.values()] if examples else None,
        )
        # c is the sum of n_m c_m over the sum of n_m: if the latter is new, so is c.
        if training.labels.total:
            before = rescale_changes(self.algorithm, before, training.labels.total / total)
        this = RoundInfo(number=training.number - 1, share=sum(weights.values()) / total)
        after, kept = serve(self.algorithm, mean, before, training.kept, hp, this)
        return _Step(after, kept, weights, total, problem_of(after, kept))

    def _drop_culprits(self, training: TrainingRound, step: _Step) -> None:
        """Drop the replies that break the server's step: alone, or else the one that moves most."""
        good = training.good
        culprits = [n for n in good if self._step(training, {n: good[n]}).problem is not None]
        if not culprits:
            culprits = [max(good, key=lambda node: distance(good[node].arrays, training.before))]
        for node in culprits:
            del good[node]
        reason = f"not finite after the server's step, which was undone: {step.problem}"
        self.drop(training.number, dict.fromkeys(culprits, reason), during="training")

    def _finish(self, training: TrainingRound, step: _Step) -> tuple[ArrayRecord, MetricRecord]:
        """Take a step: what the server holds is new, and the memories of its clients count."""
        training.finished = True
        self._warn_of_shared_numbers(training)
        labels, after = training.labels, step.after
        if self.algorithm.memory:
            self._find_lost_memories(training)
        lost = self.warn_of_lost_memory(training)
        self.server.arrays = step.kept
        if lost and self.adds_up:
            # Nobody knows the c_m that c still holds a share of: with all c_m = 0, c = 0 is right.
            log.warning("round %d: all clients begin their control variates again", training.number)
            after = rescale_changes(self.algorithm, after, 0.0)
            self.server.labels = labels.forget()
        else:
            self.server.labels = labels.use(
                training.number, training.good, step.weights, step.total
            )
        good = [training.good[node] for node in sorted(training.good)]
        return to_record(after), self._metrics(good, self.train_metrics_aggr_fn)

    def _find_lost_memories(self, training: TrainingRound) -> None:
        """Mark clients whose memory the server could not name, because it did not know them."""
        for node, reply in training.good.items():
            known = training.labels.of_node(node, reply.client).round
            if training.told.get(node, known) != known:
                training.good[node] = replace(reply, memory_lost=True)

    def without_bad(
        self, server_round: int, replies: list[Message], wrappers: Wrappers
    ) -> list[Message]:
        """Drop the replies of a training round that wrappers cannot use; return the others."""
        if self.training is None:
            return replies
        found = self._sort(server_round, replies, self.training)
        before = self.training.before
        problems = {node: wrappers.problem(reply, before) for node, reply in found.good.items()}
        bad = found.bad | {node: text for node, text in problems.items() if text is not None}
        self.drop(server_round, bad, during="training")
        return [reply for reply in replies if reply.metadata.src_node_id not in bad]

    def configure_evaluate(
        self, server_round: int, arrays: ArrayRecord, config: ConfigRecord, grid: Grid
    ) -> list[Message]:
        """Return the messages of an evaluation of the output; none if the round has none."""
        every = self.evaluate_every
        if not every or (server_round % every and server_round != self.last_round):
            return []
        output = to_record(self.output(server_round, from_record(arrays)))
        nodes = self._evaluators(server_round, list(grid.get_node_ids()))
        return self.messages(MessageType.EVALUATE, server_round, output, config, nodes)

    def aggregate_evaluate(
        self, server_round: int, replies: Iterable[Message]
    ) -> MetricRecord | None:
        """Return the means of the clients' metrics, weighted as in training."""
        found = sort_replies(replies, server_round)
        self._learn(found)
        self.drop(server_round, found.bad, during="evaluation")
        good = list(found.good.values())
        return self._metrics(good, self.evaluate_metrics_aggr_fn) if good else None

    def summary(self) -> None:
        """Log the settings of this strategy."""
        numbers = " ".join(f"{name}={value:g}" for name, value in asdict(self.hp).items())
        if isinstance(self.eta, Decay):
            numbers += f" in the first round, eta falls by {self.eta.by}"
        log.info(
            "%s: %s, %d local steps, quorum %d of %d, deadline %s, %s weights, %s",
            self.algorithm.label, numbers, self.local_steps, self.quorum_of(self.min_nodes),
            self.min_nodes, self.deadline, self.weighting, self.aggregation.rule,
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
        _require_start(grid, train_config, evaluate_config, evaluate_fn, on_round)
        run = FederationRun(
            self,
            hooks,
            require_wrappers(hooks, self),
            grid,
            num_rounds=require_count("num_rounds", num_rounds, least=0),
            timeout=None if timeout is None else require_positive("timeout", timeout),
            train_config=train_config or ConfigRecord(),
            evaluate_config=evaluate_config or ConfigRecord(),
            evaluate_fn=evaluate_fn,
            on_round=on_round,
        )
        hooks.summary()
        self.result = run.result
        self._running = True
        try:
            return run.start(initial_arrays)
        finally:
            self._running = False

    def begin_round(self, server_round: int, arrays: ArrayRecord) -> TrainingRound:
        """Return the round in progress, or begin a new one if its number or arrays differ."""
        now = self.training
        if now is None or now.finished or (now.number, now.sent) != (server_round, arrays):
            quorum = self.quorum_of(self.min_nodes)
            before = from_record(arrays)
            server = self.server
            now = TrainingRound(server_round, arrays, before, server.arrays, server.labels, quorum)
            self.training = now
        return now

    def drop(self, server_round: int, reasons: Mapping[int, str], *, during: str) -> None:
        """Log the nodes whose replies are not used and why, and list them in the history."""
        for node, reason in reasons.items():
            name = self.roster.name(node)
            log.warning("round %d: %s: dropped %s: %s", server_round, during, name, reason)
            drop = Dropped(round=server_round, node=node, reason=reason, during=during)
            self.history.dropped.append(drop)

    def warn_of_lost_memory(self, training: TrainingRound) -> list[int]:
        """Log which of the clients that were used had lost their memory, and return them."""
        nodes = [node for node, reply in sorted(training.good.items()) if reply.memory_lost]
        if nodes:
            log.warning(
                "round %d: %d of %d clients had lost their memory and began anew: %s",
                training.number, len(nodes), len(training.good),
                ", ".join(map(self.roster.name, nodes[:5])) + ", ..." * (len(nodes) > 5),
            )  # fmt: skip
        return nodes

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
        # As in Flower, the user's entries come with the number of the round.
        record = with_task({**config, ROUND: server_round}, task.to_record())
        content = RecordDict({ARRAYS: arrays, CONFIG: record})
        group, ttl = str(server_round), self.deadline.seconds + CLOCK_SKEW

        def content_for(node: int) -> RecordDict:
            if not self.algorithm.memory or kind != MessageType.TRAIN:
                return content
            label = self.server.labels.of_node(node, self.roster.client(node))
            if self.training is not None:
                self.training.told[node] = label.round
            if self.weighting != "examples":
                label = replace(label, weight=0.0)
            return RecordDict({ARRAYS: arrays, CONFIG: with_task(record, label.to_record())})

        return [Message(content_for(node), node, kind, group_id=group, ttl=ttl) for node in nodes]

    def output(self, server_round: int, arrays: NamedArrays) -> dict[str, NDArray]:
        """Return the algorithm's output after a round, with the names of the initial arrays."""
        t = server_round * self.local_steps
        return self.layout.complete(
            output_of(self.algorithm, arrays, self.server.arrays, self.hp, t)
        )

    def _sort(
        self, server_round: int, replies: Iterable[Message], training: TrainingRound
    ) -> Sorted:
        read: Reader = read_like
        if self.wire != FLOAT32:
            read = partial(unpack, self.algorithm, self.wire)
        found = sort_replies(replies, server_round, training.before, read, remembered=self.adds_up)
        training.foreign |= found.foreign
        self._learn(found)
        for node, reply in found.good.items():
            known = reply.client or self.roster.client(node)
            found.good[node] = replace(reply, client=known)
        if self.adds_up:
            _keep_one_of_each(found, training.good)
        return found

    def _ask(self, grid: Grid, connected: list[int], config: Mapping[str, Any]) -> None:
        """Ask nodes for what the round depends on: numbers for a draw, or to find a memory."""
        labels, nodes = self.server.labels, connected
        examples = bool(self.algorithm.changes) and self.weighting == "examples"
        if self.sample is None and not examples:
            returned = self.algorithm.memory and labels.used
            new = [node for node in connected if labels.name(node) not in labels.used]
            nodes = new if returned else []
        drawn = self.sample is not None
        self.roster.ask(grid, nodes, self.deadline.seconds, config, drawn=drawn, examples=examples)

    def _warn_of_shared_numbers(self, training: TrainingRound) -> None:
        """Say once that clients draw the same rows, and have one memory between them."""
        shared = self.roster.shared(training.good)
        if shared and training.number == 1:
            log.warning(
                "several nodes have the same partition-id, so they are one client to the server, "
                "with the same draws: %s. Give every node its own",
                "; ".join(f"{number}: {len(nodes)} nodes" for number, nodes in shared.items()),
            )

    def _learn(self, found: Sorted) -> None:
        for node, client in found.clients.items():
            self.roster.learn(node, client)

    def _metrics(self, replies: list[Reply], aggregate: MetricsFn | None) -> MetricRecord:
        """Return the means of metrics over the clients on which they are finite; else NaN.

        An AUC is NaN where a client has one class: the others have a mean.
        """
        if aggregate is not None:
            metrics = aggregate([reply.records for reply in replies], WEIGHT)
            if not isinstance(metrics, MetricRecord):
                kind = type(metrics).__name__
                raise InputError(f"a metrics_aggr_fn must return a MetricRecord, got {kind}")
            return metrics
        finite = [
            {name: value for name, value in reply.metrics.items() if math.isfinite(value)}
            for reply in replies
        ]
        # Weights are what clients say of themselves: they count only where the user wants them to.
        examples = self.weighting == "examples"
        means = mean_by_key(finite, [reply.weight if examples else 1.0 for reply in replies])
        names = dict.fromkeys(name for reply in replies for name in reply.metrics)
        return MetricRecord({name: float(means.get(name, math.nan)) for name in names})

    def _evaluators(self, server_round: int, connected: list[int]) -> list[int]:
        """Return the nodes that evaluate."""
        if self.evaluate_sample is None:
            return sorted((self.training.good if self.training else {}) or connected)
        count = count_of(self.evaluate_sample, len(connected))
        key = f"{self.seed}/{server_round}/evaluation"
        return sorted(self.roster.draw_others(connected, count, key))


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


def _require_start(
    grid: object,
    train_config: object,
    evaluate_config: object,
    evaluate_fn: object,
    on_round: object,
) -> None:
    """Refuse now what would end a run after its first round."""
    if not isinstance(grid, Grid):
        raise InputError(f"grid must be a Grid of Flower, got {type(grid).__name__}")
    for name, config in (("train_config", train_config), ("evaluate_config", evaluate_config)):
        if config is not None and not isinstance(config, ConfigRecord):
            raise InputError(f"{name} must be a ConfigRecord, got {type(config).__name__}")
    for name, function in (("evaluate_fn", evaluate_fn), ("on_round", on_round)):
        require_callable(name, function)


@dataclass(frozen=True)
class _Step:
    """Where a round's replies take the server, how they and all clients count, what is wrong."""

    after: NamedArrays
    kept: NamedArrays
    weights: Mapping[int, float]
    total: float
    problem: str | None


def _keep_one_of_each(found: Sorted, good: Mapping[int, Reply]) -> None:
    """Drop replies of a client that has one: two nodes with one number have no memory to share."""
    owners = {reply.client: node for node, reply in good.items() if reply.client is not None}
    for node, reply in list(found.good.items()):
        if reply.client is not None and owners.setdefault(reply.client, node) != node:
            del found.good[node]
            found.bad[node] = (
                f"node {owners[reply.client]} is partition {reply.client} already, and control "
                "variates need clients of their own; give every node its own partition-id"
            )
