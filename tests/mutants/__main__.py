"""``python -m tests.mutants``: plant each fault of this folder in a copy of the code and run the tests that cover it.

    python -m tests.mutants                    every mutant, the tests of its header, tier by tier
    python -m tests.mutants assembler-*        those whose names match
    python -m tests.mutants --tier unit        only unit and property tests

A mutant is a patch with a header: what a reviewer could have overlooked, and the tests that cover the file.

    The resume drops a transaction that begins where the last one ended.

    unit: tests/unit/transactions tests/property/test_resume.py
    test: tests/integration/test_engine_reconnect.py -k adjacent

`unit` runs first; `test` and `all` run where the tiers before have not found the fault. A line for each mutant
says which tier found it, the line below which test and how. The exit code is 1 where one survives, where a patch no
longer applies, or where a test failed by a wrong name: that is a mistake in the patch, not its fault.
"""

import argparse
import fnmatch
import os
import re
import shlex
import subprocess
import sys
import tempfile
from collections import Counter
from dataclasses import dataclass
from functools import cache
from pathlib import Path

ROOT = Path(__file__).parents[2]
FOLDER = Path(__file__).parent
TIERS = ("unit", "test", "all")
COPIED = (
    "framework",
    "plugins",
    "tests",
    "examples",
    "docs",
    "benchmarks",
    "scripts",
    "pyproject.toml",
)
NO_FAULT = re.compile(
    r"(?<![.\w])(NameError|UnboundLocalError|ImportError|ModuleNotFoundError|SyntaxError)\b"
)
"""Failures that any mistake in a patch causes, whatever the tests ask."""


@dataclass(frozen=True, slots=True)
class Mutant:
    """A fault, and the tests that are to find it.

    name: of the file, without its ending
    fault: what the patch breaks, a sentence
    tests: tier → arguments for pytest
    """

    name: str
    fault: str
    tests: dict[str, list[str]]


def read_mutant(path: Path) -> Mutant:
    """Read the header of a patch."""
    header = path.read_text(encoding="utf-8").partition("\ndiff --git")[0]
    fault, _, rest = header.partition("\n\n")
    tests: dict[str, list[str]] = {}
    for line in rest.splitlines():
        tier, colon, arguments = line.partition(":")
        if colon and tier in TIERS:
            tests.setdefault(tier, []).extend(shlex.split(arguments))
    return Mutant(path.stem, " ".join(fault.split()), tests)


def copy_of_the_project(folder: Path) -> Path:
    """Copy what git knows of the code and its tests; return the copy."""
    listed = subprocess.run(
        ["git", "ls-files", "-z", *COPIED], cwd=ROOT, capture_output=True, text=True, check=True
    ).stdout
    subprocess.run(
        ["tar", "--null", "-T", "-", "-cf", str(folder / "copy.tar")],
        cwd=ROOT, input=listed.encode(), check=True,
    )  # fmt: skip
    copy = folder / "copy"
    copy.mkdir()
    subprocess.run(["tar", "-xf", str(folder / "copy.tar"), "-C", str(copy)], check=True)
    subprocess.run(["git", "init", "-q", str(copy)], check=True)  # tests ask git for the files
    subprocess.run(["git", "add", "-A"], cwd=copy, check=True)
    return copy


def environment(copy: Path) -> dict[str, str]:
    """Return an environment in which Python imports the copy's packages, not the installed ones."""
    sources = [str(path) for path in sorted(copy.glob("*/src")) + sorted(copy.glob("*/*/src"))]
    return {**os.environ, "PYTHONPATH": os.pathsep.join(sources), "PYTHONDONTWRITEBYTECODE": "1"}


def failure(arguments: tuple[str, ...], copy: Path) -> str:
    """Return how a test of ``arguments`` fails in the copy as it is now, "" where all pass."""
    done = subprocess.run(
        [
            *(sys.executable, "-m", "pytest", "-q", "-x", "-p", "no:cacheprovider", "--tb=line"),
            *("-m", "not exhaustive", *arguments),
        ],
        cwd=copy, env=environment(copy), capture_output=True, text=True, check=False,
    )  # fmt: skip
    if done.returncode not in (0, 1):
        sys.exit(
            f"pytest {' '.join(arguments)} ended with {done.returncode}:\n{done.stdout[-3000:]}"
        )
    return done.stdout[-3000:] if done.returncode else ""


@cache
def require_passes(arguments: tuple[str, ...], copy: Path) -> None:
    """See that the tests of ``arguments`` pass where nothing is planted; else they could find nothing."""
    if found := failure(arguments, copy):
        sys.exit(f"without a mutant this fails: pytest {' '.join(arguments)}\n{found}")


def judge(mutant: Mutant, copy: Path, tiers: list[str]) -> tuple[str, str]:
    """Plant the mutant, run its tests, take it out again; return the first tier that found it, and how."""
    patch = str(FOLDER / f"{mutant.name}.patch")
    for tier in tiers:
        arguments = tuple(mutant.tests.get(tier, ()))
        if not arguments:
            continue
        require_passes(arguments, copy)
        subprocess.run(["git", "apply", patch], cwd=copy, check=True)
        try:
            if found := failure(arguments, copy):
                return "WRONG" if NO_FAULT.search(found) else tier, first_failed(found)
        finally:
            subprocess.run(["git", "apply", "-R", patch], cwd=copy, check=True)
    return "SURVIVES", ""


def first_failed(output: str) -> str:
    """Return the line in which pytest says which test failed, and how."""
    lines = output.splitlines()
    return next((line for line in lines if line.startswith(("FAILED", "ERROR"))), lines[-1])


def main() -> int:
    """Return 0 where every mutant was found."""
    parser = argparse.ArgumentParser(
        prog="python -m tests.mutants", description=__doc__.split("\n")[0]
    )
    parser.add_argument("names", nargs="*", default=["*"], help="patterns of names")
    parser.add_argument("--tier", choices=TIERS, default="all", help="the last tier to run")
    given = parser.parse_args()
    tiers = list(TIERS[: TIERS.index(given.tier) + 1])
    found: Counter[str] = Counter()
    with tempfile.TemporaryDirectory(prefix="waltap-mutants-") as folder:
        copy = copy_of_the_project(Path(folder))
        for path in sorted(FOLDER.glob("*.patch")):
            if not any(fnmatch.fnmatch(path.stem, name) for name in given.names):
                continue
            mutant = read_mutant(path)
            tier, how = judge(mutant, copy, tiers)
            found[tier] += 1
            print(f"{tier:8}  {mutant.name}: {mutant.fault}\n{'':8}  {how}", flush=True)
    print(", ".join(f"{count} {tier}" for tier, count in found.items()))
    return 1 if found["SURVIVES"] or found["WRONG"] or not found else 0


if __name__ == "__main__":
    sys.exit(main())
