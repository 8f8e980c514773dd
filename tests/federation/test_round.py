# SPDX-License-Identifier: Apache-2.0
"""The pieces of a round: control variates stay the weighted mean however weights change."""

import numpy as np
import pytest

from fedac.algorithms import ClientWork, RoundInfo, get
from fedac.federation.compression import Sender
from fedac.federation.round import compress, decompress, leave, serve

rng = np.random.default_rng(3)
TARGETS = rng.normal(size=(4, 5))


@pytest.mark.parametrize("name", ["scaffold", "fedac-i+cv", "fedac-i+local+cv+nesterov(1,0.3)"])
@pytest.mark.parametrize("wire", ["float32", "int8"])
def test_c_is_the_weighted_mean_of_all_c_m(name: str, wire: str) -> None:
    """Clients come and go, and their numbers of rows change from round to round."""
    algorithm = get(name)
    hp = algorithm.couple(eta=0.1, mu=0.05, K=3)
    sequences, server = algorithm.split(algorithm.start(np.zeros(5)))
    memory = {m: algorithm.begin_memory(sequences) for m in range(4)}
    weights = dict.fromkeys(range(4), 1.0)  # those of a client's last round
    for r, members in enumerate([(0, 1, 2, 3), (1,), (0, 3), (2, 1, 0), (3, 2)]):
        before, messages = sum(weights.values()), []
        for m in members:
            ratio = weights[m]
            weights[m] = float(rng.integers(1, 9))
            ratio /= weights[m]
            local = algorithm.enter(sequences, memory[m], hp)
            for _ in range(3):
                w_md = algorithm.query(local, hp)
                local = algorithm.update(local, w_md, w_md - TARGETS[m], hp)
            done = ClientWork(steps=3)
            message, kept = leave(
                algorithm, local, sequences, memory[m], hp, done, weight_ratio=ratio
            )
            sender = Sender(wire, seed=1, m=m, r=r)
            message, memory[m] = compress(algorithm, message, sequences, kept, sender)
            received = decompress(algorithm, wire, sender.data, sequences)
            np.testing.assert_array_equal(received, message)
            messages.append(message)
        here, total = [weights[m] for m in members], sum(weights.values())
        mean = tuple(np.average(messages, axis=0, weights=here))
        this = RoundInfo(number=r, share=sum(here) / total)
        sequences, server = serve(
            algorithm, mean, sequences, server, hp, this, weight_ratio=before / total
        )
        c = sequences[algorithm.sequences.index("c")]
        c_m = [memory[m][algorithm.memory.index("c_m")] for m in range(4)]
        wanted = np.average(c_m, axis=0, weights=[weights[m] for m in range(4)])
        np.testing.assert_allclose(c, wanted, rtol=0, atol=1e-12)
