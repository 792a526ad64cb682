"""``python -m tests.harness.tiers.times``: run the tiers one after the other and write the table of CONTRIBUTING.md.

A tier's minutes are those of this machine, without set-up. Run it where nothing else runs.
"""

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
    "make test-unit": ["-n", "2", *FAST, "tests/unit", "tests/property"],
    "make test": ["-n", "4", "--dist", "loadgroup", *FAST],
    "make test-all": ["-n", "4", "--dist", "loadgroup"],
}


def measured(options: list[str]) -> tuple[int, int, float, float]:
    """Run pytest; return (tests that passed, others, minutes, seconds of the slowest test)."""
    with tempfile.TemporaryDirectory(prefix="waltap-times-") as folder:
        report = Path(folder) / "report.xml"
        began = time.monotonic()
        subprocess.run(
            [sys.executable, "-m", "pytest", "-q", f"--junitxml={report}", *options],
            cwd=ROOT,
            check=False,
        )
        minutes = (time.monotonic() - began) / 60
        cases = list(ET.parse(report).iter("testcase"))
    passed = sum(len(case) == 0 or case.find("skipped") is None and case.find("failure") is None
                 and case.find("error") is None for case in cases)  # fmt: skip
    slowest = max((float(case.get("time", 0)) for case in cases), default=0.0)
    return passed, len(cases) - passed, minutes, slowest


def main() -> int:
    """Return 0 when the table is written."""
    lines = [
        f"A machine with {os.cpu_count()} cores and nothing else to do, set-up not counted:",
        "",
        "| command | passed | skipped or failed | minutes | slowest test |",
        "|---|---:|---:|---:|---:|",
    ]
    for command, options in TIERS.items():
        passed, others, minutes, slowest = measured(options)
        lines.append(f"| `{command}` | {passed:,} | {others:,} | {minutes:.1f} | {slowest:.0f} s |")
        text = PAGE.read_text(encoding="utf-8")
        table = "\n".join(["", *lines, "", ""])
        PAGE.write_text(TABLE.sub(lambda _, table=table: table, text), encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
