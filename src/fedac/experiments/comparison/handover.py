# SPDX-License-Identifier: Apache-2.0
"""Lines of Python that run a compared method in PyTorch and in Flower."""

from __future__ import annotations

from typing import TYPE_CHECKING

from fedac.algorithms import Algorithm, get
from fedac.algorithms.linear import linear_form
from fedac.algorithms.parsing import find_algorithm, split_names
from fedac.errors import InputError
from fedac.federation.compression import FLOAT32
from fedac.federation.federation import taking_part
from fedac.federation.mode import Mode
from fedac.federation.spec import FULL, Spec
from fedac.validate import parse_piece

if TYPE_CHECKING:
    from fedac.experiments.comparison.table import Row

# A round of a minibatch method is one local step of these, on all rows of the round.
AS_LOCAL = {"mb-sgd": "fedavg", "mb-ac-sgd": "fedac-vanilla"}
# The numbers of AdamW, ours and PyTorch's, unless the method's name has others.
ADAMW = (0.9, 0.999, 1e-8, 0.01)
FULL_GRADIENT = (
    "full_gradient is a function of yours that calls backward() on the mean loss of all rows."
)
SIMULATOR_ONLY = "To run it, use fedac.simulate: it works neither in PyTorch nor in Flower."


def hand_over(row: Row, spec: Spec) -> list[str]:
    """Return the lines that run a row's method, each part below a line that says where.

    Besides imports, the code needs a `model` and, in PyTorch, the `dataset` of this process.
    """
    assert row.eta is not None, "every try diverged"
    lr, mu = f"{row.eta:.4g}", "" if row.mu is None else f", mu={row.mu:.4g}"
    method, K, how = _in_python(row), row.K, _on_batches(spec)
    steps = server = ""
    if row.algorithm in AS_LOCAL:
        local, K = AS_LOCAL[row.algorithm], 1
        method, how = f'"{local}"', f"as {get(local).label} with {_one_step(row, spec)}"
    adamw, full = _as_adamw(row), "gradient" in _algorithm(row).asks
    if adamw is None:
        if not _is_linear(row, row.eta):
            return [SIMULATOR_ONLY]
        numbers = f"lr={lr}, local_steps={K}{mu}" + ", full_gradient=full_gradient" * full
        optimizer = f"LocalOptimizer(model.parameters(), {method}, {numbers})"
    else:
        numbers, server = adamw
        optimizer = f"torch.optim.AdamW(model.parameters(), lr={lr}{numbers})"
        method = f'"fedavg+{server}"' if server else '"fedavg"'
        steps = f", local_steps={K}" + (f', server="{server}"' if server else "")
    by_rows = spec.workers is None and spec.weighting == "examples"
    weighting = ', weighting="examples"' if by_rows else ""
    examples = ", examples=len(dataset)" if by_rows else ""
    wire = "" if row.wire == FLOAT32 else f', wire="{row.wire}"'
    mode, sample = Mode.parse(row.mode), _sample(spec)
    nodes = _places(mode, spec) if mode.is_asynchronous else sample
    federated = f"local_steps={K}{mu}{weighting}{nodes}{_waiting(mode, spec)}{wire}"
    lines = [
        f"To run it {how} in PyTorch (fedac.torch):",
        f"optimizer = {optimizer}",
        f"synchronize(optimizer, model{steps}{weighting}{examples}{wire})",
    ]
    if full:
        lines.append(FULL_GRADIENT)
    if spec.epochs is not None:
        lines.append(
            f"In the comparison, clients passed {spec.epochs} time{'s' * (spec.epochs != 1)} "
            f"through their rows in a round, {K} steps on average. For this, train inside "
            "averages.join(), with the steps of the longest loader as local_steps."
        )
    if sample:
        lines.append("PyTorch has no client sampling: all processes train in every round.")
    if mode.kind != "rounds":
        lines.append(f"PyTorch has no {mode}: its rounds wait for all processes.")
    lines += [
        "In Flower (fedac.flower):",
        f"strategy = LocalStrategy({method}, eta={lr}, {federated})",
    ]
    if mode.kind == "until":
        lines.append(f"Flower has no {mode}: let the clients' own loops end by the clock.")
    if full:
        lines.append("Clients with a loop of their own pass full_gradient to local_training.")
    if spec.epochs is not None:
        lines.append("The steps are those of the clients' own training: let it pass as often.")
    if adamw is not None:
        lines.append(
            "Clients pass the AdamW above to local_training and save its state each round."
        )
    return lines


