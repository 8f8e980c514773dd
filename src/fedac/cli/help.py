"""Complete help texts.

Click shortens the summaries of commands, and Typer 0.20, which Flower requires, loses the help of
arguments with Click 8.5.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import typer.core
import typer.main


class _Argument(typer.core.TyperArgument):
    def __init__(self, **settings: Any) -> None:
        super().__init__(**settings)
        self.help = settings.get("help")


class _Command(typer.core.TyperCommand):
    def format_arguments(self, ctx: Any, formatter: Any) -> None:
        """Leave it to Typer, which lists the arguments with the options."""


vars(typer.main)["TyperArgument"] = _Argument


def add_command(app: typer.Typer, name: str, function: Callable[..., None]) -> None:
    """Add a command whose summary is the first paragraph of its docstring."""
    summary = " ".join((function.__doc__ or "").partition("\n\n")[0].split())
    app.command(name, cls=_Command, short_help=summary)(function)
