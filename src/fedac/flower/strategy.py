"""The server's side: FedAc and FedAvg as Flower strategies that survive their clients.

A round is a broadcast of all sequences, K local steps on every client, a check of every reply,
and one aggregate of the good ones. Both sequences move together or not at all.
"""

from __future__ import annotations

import logging
import math
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import Any

from flwr.app import ArrayRecord, ConfigRecord, Message, MessageType, MetricRecord, RecordDict
from flwr.serverapp import Grid
from flwr.serverapp.strategy import Strategy

from fedac.algorithms import Algorithm
from fedac.algorithms.couplings import Hyperparameters
from fedac.errors import InputError, unknown_name
from fedac.files import require_writable
from fedac.flower.aggregate import Aggregation
from fedac.flower.checkpoint import Checkpoint
from fedac.flower.exchange import exchange
from fedac.flower.history import Dropped, History, Round, mean_metrics
from fedac.flower.messages import (
    ARRAYS,
    CONFIG,
    LARGEST_SEED,
    ROUND,
    Task,
    address,
    count_bytes,
    from_record,
    part,
    to_record,
)
from fedac.flower.nodes import draw_nodes, wait_for_nodes
from fedac.flower.replies import Reply, check_reply, read_metrics, read_reply, sort_out
from fedac.flower.result import FederationResult, QuorumError
from fedac.flower.state import State, initial_state, keyed_for_clients, output_of
from fedac.require import require_count, require_positive

# A child of Flower's logger: `flwr run --stream` and `flwr log` show what it says.
log = logging.getLogger("flwr.fedac")

WEIGHTINGS = ("uniform", "examples")

EvaluateFn = Callable[[int, ArrayRecord], MetricRecord | None]


