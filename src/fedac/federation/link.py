# SPDX-License-Identifier: Apache-2.0
"""Costs of a simulated run in rounds, bytes and seconds.

A `Link` describes the network between clients and server, and the speed of clients. A round takes
``latency + bytes up/up + bytes down/down + the local steps of the slowest client``; a local step
takes ``gradient + row x rows of its batch``.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, fields, replace
from decimal import Decimal
from functools import lru_cache
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from fedac.errors import InputError
from fedac.federation.sampling import GOLDEN, gaussians, mix, participants, worker_key
from fedac.validate import (
    Array,
    look_up,
    parse_piece,
    require_nonnegative,
    require_positive,
    unknown_name,
)

SECONDS = {"s": 1.0, "ms": 1e-3, "us": 1e-6}
LONG_SECONDS = SECONDS | {"min": 60.0, "h": 3600.0}
LONGEST = 2.0**61 / 1e9  # seconds, about 73 years: sums of nanoseconds fit into 64 bits
BITS = {"bit": 1.0, "kbit": 1e3, "Mbit": 1e6, "Gbit": 1e9, "kB": 8e3, "MB": 8e6, "GB": 8e9}
UNITS = {"latency": SECONDS, "up": BITS, "down": BITS, "gradient": SECONDS, "row": SECONDS}
STRAGGLER_STREAM = np.uint64(0x8CB92BA72F3D8DD7)  # any odd number with no pattern
SPEED_STREAM = np.uint64(0xC2B2AE3D27D4EB4F)  # likewise


@dataclass(frozen=True, slots=True)
class Link:
    """The network between clients and server, and the speed of clients.

    Numbers may be strings with a unit, such as "50ms" or "20Mbit". Omitted terms count as zero.

    Parameters
    ----------
    latency : float
        Seconds of a round trip; one per round.
    up : float
        Bits per second from a client to the server.
    down : float
        Bits per second from the server to a client.
    gradient : float
        Seconds of a local step.
    row : float
        Additional seconds of a local step for each row of its batch.
    stragglers : str, optional
        ``"lognormal(s)"`` multiplies the local steps of each client in each round by e^(s z), where
        z is standard normal. The round waits for the slowest client.
    speeds : str or sequence of float, optional
        Factors of the time of each client's local steps, the same in all rounds: a number per
        client, where 2 takes twice as long, or ``"lognormal(s)"`` for e^(s z).

    Examples
    --------
    >>> link = Link(latency="50ms", up="20Mbit", down="100Mbit", gradient="2ms", row="20us")
    >>> link.round_seconds(up=1_000_000, down=1_000_000, steps=10)  # 0.05 + 0.4 + 0.08 + 0.0202
    0.5502
    """

    latency: float = 0.0
    up: float = math.inf
    down: float = math.inf
    gradient: float = 0.0
    row: float = 0.0
    stragglers: str = ""
    speeds: str | Sequence[float] = ""

    def __post_init__(self) -> None:
        for name, units in UNITS.items():
            value = _parse_number(name, getattr(self, name), units)
            if units is SECONDS:
                value = require_nonnegative(f"{name} (seconds)", value)
            elif value != math.inf:  # no limit
                value = require_positive(f"{name} (bits per second)", value)
            object.__setattr__(self, name, value)
        _spread("stragglers", self.stragglers)
        if isinstance(self.speeds, str):
            _spread("speeds", self.speeds)
        else:
            if not isinstance(self.speeds, Iterable):
                raise InputError(
                    f"speeds is lognormal(s) or a number per client, got {self.speeds!r}"
                )
            factors = (require_positive("a client's speed", speed) for speed in self.speeds)
            object.__setattr__(self, "speeds", tuple(factors))

    @classmethod
    def parse(cls, text: str) -> Link:
        """Parse a link: a preset, ``name=value`` pairs, or a preset followed by pairs.

        Examples
        --------
        >>> print(Link.parse("wan gradient=10ms"))
        latency=50ms up=200Mbit down=200Mbit gradient=10ms row=20us
        >>> Link.parse("gradient=50ms speeds=[1, 1, 4]").speeds
        (1.0, 1.0, 4.0)
        """
        words = re.findall(r"\w+=\[[^\]]*\]|[^\s,]+", text)
        if not words:
            raise InputError(
                f"a link is {', '.join(LINKS)}, or numbers such as 'latency=50ms up=20Mbit'"
            )
        link = cls()
        if "=" not in words[0]:
            link = look_up("link", words.pop(0), LINKS)
        known, values = [field.name for field in fields(cls)], dict[str, Any]()
        for word in words:
            name, _, value = word.partition("=")
            if name not in known:
                raise unknown_name("part of a link", name, known)
            if name in values:
                raise InputError(f"the link '{text}' gives {name} twice")
            values[name] = _parse_speeds(value) if name == "speeds" else value
        link = replace(link, **values)
        if link.is_free:
            raise InputError(f"the link '{text}' has zero cost: set latency, gradient or row")
        return link

    def __str__(self) -> str:
        texts = {name: _with_unit(getattr(self, name), units) for name, units in UNITS.items()}
        texts["stragglers"] = self.stragglers
        texts["speeds"] = self.speeds if isinstance(self.speeds, str) else _listed(self.speeds)
        usual = ("row", "stragglers", "speeds")
        shown = (name for name in texts if getattr(self, name) or name not in usual)
        return " ".join(f"{name}={texts[name]}" for name in shown)

    @property
    def is_free(self) -> bool:
        """Whether a round takes no time."""
        return self.round_seconds(up=1, down=1, steps=1) == 0

    def in_words(self) -> str:
        """Describe the link in a sentence."""
        name = next((f"{name}: " for name, link in LINKS.items() if link == self), "")
        up, down = (_with_unit(rate, BITS, "/s", " ") for rate in (self.up, self.down))
        trip, step = (_with_unit(time, SECONDS, "", " ") for time in (self.latency, self.gradient))
        text = f"{name}a round trip takes {trip}, up {up}, down {down}; a local step takes {step}"
        if self.row:
            text += f" plus {_with_unit(self.row, SECONDS, '', ' ')} per row"
        if self.stragglers:
            text += f", times {self.stragglers} in each round; it waits for the slowest client"
        if self.speeds:
            lasting = self.speeds if isinstance(self.speeds, str) else "a factor of its own"
            text += f"; each client's steps take {lasting} times as long in the whole run"
        return text

    def factors(self, seed: int, M: int) -> Array:
        """Return by how much longer than usual each client's local steps take in the whole run."""
        if not isinstance(self.speeds, str):
            if len(self.speeds) != M:
                raise InputError(f"speeds has {len(self.speeds)} numbers for {M} clients")
            return np.array(self.speeds)
        z = _normal(np.uint64(seed) ^ SPEED_STREAM, np.arange(M), 0)
        return np.exp(_spread("speeds", self.speeds) * z)

    def straggling(self, seed: int, members: npt.NDArray[np.int64], r: Any) -> Array:
        """Return by how much longer than usual local steps of these clients take in round r."""
        spread = _spread("stragglers", self.stragglers)
        if not spread:
            return np.ones(len(members))
        return np.exp(spread * _normal(np.uint64(seed) ^ STRAGGLER_STREAM, members, r))

    def round_seconds(
        self, *, up: float, down: float, steps: float, rows: float = 1, slowest: float = 1.0
    ) -> float:
        """Return the seconds of a round in which a client sends `up` and receives `down` bytes.

        `rows` is the batch size, `slowest` the factor of the slowest client.
        """
        sending = 8 * up / self.up + 8 * down / self.down
        return self.latency + sending + steps * (self.gradient + self.row * rows) * slowest

    def elapsed(
        self,
        *,
        up: float,
        down: float,
        gaps: Sequence[int],
        rows: npt.ArrayLike = 1,
        steps: npt.ArrayLike | None = None,
        first: npt.ArrayLike | None = None,
        minibatch: bool = False,
        seed: int = 0,
        M: int = 1,
        taking_part: int | None = None,
    ) -> Array:
        """Return the seconds elapsed before the first round and after each round.

        `gaps` are the local steps of the rounds and `rows` the rows of a batch, one number or one
        for each of the M clients. `steps` are each client's own local steps of any round, and
        `first` the rows of one more gradient at the start of every round. `taking_part` of the
        clients (default: all) participate in a round; `seed` determines which, and their speed. If
        `minibatch`, all batches of a round form one.

        Examples
        --------
        >>> Link(latency=1.0, row=0.5).elapsed(up=0, down=0, gaps=[2, 4], rows=[10, 20], M=2)
        array([ 0., 21., 62.])
        """
        clients = (len(gaps), seed, M, M if taking_part is None else taking_part)
        lasting = self.factors(seed, M) if self.speeds else 1.0

        def seconds(rows: npt.ArrayLike) -> Array:
            if np.shape(rows) not in ((), (M,)):
                raise InputError(
                    f"rows must be one number, or one for each of {M} clients; got {np.size(rows)}"
                )
            return (self.gradient + self.row * np.asarray(rows, np.float64)) * lasting

        def slowest_of(each: Array) -> Array:
            longest = float(each.max())
            paces = tuple((each / longest).tolist()) if np.ptp(each) else ()
            return longest * slowest(self.stragglers, *clients, paces)

        lengths = np.asarray(gaps, np.float64)
        if minibatch and not self.speeds:
            longest = self.gradient + self.row * float(np.max(rows)) * lengths
            local = longest * slowest(self.stragglers, *clients)
        elif minibatch:
            local = np.zeros(len(lengths))
            for gap in np.unique(lengths):
                local = np.where(lengths == gap, slowest_of(seconds(rows * gap)), local)
        elif steps is None and first is None:
            local = lengths * slowest_of(seconds(rows))
        else:
            local = np.zeros(len(lengths))
            for gap in np.unique(lengths):
                each = (gap if steps is None else np.asarray(steps)) * seconds(rows)
                each = each if first is None else each + seconds(first)
                local = np.where(lengths == gap, slowest_of(each), local)
        rounds = self.round_seconds(up=up, down=down, steps=0) + local
        return np.concatenate([[0.0], np.cumsum(rounds)])


