# SPDX-License-Identifier: Apache-2.0
"""The client: one function that loads data, one that makes a model."""

from flwr.app import Context

from fedac.flower import client_app
from fedac_app.task import Logistic, objective


def load_data(context: Context):
    part, parts = context.node_config["partition-id"], context.node_config["num-partitions"]
    return objective(context.run_config, int(part), int(parts))


app = client_app(load_data, Logistic)
