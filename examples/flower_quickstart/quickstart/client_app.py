# SPDX-License-Identifier: Apache-2.0
"""The client: train on its own images, evaluate on its held-out images."""

import torch
from flwr.app import ArrayRecord, Context, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp

from quickstart.task import Net, load_data, test, train

app = ClientApp()


def images_of(context: Context):
    part, parts = context.node_config["partition-id"], context.node_config["num-partitions"]
    return load_data(int(part), int(parts), context.run_config)


@app.train()
def train_client(msg: Message, context: Context) -> Message:
    loader, _ = images_of(context)
    model = Net()
    model.load_state_dict(msg.content["arrays"].to_torch_state_dict())
    optimizer = torch.optim.SGD(model.parameters(), lr=msg.content["config"]["lr"])
    loss = train(model, loader, context.run_config["local-epochs"], optimizer)
    metrics = {"train_loss": loss, "num-examples": len(loader.dataset)}
    records = {"arrays": ArrayRecord(model.state_dict()), "metrics": MetricRecord(metrics)}
    return Message(RecordDict(records), reply_to=msg)


@app.evaluate()
def evaluate_client(msg: Message, context: Context) -> Message:
    _, held_out = images_of(context)
    model = Net()
    model.load_state_dict(msg.content["arrays"].to_torch_state_dict())
    loss, accuracy = test(model, held_out)
    metrics = {"eval_loss": loss, "eval_acc": accuracy, "num-examples": len(held_out)}
    return Message(RecordDict({"metrics": MetricRecord(metrics)}), reply_to=msg)
