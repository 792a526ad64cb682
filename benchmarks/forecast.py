"""``python -m benchmarks.forecast``: how wrong the guardian of the slot is about the time that is left.

A pipeline with a sink that stands still keeps WAL on a server of its own, which is written at a known
rate until the budget is full: steady, in bursts, growing. What its status foretold on the way is held
against when it came to that. All loads run at once. `--write` keeps what was seen. `--virtual` has neither
server nor clock: the same loads, to the byte, whatever else the machine does, in a second.
"""

import argparse
import json
import math
import os
import statistics
import tempfile
import threading
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table
from tests.harness.servers.postgres import Cluster, server_programs

import waltap
from benchmarks.machine import stamp
from benchmarks.report import RESULTS
from waltap.hookspecs import hookimpl
from waltap.sink.sink import Sink, SinkCapabilities
from waltap.slot_monitor.forecast import WINDOW_S, SlotReading, forecast
from waltap.specs import SinkSpec
from waltap.transactions.transaction import Batch

MIB = 2**20
TICK_S = 0.5
SAMPLE_S = 5.0
LOOK_S = 2.5
LONGEST = 3.0
"""A load that has not filled the budget after so many times its planned duration is given up."""

Rate = Callable[[float], float]


def loads(seconds: float, rate: float) -> dict[str, Rate]:
    """Return bytes a second by seconds since the start; each has the mean ``rate`` over ``seconds``."""
    cycle = seconds / 25
    return {
        "steady": lambda _t: rate,
        "bursts, a fifth of the time": lambda t: rate * (4.6 if t % cycle < cycle / 5 else 0.1),
        "waves": lambda t: rate * (1 + 0.9 * math.sin(2 * math.pi * t / (seconds / 4))),
        "growing to its double": lambda t: rate * (2 / 3) * (1 + t / seconds),
        "ten times as much from the middle on": lambda t: (
            rate * (0.1818 if t < seconds / 2 else 1.818)
        ),
    }


@dataclass(frozen=True)
class Sample:
    """What was foretold ``at`` seconds since the start, ``share`` of the budget being full."""

    at: float
    share: float
    foretold: float | None


class StandsStill(Sink):
    """Takes nothing."""

    capabilities = SinkCapabilities(records=False)

    def __init__(self) -> None:
        self.over = threading.Event()

    def open(self) -> None:
        """Nothing is opened."""

    def write(self, batch: Batch) -> None:
        self.over.wait()

    def flush(self) -> None:
        """Nothing is promised."""

    def close(self) -> None:
        """Nothing is held."""


class Plugin:
    """Brings the sink."""

    def __init__(self, sink: Sink) -> None:
        spec = SinkSpec(name="stands_still", summary="Nothing.", factory=lambda _p, _c: sink)
        self.register_sinks = hookimpl(lambda: [spec])


def measure(rate: Rate, budget: int, seconds: float) -> tuple[float, list[Sample]]:
    """Return after how many seconds the budget was full, and what was foretold before."""
    cluster, sink = Cluster.create(max_wal_size="8GB", checkpoint_timeout="5min"), StandsStill()
    with tempfile.TemporaryDirectory(prefix="waltap-forecast-") as folder:
        try:
            database = cluster.create_database("forecast")
            database.execute("CREATE TABLE t (id int PRIMARY KEY)")
            profile = {
                "name": "forecast",
                "source": {
                    "type": "postgres",
                    **database.properties(),
                    "snapshot.mode": "no_data",
                    "waltap.state.dir": folder,
                    "status.update.interval.ms": 1000,
                    "waltap.wal.budget": f"{budget // 1024}kB",
                },
                "sink": {"type": "stands_still"},
            }
            with waltap.Pipeline(profile, plugins=(Plugin(sink),)) as pipeline:
                pipeline.wait(lambda status: status.state == "streaming", timeout=300)
                database.execute("INSERT INTO t VALUES (1)")
                try:
                    return _filled(database, pipeline, rate, budget, seconds)
                finally:
                    sink.over.set()
        finally:
            cluster.remove()


def imagine(rate: Rate, budget: int, seconds: float) -> tuple[float, list[Sample]]:
    """Return the same of a load that comes just as it is planned."""
    readings: list[SlotReading] = []
    samples: list[Sample] = []
    now, written, next_sample = 0.0, 0.0, SAMPLE_S
    while written < budget and now < seconds * LONGEST:
        readings.append(SlotReading(at_s=now, server_lsn=round(written), restart_lsn=0))
        del readings[: -round(WINDOW_S / LOOK_S)]
        if now >= next_sample:
            next_sample += SAMPLE_S
            samples.append(Sample(now, written / budget, forecast(readings, budget).seconds))
        ticks = round(LOOK_S / TICK_S)
        written += sum(rate(now + tick * TICK_S) * TICK_S for tick in range(ticks))
        now += LOOK_S
    return now, samples


