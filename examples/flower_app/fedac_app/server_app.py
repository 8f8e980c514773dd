# SPDX-License-Identifier: Apache-2.0
"""The server: make a strategy, start it, save the result."""

from pathlib import Path

import numpy as np
from flwr.app import ArrayRecord, Context
from flwr.serverapp import Grid, ServerApp

from fedac.flower import LocalStrategy
from fedac_app.task import dataset

app = ServerApp()


@app.main()
def main(grid: Grid, context: Context) -> None:
    config = context.run_config
    checkpoint = Path(str(config["checkpoint"])) if config["checkpoint"] else None
    strategy = LocalStrategy(
        str(config["algorithm"]),
        eta=float(config["eta"]),
        mu=float(config["l2"]),
        local_steps=int(config["local-steps"]),
        seed=int(config["seed"]),
        min_nodes=int(config["nodes"]),
        quorum=int(config["quorum"]) or None,
        mode=str(config["mode"]),
        deadline=float(config["deadline"]),
        evaluate_every=int(config["evaluate-every"]),
        checkpoint=checkpoint,
        resume=checkpoint is not None,
    )
    w_0 = np.zeros(dataset(str(config["dataset"])).n_features)
    result = strategy.start(grid, ArrayRecord([w_0]), num_rounds=int(config["rounds"]))
    print(result.history.to_frame().to_string(index=False))
    if config["out"]:
        out = Path(str(config["out"]))
        out.mkdir(parents=True, exist_ok=True)
        result.history.to_csv(out / "history.csv")
        np.save(out / "w_ag.npy", result.arrays["0"].numpy())
