"""The change log's memory is bounded, whatever comes in one transaction; measured in a fresh process."""

import sys
import textwrap
from pathlib import Path

from tests.harness.command import run_program

PROGRAM = """
import sys
from pathlib import Path
from waltap.changes.decode.message import Insert
from waltap.changes.transactions.transaction import Batch, TransactionPart
from waltap.changes.transactions.position import Position
from waltap_sinks.changelog import ChangeLog, ChangeLogProperties, ChangeLogSink
from tests.harness.changelog import context, relation

COMMIT = 1 << 40

def own(name):
    # without pages of files: how much of a library is mapped depends on what the kernel has of it
    with open("/proc/self/status") as lines:
        found = dict(line.split()[:2] for line in lines if " kB" in line)
    print(found, file=sys.stderr)
    return (int(found[name + ":"]) - int(found["RssFile:"])) // 1024

def run(folder, table, batches):
    sink = ChangeLogSink(ChangeLogProperties(path=folder), context(Path(folder)))
    sink.open()
    first, started = 0, own("VmRSS")
    for rows in batches:
        changes = [Insert(table, 1 << 24, row) for row in rows]
        last = not rows
        part = TransactionPart(
            xid=7, begin_lsn=1, commit_lsn=COMMIT, commit_ts=0, end_lsn=COMMIT + 8 if last else 0,
            changes=changes, first_index=first, starts=first == 0, complete=last,
        )
        first += len(rows)
        at = Position(COMMIT + 8) if last else Position(0, COMMIT, first)
        sink.write(Batch(parts=[part], position=at, events=len(rows), ends_transaction=last))
        del changes, part, rows
    sink.flush()
    sink.close()
    peak = own("VmHWM")
    assert "pandas" not in sys.modules, "57 MiB for nothing"
    (manifest,) = ChangeLog(folder).manifests()
    print(started, peak, manifest.rows)
"""


def measured(folder: Path, program: str) -> tuple[int, int, int]:
    """Return MiB of its own before the first row, MiB at most, and rows published."""
    code, root = PROGRAM + textwrap.dedent(program), Path(__file__).parents[2]
    found = run_program(sys.executable, "-c", code, folder, cwd=root)
    print(found.stderr)  # what a failure shows
    before, peak, rows = map(int, found.stdout.split())
    return before, peak, rows


def test_many_rows_in_one_transaction_take_no_more_than_a_few(tmp_path):
    _before, peak, rows = measured(
        tmp_path,
        """
        table = relation("public.t", [("id", "int4"), ("a", "int8"), ("b", "text"),
            ("c", "timestamptz"), ("d", "numeric(10,2)"), ("e", "float8"), ("f", "date")])
        def batches():
            for first in range(0, 200_000, 4000):
                yield [(str(n), None if n % 5 == 0 else str(n * 7), f"some text {n * 77_777}",
                        "2024-01-01 10:00:00+00", f"{n}.25", "0.5", "2024-01-01")
                       for n in range(first, first + 4000)]
            yield []
        run(sys.argv[1], table, batches())
        """,
    )
    assert rows == 200_000
    assert peak < 140, f"{peak} MiB"


def test_a_large_row_takes_a_few_times_its_size(tmp_path):
    """Its text, and that encoded: the column points into the text, and what is left of the page after
    compression is put together at once. 50 MiB are the libraries."""
    before, peak, rows = measured(
        tmp_path,
        """
        table = relation("public.t", [("id", "int4"), ("big", "text")])
        def batches():
            yield [("-1", "small")]
            for n in range(4):
                yield [(str(n), f"{n:016}" * (50 * 1024 * 1024 // 16))]
            yield []
        run(sys.argv[1], table, batches())
        """,
    )
    assert rows == 5
    assert peak - before < 4 * 50, f"{peak - before} MiB"
