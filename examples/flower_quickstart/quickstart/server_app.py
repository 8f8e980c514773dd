# SPDX-License-Identifier: Apache-2.0
"""The server: make a strategy, start it, save the model."""

import json
from pathlib import Path

import torch
from flwr.app import ArrayRecord, ConfigRecord, Context, MetricRecord
from flwr.serverapp import Grid, ServerApp
from flwr.serverapp.strategy import FedAvg

from quickstart.task import Net, load_images, test

app = ServerApp()


@app.main()
def main(grid: Grid, context: Context) -> None:
    config = context.run_config
    lr, fraction = config["learning-rate"], config["fraction-evaluate"]
    torch.manual_seed(config["seed"])
    model = Net()
    strategy = FedAvg(fraction_evaluate=fraction)
    result = strategy.start(
        grid=grid,
        initial_arrays=ArrayRecord(model.state_dict()),
        train_config=ConfigRecord({"lr": lr}),
        num_rounds=config["rounds"],
        evaluate_fn=evaluate_on_server,
    )
    if config["out"]:
        out = Path(config["out"])
        out.mkdir(parents=True, exist_ok=True)
        rounds = {i: record["accuracy"] for i, record in result.evaluate_metrics_serverapp.items()}
        (out / "accuracy.json").write_text(json.dumps(rounds))
        model.load_state_dict(result.arrays.to_torch_state_dict())
        torch.save(model.state_dict(), out / "model.pt")


def evaluate_on_server(server_round: int, arrays: ArrayRecord) -> MetricRecord:
    """Return the loss and the accuracy on images that no client has."""
    model = Net()
    model.load_state_dict(arrays.to_torch_state_dict())
    loss, accuracy = test(model, load_images()["test"])
    return MetricRecord({"loss": loss, "accuracy": accuracy})
