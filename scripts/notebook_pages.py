# SPDX-License-Identifier: Apache-2.0
"""A notebook as a page of the site: its text, its code, and the outputs that are stored in it.

So it looks like every other page, and needs no extra styles or scripts.
"""

from __future__ import annotations

import base64
import json
from pathlib import Path
from typing import Any


def page_of(notebook: Path) -> tuple[str, dict[str, bytes]]:
    """Return the page in Markdown, and its pictures by name."""
    cells = json.loads(notebook.read_text(encoding="utf-8"))["cells"]
    download = f'<a href="{notebook.name}" download>Download this notebook</a>'
    parts, pictures = ["".join(cells[0]["source"]), download], {}
    for number, cell in enumerate(cells[1:], start=1):
        source = "".join(cell["source"])
        parts.append(source if cell["cell_type"] == "markdown" else _block("python", source))
        for output in cell.get("outputs", ()):
            data = output.get("data", {})
            if "image/png" in data:
                name = f"{notebook.stem}-{number}.png"
                pictures[name] = base64.b64decode(data["image/png"])
                parts.append(f"![{cell['metadata']['alt']}]({name})")
            else:
                parts.append(_block("text", _text(output)))
    return "\n\n".join(parts) + "\n", pictures


def _text(output: dict[str, Any]) -> str:
    return "".join(output["text"] if "text" in output else output["data"]["text/plain"])


def _block(language: str, text: str) -> str:
    return f"```{language}\n{text.rstrip()}\n```"
