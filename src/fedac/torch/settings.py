"""The settings of parameter groups: lr, mu and local_steps, as they are used and saved."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from fedac.decay import Decay
from fedac.errors import InputError
from fedac.torch.communication import require_same

# Schedulers end near 0, not at 0: LinearLR at -5e-19, say.
ROUNDING = 1e-12
# Processes compute their lr with different roundings: on other hardware, or by other formulas.
TOLERANCE = 1e-9
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


def lr_and_mu(groups: Sequence[dict[str, Any]]) -> list[list[float]]:
    """Return lr and mu of all groups; the other hyperparameters follow from them."""
    return [[float(group["lr"]), float(group["mu"])] for group in groups]


def adopt(groups: Sequence[dict[str, Any]], settings: Sequence[Sequence[float]]) -> None:
    """Take over lr and mu of another process."""
    for group, (lr, mu) in zip(groups, settings, strict=True):
        group.update(lr=lr, mu=mu)
        group["last"] = plain_settings(group)


def require_close(name: str, by_rank: Sequence[list[list[float]]]) -> None:
    """Refuse processes whose lr or mu differ by more than rounding.

    >>> require_close("settings", [[[0.3, 1.0]], [[0.1 + 0.2, 1.0]]])
    >>> require_close("settings", [[[0.3, 1.0]], [[0.2, 1.0]]])
    Traceback (most recent call last):
    fedac.errors.InputError: processes differ in settings: lr=0.3 mu=1.0 at rank 0; lr=0.2 mu=1.0 \
at rank 1
    """
    first, *others = ([x for group in settings for x in group] for settings in by_rank)
    for other in others:
        pairs = zip(first, other, strict=False)
        close = all(math.isclose(x, y, rel_tol=TOLERANCE) for x, y in pairs)
        if not close or len(first) != len(other):
            texts = [" | ".join(f"lr={lr!r} mu={mu!r}" for lr, mu in s) for s in by_rank]
            require_same(name, texts)


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
