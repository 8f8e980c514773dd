"""The checks of a Spec: of each field by itself, and rules about several fields.

A message spells names as the surface does, and begins with file and line if it has them. Rules
import what they need from data, algorithms and splits only when a Spec is checked.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from itertools import product
from types import SimpleNamespace
from typing import Any

from fedac.errors import InputError
from fedac.federation.spec import FLOAT32, FULL, LARGEST_SEED, Option, Spec, Surface, default_of
from fedac.validate import require_count, require_nonnegative, require_positive, unknown_name

# Rows of a step are listed in memory; for larger batches use "full".
LARGEST_BATCH = 10**6

Check = Callable[[Any, Surface], None]
RULES: list[tuple[tuple[str, ...], Check]] = []


def check_spec(surface: Surface, given: Mapping[str, Any]) -> Spec:
    """Return a Spec of the values that a user gave, by the surface's names.

    None counts as not given where it is the default.

    Examples
    --------
    >>> check_spec(Surface(several=("eta",)), {"workers": 4, "steps": 64, "eta": [0.1, 0.5]}).eta
    (0.1, 0.5)
    >>> check_spec(Surface(spell="--{}".format), {"workers": 0})
    Traceback (most recent call last):
    ...
    fedac.errors.InputError: --workers must be a whole number, at least 1, got 0
    """
    options = surface.options()
    fields = {surface.names.get(name, name): name for name in options}
    values: dict[str, Any] = {}
    for name, value in given.items():
        if name not in fields:
            raise InputError(f"{surface.locate(name)}{unknown_name('key', name, fields)}")
        if value is not None or default_of(fields[name]) is not None:
            values[fields[name]] = value
    for name in surface.needed:
        if name not in values:
            raise InputError(f"{surface.locate(name)}{surface.write(name)} is missing")
    for name in values:
        with_place(surface, name, _check_field, surface, values, name, options[name])
    spec = Spec(**{**_defaults(surface, values), **values})
    for names, check in RULES:
        if not set(names) & set(surface.without):
            for one in _combinations(spec, names):
                with_place(surface, names[0], check, one, surface)
    return spec


def _defaults(surface: Surface, values: Mapping[str, Any]) -> dict[str, Any]:
    """Return a surface's defaults, without workers or clients where other options replace them."""
    from fedac.data.splits import is_split

    defaults = dict(surface.defaults)
    if values.keys() & {"clients", "split"}:
        defaults.pop("workers", None)
    split = values.get("split", "iid")
    # A file of client names also determines their number.
    if "workers" in values or not is_split(split[0] if isinstance(split, tuple) else split):
        defaults.pop("clients", None)
    return defaults


def with_place(surface: Surface, name: str, check: Callable[..., None], *arguments: Any) -> None:
    """Call a check; begin its message with where the user set the field."""
    try:
        check(*arguments)
    except InputError as error:
        place = surface.locate(surface.names.get(name, name))
        raise InputError(f"{place}{error}") from None


def _combinations(spec: Spec, names: tuple[str, ...]) -> Iterator[SimpleNamespace]:
    """Yield every combination of the values of some fields."""
    lists = [spec.several(name) or (None,) for name in names]
    for values in product(*lists):
        yield SimpleNamespace(**dict(zip(names, values, strict=True)))


def _check_field(surface: Surface, values: dict[str, Any], name: str, option: Option) -> None:
    """Check and normalize the values of one field."""
    value, title = values[name], surface.write(name)
    several = isinstance(value, list | tuple)
    if several and name not in surface.several:
        raise InputError(f"{title} takes one value, got {value!r:.60}")
    if several and not value:
        raise InputError(f"{title} is an empty list: give at least one value")
    checked = [check_value(title, one, option) for one in (value if several else [value])]
    if name == "algorithm":
        checked = _expand(title, checked)
    for one in checked:
        if checked.count(one) > 1:
            raise InputError(f"{title}: {one} is listed twice")
    values[name] = tuple(checked) if len(checked) > 1 else checked[0]


def _expand(title: str, names: list[Any]) -> list[Any]:
    """Expand names with | into one name per method."""
    from fedac.algorithms import expand
    from fedac.algorithms.parsing import find_algorithm

    each = [one for name in names for one in (expand(name) if isinstance(name, str) else [name])]
    found = [find_algorithm(one).name if isinstance(one, str) else one.name for one in each]
    for name in found:
        if found.count(name) > 1:
            raise InputError(f"{title}: {name} is listed twice")
    return each


def check_value(title: str, value: Any, option: Option) -> Any:
    """Return one value of a field as its own type, or explain what is wrong with it.

    Objects that are not plain values, such as arrays, enter as they are.
    """
    kind = option.kind
    if isinstance(value, str) and (str in kind or bool in kind):
        return _check_text(title, value, option)
    if kind == (bool,):
        if not isinstance(value, bool):
            raise InputError(f"{title} must be true or false, got {value!r:.60}")
        return value
    if int in kind:
        if option.most == LARGEST_SEED:
            if isinstance(value, bool) or not hasattr(value, "__index__") or not (
                0 <= value <= LARGEST_SEED
            ):  # fmt: skip
                raise InputError(
                    f"{title} must be a whole number from 0 to 2^64 - 1, got {value!r:.60}"
                )
            return int(value)
        number = require_count(title, value, least=option.least or 0)
        if option.most is not None and number > option.most:
            most = "2^63 - 1" if option.most == 2**63 - 1 else option.most
            raise InputError(f"{title} must be at most {most}, got {number}")
        return number
    if float in kind:
        if option.above is not None:
            return require_positive(title, value)
        return require_nonnegative(title, value) if str not in kind else value
    if value is None or isinstance(value, bool | int | float | dict):
        raise InputError(f"{title} must be text, got {value!r:.60}")
    return value


