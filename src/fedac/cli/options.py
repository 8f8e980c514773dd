# SPDX-License-Identifier: Apache-2.0
"""Command-line options: derived from the Spec or shared by several commands; help pages."""

from __future__ import annotations

import os
import shlex
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import replace
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import click

from fedac.algorithms import ALGORITHMS, split_names
from fedac.cli.examples import EXAMPLES
from fedac.errors import InputError
from fedac.federation.spec import Option, OptionSet, Spec, command_option, group_of, options_of
from fedac.paths import require_writable
from fedac.validate import unknown_name

if TYPE_CHECKING:
    from click.shell_completion import CompletionItem

F = TypeVar("F", bound=Callable[..., Any])

# Headings of options that do not come from the Spec.
OUTPUT, WHERE, LENGTH = "Output", "Where to run", "How long it takes"
# Longer lines are hard to read.
WIDEST_HELP = 120
ON_RAY = "Run on a Ray cluster instead; requires pip install ray."
MEGABYTES = "MB: sent and received by a client that is present in every round."


class PathType(click.ParamType):  # type: ignore[type-arg] # not generic in older versions
    """A path. An empty one, as from an unset variable, would mean the current folder."""

    name = "path"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Path:
        """Parse a path."""
        if not str(value):
            raise click.BadParameter("the path is empty; the current folder is '.'")
        return Path(value)

    def shell_complete(
        self, ctx: click.Context, param: click.Parameter, incomplete: str
    ) -> list[CompletionItem]:
        """Let the shell complete the names of files and folders."""
        from click.shell_completion import CompletionItem

        return [CompletionItem(incomplete, type="file")]


nonempty_path = PathType()


class HeadedOption(click.Option):
    """An option that is listed under a heading."""

    def __init__(self, *declarations: Any, heading: str, **settings: Any) -> None:
        super().__init__(*declarations, **settings)
        self.heading = heading

    def shell_complete(self, ctx: click.Context, incomplete: str) -> list[CompletionItem]:
        """Complete names of methods, data sets, splits, links and the like."""
        from fedac.cli.completion import complete_value

        return complete_value(self, incomplete) or super().shell_complete(ctx, incomplete)


def option(*declarations: str, heading: str, **settings: Any) -> Callable[[F], F]:
    """Declare an option under a heading."""
    return click.option(*declarations, cls=HeadedOption, heading=heading, **settings)


def check_folder(ctx: click.Context, option: click.Parameter, path: Path | None) -> Path | None:
    """Require a folder that exists or can be created, so that a command fails before it computes.

    It is not created here: a command that fails for another reason leaves nothing behind.
    """
    if path is not None:
        nearest = next(place for place in (path, *path.absolute().parents) if place.exists())
        name = option.opts[0] if isinstance(option, click.Option) else option.metavar
        if not nearest.is_dir():
            raise InputError(f"{name} takes a writable folder; '{nearest}' is a file")
        if not os.access(nearest, os.W_OK | os.X_OK):
            raise InputError(f"{name} takes a writable folder; '{nearest}' is not writable")
    return path


def check_file(ctx: click.Context, option: click.Parameter, path: Path | None) -> Path | None:
    """Require a writable file, so that a command fails before it computes. "-" means stdout.

    Its folder must exist: a missing one is more likely a typo.
    """
    if path is None or str(path) == "-":
        return path
    if not path.parent.is_dir():
        where = f"there is no folder '{path.parent}'"
        raise InputError(f"{option.opts[0]}: cannot write '{path}': {where}")
    if path.is_file() or path.is_dir() or not path.exists():  # unlike /dev/stdout
        require_writable(path)
    return path


def folder_option(text: str, *, default: str | None = None) -> Callable[[F], F]:
    """Declare ``--out DIR``."""
    return option(
        "--out", type=nonempty_path, callback=check_folder, default=default, metavar="DIR",
        help=text, heading=OUTPUT,
    )  # fmt: skip


def file_option(name: str, text: str) -> Callable[[F], F]:
    """Declare an option that takes the path of a file to write."""
    return option(
        name, type=nonempty_path, callback=check_file, metavar="FILE", help=text, heading=OUTPUT
    )


def json_option(text: str = "Print one JSON object.") -> Callable[[F], F]:
    """Declare ``--json``."""
    return option("--json", "as_json", is_flag=True, help=text, heading=OUTPUT)


