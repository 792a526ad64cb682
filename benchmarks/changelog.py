"""Cost of the change log, per row: tuples already decoded, into durable Parquet segments.

    python benchmarks/changelog.py [--rows N] [--json FILE]

The table is that of `render_json` (12 mixed columns), 1000 rows a transaction, batches of 8000
changes, a flush every 100,000. Best of three runs, on one core but for what Arrow does beside it.
"""

import argparse
import json
import platform
import resource
import tempfile
import time
from pathlib import Path

from benchmarks.render_json import relation, row
from waltap.changes.arrow.tuples import RelationCodec
from waltap.changes.decode.message import Change, Insert, Update
from waltap.changes.decode.tuple_image import UNCHANGED, Value
from waltap.changes.mapping.type_registry import TypeRegistry
from waltap.changes.transactions.position import Position
from waltap.changes.transactions.transaction import Batch, TransactionPart
from waltap.ports.sink.sink import SinkContext
from waltap_postgres.identity import REPLICA_IDENTITIES
from waltap_postgres.types import TYPE_SPECS
from waltap_sinks.changelog import ChangeLogProperties, ChangeLogSink

RUNS = 3
PER_TRANSACTION = 1000
PER_BATCH = 8
FLUSH_EVERY = 100_000
IDENTITIES = {spec.letter: spec.factory for spec in REPLICA_IDENTITIES}


def batches(rows: int, *, updates: bool = False) -> list[Batch]:
    """Return ``rows`` changes as the engine would deliver them."""
    table, out, lsn = relation("d"), [], 1 << 24
    for start in range(0, rows, PER_TRANSACTION * PER_BATCH):
        parts = []
        for first in range(start, min(start + PER_TRANSACTION * PER_BATCH, rows), PER_TRANSACTION):
            changes: list[Change] = []
            for n in range(first, first + PER_TRANSACTION):
                lsn += 200
                if updates and n % 2:
                    new: list[Value] = list(row(n))
                    new[11] = UNCHANGED if n % 10 == 1 else new[11]
                    changes.append(Update(table, lsn, tuple(new)))
                else:
                    changes.append(Insert(table, lsn, row(n)))
            parts.append(
                TransactionPart(
                    xid=700 + first,
                    begin_lsn=lsn,
                    commit_lsn=lsn + 8,
                    commit_ts=1_700_000_000_000_000 + n,
                    end_lsn=lsn + 56,
                    changes=changes,
                )
            )
            lsn += 64
        position = Position(parts[-1].end_lsn)
        events = sum(len(part.changes) for part in parts)
        out.append(Batch(parts=list(parts), position=position, events=events))
    return out


def written(work: list[Batch], folder: Path, compression: str) -> float:
    """Write ``work`` to a new change log; return the seconds it took."""
    sink = ChangeLogSink(
        ChangeLogProperties(path=str(folder), compression=compression),
        SinkContext(
            pipeline="bench",
            state_dir=folder,
            types=TypeRegistry(TYPE_SPECS),
            identity=lambda found: IDENTITIES[found.identity](found),
        ),
    )
    sink.open()
    started, since = time.perf_counter(), 0
    for batch in work:
        sink.write(batch)
        since += batch.events
        if since >= FLUSH_EVERY:
            sink.flush()
            since = 0
    sink.flush()
    took = time.perf_counter() - started
    sink.close()
    return took


def main() -> None:
    """Measure, print a table, and write JSON when asked to."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rows", type=int, default=200_000)
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    results: dict[str, dict[str, float]] = {}

    def note(name: str, seconds: float, size: int = 0) -> None:
        rate = options.rows / seconds
        results[name] = {
            "us_per_row": round(seconds / options.rows * 1e6, 3),
            "rows_per_s": round(rate),
            "bytes_per_row": round(size / options.rows, 1),
        }
        print(f"{name:40} {seconds / options.rows * 1e6:6.2f} us {rate:10,.0f} rows/s", end="")
        print(f" {size / options.rows:8.1f} bytes/row" if size else "")

    codec = RelationCodec(relation("d"), TypeRegistry(TYPE_SPECS))
    tuples = [row(n) for n in range(16_384)]
    best = min(_timed(lambda: codec.batch(tuples)) for _ in range(RUNS))
    note("tuples to Arrow columns alone", best / len(tuples) * options.rows)
    inserts, mixed = batches(options.rows), batches(options.rows, updates=True)
    for name, work, compression in (
        ("inserts, none", inserts, "none"),
        ("inserts, snappy", inserts, "snappy"),
        ("inserts, lz4", inserts, "lz4"),
        ("inserts, zstd", inserts, "zstd"),
        ("half updates, some unchanged, zstd", mixed, "zstd"),
    ):
        seconds, size = [], 0
        for _ in range(RUNS):
            with tempfile.TemporaryDirectory() as folder:
                seconds.append(written(work, Path(folder), compression))
                size = sum(file.stat().st_size for file in Path(folder).rglob("*.parquet"))
        note(name, min(seconds), size)
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss // 1024
    print(f"peak resident memory, the {2 * options.rows:,} made changes included: {peak} MB")
    if options.json is not None:
        found = {"rows": options.rows, "python": platform.python_version(), "results": results}
        options.json.write_text(json.dumps(found, indent=2) + "\n")


def _timed(work: object) -> float:
    started = time.perf_counter()
    work()  # type: ignore[operator]
    return time.perf_counter() - started


if __name__ == "__main__":
    main()
