"""The command `fedac`.

Results go to stdout; progress, notices and errors go to stderr. Bad input is one line and
exit code 2; an interrupt is exit code 130. Subcommands import what they need when they are
called, so that ``fedac --help`` answers at once.
"""

from __future__ import annotations

import sys
import warnings
from typing import Any

import typer
import typer.core

from fedac import __version__
from fedac.cli import bench, data, demo, export, instability, plan, report, reproduce, run, sweep
from fedac.cli.streams import flush_results, prepare_streams
from fedac.errors import InputError, StepSizeWarning

app = typer.Typer(
    name="fedac",
    help="Federated Accelerated SGD: train with few communication rounds.",
    no_args_is_help=True,
    add_completion=False,
    rich_markup_mode=None,
    pretty_exceptions_enable=False,
)
app.command("demo")(demo.demo)
app.command("run")(run.run)
app.command("sweep")(sweep.sweep)
app.command("export")(export.export)
app.command("reproduce")(reproduce.reproduce)
app.command("report")(report.report)
app.command("instability")(instability.instability)
app.command("plan")(plan.plan)
app.command("bench")(bench.bench)
app.add_typer(data.app, name="data")


def _show_version(asked: bool) -> None:
    if asked:
        typer.echo(f"fedac {__version__}")
        raise typer.Exit


@app.callback()
def _root(
    version: bool = typer.Option(
        False, "--version", callback=_show_version, is_eager=True, help="Print the version."
    ),
) -> None:
    pass


def main(arguments: list[str] | None = None) -> None:
    """Run the command and turn every expected failure into one line and an exit code."""
    prepare_streams()
    # Our help is plain text, but where Rich is installed Typer escapes its brackets all the same.
    typer.core.HAS_RICH = False
    with warnings.catch_warnings():
        warnings.showwarning = _show_warning
        warnings.simplefilter("default", StepSizeWarning)
        # NumPy's notices of overflow: the status "diverged" says the same in plain words.
        warnings.simplefilter("ignore", RuntimeWarning)
        code = _run(sys.argv[1:] if arguments is None else arguments)
    try:
        flush_results()
    except BrokenPipeError:
        code = 141
    except OSError as error:
        code = code or _fail(_reason(error), 1)
    sys.exit(code)


def _run(arguments: list[str]) -> int:
    command = typer.main.get_command(app)
    try:
        # Not app(arguments): that keeps interrupts and broken pipes to itself.
        with command.make_context("fedac", list(arguments)) as context:
            command.invoke(context)
    except typer.Exit as stop:
        return stop.exit_code
    except InputError as error:
        return _fail(str(error), 2)
    except (KeyboardInterrupt, typer.Abort):
        return _fail("interrupted", 130)
    except BrokenPipeError:  # the reader of our output went away, as `head` does
        return 141
    except OSError as error:
        return _fail(_reason(error), 1)
    except MemoryError:
        return _fail("not enough memory; fewer workers (-M) or columns need less", 1)
    except Exception as error:
        # Typer's own usage errors: an unknown option, a missing value.
        if hasattr(error, "format_message"):
            return _fail_usage(error)
        raise
    return 0


def _reason(error: OSError) -> str:
    return f"{error.strerror or error}: {error.filename or ''}".rstrip(": ")


def _fail(message: str, code: int) -> int:
    # One line, whatever a file is called.
    line = "".join(c if c.isprintable() else " " for c in message)
    print(f"fedac: {line}", file=sys.stderr)
    return code


def _fail_usage(error: Any) -> int:
    """Say what was wrong with the command line, and what is accepted or who knows."""
    message: str = error.format_message()
    context = getattr(error, "ctx", None)
    if context is None:
        return _fail(message, 2)
    if message == context.get_help():  # nothing was given where a command was needed
        print(message, file=sys.stderr)
        return 2
    commands = getattr(context.command, "commands", None)
    hint = f"known: {', '.join(commands)}" if commands else f"see '{context.command_path} --help'"
    return _fail(f"{message.rstrip('.')}; {hint}", 2)


def _show_warning(message: Warning | str, *_: object, **__: object) -> None:
    print(f"fedac: warning: {message}", file=sys.stderr)
