# SPDX-License-Identifier: Apache-2.0
"""The options of a strategy, checked before any node is asked."""

from __future__ import annotations

import inspect
import logging
import warnings
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from flwr.app import MetricRecord, RecordDict

from fedac.algorithms import Algorithm, get
from fedac.algorithms.checks import check_decay, needs_mu, not_accelerated
from fedac.algorithms.hyperparameters import Hyperparameters
from fedac.algorithms.linear import boundary_form, linear_form
from fedac.errors import InputError, NotAcceleratedWarning
from fedac.federation.compression import FLOAT32, require_wire, require_wire_seed
from fedac.federation.mode import Mode, require_oversample
from fedac.federation.round import require_weighting
from fedac.federation.schedule import Decay
from fedac.flower._server.aggregate import Aggregation
from fedac.flower._server.known_clients import require_sample, sample_size
from fedac.flower._server.waiting import Deadline
from fedac.validate import require_count, require_positive, unknown_name

log = logging.getLogger("flwr.fedac")

# As in Flower: from the replies without their arrays, and the name of the weight, to metrics.
MetricsFn = Callable[[list[RecordDict], str], MetricRecord]

# Our names for the options of Flower's strategies.
FLOWERS_NAMES = {
    "fraction_train": "sample={value}, a share of the nodes (or a number of them)",
    "fraction_evaluate": "evaluate_sample={value} (or evaluate_every=0 for no evaluation)",
    "min_train_nodes": "quorum={value}, the good replies that a round needs",
    "min_evaluate_nodes": "evaluate_sample={value}, a number of nodes (or a share of them)",
    "min_available_nodes": "min_nodes={value}",
    "weighted_by_key": "weighting='examples' or 'uniform'",
    "arrayrecord_key": "nothing: the key is 'arrays'",
    "configrecord_key": "nothing: the key is 'config'",
    "server_learning_rate": "it in the algorithm's name, such as 'fedavg+step(1.0)'",
    "server_momentum": "it in the algorithm's name, such as 'fedavgm(1, 0.9)'",
    "proximal_mu": "it in the algorithm's name, such as 'fedprox(0.1)'",
    "lr": "eta={value}",
    "K": "local_steps={value}",
}


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
        mode: str | Mode = "rounds",
        concurrency: int | None = None,
        oversample: float = 1.0,
        weighting: str = "uniform",
        aggregation: str = "mean",
        trim: float | None = None,
        clip_norm: float | None = None,
        evaluate_every: int | None = None,
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
        _refuse_unknown(others)
        self.algorithm = get(algorithm)
        if self.algorithm.minibatch:
            raise InputError(f"'{self.algorithm.name}' takes no local steps; use local_steps=1")
        self.local_steps = require_count("local_steps", local_steps)
        self.eta = eta if isinstance(eta, Decay) else require_positive("eta", eta)
        first = eta.start if isinstance(eta, Decay) else eta
        if mu is None and needs_mu(self.algorithm, eta=first, K=self.local_steps):
            problem = f"'{self.algorithm.name}' needs mu, a strong-convexity estimate"
            raise InputError(f"{problem}; begin with 1/(10 eta local_steps)")
        self.mu = 1.0 if mu is None else require_positive("mu", mu)
        if isinstance(eta, Decay):
            check_decay(self.algorithm, eta=eta.start, mu=self.mu, K=self.local_steps)
        self.hp = self.hyperparameters(1)
        linear_form(self.algorithm, self.hp)  # raises if the algorithm cannot travel
        boundary_form(self.algorithm, self.hp, self.local_steps)
        self.seed = require_count("seed", seed, least=0)
        if self.seed >= 2**63:
            raise InputError(f"seed must be at most 2^63 - 1, got {seed}")

        self.mode = Mode.parse(mode)
        self.min_nodes = require_count("min_nodes", min_nodes)
        everybody = isinstance(sample, float) and sample == 1
        self.sample = None if everybody else require_sample("sample", sample)
        self.algorithm.require_all(some=self.sample is not None)
        self.quorum = None if quorum is None else require_count("quorum", quorum)
        self.deadline = Deadline(deadline)
        self.grace = None if grace is None else require_positive("grace", grace)
        self.retries = require_count("retries", retries, least=0)
        self.oversample = oversample
        self.concurrency = (
            None if concurrency is None else require_count("concurrency", concurrency)
        )
        self._check_mode()
        asked = min(sample_size(self.sample, self.min_nodes), self.min_nodes)
        if self.quorum_of(asked) > asked:
            problem = f"quorum={self.quorum}, but a round may ask only {asked} nodes"
            raise InputError(f"{problem}; give a larger min_nodes (and sample)")

        self.weighting = require_weighting(weighting)
        self.aggregation = Aggregation(rule=aggregation, trim=trim, clip_norm=clip_norm)
        if weighting == "examples" and aggregation != "mean":
            raise InputError(f"aggregation='{aggregation}' has no weights; use weighting='uniform'")
        # Messages add up, in c or in memories, so they must arrive as they were sent.
        self.adds_up = bool(self.algorithm.changes or self.algorithm.echoes)
        if self.adds_up and aggregation != "mean":
            raise InputError(
                f"aggregation='{aggregation}' and '{self.algorithm.name}' cannot be combined: "
                "control variates add up over rounds, and so do lies that slip past a robust rule; "
                "use an algorithm without them, such as 'fedavg' or 'fedac-i'"
            )
        reported = {"moves", "steps"} & {*self.algorithm.asks}
        if reported and aggregation != "mean":
            raise InputError(
                f"aggregation='{aggregation}' and '{self.algorithm.name}' cannot be combined: its "
                f"server uses the mean of the clients' {reported.pop()}, which a single bad client "
                "can make as large as it likes; use aggregation='mean', or 'fedavg' or 'fedac-i'"
            )
        self.aggregation.require_quorum(self.quorum_of(asked))
        if evaluate_every and self.mode.is_asynchronous:
            raise InputError(
                f"evaluate_every={evaluate_every}, but in mode='{self.mode}' clients are at work "
                "when the server steps; evaluate on the server, with evaluate_fn of start"
            )
        if evaluate_every is None:
            evaluate_every = 0 if self.mode.is_asynchronous else 1
        self.evaluate_every = require_count("evaluate_every", evaluate_every, least=0)
        self.evaluate_sample = require_sample("evaluate_sample", evaluate_sample)
        self.train_metrics_aggr_fn = train_metrics_aggr_fn
        self.evaluate_metrics_aggr_fn = evaluate_metrics_aggr_fn
        require_callables(
            train_metrics_aggr_fn=train_metrics_aggr_fn,
            evaluate_metrics_aggr_fn=evaluate_metrics_aggr_fn,
        )
        self.wire, self.wire_seed = require_wire(wire), require_wire_seed(wire_seed)

        self.checkpoint = None if checkpoint is None else Path(checkpoint)
        if not isinstance(resume, bool):
            raise InputError(f"resume must be True or False, got {resume!r}; see resume_from")
        if resume and (self.checkpoint is None or resume_from is not None):
            raise InputError("resume=True needs checkpoint=..., and no resume_from")
        self.resume = resume
        self.resume_from = None if resume_from is None else Path(resume_from)
        text = not_accelerated(
            [(self.algorithm, self.hp.eta)], mu=self.mu, K=self.local_steps, K_name="local_steps"
        )
        if text:
            log.warning("%s", text)  # `flwr run` shows nothing but the log
            warnings.warn(text, NotAcceleratedWarning, stacklevel=2)

    def _check_mode(self) -> None:
        """Reject a mode that the algorithm or another option does not go with."""
        mode = self.mode
        mode.require_method(self.algorithm)
        require_oversample(self.oversample, [mode])
        if mode.kind == "until":
            raise InputError(
                f"mode='{mode}' is for the simulator: in Flower clients take their local_steps; "
                "use 'deadline(30s)', or end your own training loop by the clock"
            )
        if mode.kind != "rounds" and self.grace is not None:
            raise InputError(f"grace is for mode='rounds': mode='{mode}' does not wait for it")
        if not mode.is_asynchronous:
            if self.concurrency is not None:
                raise InputError("concurrency is for mode='buffer(10)'; rounds have sample")
            return
        for name, instead in (
            ("sample", f"with mode='{mode}' use concurrency=..., the number of nodes at work"),
            ("quorum", f"mode='{mode}' itself sets how many replies a step needs: omit quorum"),
        ):
            if getattr(self, name) is not None:
                raise InputError(f"{name} is for rounds; {instead}")
        if isinstance(self.deadline.given, str):
            raise InputError(
                f"mode='{mode}' needs a deadline in seconds: 'adaptive' follows the slowest reply "
                "of a round"
            )
        if self.concurrency is not None and self.concurrency > self.min_nodes:
            raise InputError(
                f"concurrency={self.concurrency}, but the run may start with {self.min_nodes} "
                f"nodes; use min_nodes={self.concurrency} or more"
            )
        option = "min_nodes" if self.concurrency is None else "concurrency"
        mode.require_places(self.concurrency or self.min_nodes, option=option)

    def quorum_of(self, asked: int) -> int:
        """Return how many good replies a round needs if it asks `asked` nodes."""
        if self.mode.is_asynchronous:
            return int(self.mode.number)
        if self.quorum is not None:
            return self.quorum
        expected = min(sample_size(self.sample, self.min_nodes), self.min_nodes)
        return max(asked, expected) // 2 + 1

    def hyperparameters(self, server_round: int) -> Hyperparameters:
        """Return the algorithm's hyperparameters in a round, counted from 1."""
        eta = self.eta.at(server_round - 1) if isinstance(self.eta, Decay) else self.eta
        return self.algorithm.couple(eta=eta, mu=self.mu, K=self.local_steps)

    def settings(self) -> dict[str, Any]:
        """Return the settings, apart from the algorithm, that a resumed run must share."""
        return {
            "mu": self.mu,
            "decay": self.eta.by if isinstance(self.eta, Decay) else None,
            "trim": self.aggregation.trim,
            "clip_norm": self.aggregation.clip_norm,
            "aggregation": self.aggregation.rule,
            **{
                name: getattr(self, name)
                for name in ("local_steps", "seed", "sample", "weighting", "wire", "wire_seed")
            },
            "mode": str(self.mode),
            "concurrency": self.concurrency,
            "oversample": self.oversample,
        }


def require_callables(**functions: object) -> None:
    """Raise InputError for anything that is neither a function nor None."""
    for name, function in functions.items():
        if function is not None and not callable(function):
            raise InputError(f"{name} must be a function, got {function!r:.60}")


def _refuse_unknown(options: Mapping[str, Any]) -> None:
    """Reject unknown options; translate Flower's."""
    for name, value in options.items():
        if name == "fraction_evaluate" and value == 0:
            raise InputError("there is no option 'fraction_evaluate'; write evaluate_every=0")
        if name not in FLOWERS_NAMES:
            raise unknown_name("option", name, [*inspect.signature(Options).parameters][1:-1])
        ours = FLOWERS_NAMES[name].format(value=repr(value))
        raise InputError(f"there is no option '{name}'; write {ours}")