@lru_cache(maxsize=256)  # all methods of a comparison wait for the same clients
def slowest(
    stragglers: str, rounds: int, seed: int, M: int, taking_part: int, paces: tuple[float, ...] = ()
) -> Array:
    """Return for each round how much longer than usual the slowest participant's steps take.

    The result is a factor. `paces` has the relative duration of each client's usual step.
    Default: 1 for all.
    """
    spread = _spread("stragglers", stragglers)
    if not spread and (not paces or taking_part == M):
        return np.full(rounds, max(paces, default=1.0))
    usual = np.log(paces or np.ones(M))
    found = []
    for r in range(rounds):
        members = participants(seed, r, M, taking_part)
        z = _normal(np.uint64(seed) ^ STRAGGLER_STREAM, members, r)
        found.append((usual[members] + spread * z).max())
    return np.exp(found)


def _normal(stream: np.uint64, members: npt.NDArray[np.int64], counter: Any) -> Array:
    """Return a standard normal number for each client and counter."""
    with np.errstate(over="ignore"):  # wrap-around is the point
        streams = worker_key(stream, members.astype(np.uint64))
        return gaussians(mix(streams + np.asarray(counter).astype(np.uint64) * GOLDEN), 1)[:, 0]


def _listed(speeds: Sequence[float]) -> str:
    return f"[{', '.join(f'{speed:.12g}' for speed in speeds)}]"


