# SPDX-License-Identifier: Apache-2.0
"""The checks of a Spec: of each field by itself, and rules about several fields.

Messages use the names of the option set, and begin with file and line if these are known.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from itertools import product
from types import SimpleNamespace
from typing import Any

from fedac.algorithms import expand
from fedac.algorithms.checks import check_decay, couple
from fedac.algorithms.parsing import find_algorithm
from fedac.data.splits import check_clients, is_split
from fedac.errors import InputError
from fedac.federation.availability import Availability
from fedac.federation.compression import require_wire
from fedac.federation.federation import taking_part
from fedac.federation.link import as_link
from fedac.federation.mode import Mode
from fedac.federation.schedule import Decay, Schedule
from fedac.federation.spec import FLOAT32, FOR_NETWORKS, FULL, Option, OptionSet, Spec
from fedac.models import find_model
from fedac.objectives.losses import find_loss
from fedac.validate import (
    NO_L1,
    require_count,
    require_nonnegative,
    require_positive,
    unknown_name,
)

Spelled = Callable[[str], str]
# A rule gets one combination of the values of its fields, and how messages spell their names.
Rule = Callable[[Any, Spelled], object]
RULES: list[tuple[tuple[str, ...], Rule]] = []
POWERS = {2**63 - 1: "2^63 - 1", 2**64 - 1: "2^64 - 1"}


def check_spec(options: OptionSet, given: Mapping[str, Any]) -> Spec:
    """Return a Spec of the values that a user gave, by the names of the option set.

    None counts as not given where it is the default.

    Examples
    --------
    >>> check_spec(OptionSet(several=("eta",)), {"workers": 4, "steps": 64, "eta": [0.1, 0.5]}).eta
    (0.1, 0.5)
    >>> check_spec(OptionSet(spell="--{}".format), {"workers": 0})
    Traceback (most recent call last):
    ...
    fedac.errors.InputError: --workers must be a whole number, at least 1, got 0
    """
    accepted = options.fields()
    fields = {options.name_of(name): name for name in accepted}
    values: dict[str, Any] = {}
    for name, value in given.items():
        if name in ("l1", "l1_ratio"):
            raise InputError(f"{options.locate(name)}there is no key {name}: {NO_L1}")
        if name not in fields:
            raise InputError(f"{options.locate(name)}{unknown_name('key', name, fields)}")
        if value is not None or getattr(Spec, fields[name]) is not None:
            values[fields[name]] = value
    replaced: set[str] = set()
    if values.get("model") is not None:  # without an F*, l2 may be 0
        accepted["l2"] = replace(accepted["l2"], above=None)
        replaced.add("l2")
    if "epochs" in values:
        replaced.add("local_steps")
        if "local_steps" in values:
            raise InputError(
                f"{options.locate('epochs')}{options.spelled('epochs')} and "
                f"{options.spelled('local_steps')} both give the steps of a round: use one"
            )
    for name in options.needed:
        if name not in values.keys() | replaced:
            raise InputError(f"{options.locate(name)}{options.spelled(name)} is missing")
    for name in values:
        with _located(options, name):
            values[name] = _check_field(options, name, values[name], accepted[name])
    spec = Spec(**_defaults(options, values) | values)
    for names, check in RULES:
        if not set(names) & set(options.without):
            for combination in product(*(spec.several(name) or (None,) for name in names)):
                with _located(options, names[0]):
                    check(
                        SimpleNamespace(**dict(zip(names, combination, strict=True))),
                        options.spelled,
                    )
    return spec


@contextmanager
def _located(options: OptionSet, name: str) -> Iterator[None]:
    """Begin the message of an error with where the user set the field."""
    try:
        yield
    except InputError as error:
        raise InputError(f"{options.locate(options.name_of(name))}{error}") from None


def _defaults(options: OptionSet, values: Mapping[str, Any]) -> dict[str, Any]:
    """Return the defaults, without workers or clients where other options replace them."""
    defaults = dict(options.defaults)
    if "rounds" in values:
        defaults.pop("steps", None)
    if values.keys() & {"clients", "split", "client"}:
        defaults.pop("workers", None)
    if values.get("model") is not None:
        # A command with one value of K has its own defaults of K and rounds.
        tuned = "local_steps" in options.defaults
        defaults |= (
            FOR_NETWORKS if tuned else {name: FOR_NETWORKS[name] for name in ("l2", "batch")}
        )
    if "epochs" in values:
        defaults.pop("local_steps", None)
    split = values.get("split", "iid")
    # A file of client names also determines their number.
    named = values.keys() & {"workers", "client"}
    if named or not is_split(split[0] if isinstance(split, tuple) else split):
        defaults.pop("clients", None)
    return defaults


def _check_field(options: OptionSet, name: str, value: Any, option: Option) -> Any:
    """Return the checked value of a field, or a tuple of several."""
    title, several = options.spelled(name), isinstance(value, list | tuple)
    if several and name not in options.several:
        raise InputError(f"{title} takes one value, got {value!r:.60}")
    if several and not value:
        raise InputError(f"{title} is an empty list: give at least one value")
    checked = [_check_value(title, one, option) for one in (value if several else [value])]
    distinct = checked
    if name == "algorithm":  # one name may stand for several methods, and one method have two names
        checked = [m for one in checked for m in (expand(one) if isinstance(one, str) else [one])]
        distinct = [find_algorithm(m).name if isinstance(m, str) else m.name for m in checked]
    for one in distinct:
        if distinct.count(one) > 1:
            raise InputError(f"{title}: {one} is listed twice")
    return tuple(checked) if len(checked) > 1 else checked[0]


def _check_value(title: str, value: Any, option: Option) -> Any:
    """Return one value of a field as its own type, or explain what is wrong with it.

    Objects that are not plain values, such as arrays, are returned unchanged.
    """
    kind, words = option.kind, " or ".join(f"'{word}'" for word in option.words)
    if kind == (bool,):
        if not isinstance(value, bool):
            raise InputError(f"{title} must be true or false, got {value!r:.60}")
        return value
    if isinstance(value, str) and str in kind:
        if option.words and value not in option.words:
            if int in kind:
                raise InputError(f"{title} must be a whole number or {words}, got {value!r:.60}")
            raise unknown_name(title.removeprefix("--"), value, option.words)
        if not value:
            raise InputError(f"{title} is empty: {option.help}")
        return value
    if int in kind:
        number = require_count(title, value, least=option.least or 0)
        if option.most is not None and number > option.most:
            most = POWERS.get(option.most, option.most)
            instead = f", or {words}" if words else ""
            raise InputError(f"{title} must be at most {most}{instead}, got {number}")
        return number
    if float in kind:
        if option.above is not None:
            return require_positive(title, value)
        return value if str in kind else require_nonnegative(title, value)
    if value is None or isinstance(value, bool | int | float | dict):
        raise InputError(f"{title} must be text, got {value!r:.60}")
    return value


def rule(*names: str) -> Callable[[Rule], Rule]:
    """Register a rule about some fields; errors are located at the first of them."""

    def register(check: Rule) -> Rule:
        RULES.append((names, check))
        return check

    return register


@rule("model", "loss", "intercept")
def _network_has_its_own(one: Any, spelled: Spelled) -> None:
    if one.model is None:
        return
    if isinstance(one.model, str):  # not the network itself
        find_model(one.model)
    for name in ("loss", "intercept"):
        if getattr(one, name):
            raise InputError(
                f"{spelled(name)} is for linear models: omit it, or omit {spelled('model')}; a "
                "network learns classes with cross-entropy, and numbers with mse"
            )


@rule("backend", "model")
def _back_ends_are_of_networks(one: Any, spelled: Spelled) -> None:
    if one.backend is not None and one.model is None:
        raise InputError(f"{spelled('backend')} is for networks: add {spelled('model')}")


@rule("precision", "model")
def _autocast_needs_a_network(one: Any, spelled: Spelled) -> None:
    if one.precision == "bfloat16" and one.model is None:
        raise InputError(f"{spelled('precision')} bfloat16 is for networks; use float32 or float64")


@rule("loss")
def _loss_exists(one: Any, spelled: Spelled) -> None:
    if one.loss is not None:
        find_loss(one.loss)


@rule("clients", "workers", "split", "split_seed", "client")
def _workers_or_clients(one: Any, spelled: Spelled) -> None:
    workers, clients, split = map(spelled, ("workers", "clients", "split"))
    if one.client is not None:
        others = [n for n in ("workers", "clients", "split") if getattr(one, n) is not None]
        if others:
            raise InputError(
                f"{spelled('client')} names the clients already: omit {spelled(others[0])}"
            )
        return
    if one.workers is None and one.clients is None and one.split is None:
        raise InputError(
            f"give the number of {workers}, or of {clients}, or the column {spelled('client')}"
        )
    if one.workers is not None and (one.clients is not None or one.split is not None):
        raise InputError(
            f"use either {workers} or {clients}/{split}, not both: workers draw from all rows, "
            "clients hold their own"
        )
    if one.split is not None:
        if one.clients is None and is_split(one.split):
            raise InputError(f"{split} {one.split} needs {clients}, the number of clients")
        check_clients(one.clients, one.split, one.split_seed)


@rule("split_seed", "workers", "split", "client")
def _split_is_random(one: Any, spelled: Spelled) -> None:
    no_split = one.workers is not None or one.client is not None
    if one.split_seed and (no_split or not is_split(one.split or "iid")):
        raise InputError(
            f"{spelled('split_seed')} needs a random split, such as {spelled('split')} iid"
        )


@rule("participation", "workers", "clients", "algorithm")
def _enough_clients(one: Any, spelled: Spelled) -> None:
    M = one.workers or one.clients
    if M is not None:
        some = taking_part(one.participation, M) is not None
        find_algorithm(one.algorithm).require_all(some=some)


@rule("weighting", "workers", "clients")
def _clients_to_weight(one: Any, spelled: Spelled) -> None:
    if one.weighting != "examples" and one.workers is not None:
        raise InputError(
            f"{spelled('weighting')} needs {spelled('clients')}: all workers have the same weight"
        )


@rule("wire", "batch", "workers")
def _messages_differ(one: Any, spelled: Spelled) -> None:
    require_wire(one.wire)
    if one.wire != FLOAT32 and one.batch == FULL and one.workers is not None:
        raise InputError(
            "with full batches all workers are the same, so their messages cannot differ by "
            f"rounding: use {spelled('clients')}, or omit {spelled('wire')} {one.wire}"
        )


@rule("epochs", "steps", "rounds")
def _epochs_need_rounds(one: Any, spelled: Spelled) -> None:
    if one.epochs is not None and one.rounds is None:
        raise InputError(f"{spelled('epochs')} needs {spelled('rounds')}, the length of the run")


@rule("local_steps", "steps", "rounds")
def _whole_rounds(one: Any, spelled: Spelled) -> None:
    if one.steps is not None and one.rounds is not None:
        raise InputError(
            f"{spelled('rounds')} and {spelled('steps')} both give the length of a run: use one"
        )
    if one.steps is not None:
        Schedule.every(one.local_steps, steps=one.steps)


@rule("eta", "algorithm", "local_steps", "mu", "l2")
def _step_size_fits(one: Any, spelled: Spelled) -> None:
    algorithm, mu = find_algorithm(one.algorithm), one.l2 if one.mu is None else one.mu
    try:
        couple(algorithm, eta=one.eta, mu=mu, K=one.local_steps)
    except InputError:
        if mu == 0:
            raise InputError(
                f"{one.algorithm} needs mu > 0: with {spelled('l2')} 0, pass {spelled('mu')}"
            ) from None
        raise


@rule("decay", "algorithm", "eta", "local_steps", "mu", "l2")
def _decay_fits(one: Any, spelled: Spelled) -> None:
    if one.decay is not None:
        mu = one.l2 if one.mu is None else one.mu
        start = Decay(one.eta, one.decay).start
        check_decay(find_algorithm(one.algorithm), eta=start, mu=mu, K=one.local_steps)


@rule("test", "split")
def _rows_to_hold_out(one: Any, spelled: Spelled) -> None:
    if not isinstance(one.test, int | float):
        return
    if not 0 < one.test < 1:
        raise InputError(f"a share to hold out must be between 0 and 1, got {one.test:g}")
    if not is_split(one.split or "iid"):
        raise InputError(
            f"'{one.split}' names the clients of all rows, so none can be held out: give the test "
            "set as a file"
        )


@rule("test_clients", "test", "workers")
def _clients_to_hold_out(one: Any, spelled: Spelled) -> None:
    if one.test_clients is None:
        return
    name = spelled("test_clients")
    if one.test_clients >= 1:
        raise InputError(f"{name} is a share of the clients, below 1, got {one.test_clients:g}")
    if one.test is not None:
        raise InputError(
            f"{name} holds out clients and {spelled('test')} rows: use either of them, not both"
        )
    if one.workers is not None:
        raise InputError(
            f"{name} needs {spelled('clients')}: workers draw from all rows, so none are their own"
        )


@rule("link")
def _link_parses(one: Any, spelled: Spelled) -> None:
    as_link(one.link)


@rule("mode", "availability", "oversample", "workers", "clients", "participation", "epochs")
def _mode_fits(one: Any, spelled: Spelled) -> None:
    mode = Mode.parse(one.mode)
    Availability.parse(one.availability)
    M = one.workers or one.clients
    if mode.kind == "buffer" and M is not None:
        mode.require_places(taking_part(one.participation, M) or M, option=spelled("participation"))
