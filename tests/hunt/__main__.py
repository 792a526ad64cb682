"""``python -m tests.hunt``: hunt for defects with random scenarios, or repeat one.

    python -m tests.hunt 4711                 one seed
    python -m tests.hunt 4711 --steps 0,3,7   only these of its steps
    python -m tests.hunt --seconds 3600       new seeds for an hour

A failing seed prints the line that repeats it, shrunk as far as the time given allows.
"""

import argparse
import shutil
import sys
import time
from pathlib import Path

from tests.harness.servers.java import java_version
from tests.harness.servers.postgres import Cluster, Server
from tests.hunt import machine
from tests.hunt.engine import default_python
from tests.hunt.machine import Result
from tests.hunt.scenario import Scenario, draw

KEEP = Path("/tmp/waltap-hunt")


def main() -> int:
    """Return 0 when nothing was found, else 1."""
    parser = argparse.ArgumentParser(
        prog="python -m tests.hunt", description=__doc__.split("\n")[0]
    )
    parser.add_argument("seed", nargs="*", type=int)
    parser.add_argument("--steps", help="numbers of the steps to keep, by commas")
    parser.add_argument("--seconds", type=float, default=0, help="hunt with new seeds for so long")
    parser.add_argument("--from", dest="start", type=int, help="the first new seed")
    parser.add_argument(
        "--python", default=default_python(), help="interpreter with the engine to hunt in"
    )
    parser.add_argument(
        "--shrink", type=float, default=120, help="seconds for making a failure smaller"
    )
    parser.add_argument("--keep", type=Path, default=KEEP, help="folder for the files of failures")
    given = parser.parse_args()
    if given.start is None and not given.seed:
        given.start = int(time.time()) % 1_000_000 * 1000
    server = Cluster.create(max_replication_slots="20", fsync="off")
    try:
        if begins_far(given):
            server.move_wal("0000000100000007000000FE")  # 32 MB before LSN 8/0
        return hunt(given, server)
    finally:
        server.remove()


def begins_far(given: argparse.Namespace) -> bool:
    """Return whether the server is to be one that has written a lot: the first seed decides."""
    first = given.seed[0] if given.seed else given.start
    return first is not None and first % 2000 >= 1000


def hunt(given: argparse.Namespace, server: Server) -> int:
    begun = time.monotonic()
    seeds = iter(given.seed) if given.seed else iter(range(given.start, given.start + 10**9))
    failed: list[int] = []
    ran = steps = events = peak = 0
    for seed in seeds:
        if not given.seed and time.monotonic() - begun > given.seconds:
            break
        scenario = draw(seed)
        numbers = list(range(len(scenario.steps)))
        if given.steps:
            numbers = [int(n) for n in given.steps.split(",")]
        result = attempt(scenario, numbers, server, given)
        ran, steps, events = ran + 1, steps + len(numbers), events + result.events
        peak = max(peak, result.peak_bytes)
        print(
            f"{time.strftime('%H:%M:%S')} seed {seed} {scenario.pipeline.decoder} {scenario.pipeline.sink}"
            f" {len(numbers)} steps {result.lives} lives {result.events} events {result.seconds:.1f} s"
            f" {result.peak_bytes >> 20} MiB: {len(result.findings)} findings",
            flush=True,
        )
        if result.findings:
            failed.append(seed)
            report(scenario, numbers, result, server, given)
    seconds = time.monotonic() - begun
    print(f"{ran} seeds, {steps} steps, {events} events, {seconds:.0f} s, highest memory"
          f" {peak >> 20} MiB, failing seeds: {failed or 'none'}")  # fmt: skip
    return 1 if failed else 0


def attempt(
    scenario: Scenario, numbers: list[int], server: Server, given: argparse.Namespace
) -> Result:
    keep = given.keep / f"{scenario.seed}.last"
    java = java_version() is not None
    return machine.run(scenario.keep(numbers), server, given.python, keep=keep, java=java)


def kept(scenario: Scenario, given: argparse.Namespace) -> None:
    """Keep the files of the last attempt as those of the finding."""
    last, place = given.keep / f"{scenario.seed}.last", given.keep / str(scenario.seed)
    shutil.rmtree(place, ignore_errors=True)
    last.rename(place)


def report(
    scenario: Scenario,
    numbers: list[int],
    result: Result,
    server: Server,
    given: argparse.Namespace,
) -> None:
    """Show what was found, and the smallest scenario that still finds it."""
    kept(scenario, given)
    for finding in result.findings[:20]:
        print(f"  {str(finding)[:1500]}", flush=True)
    numbers, result = shrink(scenario, numbers, result, server, given)
    kinds = ", ".join(f"{n} {scenario.steps[n].kind}" for n in numbers)
    print(f"  steps: {kinds}")
    print(f"  files: {given.keep / str(scenario.seed)}")
    shutil.rmtree(given.keep / f"{scenario.seed}.last", ignore_errors=True)
    chosen = ",".join(map(str, numbers))
    print(f"repeat: python -m tests.hunt {scenario.seed} --steps {chosen}", flush=True)


def shrink(
    scenario: Scenario,
    numbers: list[int],
    result: Result,
    server: Server,
    given: argparse.Namespace,
) -> tuple[list[int], Result]:
    """Leave out steps while a finding of one of the same kinds stays; large pieces first."""
    deadline = time.monotonic() + given.shrink
    kinds = {finding.kind for finding in result.findings}
    size = len(numbers) // 2
    while size:
        at = 0
        while at < len(numbers):
            if time.monotonic() > deadline:
                return numbers, result
            fewer = numbers[:at] + numbers[at + size :]
            again = attempt(scenario, fewer, server, given)
            if kinds & {finding.kind for finding in again.findings}:
                numbers, result = fewer, again
                kept(scenario, given)
            else:
                at += size
        size //= 2
    return numbers, result


if __name__ == "__main__":
    sys.exit(main())
