# SPDX-License-Identifier: Apache-2.0
"""A quick comparison of a network: as long as this machine's speed allows.

The size is chosen once for a folder and kept in it, so that an interrupted comparison resumes.
"""

from __future__ import annotations

import json
import math
import time
from dataclasses import replace
from pathlib import Path

from fedac.errors import InputError
from fedac.experiments.comparison.question import Question
from fedac.experiments.comparison.study import Study
from fedac.paths import write_atomically

NAME = "quick.json"
# Predicted seconds of all runs; starting processes in every stage takes some more.
SECONDS = 75.0
FEWEST_ROUNDS = 8
# Seconds of the run that measures the speed, about, unless one round takes longer.
TRIAL_SECONDS = 0.4


def shortened(study: Study, cores: int, folder: Path | None) -> Question:
    """Return the question of a study as it is if that is quick enough, else a rougher one."""
    path = None if folder is None else folder / NAME
    if path is not None and path.exists():
        rounds, rough = _read(path, study.data_hash)
        if rounds:
            return _with_rounds(study.question, rounds, rough)
    question = _fitted(study, cores)
    if path is not None:
        choice = {
            "data_hash": study.data_hash, "rounds": question.spec.rounds, "rough": question.rough,
        }  # fmt: skip
        content = json.dumps(choice).encode()
        write_atomically(path, lambda file: file.write(content))
    return question


def _fitted(study: Study, cores: int) -> Question:
    slower, given = _slower(study), study.question
    if slower * study.estimate(cores) <= SECONDS:
        return given
    for rounds in range(given.spec.rounds or 0, FEWEST_ROUNDS, -1):
        question = _with_rounds(given, rounds, True)
        if slower * study.estimate(cores, question) <= SECONDS:
            return question
    return _with_rounds(given, FEWEST_ROUNDS, True)


def _slower(study: Study) -> float:
    """Return how many times longer a short run takes than predicted."""
    task, run = study.task, study.short_run(1)
    run = study.short_run(math.ceil(TRIAL_SECONDS / task.seconds([run])))
    task.run([replace(run, steps=run.K)], 0.0)  # the first calls of PyTorch are slow
    begun = time.perf_counter()
    task.run([run], 0.0, threads=1)
    return (time.perf_counter() - begun) / task.seconds([run])


def _with_rounds(question: Question, rounds: int, rough: bool) -> Question:
    return replace(question, spec=replace(question.spec, rounds=rounds), rough=rough)


def _read(path: Path, data_hash: str) -> tuple[int, bool]:
    """Return the rounds in a file and whether they are rough; 0 rounds for other data."""
    try:
        choice = json.loads(path.read_text(encoding="utf-8"))
        rounds = int(choice["rounds"]) if choice["data_hash"] == data_hash else 0
        return rounds, bool(choice["rough"])
    except (OSError, ValueError, KeyError, TypeError):
        raise InputError(f"'{path}' cannot be read; delete it") from None
