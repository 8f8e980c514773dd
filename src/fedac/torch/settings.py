"""The settings of a parameter group: lr, mu and local_steps."""

from __future__ import annotations

from typing import Any

from torch import Tensor

from fedac.errors import InputError
from fedac.require import require_count, require_positive

# Schedulers end near 0, not at 0: LinearLR at -5e-19, say.
ROUNDING = 1e-12
# What groups of other optimizers may hold; ours would silently ignore it.
UNSUPPORTED = ("weight_decay", "momentum", "dampening", "nesterov", "betas", "maximize", "foreach")

ParamGroup = dict[str, Any]


def check_settings(group: ParamGroup) -> ParamGroup:
    """Return the settings of a group as Python numbers, or say which one is impossible.

    Examples
    --------
    >>> check_settings({"lr": 0.1, "mu": 0.0, "local_steps": 4})
    Traceback (most recent call last):
    ...
    fedac.errors.InputError: mu must be a finite number above 0, got 0.0
    """
    lr = group["lr"]
    return {
        "lr": require_positive("lr", lr.item() if isinstance(lr, Tensor) else lr),
        "mu": require_positive("mu", group["mu"]),
        "local_steps": require_count("local_steps", group["local_steps"]),
    }


def plain_settings(group: ParamGroup) -> ParamGroup:
    """Return the settings as Python numbers, unchecked: schedulers may set NumPy numbers, or 0."""
    return {
        "lr": float(group["lr"]),
        "mu": float(group["mu"]),
        "local_steps": int(group["local_steps"]),
    }


def is_paused(group: ParamGroup) -> bool:
    """Check whether lr is 0, up to a scheduler's rounding."""
    return bool(abs(group["lr"]) <= ROUNDING * group.get("initial_lr", 0.0))


def require_supported(group: ParamGroup) -> None:
    """Refuse options that would be ignored."""
    for name in UNSUPPORTED:
        if group.get(name):
            raise InputError(
                f"a parameter group can set lr and mu, not {name}"
                + ("; add an l2 term to the loss instead" if name == "weight_decay" else "")
            )
