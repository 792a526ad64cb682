"""Runs the code cells of a notebook, as its kernel would: in order, in one namespace.

``python -m tests.harness.notebook FILE`` prints a line of JSON for each thing that is displayed: HTML, or
text. A cell that fails ends it with its traceback.
"""

import ast
import json
import sys
from pathlib import Path
from typing import Any


class Shown:
    """What `display` returns where it was given an id."""

    def update(self, thing: object) -> None:
        """Show another thing in the place of the one before."""
        display(thing)


def display(thing: object, *, display_id: object = None) -> Shown | None:
    """Show of ``thing``: its HTML or its text."""
    html = getattr(thing, "_repr_html_", None)
    print(json.dumps({"text": repr(thing)} if html is None else {"html": html()}), flush=True)
    return Shown() if display_id else None


def run(path: Path) -> None:
    """Run every code cell of the notebook at ``path``; its last expression is displayed."""
    space: dict[str, Any] = {"__name__": "__main__", "display": display}
    for number, cell in enumerate(json.loads(path.read_text(encoding="utf-8"))["cells"]):
        if cell["cell_type"] != "code":
            continue
        tree = ast.parse("".join(cell["source"]), f"{path.name}[{number}]")
        last = tree.body.pop() if isinstance(tree.body[-1], ast.Expr) else None
        exec(compile(tree, f"{path.name}[{number}]", "exec"), space)
        if isinstance(last, ast.Expr):
            value = eval(
                compile(ast.Expression(last.value), f"{path.name}[{number}]", "eval"), space
            )
            if value is not None:
                display(value)


if __name__ == "__main__":
    run(Path(sys.argv[1]))
