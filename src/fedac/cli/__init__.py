"""The command `fedac`.

Results go to stdout; progress, notices and errors go to stderr. Bad input is one line and
exit code 2; an interrupt is exit code 130. Subcommands import what they need when they are
called, so that ``fedac --help`` does not wait for NumPy.
"""

from __future__ import annotations

import gc
import os
import sys
import warnings
from typing import Any

import typer
import typer.core

from fedac import __version__
from fedac.cli import (
    algorithms,
    compare,
    data,
    demo,
    export,
    instability,
    merge,
    plan,
    report,
    reproduce,
    run,
    split,
    sweep,
)
from fedac.cli.console import flush_results, notice, prepare_streams
from fedac.cli.help import add_command
from fedac.errors import InputError

START = """Where to start:

\b
  fedac demo                 four algorithms compared on embedded data
  fedac run --dataset a9a    one algorithm; then try --algorithm and --eta
  fedac compare              which method suits your data, and what it costs
  fedac algorithms           all algorithms, and the pieces to make more
  fedac COMMAND --help       all options of a command
"""

app = typer.Typer(
    name="fedac",
    help="Federated Accelerated SGD: train with few communication rounds.",
    epilog=START,
    context_settings={"help_option_names": ["-h", "--help"]},
    no_args_is_help=True,
    add_completion=False,
    rich_markup_mode=None,
    pretty_exceptions_enable=False,
)

# In the order of the help page.
for module in (
    demo, run, compare, algorithms, split, sweep, export, merge, reproduce, report, instability,
    plan,
):  # fmt: skip
    add_command(app, module.__name__.removeprefix("fedac.cli."), module.command)
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
    # Jupyter sets a backend here that other environments lack; we only write files.
    os.environ["MPLBACKEND"] = "agg"
    # Our help is plain text, but where Rich is installed Typer escapes its brackets.
    typer.core.HAS_RICH = False
    with warnings.catch_warnings():
        warnings.showwarning = _show_warning
        warnings.simplefilter("default", UserWarning)
        # NumPy's overflow warnings: the status "diverged" says the same.
        warnings.simplefilter("ignore", RuntimeWarning)
        code = _run(sys.argv[1:] if arguments is None else arguments)
    try:
        flush_results()
    except BrokenPipeError:
        code = 141
    except OSError as error:
        code = code or _fail(_reason(error), 1)
    gc.freeze()  # a last collection over all of Numba would delay the exit by a second
    sys.exit(code)


def _run(arguments: list[str]) -> int:
    command = typer.main.get_command(app)
    try:
        # Not app(arguments), which handles interrupts and broken pipes itself.
        with command.make_context("fedac", list(arguments)) as context:
            command.invoke(context)
    except typer.Exit as stop:
        return stop.exit_code
    except InputError as error:
        return _fail(str(error), 2)
    except (KeyboardInterrupt, typer.Abort):
        return _fail("interrupted", 130)
    except BrokenPipeError:  # the reader of our output is gone, as after `| head`
        return 141
    except OSError as error:
        return _fail(_reason(error), 1)
    except MemoryError:
        return _fail("out of memory; use fewer workers (-M) or columns", 1)
    except Exception as error:
        # Typer's own usage errors: an unknown option, a missing value.
        if hasattr(error, "format_message"):
            return _fail_usage(error)
        raise
    return 0


def _reason(error: OSError) -> str:
    return f"{error.strerror or error}: {error.filename or ''}".rstrip(": ")


def _fail(message: str, code: int) -> int:
    notice(message)
    return code


def _fail_usage(error: Any) -> int:
    """Report a bad command line with the accepted commands, or where to find the options."""
    message: str = error.format_message()
    context = getattr(error, "ctx", None)
    if context is None:
        return _fail(message, 2)
    if message == context.get_help():  # no command given
        print(message, file=sys.stderr)
        return 2
    commands = getattr(context.command, "commands", None)
    hint = f"known: {', '.join(commands)}" if commands else f"see '{context.command_path} --help'"
    return _fail(f"{message.rstrip('.')}; {hint}", 2)


def _show_warning(message: Warning | str, *_: object, **__: object) -> None:
    notice(f"warning: {message}")
