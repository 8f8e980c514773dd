# SPDX-License-Identifier: Apache-2.0
"""An algorithm: a frozen dataclass of plain functions on vectors.

The functions use only ``+ - * / **`` on their arguments, so they work on floats, NumPy arrays and
tensors. The simulator, PyTorch and Flower all call these functions; no other module has an update
formula.

One round of any algorithm::

    sequences                                           broadcast to the clients of the round
    local = enter(sequences, memory, hp)                on a client
    K times: w_md = query(local, hp), g taken there, local = update(local, w_md, g, hp)
    message, memory = leave(local, sequences, memory, hp, done)
    sequences, server = serve(mean message, sequences, server, hp, this)

`done` describes the client's work, `this` the round. `memory` stays on a client between its rounds,
`server` on the server. By default, as in the paper, a client takes its local steps on the sequences
and sends them back, and the server takes the mean. `fedac.federation.round` has the whole round.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

from fedac.algorithms.hyperparameters import Coupling
from fedac.errors import InputError

Vector = Any
"""A float, an array or a tensor: anything with + - * / and powers."""
State = tuple[Vector, ...]
"""One vector for each sequence of an algorithm."""
FUNCTIONS = ("start", "query", "update", "output", "first_memory", "enter", "leave", "serve")
ASKS = ("moves", "steps", "gradient")
"""What a method may ask of a runtime: see `Algorithm.asks`."""
NUMBERS = ("steps", "threshold")
"""Names of vectors that are one number, equal in all coordinates: they cost nothing to send."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RoundInfo:
    """A round as the server sees it.

    Parameters
    ----------
    number : int
        Number of the round, from 0.
    share : float
        Total weight of the participants, where all clients together have weight 1: the fraction of
        rows that they hold if weighted by examples, otherwise the fraction of clients that they
        are.
    spread, moved : float
        Weighted mean of the squared lengths of the clients' moves, and squared length of their mean
        move. Lengths are those of the whole model, all points together. Only for a method that
        asks for "moves".
    steps : float
        Weighted mean of the participants' local steps. Only for a method that asks for "steps".
    """

    number: int = 0
    share: float = 1.0
    spread: Vector = 0.0
    moved: Vector = 0.0
    steps: float = 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class ClientWork:
    """A client's work in a round.

    Parameters
    ----------
    steps : int
        Local steps taken; if clients differ, an array with a row for each.
    gradient : vector or None
        The gradient of all rows of the client at the first sequence that was broadcast. Only for a
        method that asks for "gradient".
    """

    steps: Any
    gradient: Vector = None


def enter_whole(sequences: State, memory: State, hp: Any) -> State:
    """Take local steps on the broadcast sequences themselves."""
    return sequences


def leave_whole(
    local: State, sequences: State, memory: State, hp: Any, done: ClientWork
) -> tuple[State, State]:
    """Send the local sequences back."""
    return local, memory


def serve_mean(
    message: State, sequences: State, server: State, hp: Any, this: RoundInfo
) -> tuple[State, State]:
    """Take the mean of the clients' messages."""
    return message, server


