"""Errors of clients on their way to the server: in one line, and signed with the client's number.

Flower sends only the text of an exception. So what a client of ours raises names the client; an
error without a signature comes from a ClientApp that does not know our messages, or from Flower.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager
from functools import wraps

from flwr.app import Context, Error, Message
from flwr.clientapp.typing import ClientAppCallable

from fedac.flower._server.nodes import client_number

LONG = 300
SIGNATURE = re.compile(r"client (\d{1,20}): (.*)")
RAISED = 2  # Flower's code for a ClientApp that raised


class ClientError(RuntimeError):
    """What a client raised; the message begins with its number."""


@contextmanager
def signed(number: int) -> Iterator[None]:
    """Put a client's number before what is raised inside.

    Examples
    --------
    >>> with signed(3):
    ...     raise ValueError("no data")
    Traceback (most recent call last):
    ...
    fedac.flower._client.signatures.ClientError: client 3: ValueError: no data
    """
    try:
        yield
    except ClientError:  # it is signed already
        raise
    except (Exception, SystemExit) as error:
        text = " ".join(f"{type(error).__name__}: {error}".split())
        raise ClientError(f"client {number}: {text}") from error


def signing(function: ClientAppCallable) -> ClientAppCallable:
    """Sign what a function of a ClientApp raises."""

    @wraps(function)
    def signs(message: Message, context: Context) -> Message:
        with signed(client_number(context)):
            return function(message, context)

    return signs


def explain(error: Error) -> tuple[str, str | None]:
    r"""Return what an error of Flower's is about, and the number of the client that signed it.

    Examples
    --------
    >>> explain(Error(2, "<class 'ClientError'>:<'client 3: ValueError: no data'>"))
    ('ValueError: no data', '3')
    >>> explain(Error(2, "Traceback ...\n  File ...\nRuntimeError: Missing keys:\n\t0.weight"))
    ('RuntimeError: Missing keys: 0.weight', None)
    >>> explain(Error(1, ""))
    ('no reason given', None)
    """
    lines = (error.reason or "").strip().removesuffix("'>").splitlines() or ["no reason given"]
    for line in reversed(lines):
        if found := SIGNATURE.search(line):
            return found[2][:LONG], found[1]
    # The last line of a traceback that is not indented names the exception.
    starts = [i for i, line in enumerate(lines) if line[:1].strip()]
    text = " ".join(" ".join(lines[starts[-1] if starts else 0 :]).split())
    return text[:LONG], None