def _filled(
    database: Any, pipeline: waltap.Pipeline, rate: Rate, budget: int, seconds: float
) -> tuple[float, list[Sample]]:
    samples: list[Sample] = []
    began, written, ticks = time.monotonic(), 0.0, threading.Event()
    next_sample = SAMPLE_S
    with database.connect() as connection:
        while (now := time.monotonic() - began) < seconds * LONGEST:
            due = rate(now) * TICK_S
            connection.execute(
                "SELECT pg_logical_emit_message(false, 'load', repeat('x', %s))", (round(due),)
            )
            written += due
            ((kept,),) = connection.execute(
                "SELECT pg_current_wal_lsn() - min(restart_lsn) FROM pg_replication_slots"
            ).fetchall()
            if kept >= budget:
                return time.monotonic() - began, samples
            health = pipeline.status().slot
            if now >= next_sample and health is not None:
                next_sample += SAMPLE_S
                samples.append(Sample(now, float(kept) / budget, health.seconds_left))
            ticks.wait(max(0.0, TICK_S - (time.monotonic() - began - now)))
    raise SystemExit(f"the budget was not full after {seconds * LONGEST:.0f} s")


def errors(full: float, samples: Sequence[Sample]) -> list[dict[str, float | int | str]]:
    """Return, by what share of the budget was full: median and worst error, as shares of the time that was
    left, and the median of foretold over real."""
    found: list[dict[str, float | int | str]] = []
    for low, high in ((0.1, 0.25), (0.25, 0.5), (0.5, 0.75), (0.75, 0.95)):
        ratios = [
            each.foretold / (full - each.at)
            for each in samples
            if low <= each.share < high and each.foretold is not None
        ]
        unknown = sum(low <= each.share < high and each.foretold is None for each in samples)
        if ratios:
            found.append({
                "full": f"{low:.0%} to {high:.0%}",
                "samples": len(ratios),
                "not_told": unknown,
                "median_error": statistics.median(abs(ratio - 1) for ratio in ratios),
                "worst_error": max(abs(ratio - 1) for ratio in ratios),
                "foretold_over_real": statistics.median(ratios),
            })  # fmt: skip
    return found


def main() -> int:
    """Run all loads at once, print a table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument(
        "--seconds", type=float, default=1800, help="until the budget is full, about"
    )
    parser.add_argument("--budget-mib", type=int, default=512)
    parser.add_argument("--virtual", action="store_true", help="without a server")
    parser.add_argument("--write", action="store_true", help="keep the result")
    options = parser.parse_args()
    budget = options.budget_mib * MIB
    shapes = loads(options.seconds, budget / options.seconds)
    with ThreadPoolExecutor(len(shapes)) as pool:
        running = {
            name: pool.submit(
                imagine if options.virtual else measure, rate, budget, options.seconds
            )
            for name, rate in shapes.items()
        }
        measured = {name: each.result() for name, each in running.items()}
    table = Table(
        "load", "budget full", "after s", "median error", "worst", "foretold / real", "samples"
    )
    rows = {name: errors(full, samples) for name, (full, samples) in measured.items()}
    for name, found in rows.items():
        for row in found:
            table.add_row(
                name, str(row["full"]), f"{measured[name][0]:.0f}", f"{row['median_error']:.0%}",
                f"{row['worst_error']:.0%}", f"{row['foretold_over_real']:.2f}", str(row["samples"]),
            )  # fmt: skip
    Console(width=120).print(table)
    if options.write:
        now = datetime.now(UTC)
        document = {
            "benchmark": "slot-forecast",
            "machine": stamp(server_programs()),
            "virtual": options.virtual,
            "load": round(os.getloadavg()[0], 1),
            "seconds": options.seconds,
            "budget_mib": options.budget_mib,
            "loads": {
                name: {"full_after_s": round(measured[name][0], 1), "errors": found}
                for name, found in rows.items()
            },
        }
        path = RESULTS / f"slot-forecast-{now:%Y%m%dT%H%M%S}.json"
        path.write_text(json.dumps(document, indent=2) + "\n")
        print(f"wrote {Path(path).name}")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
