# SPDX-License-Identifier: Apache-2.0
"""The examples at the end of every help page: what follows the name of the command."""

EXAMPLES = {
    "demo": ["", "--out first-look"],
    "run": [
        "--dataset a9a --algorithm fedac-i --eta 0.05,0.1,0.2",
        "--dataset digits --clients 20 --split label --algorithm scaffold",
        "--dataset a9a --clients 50 --algorithm diloco --link home --json",
    ],
    "compare": [
        "--quick",
        "--dataset digits --test 0.2 --target 'accuracy 0.9' --dry-run",
        "--methods fedavg,diloco -K 8,32 --split label --out compared",
    ],
    "methods": ["", "diloco", "'fedac-i+cv+nesterov(1,0.3)' --json"],
    "split": [
        "--dataset digits --clients 10 --split label",
        "--dataset a9a --clients 100 --split 'dirichlet(0.1)' --figure split.png",
    ],
    "sweep": [
        "a9a-l2-1e-3 --dry-run",
        "a9a-l2-1e-2 --out a9a --shard 1/4",
        "--dataset a9a --l2 1e-2 --algorithms fedavg -M 4 -K 8 --eta 0.1 --out runs",
    ],
    "export": ["runs --csv runs.csv", "runs --traces - --link home"],
    "merge": ["all runs", "all shard-1 shard-2 shard-3"],
    "report": ["runs", "runs --out report.html --band quartiles"],
    "reproduce": ["figure-1", "all --seeds 1,2,3,4,5 --out paper"],
    "instability": ["", "--kappa 400 -K 8,32,128 --out figures"],
    "plan": [
        "--dataset a9a --workers 1024",
        "--dataset a9a --workers 64 --target 1e-3 --calibrate",
        "--smoothness 1 --strong-convexity 1e-3 --noise 0.5 --distance 5 -M 64",
    ],
    "data": ["list", "fetch a9a"],
    "data list": [""],
    "data fetch": ["mushrooms"],
    "data path": ["a9a"],
}
