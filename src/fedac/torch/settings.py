"""The settings of parameter groups: lr, mu, weight_decay and local_steps, as used and saved."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from fedac.decay import Decay
from fedac.errors import InputError
from fedac.require import require_nonnegative
from fedac.torch.communication import require_same

# Schedulers end near 0, not at 0: LinearLR at -5e-19, say.
ROUNDING = 1e-12
# Processes compute their lr with different roundings: on other hardware, or by other formulas.
TOLERANCE = 1e-9
# What groups of other optimizers may hold; ours would silently ignore it.
UNSUPPORTED = ("momentum", "dampening", "nesterov", "betas", "maximize", "foreach")


def plain_settings(group: dict[str, Any]) -> dict[str, Any]:
    """Return the settings of a group as Python's numbers: NumPy's and tensors cannot be saved.

    An lr that falls is that of the first round. Older files have no weight decay.
    """
    settings = {name: group[name] for name in ("lr", "mu", "local_steps")}
    settings["weight_decay"] = group.get("weight_decay", 0.0)
    if isinstance(settings["lr"], Decay):
        settings["lr"] = settings["lr"].start
    return {n: v.item() if hasattr(v, "item") else v for n, v in settings.items()}


def settings_of(groups: Sequence[dict[str, Any]]) -> list[list[float]]:
    """Return lr, mu and weight_decay of all groups: what processes must have in common.

    The other hyperparameters follow from them.
    """
    names = ("lr", "mu", "weight_decay")
    return [[float(group[name]) for name in names] for group in groups]


def adopt(groups: Sequence[dict[str, Any]], settings: Sequence[Sequence[float]]) -> None:
    """Take over the settings of another process."""
    for group, (lr, mu, weight_decay) in zip(groups, settings, strict=True):
        group.update(lr=lr, mu=mu, weight_decay=weight_decay)
        group["last"] = plain_settings(group)


def require_close(name: str, by_rank: Sequence[list[list[float]]]) -> None:
    """Refuse processes whose lr, mu or weight_decay differ by more than rounding.

    >>> require_close("settings", [[[0.3, 1.0, 0.0]], [[0.1 + 0.2, 1.0, 0.0]]])
    >>> require_close("settings", [[[0.3, 1.0, 0.0]], [[0.2, 1.0, 0.0]]])
    Traceback (most recent call last):
    fedac.errors.InputError: processes differ in settings: lr=0.3 mu=1.0 at rank 0; lr=0.2 mu=1.0 \
at rank 1
    """
    first, *others = ([x for group in settings for x in group] for settings in by_rank)
    for other in others:
        pairs = zip(first, other, strict=False)
        close = all(math.isclose(x, y, rel_tol=TOLERANCE) for x, y in pairs)
        if not close or len(first) != len(other):
            require_same(name, [" | ".join(map(_describe, settings)) for settings in by_rank])


def _describe(settings: list[float]) -> str:
    lr, mu, weight_decay = settings
    return f"lr={lr!r} mu={mu!r}" + (f" weight_decay={weight_decay!r}" if weight_decay else "")


def require_weight_decay(settings: dict[str, Any]) -> float:
    """Return the weight decay, or refuse one that cannot be.

    >>> require_weight_decay({"lr": 0.5, "weight_decay": 3.0})
    Traceback (most recent call last):
    fedac.errors.InputError: lr * weight_decay must be below 1, got 0.5 * 3.0: a step would turn \
the signs of the parameters
    """
    lr, weight_decay = settings["lr"], require_nonnegative("weight_decay", settings["weight_decay"])
    if lr * weight_decay >= 1:
        raise InputError(
            f"lr * weight_decay must be below 1, got {lr} * {weight_decay}: a step would turn the "
            "signs of the parameters"
        )
    return weight_decay


def is_paused(group: dict[str, Any]) -> bool:
    """Check whether lr is 0, up to a scheduler's rounding."""
    return bool(abs(group["lr"]) <= ROUNDING * group.get("initial_lr", 0.0))


def require_supported(group: dict[str, Any]) -> None:
    """Refuse a group with settings of other optimizers.

    >>> require_supported({"params": [], "momentum": 0.9})
    Traceback (most recent call last):
    fedac.errors.InputError: a parameter group can set lr, mu and weight_decay, not momentum
    """
    for name in UNSUPPORTED:
        if group.get(name):
            raise InputError(f"a parameter group can set lr, mu and weight_decay, not {name}")


def upgrade(saved: dict[str, Any], groups: str) -> dict[str, Any]:
    """Return a saved state as it is now; `groups` is the name of its groups.

    Some of version 4, and all before, have no weight decay.
    Before version 4, there were only algorithms that do not count rounds and steps in a round.
    Before version 3, "last" was "shown", None at first, and a paused group had no rule.
    """
    saved = {"rounds_served": saved.get("rounds", 0), **saved}
    more = {"taken": 0, "weight_decay": 0.0, "counted": []}
    saved[groups] = [more | group for group in saved[groups]]
    for group in saved[groups]:
        if "shown" in group:
            group["last"] = group.pop("shown") or group
        group["last"] = plain_settings(group["last"])
    if "rules" not in saved:
        rule = {"algorithm": saved["algorithm"]}
        saved["rules"] = [
            rule | {"hyperparameters": hp, "settings": plain_settings(group)}
            for hp, group in zip(saved["coupling"], saved[groups], strict=True)
            if hp is not None
        ]
    return saved
