"""What `torch.compile` leaves alone."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

import torch

Function = TypeVar("Function", bound=Callable[..., Any])


def uncompiled(function: Function) -> Function:
    """Let `torch.compile` call a function as it is, with all that it calls.

    Counts, hashes and step sizes change all the time: each would compile the program anew.
    """
    disabled: Function = torch.compiler.disable(function)  # type: ignore[no-untyped-call]
    return disabled
