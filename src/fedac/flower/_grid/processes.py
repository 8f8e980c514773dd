"""Worker processes for the nodes of an `InProcessGrid`."""

from __future__ import annotations

import pickle
import traceback
from collections.abc import Callable

import cloudpickle
from flwr.app import Context, Message, RecordDict
from flwr.common.constant import ErrorCode

from fedac.errors import InputError
from fedac.flower._grid.inprocess import App, call_app, error_reply, take_identity
from fedac.processes import Handler, Pool, WorkerDiedError, usable_cores


class Processes:
    """Up to `count` processes that run a ClientApp.

    The state of a node travels with its messages: any process may answer any of them, and one that
    is killed takes nothing with it.
    """

    def __init__(self, app: App, count: int) -> None:
        try:
            pickled = cloudpickle.dumps(app)
        except Exception as problem:
            raise InputError(
                f"workers= sends the ClientApp to other processes, which failed: {problem}"
            ) from problem
        self._pool = Pool(make_handler, pickled, [max(1, usable_cores() // count)] * count)
        self.start, self.close = self._pool.start, self._pool.close

    def answer(
        self, message: Message, context: Context, begin: Callable[[], None]
    ) -> tuple[Message, RecordDict]:
        """Return the app's reply and the node's new state; call `begin` when a process is free."""
        try:
            answer: tuple[Message, RecordDict] = self._pool.call((message, context), on_begin=begin)
        except WorkerDiedError as died:
            reason = f"the process that ran this node died: {died}"
            return error_reply(message, ErrorCode.CLIENT_APP_CRASHED, reason), context.state
        return answer


def make_handler(pickled: bytes, _threads: int) -> Handler:
    """Load the app in a worker process; if that fails, every message gets an error."""
    take_identity()
    try:
        app: App = pickle.loads(pickled)
    except BaseException:  # importing the user's modules may raise anything
        problem = traceback.format_exc()

        def refuse(asked: tuple[Message, Context], _send: object) -> object:
            message, context = asked
            reply = error_reply(message, ErrorCode.LOAD_CLIENT_APP_EXCEPTION, problem)
            return reply, context.state

        return refuse
    return lambda asked, _send: call_app(app, *asked)
