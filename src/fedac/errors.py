# SPDX-License-Identifier: Apache-2.0
"""Errors and warnings: what is wrong, where, and what to do."""

from __future__ import annotations


class InputError(ValueError):
    """Invalid input; the message says what is accepted."""


class DataError(InputError):
    """A data set is missing, damaged or unsuitable for training."""


class NoOptimumError(InputError):
    """An objective has no minimum, or one that cannot be located."""


class MissingPackageError(InputError, ModuleNotFoundError):
    """A package of an extra is not installed; the message says how to install it."""


class NodeLostError(ConnectionError):
    """A node of a cluster was lost; the message says when and what to do."""


class StepSizeWarning(UserWarning):
    """A step size exceeds 1/L, the largest that the paper's theorems cover."""


class NotAcceleratedWarning(UserWarning):
    """FedAc degenerates to FedAvg; the message has settings that accelerate."""


class NotLinearWarning(UserWarning):
    """A user's algorithm is not linear; the message names the runtimes that support it."""


class ColumnsWarning(UserWarning):
    """A test set has columns that the training data does not have."""


class SlowEngineWarning(UserWarning):
    """The fast engine could not run a simulation; the message gives the reason."""


class LargeMemoryWarning(UserWarning):
    """The clients' memories of a simulation do not fit into main memory."""


class CompileCacheWarning(UserWarning):
    """Compiled kernels cannot be cached on disk; the message gives the reason."""


class NetworkFileSystemWarning(UserWarning):
    """A store is on a file system where SQLite's locks do not work between machines."""