class LocalStrategy(Strategy):
    """Any local algorithm as a Flower strategy; `FedAc` and `FedAvg` are what users want.

    Parameters
    ----------
    algorithm : Algorithm
        Whose sequences travel.
    eta, mu : float
        Step size and strong-convexity estimate, for the coupling.
    local_steps : int
        Steps between two synchronizations, K.
    seed : int
        Of the clients' draws and of the choice of clients.
    min_nodes : int
        How many nodes to wait for before the first round, n.
    quorum : int, optional
        How many good replies a round needs, k of n; by default more than half of `min_nodes`.
    sample : int, optional
        How many nodes to ask in a round; all of them unless given.
    deadline : float
        Seconds that a round's training, and its evaluation, wait for replies; also how long to
        wait for nodes.
    retries : int
        How often a round below the quorum asks the missing nodes again, before `QuorumError`.
    weighting : "uniform" or "examples"
        The algorithm averages uniformly; "examples" weighs clients by their "num-examples".
    aggregation : "mean", "median", "trimmed-mean" or "clipped-mean"
        See `fedac.flower.aggregate` for what the robust ones cost.
    trim, clip_norm : float
        See `Aggregation`.
    evaluate_every : int
        Evaluate the output on the clients after every so many rounds, and after the last; 0 never.
    checkpoint : path, optional
        Written after every round.
    resume_from : path, optional
        A checkpoint to go on from; `initial_arrays` then only has to be of the same model.
    """

    def __init__(
        self,
        algorithm: Algorithm,
        *,
        eta: float,
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
        checkpoint: str | Path | None = None,
        resume_from: str | Path | None = None,
    ) -> None:
        if algorithm.minibatch:
            raise InputError(f"'{algorithm.name}' takes no local steps; use local_steps=1")
        self.algorithm = algorithm
        self.local_steps = require_count("local_steps", local_steps)
        self.hp: Hyperparameters = algorithm.couple(
            eta=require_positive("eta", eta), mu=require_positive("mu", mu), K=self.local_steps
        )
        self.seed = require_count("seed", seed, least=0)
        if self.seed > LARGEST_SEED:
            raise InputError(f"seed must be at most 2^63 - 1, got {seed}")
        self.min_nodes = require_count("min_nodes", min_nodes)
        self.sample = None if sample is None else require_count("sample", sample)
        asked = self.min_nodes if self.sample is None else min(self.sample, self.min_nodes)
        self.quorum = asked // 2 + 1 if quorum is None else require_count("quorum", quorum)
        if self.quorum > asked:
            raise InputError(f"quorum={self.quorum} can never be reached: only {asked} are asked")
        self.deadline = require_positive("deadline", deadline)
        self.retries = require_count("retries", retries, least=0)
        if weighting not in WEIGHTINGS:
            raise unknown_name("weighting", str(weighting), WEIGHTINGS)
        self.weighting = weighting
        self.aggregation = Aggregation(rule=aggregation, trim=trim, clip_norm=clip_norm)
        if weighting == "examples" and not self.aggregation.weighs:
            raise InputError(f"aggregation='{aggregation}' has no weights; use weighting='uniform'")
        if aggregation == "trimmed-mean":
            _require_trimming(self.aggregation, self.quorum)
        self.evaluate_every = require_count("evaluate_every", evaluate_every, least=0)
        self.checkpoint = _path("checkpoint", checkpoint)
        self.resume_from = _path("resume_from", resume_from)
        self.history = History()
        self._like: State = {}

    # What Flower's own loop, or a strategy wrapped around this one, may call.

    def configure_train(
        self, server_round: int, arrays: ArrayRecord, config: ConfigRecord, grid: Grid
    ) -> list[Message]:
        """Return the messages of a round; `arrays` holds all sequences."""
        self._like = from_record(arrays)
        if not all(part(name, self._like) for name in self.algorithm.sequences):
            raise InputError(
                f"a round needs all sequences ({', '.join(self.algorithm.sequences)}); call "
                "strategy.start, or begin with to_record(initial_state(strategy.algorithm, arrays))"
            )
        nodes = self._choose(wait_for_nodes(grid, self.min_nodes, self.deadline), server_round)
        content = self._training(server_round, self._like, config)
        return address(content, nodes, MessageType.TRAIN, server_round, self.deadline)

    def aggregate_train(
        self, server_round: int, replies: Iterable[Message]
    ) -> tuple[ArrayRecord | None, MetricRecord | None]:
        """Return the aggregate of the good replies, or nothing if they are below the quorum."""
        by_node = {reply.metadata.src_node_id: reply for reply in replies}
        good, _ = self._sort_out(
            server_round, by_node, by_node, partial(read_reply, like=self._like)
        )
        if len(good) < self.quorum:
            return None, None
        return to_record(self._aggregate(good, self._like)), _metric_record(self._means(good))

    def configure_evaluate(
        self, server_round: int, arrays: ArrayRecord, config: ConfigRecord, grid: Grid
    ) -> list[Message]:
        """Return the messages of an evaluation of the output."""
        content = self._evaluation(server_round, from_record(arrays), config)
        nodes = sorted(grid.get_node_ids())
        return address(content, nodes, MessageType.EVALUATE, server_round, self.deadline)

    def aggregate_evaluate(
        self, server_round: int, replies: Iterable[Message]
    ) -> MetricRecord | None:
        """Return the clients' metrics, weighted by their examples."""
        by_node = {reply.metadata.src_node_id: reply for reply in replies}
        good, _ = self._sort_out(server_round, by_node, by_node, read_metrics, during="evaluation")
        return _metric_record(self._means(good)) if good else None

    def summary(self) -> None:
        """Log what this strategy will do."""
        log.info(
            "%s: eta=%g gamma=%g alpha=%g beta=%g, %d local steps, quorum %d of %d, deadline %g s, "
            "%s weights, %s",
            self.algorithm.label,
            self.hp.eta,
            self.hp.gamma,
            self.hp.alpha,
            self.hp.beta,
            self.local_steps,
            self.quorum,
            self.min_nodes,
            self.deadline,
            self.weighting,
            self.aggregation.rule,
        )

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
            As Flower gives it to a ServerApp.
        initial_arrays : ArrayRecord
            The model at the start, all floating-point; see `torch_arrays` for PyTorch.
        num_rounds : int
            Rounds of the whole run; a resumed run makes those that are left.
        timeout : float, optional
            A shorter deadline for this run.
        train_config, evaluate_config : ConfigRecord, optional
            Entries of your own for the clients.
        evaluate_fn : callable, optional
            ``evaluate_fn(round, arrays) -> MetricRecord`` on the server, given the output.

        Raises
        ------
        QuorumError
            When a round has too few good replies, after all retries; it holds the result of the
            rounds before.
        """
        num_rounds = require_count("num_rounds", num_rounds, least=0)
        if not isinstance(grid, Grid):
            raise InputError(f"grid must be a Grid, got {type(grid).__name__}")
        if not (evaluate_fn is None or callable(evaluate_fn)):
            raise InputError(f"evaluate_fn must be a function, got {type(evaluate_fn).__name__}")
        deadline = self.deadline
        if timeout is not None:
            deadline = min(deadline, require_positive("timeout", timeout))
        for name, config in (("train_config", train_config), ("evaluate_config", evaluate_config)):
            if not isinstance(config, Mapping | None):
                raise InputError(f"{name} must be a ConfigRecord, got {type(config).__name__}")
            self._task(1).to_config(config)  # refuse names that are taken, before anybody waits
        self.summary()
        state, finished = self._begin(initial_arrays)
        if finished > num_rounds:
            log.warning("%d rounds are finished already, %d were asked for", finished, num_rounds)
        if self.checkpoint is not None:
            self._require_checkpoint(self.checkpoint)
        run = _Run(
            grid, deadline, train_config or {}, evaluate_config or {}, evaluate_fn, finished + 1
        )
        result = FederationResult()
        if finished == 0 and evaluate_fn is not None:
            metrics = self._evaluate_here(run, 0, state, result)
            self.history.rounds.append(Round(round=0, metrics=metrics))
        try:
            while finished < num_rounds:
                began = time.monotonic()
                row, state = self._round(run, finished + 1, num_rounds, state, result)
                finished += 1
                try:
                    row.metrics |= self._evaluate_here(run, finished, state, result)
                finally:  # what was trained is kept, whatever becomes of the user's function
                    row.seconds = time.monotonic() - began
                    self._keep(row, state)
                log.info("%s", row.describe(num_rounds))
        except QuorumError as error:
            error.result = self._complete(result, state, finished)
            raise
        return self._complete(result, state, finished)

    def _complete(self, result: FederationResult, state: State, finished: int) -> FederationResult:
        result.arrays = to_record(self._output(state, finished))
        result.history, result.sequences = self.history, state
        return result

    def _round(
        self, run: _Run, server_round: int, num_rounds: int, state: State, result: FederationResult
    ) -> tuple[Round, State]:
        """Train, and evaluate on the clients; return the round's row and the new state."""
        row = Round(round=server_round)
        good = self._train(run, row, state)
        state = self._aggregate(good, state)
        means = self._means(good)
        result.train_metrics_clientapp[server_round] = _metric_record(means)
        row.metrics |= {f"train/{name}": value for name, value in means.items()}
        every = self.evaluate_every
        if every and (server_round % every == 0 or server_round == num_rounds):
            row.metrics |= self._evaluate(run, row, sorted(good), state, result)
        return row, state

    def _keep(self, row: Round, state: State) -> None:
        """Write a finished round into the history, and into the checkpoint if there is one."""
        self.history.rounds.append(row)
        if self.checkpoint is None:
            return
        content = Checkpoint(
            round=row.round,
            arrays=state,
            settings=self._settings(),
            history=self.history.to_dict(),
        )
        try:
            content.save(self.checkpoint)
        except OSError as error:
            # A full disk should not cost the rounds that are made.
            log.error("round %d: no checkpoint was written: %s; going on", row.round, error)

    def _train(self, run: _Run, row: Round, state: State) -> dict[int, Reply]:
        """Ask until the quorum is there; return the good replies by node, count in the row."""
        server_round = row.round
        content = self._training(server_round, state, run.train_config)
        good: dict[int, Reply] = {}
        reasons: dict[int, str] = {}
        # At the start all nodes are waited for; later only as many as a round needs.
        first = server_round == run.first_round
        asked: set[int] = set()
        unanswered: dict[str, int] = {}
        for attempt in range(1, self.retries + 2):
            row.attempts = attempt
            wanted = self.min_nodes if first and attempt == 1 else self.quorum
            there = wait_for_nodes(run.grid, wanted, run.deadline)
            if len(there) < wanted:
                log.warning(
                    "round %d: %d nodes are there, %d were waited for",
                    server_round, len(there), wanted,
                )  # fmt: skip
            # Those that have not failed yet first.
            nodes = self._choose(
                [n for n in there if n not in asked],
                server_round, attempt=attempt, enough=len(good),
                else_from=[n for n in there if n in asked and n not in good],
            )  # fmt: skip
            asked.update(nodes)
            messages = address(content, nodes, MessageType.TRAIN, server_round, run.deadline)
            for name in [name for name, node in unanswered.items() if node in good]:
                del unanswered[name]
            replies = exchange(
                run.grid,
                messages,
                run.deadline,
                unanswered,
                lambda reply: check_reply(reply, like=state, server_round=server_round) is None,
            )
            row.bytes_down += count_bytes(messages)
            row.bytes_up += count_bytes(replies.values())
            heard = sorted({*nodes, *replies})
            new, why = self._sort_out(server_round, heard, replies, partial(read_reply, like=state))
            good |= new
            reasons |= why
            row.bad += sum(node in replies for node in why)
            row.lost += sum(node not in replies for node in why)
            row.good = len(good)
            if len(good) >= self.quorum:
                return dict(sorted(good.items()))
            log.warning(
                "round %d: %d good replies, the quorum is %d (attempt %d of %d)",
                server_round, len(good), self.quorum, attempt, self.retries + 1,
            )  # fmt: skip
        reasons = {node: why for node, why in reasons.items() if node not in good}
        raise QuorumError(server_round, len(good), self.quorum, self.retries + 1, reasons)

    def _sort_out(
        self,
        server_round: int,
        nodes: Iterable[int],
        replies: Mapping[int, Message],
        read: Callable[..., Reply],
        *,
        during: str = "training",
    ) -> tuple[dict[int, Reply], dict[int, str]]:
        """Return the good replies, and why the others are not; log and count every one."""
        good, reasons = sort_out(nodes, replies, partial(read, server_round=server_round))
        for node, reason in reasons.items():
            log.warning("round %d: %s: dropped node %d: %s", server_round, during, node, reason)
            self.history.dropped.append(
                Dropped(round=server_round, node=node, reason=reason, during=during)
            )
        return good, reasons

    def _aggregate(self, good: Mapping[int, Reply], before: State) -> State:
        replies = [good[node] for node in sorted(good)]
        weights = [reply.weight for reply in replies] if self.weighting == "examples" else None
        return self.aggregation([reply.arrays for reply in replies], before, weights)

    @staticmethod
    def _means(good: Mapping[int, Reply]) -> dict[str, float]:
        return mean_metrics([(reply.weight, reply.metrics) for reply in good.values()])

    def _evaluate(
        self,
        run: _Run,
        row: Round,
        nodes: Sequence[int],
        state: State,
        result: FederationResult,
    ) -> dict[str, float]:
        """Evaluate the output on the nodes that have just trained; nobody else is waited for."""
        server_round = row.round
        content = self._evaluation(server_round, state, run.evaluate_config)
        messages = address(content, nodes, MessageType.EVALUATE, server_round, run.deadline)
        replies = exchange(run.grid, messages, run.deadline)
        row.bytes_down += count_bytes(messages)
        row.bytes_up += count_bytes(replies.values())
        good, _ = self._sort_out(server_round, nodes, replies, read_metrics, during="evaluation")
        if not good:
            log.warning("round %d: no client could evaluate", server_round)
            return {}
        metrics = self._means(good)
        result.evaluate_metrics_clientapp[server_round] = _metric_record(metrics)
        return metrics

    def _evaluate_here(
        self, run: _Run, server_round: int, state: State, result: FederationResult
    ) -> dict[str, float]:
        if run.evaluate_fn is None:
            return {}
        record = run.evaluate_fn(server_round, to_record(self._output(state, server_round)))
        if record is None:
            return {}
        if not isinstance(record, MetricRecord):
            raise InputError(
                f"evaluate_fn must return a MetricRecord or None, got {type(record).__name__}"
            )
        result.evaluate_metrics_serverapp[server_round] = record
        return {f"server/{k}": float(v) for k, v in record.items() if isinstance(v, int | float)}

    def _choose(
        self,
        nodes: Sequence[int],
        server_round: int,
        *,
        attempt: int = 1,
        enough: int = 0,
        else_from: Sequence[int] = (),
    ) -> list[int]:
        """Return the nodes to ask, the same for the same seed, round, attempt and nodes.

        Where `nodes` are too few, the rest is taken from `else_from`.
        """
        if self.sample is None:
            return sorted([*nodes, *else_from])
        seed = f"{self.seed}/{server_round}/{attempt}"
        return draw_nodes(nodes, else_from, count=self.sample - enough, seed=seed)

    def _task(self, server_round: int) -> Task:
        return Task(
            algorithm=self.algorithm.name,
            hp=self.hp,
            round=server_round,
            first_step=(server_round - 1) * self.local_steps,
            local_steps=self.local_steps,
            seed=self.seed,
        )

    def _training(self, server_round: int, state: State, config: Mapping[str, Any]) -> RecordDict:
        """Return what the clients need to train."""
        orders = self._task(server_round).to_config(config)
        return RecordDict({ARRAYS: to_record(state), CONFIG: orders})

    def _evaluation(self, server_round: int, state: State, config: Mapping[str, Any]) -> RecordDict:
        """Return what the clients need to evaluate the output."""
        record = to_record(keyed_for_clients(self._output(state, server_round)))
        return RecordDict({ARRAYS: record, CONFIG: ConfigRecord({**config, ROUND: server_round})})

    def _output(self, state: State, server_round: int) -> State:
        return output_of(self.algorithm, self.hp, state, server_round * self.local_steps)

    def _begin(self, initial_arrays: ArrayRecord) -> tuple[State, int]:
        """Return the state to start from and how many rounds it has behind it."""
        self.history = History()
        state = initial_state(self.algorithm, initial_arrays)
        if self.resume_from is None:
            return state, 0
        found = Checkpoint.load(self.resume_from)
        found.require_same(self.resume_from, self._settings(), state)
        self.history = History.from_dict(found.history)
        log.info("going on after round %d of '%s'", found.round, self.resume_from)
        return dict(found.arrays), found.round

    def _settings(self) -> dict[str, Any]:
        """Return all that decides where a run goes."""
        return {
            "algorithm": self.algorithm.name,
            **asdict(self.hp),
            "local_steps": self.local_steps,
            "seed": self.seed,
            "sample": self.sample,
            "weighting": self.weighting,
            "aggregation": self.aggregation.rule,
            "trim": self.aggregation.trim,
            "clip_norm": self.aggregation.clip_norm,
        }

    def _require_checkpoint(self, path: Path) -> None:
        require_writable(path)
        resumed = self.resume_from is not None and self.resume_from.resolve() == path.resolve()
        if path.exists() and not resumed:
            log.warning("'%s' will be overwritten", path)


@dataclass(frozen=True)
class _Run:
    """What stays the same through one call of `start`."""

    grid: Grid
    deadline: float
    train_config: Mapping[str, Any]
    evaluate_config: Mapping[str, Any]
    evaluate_fn: EvaluateFn | None
    first_round: int


def _require_trimming(aggregation: Aggregation, quorum: int) -> None:
    """Refuse a share of a quorum that is nobody: it would be the plain mean."""
    if quorum < 3:
        raise InputError(f"'trimmed-mean' needs a quorum of at least 3, got {quorum}")
    if not aggregation.left_out(quorum):
        least = math.ceil(1000 / quorum) / 1000
        raise InputError(
            f"of a quorum of {quorum} nobody would be left out; trim must be at least {least}"
        )


def _path(name: str, given: str | Path | None) -> Path | None:
    if given == "":
        raise InputError(f"{name} is empty; give the path of a file")
    return None if given is None else Path(given)


def _metric_record(metrics: Mapping[str, float]) -> MetricRecord:
    return MetricRecord(dict(metrics))
