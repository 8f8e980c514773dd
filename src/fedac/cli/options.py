"""Options of commands: those of the Spec, lists, paths, and how help pages show them."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

import click

from fedac.algorithms import ALGORITHMS, split_names
from fedac.errors import InputError
from fedac.federation.spec import (
    CostOptions,
    Option,
    OptionSet,
    Spec,
    command_option,
    group_of,
    options_of,
)
from fedac.paths import require_writable

T = TypeVar("T")
F = TypeVar("F", bound=Callable[..., Any])

LOSS_NAMES = "logistic, least-squares, squared-hinge"
JOBS = "Parallel groups of runs, in processes that share the cores (default: chosen automatically)."
ON_RAY = "Run on a Ray cluster instead; requires pip install 'fedac[ray]'."
RAY_ADDRESS = "Address of the cluster (default: $RAY_ADDRESS, else Ray on this machine)."
LINK, WAN = options_of(CostOptions)["link"].help, "wan"
MEGABYTES = "MB: sent and received by a client that is present in every round."
BAND = (
    "How several seeds are summarized: median and range, median and quartiles, or mean and 95% "
    "confidence interval. One of range, quartiles, confidence."
)


def listed(read: Callable[[str], T], what: str, text: str, *, option: str) -> list[T]:
    """Parse a comma-separated list; commas in parentheses do not separate.

    >>> names("fedac-i, fedavg+nesterov(1,0.9)", option="--algorithms")
    ['fedac-i', 'fedavg+nesterov(1,0.9)']
    >>> whole_numbers("4,8.5", option="--workers")
    Traceback (most recent call last):
    ...
    fedac.errors.InputError: --workers takes whole numbers separated by commas, got '4,8.5'
    """
    parts = split_names(text)
    try:
        values = [read(part) for part in parts if part]
    except ValueError:
        values = []
    if len(values) < len(parts):
        raise InputError(f"{option} takes {what} separated by commas, got '{text}'")
    for value in values:
        if values.count(value) > 1:
            raise InputError(f"{option}: {value} is listed twice")
    return values


whole_numbers = partial(listed, int, "whole numbers")
names = partial(listed, str, "names")


def nonempty_path(text: str) -> Path:
    """Parse a path. An empty one, as from an unset variable, would mean the current folder."""
    if not text:
        raise click.BadParameter("the path is empty; the current folder is '.'")
    return Path(text)


class Argument(click.Argument):
    """A positional argument with a help text, which Click supports from version 8.5 on."""

    def __init__(self, declarations: Sequence[str], **settings: Any) -> None:
        text: str = settings.pop("help")
        super().__init__(declarations, **settings)
        self.help = text


def argument(name: str, **settings: Any) -> Callable[[F], F]:
    """Declare a positional argument of a command, with a `help`."""
    return click.argument(name, cls=Argument, **settings)


class Command(click.Command):
    """A command that lists its arguments before its options."""

    def get_short_help_str(self, limit: int = 45) -> str:
        """Return the first paragraph of the help whole, however long it is."""
        return " ".join((self.help or "").partition("\n\n")[0].split())

    def format_arguments(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Do nothing: `format_options` writes them, also with older versions of Click."""

    def format_options(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Write the arguments and the options."""
        arguments = [
            (each.make_metavar(ctx), (each.help or "") + ("  [required]" if each.required else ""))
            for each in self.get_params(ctx)
            if isinstance(each, Argument)
        ]
        if arguments:
            with formatter.section("Arguments"):
                formatter.write_dl(arguments)
        sections: dict[str, list[tuple[str, str]]] = {}
        for each in self.get_params(ctx):
            line = each.get_help_record(ctx)
            if line is not None and not isinstance(each, Argument):
                heading = each.heading if isinstance(each, SpecOption) else "Options"
                sections.setdefault(heading, []).append(line)
        sections["Options"] = sections.pop("Options")  # the last one
        for heading, lines in sections.items():
            with formatter.section(heading):
                formatter.write_dl(lines)


class Group(click.Group):
    """A group that lists its commands in the given order, not alphabetically."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        """Return the names of all commands."""
        return list(self.commands)

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        """Find a command; suggest the nearest name, as Click does since version 8.5."""
        if self.get_command(ctx, args[0]) is None and not args[0].startswith("-"):
            from difflib import get_close_matches

            near = get_close_matches(args[0], self.list_commands(ctx), n=1)
            hint = f" Did you mean '{near[0]}'?" if near else ""
            ctx.fail(f"No such command '{args[0]}'.{hint}")
        return super().resolve_command(ctx, args)


def output_folder(path: Path, *, option: str) -> Path:
    """Require a folder that exists or can be created, so that a command fails before it computes.

    It is not created here: a command that fails for another reason leaves nothing behind.

    >>> output_folder(Path(os.devnull), option="--out")
    Traceback (most recent call last):
    ...
    fedac.errors.InputError: --out takes a writable folder; '...' is a file
    """
    nearest = next(place for place in (path, *path.absolute().parents) if place.exists())
    if not nearest.is_dir():
        raise InputError(f"{option} takes a writable folder; '{nearest}' is a file")
    if not os.access(nearest, os.W_OK | os.X_OK):
        raise InputError(f"{option} takes a writable folder; '{nearest}' is not writable")
    return path


def output_file(path: Path, *, option: str) -> Path:
    """Require a writable file, so that a command fails before it computes. "-" means stdout.

    Its folder must exist: a missing one is more likely a typo.

    >>> output_file(Path("gone/figure.png"), option="--figure")
    Traceback (most recent call last):
    ...
    fedac.errors.InputError: --figure: cannot write 'gone/figure.png': there is no folder 'gone'
    """
    if not path.parent.is_dir():
        raise InputError(f"{option}: cannot write '{path}': there is no folder '{path.parent}'")
    if str(path) != "-" and (path.is_file() or path.is_dir() or not path.exists()):
        require_writable(path)
    return path


class SpecOption(click.Option):
    """An option that comes from a field of the Spec, under the heading of its group."""

    heading = ""


def spec_options(options: OptionSet) -> Callable[[F], F]:
    """Add the options of a set to a command; `read_spec` builds a Spec from their values."""

    def decorate(function: F) -> F:
        for name, option in reversed(options.fields().items()):
            if name != "name":
                function = _spec_option(options, name, option)(function)
        return function

    return decorate


def _spec_option(options: OptionSet, name: str, option: Option) -> Callable[[F], F]:
    spelled = command_option(options.name_of(name))
    settings: dict[str, Any] = {"cls": type("_", (SpecOption,), {"heading": group_of(name)})}
    text = option.help.replace("{algorithms}", ", ".join(ALGORITHMS))
    default = options.default(name)
    if option.kind == (bool,):
        settings["is_flag"] = True
    elif name in options.several:
        text += " Several values are separated by commas."
    elif option.kind in ((int,), (float,)):
        (settings["type"],) = option.kind
    if name not in options.needed and default is not None and option.kind != (bool,):
        values = default if isinstance(default, tuple) else (default,)
        text += f"  [default: {','.join(map(str, values))}]"
    declared = [spelled, option.short] if option.short else [spelled]
    return click.option(*declared, help=text, **settings)


def read_spec(options: OptionSet, given: Mapping[str, Any]) -> Spec:
    """Return the Spec of the options that were given; the others are None."""
    from fedac.federation.spec_checks import check_spec

    return check_spec(replace(options, spell=command_option), read_values(options, given))


def read_values(options: OptionSet, given: Mapping[str, Any]) -> dict[str, Any]:
    """Return the values of the options that were given, by their external names."""
    values = {}
    for name, option in options.fields().items():
        external = options.name_of(name)
        value = given.get(external)
        if value is None or value is False:
            continue
        if isinstance(value, str) and name in options.several:
            kinds: dict[tuple[type, ...], str] = {
                (int,): "whole numbers",
                (float,): "numbers",
                (str,): "names",
            }
            what = kinds.get(option.kind) or f"numbers or {' or '.join(option.words)}"
            value = listed(_reader(option), what, value, option=command_option(external))
        elif isinstance(value, str):
            value = _reader(option)(value)
        values[external] = value
    return values


def _reader(option: Option) -> Callable[[str], Any]:
    """Return a parser for option text: a number if it is one, else the text where that is valid."""
    first, *others = option.kind

    def read(text: str) -> Any:
        try:
            return first(text)
        except ValueError:
            if others:
                return text
            raise

    return read
