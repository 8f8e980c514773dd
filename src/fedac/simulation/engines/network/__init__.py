# SPDX-License-Identifier: Apache-2.0
"""The network engine: any `torch.nn.Module`, all lanes and clients of a round as flat tensors.

- The state of a client is a tensor (lanes, clients, parameters) for each vector of the algorithm,
  so the functions of an `Algorithm` apply unchanged, one tensor operation per formula.
- Clients stream through in chunks that fit into a fixed amount of memory; the mean message is a
  running sum in float64. Only what clients keep between rounds grows with their number.
- `engine` runs rounds. `gradients` has two back ends with the same results to rounding: ``loop``
  goes through the models one by one, ``batched`` takes all models of a chunk at once. The faster
  one is chosen by timing a few steps.
- All methods and step sizes of a call take their steps together, on the same rows.
"""

from importlib.util import find_spec

from fedac.errors import MissingPackageError

if find_spec("torch") is None:
    raise MissingPackageError("networks need PyTorch: pip install torch")