def _parse_speeds(text: str) -> str | list[float]:
    """Return the numbers of "[1, 1, 4]"; another text, such as "lognormal(1)", as it is."""
    if not text.startswith("["):
        _spread("speeds", text)
        return text
    try:
        return [float(number) for number in re.split(r"[\s,]+", text.strip("[] "))]
    except ValueError:
        raise InputError(
            f"speeds is lognormal(s) or a number per client, such as [1, 1, 4], got '{text}'"
        ) from None


def _spread(name: str, given: str) -> float:
    """Return s of "lognormal(s)", or 0 if nothing is given."""
    if not given:
        return 0.0
    try:
        name_of_law, (s,), _ = parse_piece(given)
        if name_of_law == "lognormal":
            return require_nonnegative("s", s)
    except ValueError:
        pass
    numbers = ", or a number per client, such as [1, 1, 4]" if name == "speeds" else ""
    raise InputError(f"{name} must be lognormal(s) with s >= 0{numbers}; got '{given}'")


def parse_seconds(name: str, text: str) -> float:
    """Return a time such as "30s" or "10min" in seconds."""
    return require_nonnegative(name, _parse_number(name, text, LONG_SECONDS))


def _parse_number(name: str, value: float | str, units: dict[str, float]) -> float:
    if not isinstance(value, str):
        return value
    factors = {unit.lower(): factor for unit, factor in units.items()}
    found = re.fullmatch(r"([-+.\deE]+)\s*([A-Za-z]+)(?:/s)?", value)
    try:
        if found is not None:
            # As a decimal number, so that "20us" is 2e-5 to the last bit.
            return float(Decimal(found[1]) * Decimal(str(factors[found[2].lower()])))
    except (ArithmeticError, KeyError):
        pass
    example = "20Mbit" if units is BITS else "50ms"
    raise InputError(
        f"{name} is a number with a unit ({', '.join(units)}), such as {example}, got '{value}'"
    )


