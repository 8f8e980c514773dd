# SPDX-License-Identifier: Apache-2.0
"""Tab completion: the words that options take, and its installation in bash, zsh and fish."""

from __future__ import annotations

import os
import re
import shlex
from pathlib import Path

import click
from click.shell_completion import (
    BashComplete,
    CompletionItem,
    add_completion_class,
    get_completion_class,
    shell_complete,
)

from fedac.algorithms import ALGORITHMS, split_names
from fedac.algorithms.catalog import LOCAL_RULES, MEMORIES, SERVER_RULES, WELL_KNOWN
from fedac.errors import InputError
from fedac.federation.spec import WEIGHTINGS, options_of
from fedac.paths import write_atomically

VARIABLE = "_FEDAC_COMPLETE"  # as in `fedac.cli`
SHELLS = ("bash", "zsh", "fish")

# The tables of these names import NumPy, which would delay every press of the key.
DATA_SETS = (
    "a1a", "a9a", "breast-cancer", "covtype", "diabetes", "digits", "epsilon", "fashion-mnist",
    "ijcnn1", "mnist", "mnist_5k", "mushrooms", "phishing", "rcv1", "real-sim", "shakespeare",
    "w8a", "synthetic", "synthetic-dense",
)  # fmt: skip
LINKS = ("datacenter", "wan", "home", "phone")
BASELINES = ("lbfgs", "agd")
ENGINES = ("fast", "network", "reference")
GRIDS = ("a9a-clients", "a9a-l2-1e-2", "a9a-l2-1e-3", "a9a-l2-1e-4", "epsilon-l2-1e-4")
METHODS = tuple(dict.fromkeys((*ALGORITHMS, *WELL_KNOWN, *LOCAL_RULES)))

WORDS = {
    "dataset": DATA_SETS,
    "model": ("softmax", "mlp(128)", "cnn", "char_gpt(2,64,64)"),
    "loss": ("logistic", "softmax", "least-squares", "huber", "poisson", "squared-hinge"),
    "split": ("iid", "label", "dirichlet(0.1)", "power(1)"),
    "mode": ("rounds", "until(10s)", "deadline(30s)", "buffer(10)"),
    "availability": ("always", "share(0.5)", "diurnal(12,3)"),
    "algorithm": METHODS,
    "algorithms": METHODS,
    "methods": (*METHODS, *BASELINES),
    "names": METHODS,
    "decay": ("1/r", "1/sqrt(r)", "inverse(1)", "halve(10)"),
    "wire": ("float32", "bfloat16", "int8"),
    "weighting": WEIGHTINGS,
    "batch": ("full",),
    "precision": options_of()["precision"].words,
    "backend": options_of()["backend"].words,
    "link": LINKS,
    "engine": ENGINES,
    "band": ("range", "quartiles", "confidence"),
    "on": ("ray",),
    "name": DATA_SETS,
    "figures": (*(f"figure-{number}" for number in range(1, 8)), "all"),
    "file": GRIDS,
    "install_completion": SHELLS,
    "show_completion": SHELLS,
}  # fmt: skip

# Options that take a file too.
FILES = ("dataset", "test", "split", "client", "availability")


def complete_value(parameter: click.Parameter, incomplete: str) -> list[CompletionItem]:
    """Return the known values of an option or argument that start with `incomplete`.

    In a list, only its last entry is completed, and of a composed method its last piece.
    """
    words = WORDS.get(parameter.name or "", ())
    try:
        last = split_names(incomplete)[-1]
    except InputError:  # inside parentheses
        return []
    listed = incomplete.split(",")
    if METHODS[0] in words and "+" in last:
        words, last = (*MEMORIES, *SERVER_RULES), split_names(last, "+")[-1]
    before = incomplete[: len(incomplete) - len(last)]
    found = [word for word in words if word.startswith(last) and word not in listed]
    if not found and parameter.name in FILES:
        return [CompletionItem(incomplete, type="file")]
    return [CompletionItem(before + word) for word in found]


class Bash(BashComplete):
    """Completion in bash, which does not quote parentheses by itself."""

    def format_completion(self, item: CompletionItem) -> str:
        """Return the line that the script in the shell reads, where a backslash is doubled."""
        quoted = re.sub(r"([()|])", r"\\\\\1", item.value)
        return f"{item.type},{quoted}"


def answer(app: click.Command, instruction: str) -> int:
    """Answer the shell, which asks with an instruction such as ``bash_complete``."""
    add_completion_class(Bash)
    try:
        return shell_complete(app, {}, "fedac", VARIABLE, instruction)
    except (click.ClickException, InputError, KeyError, ValueError):
        return 0  # an unknown command has no completions, and a shell no use for an error


def script(app: click.Command, shell: str) -> str:
    """Return the lines that define the completion in a shell."""
    kind = get_completion_class(_known(shell))
    assert kind is not None
    text = kind(app, {}, "fedac", VARIABLE).source()
    if shell == "zsh":  # most configurations load it already
        text = "(( $+functions[compdef] )) || { autoload -Uz compinit && compinit }\n" + text
    return text


def install(app: click.Command, shell: str) -> list[str]:
    """Install the completion, unless it is installed; return what was done and how to undo it.

    fish loads the file by itself. In bash and zsh one line of the start-up file does.
    """
    shell, home = _known(shell), Path.home()
    config = Path(os.environ.get("XDG_CONFIG_HOME") or home / ".config")
    data = Path(os.environ.get("XDG_DATA_HOME") or home / ".local" / "share")
    startup = None
    if shell == "fish":
        path = config / "fish" / "completions" / "fedac.fish"
    else:
        path = data / "fedac" / f"completion.{shell}"
        startup = home / ".bashrc"
        if shell == "zsh":
            startup = Path(os.environ.get("ZDOTDIR") or home) / ".zshrc"
    before = ""
    if startup is not None and startup.exists():
        before = startup.read_text(encoding="utf-8", errors="surrogateescape")
    text = script(app, shell)
    path.parent.mkdir(parents=True, exist_ok=True)
    write_atomically(path, lambda file: file.write(text.encode()))
    said, undo = [f"Completion for {shell}: {path}"], f"delete {path}"
    if startup is not None:
        line = f"source {shlex.quote(str(path))}"
        if line in before.splitlines():
            said.append(f"{startup} already loads it.")
        else:
            with startup.open("a", encoding="utf-8") as file:
                file.write("\n" * (bool(before) and not before.endswith("\n")) + line + "\n")
            said.append(f"Added to {startup}: {line}")
        undo += f" and remove that line from {startup}"
    return [*said, f"Open a new shell to use it. To undo: {undo}."]


def _known(shell: str) -> str:
    """Return the name of a shell; "" means the one that the user logs in with."""
    found = shell or Path(os.environ.get("SHELL", "")).name
    if found not in SHELLS:
        what = f"there is no completion for {found}" if found else "$SHELL does not name a shell"
        raise InputError(f"{what}: pass one of {', '.join(SHELLS)}, as in 'fedac "
                         "--install-completion bash'")  # fmt: skip
    return found
