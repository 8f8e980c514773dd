# SPDX-License-Identifier: Apache-2.0
"""What `mkdocs` needs to know about files outside docs/: called while the site is made.

Pages of docs/ are read on GitHub too, where links to tests, examples and the README lead to those
files. The site does not have them.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files
from mkdocs.structure.pages import Page
from notebook_pages import page_of

ROOT = Path(__file__).parents[1]
PAGES = {"README.md": "index.md", "CHANGELOG.md": "changelog.md"}
# Blocks of code; code in a line; what is not text; and the words of a text to keep on one line.
PARTS = re.compile(
    r"<pre\b.*?</pre>|<code>[^<]*</code>|<[^>]*>|\d[\d.]*e-\d+|\bFedAc-I+\b", re.DOTALL
)
HYPHENATED = re.compile(r"(?<![\w-])(?=[\w-]{2,24}(?![\w-]))\w*-[\w-]*")
# The name in a heading of the API reference.
DOTTED = re.compile(r'class="doc doc-object-name [\w-]+">[\w.]+')
PICTURE = re.compile(r'<img [^>]*src="([^"]+\.png)"[^>]*>')
OUTSIDE = re.compile(r"\[([^]]+)\]\((?:\.\./)+([^)#]+)[^)]*\)")


def on_files(files: Files, *, config: MkDocsConfig) -> Files:
    """Add the changelog, with its links seen from docs/, and a page for each notebook."""
    text = (ROOT / "CHANGELOG.md").read_text(encoding="utf-8").replace("](docs/", "](")
    last = (
        "---\nsearch:\n  boost: 0.2\n---\n"  # in a search it comes after the pages it tells about
    )
    files.append(File.generated(config, "changelog.md", content=last + text))
    for notebook in [file for file in files if file.src_uri.endswith(".ipynb")]:
        where = Path(notebook.src_uri)
        page, pictures = page_of(ROOT / "docs" / where)
        made = {where.with_suffix(".md").name: page, **pictures}
        for name, content in made.items():
            uri = (where.parent / name).as_posix()
            files.append(File.generated(config, uri, content=content))
    return files


def on_page_markdown(markdown: str, *, page: Page, **_: Any) -> str:
    """Lead links out of docs/ to the page that says the same, or else leave their words.

    Links to notebooks lead to the pages made of them. The home page has no other pages beside it.
    """
    if page.is_homepage:
        page.meta["hide"] = ["navigation"]
    return OUTSIDE.sub(_inside, markdown).replace(".ipynb)", ".md)")


def on_page_content(html: str, **_: Any) -> str:
    """Break no line inside a number or a name with a hyphen, and link pictures to themselves.

    On a phone, long names of the API reference break after a dot. Figures with many panels are made
    smaller to fit a page; alone, they can be read.
    """
    html = DOTTED.sub(lambda name: name[0].replace(".", ".<wbr>"), PARTS.sub(_unbroken, html))
    return PICTURE.sub(r'<a href="\1">\g<0></a>', html)


def _unbroken(part: re.Match[str]) -> str:
    text = part[0]
    if text.startswith("<code>"):
        return "<code>" + HYPHENATED.sub(_whole, text.removeprefix("<code>"))
    return text if text.startswith("<") else _whole(part)


def _whole(word: re.Match[str]) -> str:
    return f'<span class="whole">{word[0]}</span>'


def _inside(link: re.Match[str]) -> str:
    text, target = link.groups()
    if target in PAGES:
        return f"[{text}]({PAGES[target]})"
    if (ROOT / "docs" / target).exists():  # from a page in a folder of docs/
        return link[0]
    return f"`{text}`" if text == target else text
