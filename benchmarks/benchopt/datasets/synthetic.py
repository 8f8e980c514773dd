# SPDX-License-Identifier: Apache-2.0
"""Generated data in the shape of a9a."""

from benchopt import BaseDataset

from fedac.data import synthetic


class Dataset(BaseDataset):
    name = "synthetic"
    requirements = ["pip::fedac"]
    parameters = {"rows": [2000]}

    def get_data(self):
        data = synthetic(self.rows)
        return {"X": data.X, "y": data.y}
