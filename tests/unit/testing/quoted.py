"""Code in Markdown pages, quoted from files: ``python -m tests.unit.testing.quoted`` fills it in.

A page says ``<!-- quote PATH NAME -->`` before a code block; the block holds what stands between the
lines ``# [NAME]`` and ``# [/NAME]`` of the file, without its indentation.
"""

import re
import textwrap
from pathlib import Path

ROOT = Path(__file__).parents[3]
PAGES = [*sorted((ROOT / "docs" / "plugin-authors").glob("*.md")), ROOT / "docs/howto/python.md"]
QUOTE = re.compile(r"<!-- quote (\S+) (\S+) -->\n```python\n(.*?)```", re.DOTALL)


def region(path: str, name: str) -> str:
    """Return the marked part of a file. Raises: ValueError when it has no such part."""
    text = (ROOT / path).read_text()
    found = re.search(
        rf"^[ \t]*# \[{name}\]\n(.*?)^[ \t]*# \[/{name}\]$", text, re.DOTALL | re.MULTILINE
    )
    if found is None:
        raise ValueError(f"{path} has no part [{name}]")
    return textwrap.dedent(found[1]).strip("\n") + "\n"


def filled(text: str) -> str:
    return QUOTE.sub(
        lambda m: f"<!-- quote {m[1]} {m[2]} -->\n```python\n{region(m[1], m[2])}```", text
    )


if __name__ == "__main__":
    for page in PAGES:
        page.write_text(filled(page.read_text()))
