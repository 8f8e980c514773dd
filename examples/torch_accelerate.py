# SPDX-License-Identifier: Apache-2.0
"""Accelerate: it prepares all but DistributedDataParallel; processes are averaged every 8 steps.

    torchrun --nproc-per-node=4 examples/torch_accelerate.py

Started again, it continues after the last epoch in run.pt.
"""

import torch
from accelerate import Accelerator
from accelerate.utils import DataLoaderConfiguration
from torch.utils.data import DataLoader, TensorDataset

from fedac.torch import synchronize

EPOCHS = 4

accelerator = Accelerator(
    # Without `cpu` or a GPU, Accelerate would not see the other processes.
    cpu=not torch.cuda.is_available(),
    # The order of an epoch follows from its number, also in a run that is resumed.
    dataloader_config=DataLoaderConfiguration(use_seedable_sampler=True, data_seed=0),
)
torch.manual_seed(0)
x = torch.randn(480, 4)
data = TensorDataset(x, x.sum(1, keepdim=True))
model = torch.nn.Sequential(torch.nn.Linear(4, 16), torch.nn.Tanh(), torch.nn.Linear(16, 1))

# In evaluation mode the model gets its device and autocast, but no DistributedDataParallel.
model = accelerator.prepare_model(model, evaluation_mode=True)
optimizer, loader = accelerator.prepare(
    torch.optim.AdamW(model.parameters(), lr=0.01), DataLoader(data, batch_size=8, shuffle=True)
)
averages = synchronize(
    optimizer.optimizer, model, local_steps=8, server="nesterov(0.7,0.9)", timeout=60
)
extra = averages.resume("run.pt", missing_ok=True) or {"epochs": 0}

for epoch in range(extra["epochs"], EPOCHS):
    loader.set_epoch(epoch)
    for x, y in loader:
        with accelerator.accumulate(model):
            accelerator.backward((model(x) - y).square().mean())
            optimizer.step()
            optimizer.zero_grad()
    averages.synchronize()  # an epoch may end in the middle of a round
    averages.checkpoint("run.pt", epochs=epoch + 1)

w = torch.nn.utils.parameters_to_vector(model.parameters())
accelerator.end_training()
