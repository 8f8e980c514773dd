"""Lets ``python -m fedac`` be the command `fedac`."""

from fedac.cli import main

if __name__ == "__main__":
    main()
