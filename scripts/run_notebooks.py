# SPDX-License-Identifier: Apache-2.0
"""Run the notebooks of docs/ from a clean kernel, and store what they print and draw.

`make notebooks` does this. A kernel starts in an empty folder, and is reached over local sockets
that no other machine sees.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path
from tempfile import TemporaryDirectory

import nbformat
from jupyter_client.manager import AsyncKernelManager
from nbclient import NotebookClient

NOTEBOOKS = Path(__file__).parents[1] / "docs" / "notebooks"

# A new run of the same code makes the same file: no times, and what is printed in one piece.
SETTINGS = {"record_timing": False, "coalesce_streams": True, "timeout": 600}
# Figures go into the notebook, regardless of the shell's backend.
INLINE = {"MPLBACKEND": "module://matplotlib_inline.backend_inline"}


def run(path: Path) -> nbformat.NotebookNode:
    """Return a notebook with the outputs of a new run; an error in a cell is raised."""
    notebook = nbformat.read(path, as_version=4)
    with TemporaryDirectory() as folder:
        where = {"metadata": {"path": folder}}
        kernel = AsyncKernelManager(transport="ipc", connection_file=f"{folder}/kernel.json")
        client = NotebookClient(notebook, km=kernel, resources=where, **SETTINGS)
        client.execute(cleanup_kc=True, env=os.environ | INLINE)
    notebook.metadata = {
        "kernelspec": {"display_name": "Python 3", "language": "python", "name": "python3"},
        "language_info": {"name": "python"},
    }
    return notebook


def main() -> None:
    """Run the notebooks named on the command line, or all."""
    for path in map(Path, sys.argv[1:]) if sys.argv[1:] else sorted(NOTEBOOKS.glob("*.ipynb")):
        nbformat.write(run(path), path)
        print(f"{path.name}: {path.stat().st_size / 1000:.0f} kB")


if __name__ == "__main__":
    main()
