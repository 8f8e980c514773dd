"""The options of sweeps and comparisons, as commands, TOML files and Python spell them."""

from __future__ import annotations

from fedac.federation.spec import Surface, options

LARGEST_STORED = 2**63 - 1  # whole numbers in tables have 64 bits and a sign
SWEEP = Surface(
    without=("rounds", "link", "target", "budget", "tries", "repeats"),
    several=tuple(name for name, option in options().items() if option.grid),
    names={"algorithm": "algorithms", "seed": "seeds"},
    defaults={"steps": 4096},
    needed=("dataset", "l2", "algorithm", "local_steps", "eta"),
    overrides={
        "l2": {"above": 0, "help": "Regularization strength, above 0."},
        "seed": {"most": LARGEST_STORED},
    },
)  # fmt: skip
# Step sizes, mu and the length of a run follow from the tuning.
COMPARE = Surface(
    without=("name", "mu", "precision", "eta", "decay", "steps", "test", "record_every"),
    several=("algorithm", "local_steps", "wire"),
    names={"algorithm": "methods"},
    defaults={"algorithm": None, "clients": 100, "local_steps": (8, 32, 128), "rounds": 200},
    overrides={
        "l2": {"above": 0, "help": "Regularization strength, above 0."},
        "algorithm": {
            "help": "Methods to compare: {algorithms}, any other that 'fedac algorithms' lists, "
            "the baselines lbfgs and agd, or your own Algorithm as module:name (default: a "
            "built-in list).",
        },
        "workers": {"help": "Instead of clients: workers, M, that draw from all rows."},
        "clients": {"help": "Number of clients, each with its own rows."},
        "seed": {
            "most": LARGEST_STORED,
            "help": "First tuning seed; the seeds after it are used too.",
        },
    },
)
