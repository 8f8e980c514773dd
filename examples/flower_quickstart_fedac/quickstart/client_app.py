# SPDX-License-Identifier: Apache-2.0
"""The client: train on its own images, evaluate on its held-out images."""

from flwr.app import Context, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp

from fedac.flower import local_training
from quickstart.task import Net, load_data, test, train

app = ClientApp()


def images_of(context: Context):
    part, parts = context.node_config["partition-id"], context.node_config["num-partitions"]
    return load_data(int(part), int(parts), context.run_config)


@app.train()
def train_client(msg: Message, context: Context) -> Message:
    loader, _ = images_of(context)
    model = Net()
    with local_training(msg, context, model) as local:
        loss = train(model, loader, context.run_config["local-epochs"], local.optimizer)
    metrics = {"train_loss": loss, "num-examples": len(loader.dataset)}
    return local.reply(metrics)


@app.evaluate()
def evaluate_client(msg: Message, context: Context) -> Message:
    _, held_out = images_of(context)
    model = Net()
    model.load_state_dict(msg.content["arrays"].to_torch_state_dict())
    loss, accuracy = test(model, held_out)
    metrics = {"eval_loss": loss, "eval_acc": accuracy, "num-examples": len(held_out)}
    return Message(RecordDict({"metrics": MetricRecord(metrics)}), reply_to=msg)