def _in_python(row: Row) -> str:
    """Return the method as an argument: its name, or the object for "module:name"."""
    own, *others = split_names(row.method, "+")
    if ":" not in own:
        return f'"{row.algorithm}"'
    found = own.replace(":", ".")
    pieces = "".join(f', "{piece}"' for piece in others)  # no server numbers are tuned
    return f"fedac.compose({found}{pieces})" if pieces else found


def _algorithm(row: Row) -> Algorithm:
    return find_algorithm(row.method if ":" in row.method else row.algorithm)


def _as_adamw(row: Row) -> tuple[str, str] | None:
    """Return AdamW's keywords and server rule for PyTorch; None if the method is another."""
    if ":" in row.method or row.algorithm in AS_LOCAL:
        return None
    first, *others = split_names(get(row.algorithm).name, "+")
    name, numbers, _ = parse_piece(first)
    if name != "adamw" or len(get(row.algorithm).sequences) > 1:  # control variates are sent too
        return None
    numbers, keywords = numbers or ADAMW, ""
    if numbers[:2] != ADAMW[:2]:
        keywords += f", betas=({numbers[0]:g}, {numbers[1]:g})"
    for keyword, number, usual in zip(("eps", "weight_decay"), numbers[2:], ADAMW[2:], strict=True):
        keywords += f", {keyword}={number:g}" if number != usual else ""
    return keywords, "".join(others)


def _is_linear(row: Row, eta: float) -> bool:
    """Return whether PyTorch and Flower can take the local steps."""
    algorithm = _algorithm(row)
    try:
        linear_form(algorithm, algorithm.couple(eta=eta, mu=row.mu or 1.0, K=row.K))
    except InputError:
        return False
    return not algorithm.minibatch or row.algorithm in AS_LOCAL


def _on_batches(spec: Spec) -> str:
    if spec.batch == FULL:
        return "on full batches"
    return f"on batches of {spec.batch} row{'s' * (spec.batch != 1)}"


def _one_step(row: Row, spec: Spec) -> str:
    """Describe the round of a minibatch method, whose clients use K batches."""
    if spec.batch == FULL:
        return "one full-batch step per round"
    rows = int(spec.batch) * row.K
    return f"one step of {rows} row{'s' * (rows != 1)} per round"


def _sample(spec: Spec) -> str:
    """Return Flower's option for client sampling; empty if all clients are in every round."""
    share, M = spec.participation, spec.workers or spec.clients
    if share == 1 or (M is not None and taking_part(share, M) is None):
        return ""
    return f", sample={share:g}" if share < 1 else f", sample={int(share)}"


def _places(mode: Mode, spec: Spec) -> str:
    """Return Flower's options for the nodes at work in asynchronous rounds."""
    share, M = spec.participation, spec.workers or spec.clients
    count = int(share) if share > 1 else None
    if M is not None:
        count = taking_part(share, M)
    nodes = count or M or int(mode.number)
    return f", min_nodes={nodes}" + (f", concurrency={count}" if count else "")


def _waiting(mode: Mode, spec: Spec) -> str:
    """Return Flower's options for how the server waits; empty for plain rounds."""
    if mode.kind not in ("deadline", "buffer"):
        return ""
    more = mode.kind == "deadline" and spec.oversample != 1
    return f', mode="{mode}"' + (f", oversample={spec.oversample:g}" if more else "")