def on_ray_options(text: str = ON_RAY) -> Callable[[F], F]:
    """Declare ``--on`` and ``--ray-address``."""
    address = "Address of the cluster (default: $RAY_ADDRESS, else Ray on this machine)."

    def decorate(function: F) -> F:
        function = option(
            "--ray-address", metavar="HOST:PORT", help=address, heading=WHERE
        )(function)  # fmt: skip
        return option("--on", metavar="ray", help=text, heading=WHERE)(function)

    return decorate


jobs_option = option(
    "--jobs",
    "-j",
    type=int,
    help="Parallel groups of runs, in processes that share the cores (default: chosen "
    "automatically).",
    heading=WHERE,
)
band_option = option(
    "--band",
    default="range",
    help="Summary of several seeds: range (with the median), quartiles (with the median) or "
    "confidence (mean and 95% confidence interval).",
    heading=OUTPUT,
)
link_option = option(
    "--link", default="wan", help=options_of()["link"].help, heading=group_of("link")
)


def is_typed(ctx: click.Context, name: str) -> bool:
    """Return whether the user typed an option, rather than relying on its default."""
    source = ctx.get_parameter_source(name)
    return source is not None and source.name == "COMMANDLINE"


def typed_command(
    ctx: click.Context, command: str | None = None, names: Collection[str] | None = None
) -> str:
    """Return the command line with the options that the user typed.

    `command` is another one that takes the options of these names.
    """
    words = ["fedac", *(command or str(ctx.command.name)).split()]
    for each in ctx.command.params:
        if each.name and is_typed(ctx, each.name) and (names is None or each.name in names):
            value = ctx.params[each.name]
            text = f"{value:.0f}" if isinstance(value, float) and value.is_integer() else str(value)
            words += [each.opts[0]] if value is True else [each.opts[0], text]
    return shlex.join(words)


class Argument(click.Argument):
    """A positional argument with a help text, which Click supports from version 8.5 on."""

    def __init__(self, declarations: Sequence[str], **settings: Any) -> None:
        text: str = settings.pop("help")
        super().__init__(declarations, **settings)
        self.help = text

    def shell_complete(self, ctx: click.Context, incomplete: str) -> list[CompletionItem]:
        """Complete names, then files."""
        from fedac.cli.completion import complete_value

        return complete_value(self, incomplete) or super().shell_complete(ctx, incomplete)


def argument(name: str, **settings: Any) -> Callable[[F], F]:
    """Declare a positional argument of a command, with a `help`."""
    return click.argument(name, cls=Argument, **settings)


class HelpFormatter(click.HelpFormatter):
    """A formatter that can color headings and the names of options."""

    colored = False

    def write_heading(self, heading: str) -> None:
        """Write a heading in bold."""
        super().write_heading(click.style(heading, bold=True) if self.colored else heading)

    def write_dl(self, rows: Iterable[tuple[str, str]], *args: Any, **settings: Any) -> None:
        """Write a list of names and their meanings."""
        if self.colored:
            rows = [(click.style(name, fg="cyan"), text) for name, text in rows]
        super().write_dl(rows, *args, **settings)


class WideContext(click.Context):
    """The context of a command."""

    def make_formatter(self) -> HelpFormatter:
        """Return a formatter for the terminal's width."""
        formatter = HelpFormatter(width=self.terminal_width, max_width=WIDEST_HELP)
        formatter.colored = bool(self.color)
        return formatter


