"""The settings of parameter groups: lr, mu and local_steps, as they are used and saved."""

from __future__ import annotations

from typing import Any

from fedac.decay import Decay
from fedac.errors import InputError

# Schedulers end near 0, not at 0: LinearLR at -5e-19, say.
ROUNDING = 1e-12
# What groups of other optimizers may hold; ours would silently ignore it.
UNSUPPORTED = ("weight_decay", "momentum", "dampening", "nesterov", "betas", "maximize", "foreach")


def plain_settings(group: dict[str, Any]) -> dict[str, Any]:
    """Return the settings of a group as Python's numbers: NumPy's and tensors cannot be saved.

    An lr that falls is that of the first round.
    """
    settings = {name: group[name] for name in ("lr", "mu", "local_steps")}
    if isinstance(settings["lr"], Decay):
        settings["lr"] = settings["lr"].start
    return {n: v.item() if hasattr(v, "item") else v for n, v in settings.items()}


def is_paused(group: dict[str, Any]) -> bool:
    """Check whether lr is 0, up to a scheduler's rounding."""
    return bool(abs(group["lr"]) <= ROUNDING * group.get("initial_lr", 0.0))


def require_supported(group: dict[str, Any]) -> None:
    """Refuse a group with settings of other optimizers.

    >>> require_supported({"params": [], "momentum": 0.9})
    Traceback (most recent call last):
    fedac.errors.InputError: a parameter group can set lr and mu, not momentum
    """
    for name in UNSUPPORTED:
        if group.get(name):
            advice = "; add an l2 term to the loss instead" if name == "weight_decay" else ""
            raise InputError(f"a parameter group can set lr and mu, not {name}{advice}")


def upgrade(saved: dict[str, Any], groups: str) -> dict[str, Any]:
    """Return a saved state as it is now; `groups` is the name of its groups.

    Before version 4, there were only algorithms that do not count rounds and steps in a round.
    Before version 3, "last" was "shown", None at first, and a paused group had no rule.
    """
    saved = {"rounds_served": saved.get("rounds", 0), **saved}
    saved[groups] = [{"taken": 0, **group} for group in saved[groups]]
    for group in saved[groups]:
        if "shown" in group:
            group["last"] = group.pop("shown") or plain_settings(group)
    if "rules" not in saved:
        rule = {"algorithm": saved["algorithm"]}
        saved["rules"] = [
            rule | {"hyperparameters": hp, "settings": plain_settings(group)}
            for hp, group in zip(saved["coupling"], saved[groups], strict=True)
            if hp is not None
        ]
    return saved
