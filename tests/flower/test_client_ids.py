# SPDX-License-Identifier: Apache-2.0
"""Clients tell the server their own number, whatever else their app does."""

from __future__ import annotations

import pytest

pytest.importorskip("flwr", reason="Flower is not installed: make install")

from flwr.app import ConfigRecord, Message, RecordDict
from flwr.clientapp import ClientApp

from fedac.flower import InProcessGrid, tell_number
from fedac.flower._task import CLIENT, QUESTION


def ask(grid, node):
    (reply,) = grid.send_and_receive([Message(RecordDict(), node, QUESTION)])
    return reply


@pytest.mark.parametrize("own", [True, False], ids=["an own app", "client_app"])
def test_a_client_tells_its_partition_id(federation, own):
    app = tell_number(ClientApp()) if own else federation.app()
    grid = InProcessGrid(app, 3)
    assert [ask(grid, node).content[CLIENT] for node in grid.get_node_ids()] == [
        {CLIENT: "0"},
        {CLIENT: "1"},
        {CLIENT: "2"},
    ]


def test_without_a_partition_id_it_is_the_node_id():
    grid = InProcessGrid(tell_number(ClientApp()), 1)
    (node,) = grid.get_node_ids()
    grid.configs[node] = {}
    assert ask(grid, node).content[CLIENT] == {CLIENT: str(node)}


def test_a_query_function_of_ones_own_is_left_alone():
    app = tell_number(ClientApp())

    @app.query()
    def mine(message, context):
        return Message(RecordDict({"mine": ConfigRecord({"seen": True})}), reply_to=message)

    grid = InProcessGrid(app, 1)
    (node,) = grid.get_node_ids()
    (reply,) = grid.send_and_receive([Message(RecordDict(), node, "query")])
    assert reply.content["mine"] == {"seen": True}
    assert ask(grid, node).content[CLIENT] == {CLIENT: "0"}
