"""A client's own number, which stays when Flower gives its node another id, and its examples."""

from __future__ import annotations

import copy
import logging
import random
import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from flwr.app import ConfigRecord, Context, Message, RecordDict
from flwr.clientapp import ClientApp
from flwr.serverapp import Grid

from fedac.errors import InputError
from fedac.federation.sampling import clients_in, participants
from fedac.flower._arrays import (
    ASK,
    CLIENT,
    CONFIG,
    EXAMPLES,
    MOST_EXAMPLES,
    QUESTION,
    WEIGHT,
    split_config,
)
from fedac.flower._server.waiting import send_and_wait
from fedac.validate import require_count

NUMBER = re.compile(r"\d{1,20}")


def client_number(context: Context) -> int:
    """Return a client's number: its ``partition-id``, or without one its node id.

    Examples
    --------
    >>> config = {"partition-id": 3, "num-partitions": 8}
    >>> client_number(Context(1, 77, config, RecordDict(), {}))
    3
    """
    return int(context.node_config.get("partition-id", context.node_id))


def tell_number(app: ClientApp, examples: Callable[[Context], int] | None = None) -> ClientApp:
    """Let a ClientApp of your own tell the server its number when it asks; return the app.

    The server draws clients by their numbers (``sample``), so that a run repeats although Flower
    gives nodes other ids every time. `client_app` does it already. The question is a message of a
    type of its own, "query.fedac": it does not meet a query function of yours.

    Parameters
    ----------
    app : ClientApp
        Yours.
    examples : callable, optional
        ``examples(context) -> int``, the "num-examples" that the client will reply with. The server
        asks for it with control variates and ``weighting="examples"``, to know how much of all
        examples a round has.

    Examples
    --------
    >>> app = tell_number(ClientApp())
    """

    @app.query(QUESTION.partition(".")[2])
    def tell(message: Message, context: Context) -> Message:
        record = message.content.config_records.get(CONFIG, ConfigRecord())
        asked = record.get(ASK)
        if asked != CLIENT:
            raise InputError(f"the server asks for {asked!r:.40}, which this client does not know")
        told: dict[str, Any] = {CLIENT: str(client_number(context))}
        if examples is not None and record.get(EXAMPLES):
            config, _ = split_config(record)
            told[WEIGHT] = require_count(WEIGHT, examples(with_config(context, config)))
        return Message(RecordDict({CLIENT: ConfigRecord(told)}), reply_to=message)

    return app


def with_config(context: Context, config: Mapping[str, Any]) -> Context:
    """Return a context whose run_config also has what the server sent of the user's."""
    context = copy.copy(context)
    context.run_config = {**context.run_config, **config}
    return context


def question(node: int, config: Mapping[str, Any], *, examples: bool) -> Message:
    """Return the message by which the server asks a node for its client's number."""
    record = ConfigRecord({**config, ASK: CLIENT, EXAMPLES: examples})
    return Message(RecordDict({CONFIG: record}), node, QUESTION)


def examples_in(reply: Message) -> float | None:
    """Return the number of examples in an answer, or None if there is none that can be used."""
    if reply.has_error():
        return None
    told = reply.content.config_records.get(CLIENT, ConfigRecord()).get(WEIGHT)
    known = isinstance(told, int | float) and 0 < told <= MOST_EXAMPLES
    return float(told) if known else None  # type: ignore[arg-type]


def number_in(reply: Message) -> str | None:
    """Return the number in an answer, or None if there is none that can be trusted."""
    if reply.has_error():
        return None
    return as_number(reply.content.config_records.get(CLIENT, ConfigRecord()).get(CLIENT))


def as_number(given: object) -> str | None:
    """Return a client's number as it came from outside, or None if it is not one.

    >>> as_number("17"), as_number("../17"), as_number(17)
    ('17', None, None)
    """
    return given if isinstance(given, str) and NUMBER.fullmatch(given) else None


# --- Who the nodes are: clients' own numbers, by which the clients of a round are drawn.
#
# Flower makes node ids at random, anew for every run. A client's own number, its ``partition-id``,
# stays: drawn by numbers, a run repeats, and a resumed run is the same.

log = logging.getLogger("flwr.fedac")

# What follows if clients do not tell their numbers.
DRAW = "the draw of clients depends on node ids, which Flower makes at random, and will not repeat"
RETURN = "a client that returns as another node is not recognized and begins its memory again"


