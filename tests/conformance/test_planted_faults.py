"""The kit is tested too: every planted fault is caught by the promise that it breaks."""

import ast
import os
import subprocess
import sys
import xml.etree.ElementTree as ET
from pathlib import Path

import pytest

PLANTED = Path(__file__).parent / "planted"
ROOT = Path(__file__).parents[2]


def faults(path):
    """Return class → name of the test that must fail ("" where nothing may), read from the source."""
    found = {}
    for node in ast.parse(path.read_text()).body:
        if isinstance(node, ast.ClassDef):
            for item in node.body:
                if isinstance(item, ast.Assign) and item.targets[0].id == "caught_by":
                    found[node.name] = ast.literal_eval(item.value)
    return found


def outcomes(path, wanted, folder):
    """Run the suites of ``path`` in a process of their own; return class → names that failed."""
    report = folder / "report.xml"
    chosen = [f"{path}::{name}" + (f"::{test}" if test else "") for name, test in wanted.items()]
    ran = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", f"--junitxml={report}"]
        + ["--import-mode=importlib", f"--rootdir={folder}", "-c", os.devnull, "--tb=short"]
        + [f"--basetemp={folder / 'tmp'}", *chosen],
        capture_output=True,
        text=True,
        timeout=300,
        cwd=ROOT,
    )
    assert ran.returncode in (0, 1), ran.stdout + ran.stderr
    failed = {}
    for case in ET.parse(report).iter("testcase"):
        names = failed.setdefault(case.get("classname").rpartition(".")[2], [])
        if case.find("failure") is not None:
            names.append(case.get("name").partition("[")[0])
        assert case.find("error") is None, f"{case.get('name')} did not run: {ran.stdout}"
    return failed


@pytest.mark.parametrize("path", sorted(PLANTED.glob("*.py")), ids=lambda path: path.stem)
def test_planted_faults_are_caught(path, tmp_path):
    wanted = faults(path)
    assert len(wanted) > 2
    failed = outcomes(path, wanted, tmp_path)
    missed = {name: test for name, test in wanted.items() if test and test not in failed[name]}
    assert not missed
    blamed = {name: failed[name] for name, test in wanted.items() if not test and failed[name]}
    assert not blamed, "the suite blames what is right"