class WithExamples(click.Command):
    """A command whose help ends with examples."""

    context_class = WideContext

    def format_epilog(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Write the examples of the command."""
        super().format_epilog(ctx, formatter)
        path = ctx.command_path.partition(" ")[2]
        if path in EXAMPLES:
            with formatter.section("Examples"):
                for line in EXAMPLES[path]:
                    formatter.write(f"{'':{formatter.current_indent}}fedac {path} {line}".rstrip())
                    formatter.write("\n")


class Command(WithExamples):
    """A command that lists its arguments before its options."""

    def get_short_help_str(self, limit: int = 45) -> str:
        """Return the whole first paragraph of the help; do not truncate it."""
        return " ".join((self.help or "").partition("\n\n")[0].split())

    def format_arguments(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Do nothing: `format_options` writes them, also with older versions of Click."""

    def format_options(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Write the arguments and the options."""
        sections: dict[str, list[tuple[str, str]]] = {"Arguments": []}
        for each in self.get_params(ctx):
            if isinstance(each, Argument):
                text = (each.help or "") + ("  [required]" if each.required else "")
                sections["Arguments"].append((each.make_metavar(ctx), text))
            elif line := each.get_help_record(ctx):
                heading = each.heading if isinstance(each, HeadedOption) else "Help"
                sections.setdefault(heading, []).append(line)
        for heading in (LENGTH, WHERE, OUTPUT, "Help"):  # the last ones
            sections[heading] = sections.pop(heading, [])
        for heading, lines in sections.items():
            if lines:
                with formatter.section(heading):
                    formatter.write_dl(lines)


class Group(WithExamples, click.Group):
    """A group that lists its commands in order, and imports those in `modules` when asked.

    `aliases` has other names of commands, which are not listed.
    """

    def __init__(
        self,
        *args: Any,
        modules: Mapping[str, str] | None = None,
        aliases: Mapping[str, str] | None = None,
        **settings: Any,
    ):
        super().__init__(*args, **settings)
        self.modules, self.aliases = modules or {}, aliases or {}

    def list_commands(self, ctx: click.Context) -> list[str]:
        """Return the names of all commands."""
        return [*self.modules, *self.commands]

    def get_command(self, ctx: click.Context, name: str) -> click.Command | None:
        """Return a command, such as ``run_command`` of ``fedac.cli.run``."""
        if name not in self.modules:
            return super().get_command(ctx, name)
        module = import_module(f"fedac.cli.{self.modules[name]}")
        found: click.Command = getattr(module, f"{name}_command")
        return found

    def resolve_command(self, ctx: click.Context, args: list[str]) -> Any:
        """Find a command, or raise InputError with the known ones."""
        args = [self.aliases.get(args[0], args[0]), *args[1:]]
        if args[0] not in self.list_commands(ctx) and not args[0].startswith("-"):
            raise unknown_name("command", args[0], self.list_commands(ctx))
        return super().resolve_command(ctx, args)


def spec_options(known: OptionSet) -> Callable[[F], F]:
    """Add the options of a set to a command; `read_spec` builds a Spec from their values."""

    def decorate(function: F) -> F:
        for name, option in reversed(known.fields().items()):
            if name != "name":
                function = _spec_option(known, name, option)(function)
        return function

    return decorate


def _spec_option(known: OptionSet, name: str, option: Option) -> Callable[[F], F]:
    spelled = command_option(known.name_of(name))
    settings: dict[str, Any] = {"cls": HeadedOption, "heading": group_of(name)}
    text = option.help.replace("{algorithms}", ", ".join(ALGORITHMS))
    default = known.default(name)
    if option.kind == (bool,):
        settings["is_flag"] = True
    elif name in known.several:
        text += " Several values are separated by commas."
    elif option.kind in ((int,), (float,)):
        (settings["type"],) = option.kind
    if name not in known.needed and default is not None and option.kind != (bool,):
        values = default if isinstance(default, tuple) else (default,)
        text += f"  [default: {','.join(map(str, values))}]"
    declared = [spelled, option.short] if option.short else [spelled]
    return click.option(*declared, help=text, **settings)


def read_spec(known: OptionSet, given: Mapping[str, Any]) -> Spec:
    """Return the Spec of the options that were given, as Click parsed them."""
    from fedac.federation.spec_checks import check_spec

    return check_spec(replace(known, spell=command_option), read_values(known, given))


def read_values(known: OptionSet, given: Mapping[str, Any]) -> dict[str, Any]:
    """Return the values of the options that were given, by their external names."""
    values = {}
    for name, option in known.fields().items():
        external = known.name_of(name)
        value = given.get(external)
        if value is None or value is False:
            continue
        if isinstance(value, str) and name in known.several:
            value = read_list(value, option.kind, option.words, option=command_option(external))
        elif isinstance(value, str):
            value = _read(value, option.kind)
        values[external] = value
    return values


def read_list(
    text: str, kind: tuple[type, ...] = (int,), words: tuple[str, ...] = (), *, option: str
) -> list[Any]:
    """Parse a comma-separated list; commas in parentheses do not separate.

    >>> read_list("fedac-i, fedavg+nesterov(1,0.9)", (str,), option="--algorithms")
    ['fedac-i', 'fedavg+nesterov(1,0.9)']
    """
    parts = split_names(text)
    try:
        values = [_read(part, kind) for part in parts if part]
    except ValueError:
        values = []
    if len(values) < len(parts):
        first = {int: "whole numbers", float: "numbers", str: "names"}[kind[0]]
        what = " or ".join([first, *words]) if words else first
        raise InputError(f"{option} takes {what} separated by commas, got '{text}'")
    for value in values:
        if values.count(value) > 1:
            raise InputError(f"{option}: {value} is listed twice")
    return values


def _read(text: str, kind: tuple[type, ...]) -> Any:
    """Return a number if the text is one, else the text where that is valid."""
    try:
        return kind[0](text)
    except ValueError:
        if len(kind) == 1:
            raise
        return text