@dataclass
class Roster:
    """The numbers of the clients, and of their examples, by node, as far as they are known.

    Examples
    --------
    >>> roster = Roster()
    >>> roster.learn(8123, "4")
    >>> roster.name(8123), roster.name(97)
    ('node 8123 (partition 4)', 'node 97')
    >>> roster.ordered([97, 8123])
    [8123, 97]
    """

    numbers: dict[int, int] = field(default_factory=dict)
    examples: dict[int, float] = field(default_factory=dict)
    asked: set[int] = field(default_factory=set)

    def learn(self, node: int, number: str | None) -> None:
        """Note the number that a node says it has."""
        if number is not None:
            self.numbers[node] = int(number)

    def shared(self, nodes: Iterable[int]) -> dict[int, list[int]]:
        """Return the numbers that several of some nodes have, and which nodes these are.

        >>> Roster({11: 0, 12: 1, 13: 0}).shared([11, 12, 13])
        {0: [11, 13]}
        """
        found: dict[int, list[int]] = {}
        for node in sorted(nodes):
            if node in self.numbers:
                found.setdefault(self.numbers[node], []).append(node)
        return {number: mine for number, mine in found.items() if len(mine) > 1}

    def name(self, node: int) -> str:
        """Return what logs call a node."""
        return f"node {node}" + f" (partition {self.numbers.get(node)})" * (node in self.numbers)

    def ordered(self, nodes: Iterable[int]) -> list[int]:
        """Return nodes by their numbers; those without one come last, by their ids."""
        return sorted(nodes, key=lambda n: (n not in self.numbers, self.numbers.get(n, n), n))

    def draw(self, nodes: Iterable[int], count: int, seed: int, r: int) -> list[int]:
        """Return who takes part in round r, counted from 0: the simulator's draw."""
        order = self.ordered(nodes)
        if count >= len(order):
            return order
        return [order[i] for i in participants(seed, r, N=len(order), count=count)]

    def draw_others(self, nodes: Iterable[int], count: int, key: str) -> list[int]:
        """Return some of the nodes, by a key of the draw."""
        order = self.ordered(nodes)
        return random.Random(key).sample(order, max(0, min(count, len(order))))

    def client(self, node: int) -> str | None:
        """Return the number of a node's client as it travels, if it is known."""
        return str(self.numbers[node]) if node in self.numbers else None

    def ask(
        self,
        grid: Grid,
        nodes: Iterable[int],
        seconds: float,
        config: Mapping[str, Any],
        *,
        drawn: bool,
        examples: bool,
    ) -> None:
        """Ask new nodes for their numbers, perhaps also those of examples, and wait for answers.

        Warn of nodes that do not answer; numbers are for a draw, or to find a client's memory.
        """
        new = [
            node
            for node in nodes
            if node not in self.asked
            and (node not in self.numbers or (examples and node not in self.examples))
        ]
        if not new:
            return
        self.asked.update(new)
        questions = [question(node, config, examples=examples) for node in new]
        answers = send_and_wait(grid, questions, seconds, {}).replies
        for node, reply in answers.items():
            self.learn(node, number_in(reply))
            known = examples_in(reply)
            if known is not None:
                self.examples[node] = known
        silent = [node for node in new if node not in self.numbers]
        if silent:
            log.warning(
                "%d of %d nodes do not tell their number, so %s: make the app with client_app, or "
                "call fedac.flower.tell_number(app)",
                len(silent), len(new), DRAW if drawn else RETURN,
            )  # fmt: skip
        silent = [node for node in new if node not in self.examples]
        if examples and silent:
            log.warning(
                "%d of %d nodes do not tell how many examples they have: they count among all "
                "clients from their first reply on. Make the app with client_app, or call "
                "fedac.flower.tell_number(app, examples=...)",
                len(silent), len(new),
            )  # fmt: skip


def require_sample(name: str, sample: float | None) -> float | None:
    """Return a number of nodes (an int), or a share of them (a float up to 1), or None.

    Examples
    --------
    >>> require_sample("sample", 1.5)
    Traceback (most recent call last):
    ...
    fedac.errors.InputError: sample must be a number of nodes (10), or a share (0.1), got 1.5
    """
    share = isinstance(sample, float) and 0 < sample <= 1
    count = isinstance(sample, int) and not isinstance(sample, bool) and sample > 0
    if not (sample is None or share or count):
        raise InputError(f"{name} must be a number of nodes (10), or a share (0.1), got {sample!r}")
    return sample


def count_of(sample: float | None, nodes: int) -> int:
    """Return how many of some nodes are in a sample; a share is rounded as in the simulator.

    >>> count_of(0.25, 10), count_of(3, 2), count_of(None, 7)
    (2, 3, 7)
    """
    if sample is None:
        return nodes
    return clients_in(sample, nodes) if isinstance(sample, float) else int(sample)