def _with_unit(value: float, units: dict[str, float], after: str = "", space: str = "") -> str:
    """Write a number in the unit in which it is shortest."""
    if value == math.inf:
        return "unlimited"
    factors = {unit: factor for unit, factor in units.items() if "B" not in unit}
    texts = [f"{value / factor:.6g}{space}{unit}{after}" for unit, factor in factors.items()]
    return min((text for text in texts if "e" not in text), key=len, default=texts[0])


def as_link(link: Link | str) -> Link:
    """Return a link, given as a `Link` or as text for `Link.parse`."""
    if not isinstance(link, Link | str):
        raise InputError(f"link must be a Link, or a text such as 'wan', got {link!r}")
    return link if isinstance(link, Link) else Link.parse(link)


# A row costs a hundredth of a step: see docs/compare.md.
LINKS = {
    "datacenter": Link(latency=0.0005, up=10e9, down=10e9, gradient=0.002, row=2e-5),
    "wan": Link(latency=0.05, up=200e6, down=200e6, gradient=0.002, row=2e-5),
    "home": Link(latency=0.03, up=20e6, down=100e6, gradient=0.01, row=1e-4,
                 stragglers="lognormal(0.5)"),
    "phone": Link(latency=0.1, up=5e6, down=20e6, gradient=0.05, row=5e-4,
                  stragglers="lognormal(1)"),
}  # fmt: skip
DEFAULT_LINK = LINKS["wan"]


class Costs(NamedTuple):
    """Costs before the first round and after each round."""

    rounds: npt.NDArray[np.int64]
    bytes: npt.NDArray[np.int64]  # sent and received by a client that is present in every round
    seconds: Array  # on a link

    @property
    def megabytes(self) -> Array:
        """The bytes in units of 10^6."""
        return self.bytes / 1e6


def run_costs(
    *,
    bytes_up: int,
    bytes_down: int,
    gaps: Sequence[int],
    link: Link,
    messages: float = 1.0,
    **timing: Any,
) -> Costs:
    """Return the costs of a run, given a client's traffic in a round.

    `gaps` are the local steps of the rounds, `messages` how many a client that is always at work
    sends in a round, and `timing` other arguments of `Link.elapsed`.

    >>> costs = run_costs(bytes_up=4000, bytes_down=4000, gaps=(2, 2), link=Link(gradient=0.5))
    >>> costs.bytes, costs.seconds
    (array([    0,  8000, 16000]), array([0., 1., 2.]))
    """
    rounds = np.arange(len(gaps) + 1)
    seconds = link.elapsed(up=bytes_up, down=bytes_down, gaps=tuple(gaps), **timing)
    sent = np.round(rounds * messages).astype(np.int64)
    return Costs(rounds, sent * (bytes_up + bytes_down), seconds)


def megabytes_sent(bytes_up: int, rounds: int, *, present: int, M: int) -> float:
    """Return the megabytes that a client sends on average, if `present` of M are in a round."""
    return bytes_up * (rounds * present / M) / 1e6
