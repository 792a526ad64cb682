"""``python -m tests.harness.tiers.flaky``: run a tier several times and list the tests that did not always pass.

    python -m tests.harness.tiers.flaky --rounds 10             in random order, under a load of 8
    python -m tests.harness.tiers.flaky --rounds 5 --load 0     on a quiet machine
    python -m tests.harness.tiers.flaky tests/fault -k kill     what pytest is to run

Each round has an order of its own; the seed is printed, so that a round can be repeated. The exit code is 1
where the list is not empty.
"""

import argparse
import contextlib
import subprocess
import sys
import tempfile
import time
import xml.etree.ElementTree as ET
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).parents[3]
BUSY = "import hashlib\nwhile True: hashlib.sha256(bytes(1 << 20))"


@contextlib.contextmanager
def load(processes: int) -> Iterator[None]:
    """Keep so many processes computing."""
    busy = [subprocess.Popen([sys.executable, "-c", BUSY]) for _ in range(processes)]
    try:
        yield
    finally:
        for each in busy:
            each.kill()
            each.wait()


def failed_tests(report: Path) -> dict[str, str]:
    """Return the tests that a JUnit report calls failed or in error, each with the first line that says how."""
    found = {}
    for case in ET.parse(report).iter("testcase"):
        for how in ("failure", "error"):
            if (element := case.find(how)) is not None:
                said = element.get("message", "").partition("\n")[0]
                found[f"{case.get('classname')}::{case.get('name')}"] = said
    return found


def run_round(seed: int, workers: str, options: list[str]) -> dict[str, str]:
    """Run pytest once in the order of ``seed``; return the tests that failed, and how."""
    with tempfile.TemporaryDirectory(prefix="waltap-flaky-") as folder:
        report = Path(folder) / "report.xml"
        done = subprocess.run(
            [
                *(sys.executable, "-m", "pytest", "-q", "-n", workers, "--dist", "loadgroup"),
                *("-p", "tests.harness.tiers.random_order", "--order-seed", str(seed)),
                *("-p", "no:cacheprovider", f"--junitxml={report}", *options),
            ],
            cwd=ROOT,
            stdout=subprocess.DEVNULL,
            check=False,
        )
        if not report.exists():
            sys.exit(f"pytest ended with {done.returncode} and without a report")
        return failed_tests(report)


def main() -> int:
    """Return 0 where every test passed in every round."""
    parser = argparse.ArgumentParser(
        prog="python -m tests.harness.tiers.flaky", description=__doc__.split("\n")[0]
    )
    parser.add_argument("--rounds", type=int, default=10)
    parser.add_argument(
        "--load", type=int, default=8, help="processes that compute beside the tests"
    )
    parser.add_argument("--workers", default="4")
    parser.add_argument("--seed", type=int, default=0, help="of the first round")
    given, options = parser.parse_known_args()
    failures: Counter[str] = Counter()
    with load(given.load):
        for seed in range(given.seed, given.seed + given.rounds):
            began = time.monotonic()
            failed = run_round(seed, given.workers, options)
            failures.update(failed.keys())
            minutes = (time.monotonic() - began) / 60
            print(f"seed {seed}: {minutes:.1f} minutes, {len(failed)} failed", flush=True)
            for name, how in failed.items():
                print(f"  {name}: {how}", flush=True)
    for name, count in failures.most_common():
        print(f"{count} of {given.rounds}: {name}")
    return 1 if failures else 0


if __name__ == "__main__":
    sys.exit(main())