@dataclass(frozen=True, kw_only=True, repr=False)
class Algorithm:
    """One optimization algorithm, for every runtime.

    Parameters
    ----------
    name : str
        The name users type.
    label : str
        The name that figures show.
    sequences : tuple of str
        Names of the vectors that the server broadcasts; a client's message has the same ones, but
        for those in `broadcast_only`.
    couple : Coupling
        ``couple(eta=, mu=, K=) -> hp``, a frozen dataclass with all hyperparameters, which is
        passed to the other functions.
    start : callable
        ``start(w_0) -> state``, the sequences followed by the server's own vectors.
    query : callable
        ``query(local, hp) -> w_md``, where the gradient is taken.
    update : callable
        ``update(local, w_md, g, hp) -> local``, one local step.
    output : callable
        ``output(state, hp, t) -> w``, the point to evaluate after t steps.
    minibatch : bool
        Take one step per round, on the mean gradient of all M*K samples of the round.
    local : tuple of str
        Names of the vectors of a client's local steps. Default: the sequences.
    memory : tuple of str
        Names of the vectors that a client keeps between its rounds.
    server : tuple of str
        Names of the server's own vectors, such as momentum.
    enter : callable
        ``enter(sequences, memory, hp) -> local``, the start of a client's round.
    leave : callable
        ``leave(local, sequences, memory, hp, done) -> message, memory``, the end of a client's
        round; `done` is a `ClientWork`.
    serve : callable
        ``serve(message, sequences, server, hp, this) -> sequences, server``, given the mean
        message; `this` is a `RoundInfo`.
    first_memory : callable, optional
        ``first_memory(sequences) -> memory`` in a client's first round. Default: zeros.
    everybody : bool
        Whether every client must participate in every round.
    changes : tuple of str
        Sequences for which clients send a change, not a new value. Compression encodes other
        vectors as differences from the broadcast ones.
    echoes : tuple of pairs of str
        (sequence, memory) pairs in which the memory stores the value that the client sent for the
        sequence. Compression updates both.
    pooled : tuple of pairs of str
        (server vector, memory) pairs in which the server keeps the weighted mean of the memory over
        all clients, which grows by the client's move.
    means : tuple of str
        Sequences that are means of what clients send, such as a momentum, and not points: server
        rules do not move them.
    broadcast_only : tuple of str
        Sequences that clients do not send back.
    asks : tuple of str
        What the method needs to know of a round: "moves" (`this.spread` and `this.moved`), "steps"
        (`this.steps`), "gradient" (`done.gradient`).

    Examples
    --------
    >>> from fedac.algorithms import FEDAVG
    >>> hp = FEDAVG.couple(eta=0.5, mu=1.0, K=1)
    >>> state = FEDAVG.start(3.0)
    >>> w_md = FEDAVG.query(state, hp)
    >>> FEDAVG.update(state, w_md, 2.0, hp)
    (2.0,)
    """

    name: str
    label: str
    sequences: tuple[str, ...]
    couple: Coupling
    start: Callable[[Vector], State]
    query: Callable[[State, Any], Vector]
    update: Callable[[State, Vector, Vector, Any], State]
    output: Callable[[State, Any, int], Vector]
    minibatch: bool = False
    local: tuple[str, ...] = ()
    memory: tuple[str, ...] = ()
    server: tuple[str, ...] = ()
    enter: Callable[[State, State, Any], State] = enter_whole
    leave: Callable[[State, State, State, Any, ClientWork], tuple[State, State]] = leave_whole
    serve: Callable[[State, State, State, Any, RoundInfo], tuple[State, State]] = serve_mean
    first_memory: Callable[[State], State] | None = None
    everybody: bool = False
    changes: tuple[str, ...] = ()
    echoes: tuple[tuple[str, str], ...] = ()
    pooled: tuple[tuple[str, str], ...] = ()
    means: tuple[str, ...] = ()
    broadcast_only: tuple[str, ...] = ()
    asks: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        for field in ("sequences", "local", "memory", "server"):
            names = getattr(self, field)
            wrong = not isinstance(names, tuple) or not all(isinstance(name, str) for name in names)
            if wrong or not self.sequences:
                raise InputError(
                    f"algorithm '{self.name}': {field} must be a tuple of names, such as ('w',), "
                    f"not {names!r}"
                )
        if unknown := {*self.asks} - {*ASKS}:
            raise InputError(
                f"'{self.name}' asks for '{unknown.pop()}'; a method may ask for {', '.join(ASKS)}"
            )
        # PyTorch and Flower find vectors by name.
        for names in (self.state_names, self.local_sequences, self.memory):
            if twice := {name for name in names if names.count(name) > 1}:
                raise InputError(
                    f"'{self.name}' has two vectors called '{twice.pop()}'; rename one"
                )

    def require_all(self, *, some: bool) -> None:
        """Raise InputError if only some clients participate but the algorithm needs all."""
        if self.everybody and some:
            raise InputError(
                f"'{self.name}' needs all clients in every round and would diverge; use scaffold, "
                "or cv with another local rule"
            )

    @property
    def local_sequences(self) -> tuple[str, ...]:
        """Names of the vectors of a client's local steps."""
        return self.local or self.sequences

    @property
    def state_names(self) -> tuple[str, ...]:
        """Names of all vectors on the server."""
        return self.sequences + self.server

    @property
    def sent(self) -> tuple[str, ...]:
        """Names of the vectors of a client's message."""
        return tuple(name for name in self.sequences if name not in self.broadcast_only)

    @property
    def points(self) -> tuple[str, ...]:
        """Names of the sequences that are points, which server rules move."""
        others = (*self.changes, *self.means)
        return tuple(name for name in self.sent if name not in others)

    @property
    def is_plain(self) -> bool:
        """Whether clients take local steps on the broadcast sequences and send them back."""
        return self.enter is enter_whole and self.leave is leave_whole

    def split(self, state: State) -> tuple[State, State]:
        """Return the sequences and the server's own vectors."""
        S = len(self.sequences)
        return state[:S], state[S:]

    def begin_memory(self, sequences: State) -> State:
        """Return the memory of a client in its first round."""
        if self.first_memory is not None:
            return self.first_memory(sequences)
        return tuple(0 * sequences[0] for _ in self.memory)

    def bases(self, sequences: State) -> State:
        """Return the vectors from which compression takes differences, one for each sent one."""
        named = dict(zip(self.sequences, sequences, strict=True))
        return tuple(0 * named[name] if name in self.changes else named[name] for name in self.sent)

    def remember_sent(self, message: State, sent: State, memory: State) -> State:
        """Return the memory of a client whose message was compressed to `sent`."""
        after = dict(zip(self.memory, memory, strict=True))
        for sequence, kept in self.echoes:
            t = self.sent.index(sequence)
            after[kept] = after[kept] + (sent[t] - message[t])
        return tuple(after.values())

    def reweigh_message(self, message: State, memory: State, ratio: float) -> State:
        """Return the message of a client whose weight has changed; `ratio` is old over new.

        A change d = c_m' - c_m that weighs n' adds n' d to the sum of n_m c_m, but n' c_m' - n c_m
        must be added. So the client sends c_m' - ratio c_m. With `reweigh_sequences`, c stays the
        mean of all c_m by the new weights.
        """
        if ratio == 1:
            return message
        after = dict(zip(self.sent, message, strict=True))
        before = dict(zip(self.memory, memory, strict=True))
        for sequence, kept in self.echoes:
            if sequence in self.changes:
                after[sequence] = after[sequence] + (1 - ratio) * before[kept]
        return tuple(after.values())

    def reweigh_sequences(self, sequences: State, ratio: float) -> State:
        """Return the sequences for `serve` if the total weight changed; `ratio` is old over new."""
        if ratio == 1:
            return sequences
        names = zip(self.sequences, sequences, strict=True)
        return tuple(ratio * x if name in self.changes else x for name, x in names)

    def reweigh_memory(self, after: State, memory: State, ratio: float) -> State:
        """Return the new memory of a client whose weight has changed; `ratio` is old over new.

        The server adds n' (z_m' - z_m) to the sum of n_m z_m, which has n z_m of this client. So
        the client keeps z_m' - (1 - ratio) z_m.
        """
        if ratio == 1:
            return after
        pooled = [kept for _, kept in self.pooled]
        names = zip(self.memory, after, memory, strict=True)
        return tuple(new - (1 - ratio) * old if name in pooled else new for name, new, old in names)

    def reweigh_server(self, server: State, ratio: float) -> State:
        """Return the server's vectors for `serve` if the total weight changed, as above."""
        if ratio == 1:
            return server
        pooled = [name for name, _ in self.pooled]
        names = zip(self.server, server, strict=True)
        return tuple(ratio * z if name in pooled else z for name, z in names)

    @property
    def vectors_up(self) -> int:
        """Vectors that a client sends in a round; a minibatch algorithm sends its gradient."""
        return 1 if self.minibatch else len(self.sent)

    @property
    def vectors_down(self) -> int:
        """Vectors that a client receives; a minibatch algorithm broadcasts the query point."""
        if self.minibatch:
            return 1
        return sum(name not in NUMBERS for name in self.sequences)

    def __repr__(self) -> str:
        return f"<Algorithm {self.name}>"

    def __reduce__(self) -> tuple[Any, ...]:
        """Copy and pickle built-in algorithms by name, since functions cannot be copied."""
        from fedac.algorithms import get, is_known

        if is_known(self):
            return get, (self.name,)
        return object.__new__, (type(self),), self.__dict__


def override(rule: Algorithm, piece: Any, **fields: Any) -> Algorithm:
    """Return `rule` with the functions that `piece` defines, and with other `fields` replaced."""
    functions = {name: getattr(piece, name) for name in FUNCTIONS if hasattr(piece, name)}
    return replace(rule, **functions, **fields)
