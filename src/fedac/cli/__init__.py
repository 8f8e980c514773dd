# SPDX-License-Identifier: Apache-2.0
"""The command `fedac`.

Results go to stdout; progress, notices and errors go to stderr. Bad input prints one line and exits
with code 2; an interrupt exits with code 130. Subcommands import what they need when they are
called, so that ``fedac --help`` does not wait for NumPy.
"""

from __future__ import annotations

import gc
import os
import sys
import warnings

import click

from fedac import __version__
from fedac.cli.console import flush_results, notice, prepare_streams, wants_color
from fedac.cli.options import Group, option
from fedac.errors import InputError
from fedac.validate import NO_L1, nearest

HEADLINE = "Which local-update method should you use? Measure it, then run it."
# CPU seconds on one core; the first run on a machine compiles the simulator, once.
START = f"""\
{HEADLINE}

Three things to try. Times: usual, and of the first run, which compiles.

  fedac demo                35 s, 45 s   which method wins on data that we ship
  fedac compare --quick      4 s, 25 s   which of five methods suits a problem
  fedac run --dataset a9a    3 s,  6 s   one method: see --algorithm and --eta

Your own data: fedac compare --quick --dataset FILE.csv
All commands: fedac --help
"""

# The module of each command, in the order of the help page.
COMMANDS = {
    "demo": "paper", "run": "run", "compare": "compare", "methods": "methods",
    "split": "data", "sweep": "sweep", "export": "sweep", "merge": "sweep", "reproduce": "paper",
    "report": "sweep", "instability": "paper", "plan": "plan", "data": "data",
}  # fmt: skip
# What others call a step size.
LEARNING_RATE = ("--lr", "--learning-rate", "--step-size")
# What the shell sets when it asks for completions.
COMPLETION = "_FEDAC_COMPLETE"


@click.group(
    "fedac",
    cls=Group,
    modules=COMMANDS,
    aliases={"algorithms": "methods"},
    help=HEADLINE,
    epilog="'fedac' alone shows three things to try, 'fedac COMMAND --help' the options of a "
    "command.",
    context_settings={"help_option_names": ["-h", "--help"], "show_default": True},
    invoke_without_command=True,
)
@click.version_option(__version__, message="fedac %(version)s", help="Print the version.")
@option(
    "--install-completion", metavar="[SHELL]", is_flag=False, flag_value="", heading="Options",
    help="Install tab completion in bash, zsh or fish (default: your login shell).",
)  # fmt: skip
@option(
    "--show-completion", metavar="[SHELL]", is_flag=False, flag_value="", heading="Options",
    help="Print the lines that --install-completion installs.",
)  # fmt: skip
@click.pass_context
def app(
    context: click.Context, /, install_completion: str | None, show_completion: str | None
) -> None:
    """Print what to try, or set up tab completion."""
    if install_completion is not None or show_completion is not None:
        from fedac.cli import completion

        if install_completion is not None:
            print(*completion.install(app, install_completion), sep="\n")
        else:
            print(completion.script(app, show_completion or ""), end="")
        raise click.exceptions.Exit(0)
    if context.invoked_subcommand is None:
        print(START, end="")


def main(arguments: list[str] | None = None) -> None:
    """Run the command and turn every expected failure into one line and an exit code."""
    prepare_streams()
    # Jupyter sets a backend here that other environments lack; we only write files.
    os.environ["MPLBACKEND"] = "agg"
    shown: set[str] = set()

    def show(message: Warning | str, *_: object, **__: object) -> None:
        if str(message) not in shown:  # groups of runs warn one by one
            notice(f"warning: {message}")
        shown.add(str(message))

    with warnings.catch_warnings():
        warnings.showwarning = show
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
    try:
        # Not app(arguments), which handles interrupts and broken pipes itself.
        if COMPLETION in os.environ:
            from fedac.cli import completion

            return completion.answer(app, os.environ[COMPLETION])
        color = wants_color(sys.stdout)
        with app.make_context("fedac", list(arguments), color=color) as context:
            app.invoke(context)
    except click.exceptions.Exit as stop:
        return stop.exit_code
    except click.ClickException as error:
        return _fail_usage(error)
    except InputError as error:
        return _fail(str(error), 2)
    except (KeyboardInterrupt, click.Abort):
        return _fail("interrupted", 130)
    except BrokenPipeError:  # the reader of our output is gone, as after `| head`
        return 141
    except OSError as error:
        return _fail(_reason(error), 1)
    except MemoryError:
        return _fail("out of memory; use fewer workers (-M) or columns", 1)
    return 0


def _reason(error: OSError) -> str:
    return f"{error.strerror or error}: {error.filename or ''}".rstrip(": ")


def _fail(message: str, code: int) -> int:
    notice(message)
    return code


def _fail_usage(error: click.ClickException) -> int:
    """Report a bad command line, and where to find the options."""
    message = error.format_message()
    if isinstance(error, click.NoSuchOption):
        if error.option_name in ("--l1", "--l1-ratio"):
            return _fail(f"there is no option {error.option_name}: {NO_L1}", 2)
        known = (
            [name for each in error.ctx.command.params for name in each.opts] if error.ctx else []
        )
        near = nearest(error.option_name, [name for name in known if name.startswith("--")])
        if error.option_name in LEARNING_RATE and "--eta" in known:
            near = "--eta"
        message = f"No such option '{error.option_name}'"
        message += f"; did you mean '{near}'" if near else ""
    context = error.ctx if isinstance(error, click.UsageError) else None
    if context is None:
        return _fail(message, 2)
    if message == context.get_help():  # no command given
        print(message, file=sys.stderr)
        return 2
    return _fail(f"{message.rstrip('.')}; see '{context.command_path} --help'", 2)
