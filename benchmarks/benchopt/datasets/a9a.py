# SPDX-License-Identifier: Apache-2.0
"""The data of the paper's experiments, which come with fedac."""

from benchopt import BaseDataset

import fedac


class Dataset(BaseDataset):
    name = "a9a"
    requirements = ["pip::fedac"]

    def get_data(self):
        data = fedac.load("a9a")
        return {"X": data.X, "y": data.y}
