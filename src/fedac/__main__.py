# SPDX-License-Identifier: Apache-2.0
"""Run the command `fedac` as ``python -m fedac``."""

from fedac.cli import main

if __name__ == "__main__":
    main()
