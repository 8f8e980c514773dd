"""The command `fedac`.

Results go to stdout; progress, notices and errors go to stderr. Bad input is one line and
exit code 2; an interrupt is exit code 130. Subcommands import what they need when they are
called, so that ``fedac --help`` answers at once.
"""

from __future__ import annotations

import sys
import warnings

import typer

from fedac import __version__
from fedac.cli import data, demo, run

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
    warnings.showwarning = _show_warning
    sys.exit(_run(arguments))


def _run(arguments: list[str] | None) -> int:
    from fedac.errors import InputError

    try:
        return app(arguments, standalone_mode=False) or 0
    except InputError as error:
        return _fail(str(error), 2)
    except (KeyboardInterrupt, typer.Abort):
        return _fail("interrupted", 130)
    except BrokenPipeError:  # the reader of our output went away, as `head` does
        sys.stderr.close()
        return 141
    except OSError as error:
        return _fail(f"{error.strerror or error}: {error.filename or ''}".rstrip(": "), 1)
    except Exception as error:
        # Typer's own usage errors: an unknown option, a missing value.
        if hasattr(error, "format_message"):
            return _fail(error.format_message().replace("\n", " "), 2)
        raise


def _fail(message: str, code: int) -> int:
    print(f"fedac: {message}", file=sys.stderr)
    return code


def _show_warning(message: Warning | str, *_: object, **__: object) -> None:
    print(f"fedac: warning: {message}", file=sys.stderr)