def _check_text(title: str, value: str, option: Option) -> str:
    if option.words and value not in option.words:
        if int in option.kind:
            known = " or ".join(f"'{word}'" for word in option.words)
            raise InputError(f"{title} must be a whole number or {known}, got {value!r:.60}")
        raise InputError(str(unknown_name(title.removeprefix("--"), value, option.words)))
    if str not in option.kind:
        raise InputError(f"{title} must be true or false, got {value!r:.60}")
    if not value:
        raise InputError(f"{title} is empty: {option.help}")
    return value


def rule(*names: str) -> Callable[[Check], Check]:
    """Register a rule about some fields; if it is broken, the error is about the first of them.

    The rule is called with every combination of their values, and with the surface.
    """

    def register(check: Check) -> Check:
        RULES.append((names, check))
        return check

    return register


@rule("loss")
def _known_loss(one: Any, surface: Surface) -> None:
    from fedac.objectives.losses import find_loss

    find_loss(one.loss)


@rule("clients", "workers", "split", "split_seed")
def _workers_or_clients(one: Any, surface: Surface) -> None:
    from fedac.data.splits import check_clients, is_split

    holders = surface.write_all(("clients", "split"))
    if one.workers is None and one.clients is None and one.split is None:
        raise InputError(
            f"{surface.write('workers')} is missing, or {surface.write('clients')}: how many take "
            "part"
        )
    if one.workers is not None and (one.clients is not None or one.split is not None):
        raise InputError(
            f"use either {surface.write('workers')}, who draw from all rows, or {holders}, "
            "who hold their own: not both"
        )
    drawn = one.split is None or is_split(one.split)
    if one.clients is None and one.split is not None and drawn:
        raise InputError(
            f"{surface.write('split')} {one.split} needs {surface.write('clients')}: how many "
            "clients there are"
        )
    if one.split is not None:
        check_clients(one.clients, one.split, one.split_seed)


@rule("split_seed", "workers", "split")
def _seed_of_a_draw(one: Any, surface: Surface) -> None:
    from fedac.data.splits import is_split

    if one.split_seed and (one.workers is not None or not is_split(one.split or "iid")):
        raise InputError(
            f"{surface.write('split_seed')} needs a split that is drawn, such as "
            f"{surface.write('split')} iid"
        )


@rule("participation", "workers", "clients", "algorithm")
def _enough_clients(one: Any, surface: Surface) -> None:
    from fedac.algorithms.parsing import find_algorithm
    from fedac.federation.federation import taking_part

    M = one.workers or one.clients
    if M is not None:
        some = taking_part(one.participation, M) is not None
        find_algorithm(one.algorithm).require_all(some=some)


@rule("weighting", "workers", "clients")
def _clients_to_weigh(one: Any, surface: Surface) -> None:
    if one.weighting != "examples" and one.workers is not None:
        raise InputError(
            f"{surface.write('weighting')} needs {surface.write('clients')}: workers all count the "
            "same"
        )


@rule("batch")
def _whole_batches(one: Any, surface: Surface) -> None:
    if one.batch != FULL and one.batch > LARGEST_BATCH:
        raise InputError(
            f"{surface.write('batch')} must be at most {LARGEST_BATCH}, or 'full', got {one.batch}"
        )


@rule("wire", "batch", "workers")
def _messages_that_differ(one: Any, surface: Surface) -> None:
    from fedac.federation.compression import require_wire

    require_wire(one.wire)
    if one.wire != FLOAT32 and one.batch == FULL and one.workers is not None:
        raise InputError(
            "with full batches all workers are one and the same, so their messages cannot differ "
            f"by rounding: use {surface.write('clients')}, or omit {surface.write('wire')} "
            f"{one.wire}"
        )


@rule("local_steps", "steps")
def _whole_rounds(one: Any, surface: Surface) -> None:
    from fedac.federation.schedule import Schedule

    if one.steps is not None:
        Schedule.every(one.local_steps, steps=one.steps)


@rule("eta", "algorithm", "local_steps", "mu", "l2")
def _coupled(one: Any, surface: Surface) -> None:
    from fedac.algorithms.checks import couple
    from fedac.algorithms.parsing import find_algorithm

    mu = one.l2 if one.mu is None else one.mu
    try:
        couple(find_algorithm(one.algorithm), eta=one.eta, mu=mu, K=one.local_steps)
    except InputError:
        if mu == 0:
            raise InputError(
                f"{one.algorithm} needs mu > 0: with {surface.write('l2')} 0, pass "
                f"{surface.write('mu')}"
            ) from None
        raise


@rule("decay", "algorithm", "eta", "local_steps", "mu", "l2")
def _known_decay(one: Any, surface: Surface) -> None:
    from fedac.algorithms.checks import check_decay
    from fedac.algorithms.parsing import find_algorithm
    from fedac.federation.schedule import Decay

    if one.decay is not None:
        start = Decay(one.eta, one.decay).start
        mu = one.l2 if one.mu is None else one.mu
        check_decay(find_algorithm(one.algorithm), eta=start, mu=mu, K=one.local_steps)


@rule("test", "split")
def _test_rows(one: Any, surface: Surface) -> None:
    from fedac.data.holdout import check_test

    if isinstance(one.test, int | float) and not 0 < one.test < 1:
        raise InputError(f"a share to hold out must be between 0 and 1, got {one.test:g}")
    check_test(one.test, one.split or "iid")


@rule("link")
def _known_link(one: Any, surface: Surface) -> None:
    from fedac.federation.link import as_link

    as_link(one.link)
