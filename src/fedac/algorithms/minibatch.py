"""The minibatch baselines: one step per round on the mean gradient of M*K samples.

They are the updates of FedAvg and of FedAc; what differs is the runtime (T/K steps
with a batch of M*K, appendix "Additional setup details"), which `minibatch=True` asks for.
"""

from __future__ import annotations

from dataclasses import replace

from fedac.algorithms.local.fedac import FEDAC_VANILLA
from fedac.algorithms.local.fedavg import FEDAVG

MB_SGD = replace(FEDAVG, name="mb-sgd", label="MB-SGD", minibatch=True)
MB_AC_SGD = replace(FEDAC_VANILLA, name="mb-ac-sgd", label="MB-AC-SGD", minibatch=True)
