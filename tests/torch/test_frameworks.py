# SPDX-License-Identifier: Apache-2.0
"""Lightning and Accelerate: the examples end with the bits of a plain loop, also if interrupted."""

from importlib.util import find_spec
from pathlib import Path

import pytest
import torch

pytestmark = pytest.mark.slow

EXAMPLES = Path(__file__).parents[2] / "examples"

# What both examples do, without a framework: {batches} are those of this rank, by epoch.
PLAIN = """
import torch
import torch.distributed as dist
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset
from fedac.torch import synchronize

dist.init_process_group("gloo")
rank, world = dist.get_rank(), dist.get_world_size()
torch.manual_seed(0)
x = torch.randn(480, 4)
y = x.sum(1, keepdim=True)
model = torch.nn.Sequential(torch.nn.Linear(4, 16), torch.nn.Tanh(), torch.nn.Linear(16, 1))
optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
averages = synchronize(optimizer, model, local_steps=8, server="nesterov(0.7,0.9)")
sampler = DistributedSampler(TensorDataset(x))
for epoch in range(4):
    sampler.set_epoch(epoch)
    shuffled = torch.randperm(480, generator=torch.Generator().manual_seed(epoch))
    for rows in {batches}:
        optimizer.zero_grad()
        (model(x[rows]) - y[rows]).square().mean().backward()
        optimizer.step()
    averages.synchronize()
w = torch.nn.utils.parameters_to_vector(model.parameters())
"""
BATCHES = {
    "lightning": "torch.tensor(list(sampler)).split(8)",
    "accelerate": "shuffled.split(8)[rank::world]",
}


@pytest.mark.parametrize("name", BATCHES)
def test_a_framework_trains_as_a_plain_loop(processes, tmp_path: Path, name: str) -> None:
    if find_spec(name) is None:  # an import here would take seconds, and warnings are errors
        pytest.skip(f"{name} is not installed")
    program = (EXAMPLES / f"torch_{name}.py").read_text()
    assert program.count("EPOCHS = 4\n") == 1
    texts = {
        "interrupted": program.replace("EPOCHS = 4", "EPOCHS = 2"),
        "resumed": program,
        "plain": PLAIN.format(batches=BATCHES[name]),
    }
    for title, text in texts.items():
        (tmp_path / f"{title}.py").write_text(text)
    paths = [str(tmp_path / f"{title}.py") for title in texts]
    ended = processes("programs", world=2, paths=paths)
    assert [process.code for process in ended] == [0, 0], ended[0].err
    for process in ended:
        interrupted, resumed, plain = process.result
        assert torch.equal(resumed, plain)
        assert not torch.equal(resumed, interrupted)
    one, other = (process.result for process in ended)
    assert torch.equal(one[-1], other[-1])
