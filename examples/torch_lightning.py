# SPDX-License-Identifier: Apache-2.0
"""Lightning: every process fits on its own, and a callback averages them every eight steps.

    torchrun --nproc-per-node=4 examples/torch_lightning.py

Started again, it continues after the last epoch in run.pt.
"""

import lightning
import torch
import torch.distributed as dist
from lightning.pytorch.strategies import SingleDeviceStrategy
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset

from fedac.torch import synchronize

EPOCHS = 4


class Averages(lightning.Callback):
    def __init__(self, path, **options):
        self.path, self.options = path, options

    def on_fit_start(self, trainer, module):
        self.averages = synchronize(trainer.optimizers[0], module, **self.options)
        self.epochs = trainer.fit_loop.epoch_progress.current
        extra = self.averages.resume(self.path, missing_ok=True) or {"epochs": 0}
        self.epochs.processed = extra["epochs"]

    def on_train_epoch_end(self, trainer, module):
        self.averages.synchronize()  # an epoch may end in the middle of a round
        self.averages.checkpoint(self.path, epochs=self.epochs.processed)


class Regression(lightning.LightningModule):
    def __init__(self):
        super().__init__()
        self.net = torch.nn.Sequential(
            torch.nn.Linear(4, 16), torch.nn.Tanh(), torch.nn.Linear(16, 1)
        )

    def training_step(self, batch):
        x, y = batch
        return (self.net(x) - y).square().mean()

    def configure_optimizers(self):
        return torch.optim.AdamW(self.parameters(), lr=0.01)


dist.init_process_group("gloo")
torch.manual_seed(0)
x = torch.randn(480, 4)
data = TensorDataset(x, x.sum(1, keepdim=True))
module = Regression()
trainer = lightning.Trainer(
    max_epochs=EPOCHS,
    accelerator="cpu",
    strategy=SingleDeviceStrategy("cpu"),  # "ddp" would average gradients in every step
    callbacks=[Averages("run.pt", local_steps=8, server="nesterov(0.7,0.9)", timeout=60)],
    enable_checkpointing=False,  # run.pt belongs to all processes
    enable_progress_bar=dist.get_rank() == 0,
    logger=False,
)
# Lightning knows of one process: without the sampler, each would get all rows.
trainer.fit(module, DataLoader(data, batch_size=8, sampler=DistributedSampler(data)))
w = torch.nn.utils.parameters_to_vector(module.parameters())
dist.destroy_process_group()
