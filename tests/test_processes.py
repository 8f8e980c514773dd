# SPDX-License-Identifier: Apache-2.0
"""The pool of worker processes: answers, progress, deaths and ends."""

from __future__ import annotations

import os
import threading

import pytest

from fedac.processes import Pool, WorkerDiedError

HANDLER = """
import os, signal, sys, time

def make_handler(payload, threads):
    if payload == b"broken":
        sys.exit(3)

    def handle(message, send):
        print("printed")  # must not get among the messages
        if message == "die":
            os.kill(os.getpid(), signal.SIGKILL)
        for step in range(message):
            send(step)
        time.sleep(0.5 if message else 0)
        return payload, threads, os.getpid(), os.environ["OMP_NUM_THREADS"]

    return handle
"""


@pytest.fixture
def make_handler(tmp_path, monkeypatch):
    (tmp_path / "pool_handler.py").write_text(HANDLER)
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.delenv("OMP_NUM_THREADS", raising=False)
    import pool_handler

    return pool_handler.make_handler


def is_alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return True


def test_workers_answer_die_and_end(make_handler):
    pool = Pool(make_handler, b"data", [3, 2])
    seen, answers = [], []
    calls = [
        threading.Thread(target=lambda: answers.append(pool.call(4, on_progress=seen.append)))
        for _ in range(2)
    ]
    for call in calls:
        call.start()
    for call in calls:
        call.join()
    assert sorted(seen) == [0, 0, 1, 1, 2, 2, 3, 3]
    assert sorted(answer[1] for answer in answers) == [2, 3]
    assert all(data == b"data" and str(n) == omp for data, n, _, omp in answers)
    pids = {answer[2] for answer in answers}
    assert len(pids) == 2
    assert os.getpid() not in pids

    with pytest.raises(WorkerDiedError, match="SIGKILL, perhaps out of memory") as caught:
        pool.call("die")
    assert caught.value.started
    assert sum(map(is_alive, pids)) == 1
    again = pool.call(0)[2]
    assert is_alive(again)

    began, errors = threading.Event(), []

    def work_for_long() -> None:
        try:
            pool.call(10**9, on_begin=began.set)
        except WorkerDiedError as error:
            errors.append(error)

    busy = threading.Thread(target=work_for_long)
    busy.start()
    began.wait()
    pool.close()
    busy.join()
    assert len(errors) == 1
    assert not any(map(is_alive, {*pids, again}))
    with pytest.raises(WorkerDiedError, match="closed"):
        pool.call(0)
    pool.start(1)
    assert pool.call(0)[0] == b"data"
    pool.close()


def test_a_worker_that_cannot_start(make_handler):
    pool = Pool(make_handler, b"broken", [1])
    with pytest.raises(WorkerDiedError, match="exit code 3") as caught:
        pool.call(0)
    assert not caught.value.started
