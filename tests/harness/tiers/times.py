"""``python -m tests.harness.tiers.times [TIER …]``: run tiers one after the other, write CONTRIBUTING.md's table.

    python -m tests.harness.tiers.times --workers 6            unit, test, all
    python -m tests.harness.tiers.times --workers 6 unit test  these; the rows of the others stay

A tier's minutes are those of this machine, without set-up. Run it where nothing else runs.
"""

import argparse
import os
import re
import subprocess
import sys
import tempfile
import time
import xml.etree.ElementTree as ET
from pathlib import Path

ROOT = Path(__file__).parents[3]
PAGE = ROOT / "CONTRIBUTING.md"
TABLE = re.compile(r"(?<=<!-- times -->\n).*?(?=<!-- end of times -->)", re.DOTALL)
FAST = ["-m", "not exhaustive"]
TIERS = {
    "unit": ["-n", "2", *FAST, "tests/unit", "tests/property"],
    "test": ["-n", "WORKERS", "--dist", "loadgroup", *FAST],
    "all": ["-n", "WORKERS", "--dist", "loadgroup"],
}
CALLS = ["-o", "junit_duration_report=call"]
"""The first test of a worker waits for its servers, which is no time of that test."""
COMMANDS = {"unit": "make test-unit", "test": "make test", "all": "make test-all"}


def measured(options: list[str]) -> tuple[int, int, float, float]:
    """Run pytest; return (tests that passed, others, minutes, seconds of the slowest test)."""
    with tempfile.TemporaryDirectory(prefix="waltap-times-") as folder:
        report = Path(folder) / "report.xml"
        began = time.monotonic()
        subprocess.run(
            [sys.executable, "-m", "pytest", "-q", f"--junitxml={report}", *CALLS, *options],
            cwd=ROOT,
            check=False,
        )
        minutes = (time.monotonic() - began) / 60
        cases = list(ET.parse(report).iter("testcase"))
    passed = sum(len(case) == 0 or case.find("skipped") is None and case.find("failure") is None
                 and case.find("error") is None for case in cases)  # fmt: skip
    slowest = max((float(case.get("time", 0)) for case in cases), default=0.0)
    return passed, len(cases) - passed, minutes, slowest


def write_rows(rows: dict[str, str]) -> None:
    """Replace the rows of some tiers in the page's table; ``rows``: tier → its cells."""
    text = PAGE.read_text(encoding="utf-8")
    found = TABLE.search(text)
    assert found is not None, f"{PAGE} has no place for the table"
    lines = found[0].splitlines()
    kept = {
        tier: line
        for tier, command in COMMANDS.items()
        for line in lines
        if line.startswith(f"| `{command}` |")
    }
    table = [
        f"A machine with {os.cpu_count()} cores and nothing else to do, set-up not counted:",
        "",
        "| command | passed | skipped or failed | minutes | slowest test |",
        "|---|---:|---:|---:|---:|",
        *(line for tier in COMMANDS if (line := (kept | rows).get(tier))),
    ]
    whole = "\n".join(["", *table, "", ""])
    PAGE.write_text(text[: found.start()] + whole + text[found.end() :], encoding="utf-8")


def main() -> int:
    """Return 0 when the table is written."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("tiers", nargs="*", choices=[*TIERS, []], help="default: all three")
    parser.add_argument("--workers", default="6", help="pytest's workers")
    given = parser.parse_args()
    for tier in given.tiers or TIERS:
        options = [given.workers if word == "WORKERS" else word for word in TIERS[tier]]
        passed, others, minutes, slowest = measured(options)
        cells = f"{passed:,} | {others:,} | {minutes:.1f} | {slowest:.0f} s"
        write_rows({tier: f"| `{COMMANDS[tier]}` | {cells} |"})
    return 0


if __name__ == "__main__":
    sys.exit(main())
