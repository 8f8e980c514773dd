# SPDX-License-Identifier: Apache-2.0
"""The paper's bounds against simulation: potentials, discrepancies, overhead.

Writes docs/images/theory-bounds.png in about two minutes: python benchmarks/theory_figure.py
"""

from __future__ import annotations

import math
import warnings
from pathlib import Path

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import FixedLocator, NullLocator, ScalarFormatter

from fedac.algorithms import get as get_algorithm
from fedac.data import load
from fedac.errors import StepSizeWarning
from fedac.objectives import LogisticRegression, NoisyQuadratic, optimum
from fedac.plotting import style
from fedac.simulation import simulate
from fedac.theory import lemmas
from fedac.theory.constants import psi
from fedac.theory.tracing import trace

OUT = Path(__file__).parents[1] / "docs" / "images" / "theory-bounds.png"
SEEDS = range(64)
GREY = "0.35"


def mean_and_error(samples) -> tuple[np.ndarray, np.ndarray]:
    values = np.array(samples)
    return values.mean(axis=0), values.std(axis=0, ddof=1) / math.sqrt(len(values))


def draw_potentials(ax: Axes) -> None:
    """FedAc-I on a quadratic: Psi_T and the two lemmas that bound it, by step size."""
    sigma, M, K, T = 0.1, 8, 4, 64
    F = NoisyQuadratic([0.05, 0.2, 0.5, 1.0], sigma=sigma)
    start = np.array([3.0, 0.0, 0.0, 0.0])
    of = {"L": F.smoothness, "mu": F.strong_convexity, "sigma": sigma, "M": M, "T": T}
    of["Psi0"] = psi(suboptimality=F.value(start), w=start, w_star=F.optimum, mu=of["mu"])
    etas = np.geomspace(0.001, 1.0, 10)
    measured, errors, general, perturbed = [], [], [], []
    for eta in etas:
        runs = [trace(F, "fedac-i", M=M, K=K, T=T, eta=eta, start=start, seed=s) for s in SEEDS]
        mean, error = mean_and_error([run.psi[-1] for run in runs])
        measured.append(mean)
        errors.append(error)
        apart = np.mean([run.discrepancies["fedac-i"] for run in runs], axis=0)[:-1].max()
        gamma = get_algorithm("fedac-i").couple(eta=eta, mu=of["mu"], K=K).gamma
        general.append(lemmas.fedac_i_general_eta(eta=eta, K=K, **of).total)
        perturbed.append(
            lemmas.fedac_i_perturbed(eta=eta, gamma=gamma, discrepancy=apart, **of).total
        )
    look = style("fedac-i")
    ax.plot(etas, general, color=GREY, label="lemma for any step size")
    ax.plot(etas, perturbed, color=GREY, ls="--", label="lemma, measured discrepancy")
    ax.errorbar(
        etas, measured, yerr=errors, color=look.colour, marker=look.marker, ms=4, label="simulated"
    )
    ax.set(xscale="log", yscale="log", xlabel="step size, times L", ylabel=r"mean of $\Psi_T$")
    ax.set_title(f"Potential of FedAc-I\nquadratic, M={M}, K={K}, T={T}", fontsize=10)


def draw_discrepancies(ax: Axes) -> None:
    """Three algorithms on a logistic problem: the discrepancy as a share of its bound, by step."""
    rng = np.random.default_rng(7)
    X = rng.standard_normal((200, 10))
    y = np.where(X @ rng.standard_normal(10) + rng.logistic(size=200) > 0, 1.0, -1.0)
    F = LogisticRegression(X, y, l2=0.05)
    L, mu, M, K, T = F.smoothness, F.strong_convexity, 4, 16, 48
    # Uniform in w, as the assumptions demand: |loss'| < 1, and Minkowski for the fourth moment.
    norms = np.linalg.norm(X, axis=1)
    sigma = math.sqrt((norms**2).mean())
    sigma4 = (norms**4).mean() ** 0.25 + math.sqrt(np.linalg.eigvalsh(X.T @ X / len(X))[-1])
    bounds = {
        "fedac-i": lambda hp: lemmas.fedac_i_discrepancy(
            eta=hp.eta, gamma=hp.gamma, mu=mu, sigma=sigma, K=K
        ),
        "fedavg": lambda hp: lemmas.fedavg_a2_discrepancy(eta=hp.eta, sigma4=sigma4, K=K),
        "fedac-ii": lambda hp: lemmas.fedac_ii_a1_discrepancy(
            eta=hp.eta, gamma=hp.gamma, L=L, mu=mu, sigma=sigma, K=K
        ),
    }
    for name, bound in bounds.items():
        algorithm, eta = get_algorithm(name), 0.1 / L
        runs = [
            trace(F, name, M=M, K=K, T=T, eta=eta, start=np.full(10, 5.0), seed=s) for s in SEEDS
        ]
        mean, error = mean_and_error([run.discrepancies[name] for run in runs])
        share = np.where(mean > 0, mean, np.nan) / bound(algorithm.couple(eta=eta, mu=mu, K=K))
        ax.errorbar(
            runs[0].steps,
            share,
            yerr=share * error / np.where(mean > 0, mean, 1.0),
            color=style(name).colour,
            marker=style(name).marker,
            ms=3,
            lw=1,
            label=algorithm.label,
        )
    ax.axhline(1.0, color=GREY, label="bound")
    ax.set(yscale="log", xlabel="step t", ylabel="mean discrepancy / its bound", ylim=(1e-9, 8))
    ax.xaxis.set_major_locator(FixedLocator(range(0, T + 1, K)))
    ax.set_title(f"Discrepancy between rounds\nlogistic, M={M}, K={K}, eta=0.1/L", fontsize=10)


def draw_overheads(ax: Axes) -> None:
    """What K > 1 costs over K = 1, each at its best step size, by rounds."""
    data = load("synthetic")
    F = LogisticRegression(data.X, data.y, l2=1e-2)
    M, T, intervals, seeds = 1024, 256, (1, 4, 8, 16, 32, 64), range(16)
    names = ["fedac-i", "fedavg"]
    etas = 4 * 2 ** (-np.arange(13) / 2) / F.smoothness
    gaps = np.full((2, len(intervals), len(etas), len(seeds)), np.inf)
    for k, K in enumerate(intervals):
        for s in seeds:
            result = simulate(
                F, names, M=M, K=K, T=T, eta=etas, seed=s, record_every=T, precision="float64"
            )
            final = [run.final_loss if run.status == "ok" else np.inf for run in result.runs]
            gaps[:, k, :, s] = np.reshape(final, (2, -1)) - optimum(F).value
    best = gaps.mean(axis=-1).argmin(axis=-1)
    tuned = np.take_along_axis(gaps, best[:, :, None, None], axis=2)[:, :, 0, :]
    R = T / np.array(intervals[1:])
    for name, mine in zip(names, tuned, strict=True):
        mean, error = mean_and_error((mine[1:] - mine[0]).T)
        slope, offset = np.polyfit(np.log(R), np.log(mean), 1)
        look = style(name)
        label = f"{get_algorithm(name).label}, slope {slope:.2f}"
        ax.plot(R, np.exp(offset) * R**slope, color=look.colour, ls=":", lw=1)
        ax.errorbar(
            R, mean, yerr=error, color=look.colour, marker=look.marker, ms=5, ls="", label=label
        )
        print(label, "at eta L =", np.round(etas[best[names.index(name)]] * F.smoothness, 3))
    ax.set_xscale("log", base=2)
    ax.xaxis.set_major_locator(FixedLocator(list(R)))
    ax.xaxis.set_minor_locator(NullLocator())
    ax.xaxis.set_major_formatter(ScalarFormatter())
    ax.set(yscale="log", xlabel=f"rounds R = T/K, T={T}", ylabel="suboptimality relative to K=1")
    ax.set_title(
        f"Overhead of rare synchronization\nlogistic, M={M}, step sizes tuned", fontsize=10
    )


def main() -> None:
    warnings.simplefilter("ignore", StepSizeWarning)
    figure = Figure(figsize=(11, 4), layout="constrained")
    axes = figure.subplots(1, 3)
    for draw, ax in zip((draw_potentials, draw_discrepancies, draw_overheads), axes, strict=True):
        draw(ax)
        ax.grid(True, color="0.9")
        ax.legend(frameon=False, fontsize=8)
    OUT.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(OUT, dpi=110)
    print(OUT)


if __name__ == "__main__":
    main()
