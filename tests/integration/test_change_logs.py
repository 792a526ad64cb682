"""The change log is durable before it is published, and its memory is bounded; and a change has the same number in every
sink that keeps numbers. Crashes: the sink suite, tests/fault/test_engine_kill.py."""

import os
import sqlite3
import sys
import textwrap
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import msgspec
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st
from pyarrow import parquet
from tests.harness.changelog import Database as Model
from tests.harness.changelog import batch, context, in_parts, logged, relation
from tests.harness.command import run_program
from tests.harness.lakes import delta_rows

from waltap.changes.decode.message import Insert
from waltap.changes.transactions.position import Position
from waltap.changes.transactions.transaction import Batch, TransactionPart
from waltap.ports.sink.sink import Sink
from waltap.ports.transforms.applied import transformed
from waltap.ports.transforms.filter import FilterProperties, TableFilter
from waltap_lake.plugin import register_sinks
from waltap_lake.properties import DeltaLakeProperties
from waltap_sinks.changelog import ChangeLog, ChangeLogProperties, ChangeLogSink, FileStore
from waltap_sinks.files.properties import FilesProperties
from waltap_sinks.files.sink import FilesSink
from waltap_sinks.sql.properties import SqlProperties
from waltap_sinks.sql.sink import SqlSink


@pytest.fixture(autouse=True)
def one_folder(monkeypatch) -> None:
    """Have all manifests in one folder, as within ten minutes: each new one is a step more."""
    monkeypatch.setattr("waltap_sinks.changelog.sink.next_bucket", lambda *_of: "20260101T000")


@pytest.mark.parametrize("tables", [2, 40])
def test_all_that_a_manifest_names_is_durable_before_it_appears(tmp_path, monkeypatch, tables):
    """Files, and every folder on the way to them: with few tables, and with so many that they share."""
    durable: set[str] = set()
    fsync = os.fsync

    def noting(fd: int) -> None:
        fsync(fd)
        durable.add(os.readlink(f"/proc/self/fd/{fd}"))

    monkeypatch.setattr(os, "fsync", noting)
    path = tmp_path / "log"
    made = FileStore(str(path))
    published: list[set[str]] = []

    class Watched:
        def __getattr__(self, name: str) -> Any:
            if name == "move":
                published.append(set(durable))
            return getattr(real, name)

    real = made._fs
    made._fs = Watched()
    sink = ChangeLogSink(ChangeLogProperties(path=str(path)), context(tmp_path), store=made)
    sink.open()
    published.clear()  # the log's id
    for lsn in (100, 200):
        changes = [
            Insert(relation(f"public.t{number}", [("id", "int4")]), lsn, (str(lsn),))
            for number in range(tables)
        ]
        part = TransactionPart(
            xid=lsn, begin_lsn=lsn, commit_lsn=lsn, commit_ts=0, end_lsn=lsn + 8, changes=changes
        )
        sink.write(Batch(parts=[part], position=Position(lsn + 8), events=tables))
        sink.flush()
    sink.close()
    log = ChangeLog(str(path))
    for manifest, before in zip(log.manifests(), published, strict=True):
        assert len(manifest.tables) == tables
        for entry in manifest.tables:
            file = path / entry.segments[0].path
            assert str(file) in before
            for folder in file.parents:
                if folder.is_relative_to(path):
                    assert str(folder) in before


# --- memory, whatever comes in one transaction; measured in a fresh process ----------------------------


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
        sink.write(Batch(parts=[part], position=at, events=len(rows)))
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


# --- commit LSN and number name a change, whatever is left out before it -------------------------------


PEOPLE = relation("public.people", [("id", "int4")])
OTHERS = relation("public.others", [("id", "int4")])

Numbers = dict[int, tuple[int, int]]


def _change_log(folder: Path) -> tuple[Sink, Callable[[], Numbers]]:
    given = ChangeLogProperties.model_validate({"path": str(folder / "log")})
    made = ChangeLogSink(given, context(folder))
    return made, lambda: _named(logged(folder / "log", "people"))


def _files(folder: Path) -> tuple[Sink, Callable[[], Numbers]]:
    given = {"path": str(folder / "files"), "file.format": "parquet"}
    names = ["id", "_commit_lsn", "_seq"]

    def read() -> Numbers:
        found = sorted((folder / "files").glob("table=*people*/date=*/*.parquet"))
        tables = [parquet.ParquetFile(each).read(names) for each in found]
        return _named(pa.concat_tables(tables).to_pylist())

    return FilesSink(FilesProperties.model_validate(given), context(folder)), read


def _delta(folder: Path) -> tuple[Sink, Callable[[], Numbers]]:
    spec = next(spec for spec in register_sinks() if spec.name == "delta")
    given: Any = DeltaLakeProperties.model_validate({"path": str(folder / "lake")})
    made = spec.factory(given, context(folder))
    return made, lambda: _named(delta_rows(folder / "lake" / "public" / "people").to_pylist())


def _history(folder: Path) -> tuple[Sink, Callable[[], Numbers]]:
    given = {"url": f"sqlite:///{folder / 'rows.db'}", "history.mode": "instead"}

    def read() -> Numbers:
        with sqlite3.connect(folder / "rows.db") as connection:
            found = connection.execute("SELECT id, _commit_lsn, _seq FROM people_history")
            return {row[0]: (row[1], row[2]) for row in found}

    return SqlSink(SqlProperties.model_validate(given), context(folder)), read


def _named(rows: Sequence[dict[str, Any]]) -> Numbers:
    return {row["id"]: (row["_commit_lsn"], row["_seq"]) for row in rows}


SINKS = {"change log": _change_log, "files": _files, "delta": _delta, "sql history": _history}


def transaction() -> TransactionPart:
    """Return one transaction on two tables; the id of each row is its number."""
    source = Model()
    for number in range(12):
        source.insert(OTHERS if number % 3 == 0 else PEOPLE, [str(number)])
    return source.commit()


def _whole(parts: list[TransactionPart]) -> list[Batch]:
    return [batch(*parts)]


def _by_the_decoder(parts: list[TransactionPart]) -> list[Batch]:
    """The table that is not captured does not get as far as a transaction."""
    found = []
    for part in parts:
        kept = [
            (change, number)
            for change, number in zip(part.changes, part.numbers(), strict=True)
            if isinstance(change, Insert) and change.relation is PEOPLE
        ]
        found.append(part.with_only([c for c, _ in kept], [n for _, n in kept]))
    return [batch(*found)]


def _by_a_transform(parts: list[TransactionPart]) -> list[Batch]:
    left_out = TableFilter(FilterProperties.model_validate({"tables": r"public\.others"}))
    return [transformed(left_out, batch(*parts))]


@pytest.mark.parametrize("before", [_whole, _by_the_decoder, _by_a_transform])
@pytest.mark.parametrize("made", SINKS.values(), ids=SINKS)
def test_a_change_has_the_same_number_in_every_sink_and_behind_every_filter(made, before, tmp_path):
    part = transaction()
    sink, read = made(tmp_path)
    sink.open()
    for each in before(in_parts(part, 5, 7)):
        sink.write(each)
    sink.flush()
    sink.close()
    assert read() == {n: (part.commit_lsn, n) for n in range(12) if n % 3}


@given(st.lists(st.booleans(), max_size=20), st.integers(0, 9), st.data())
def test_what_transforms_leave_out_keeps_its_number(stays, first, data):
    """Whether a transform gives the same changes, or others that stand for them, in parts and a batch of
    its own or in those that it got."""
    lsns = [100 + data.draw(st.integers(0, 1)) + 2 * n for n in range(len(stays))]
    numbers = [first + n + sum(stays[:n]) for n in range(len(stays))]
    whole = TransactionPart(
        xid=1,
        begin_lsn=1,
        commit_lsn=900,
        commit_ts=0,
        end_lsn=901,
        first_index=first,
        changes=[Insert(PEOPLE, lsn, (str(lsn),)) for lsn in [*lsns, *range(200, 220)]],
    )
    given_part = whole.with_only(
        [Insert(PEOPLE, lsn, (str(lsn),)) for lsn in lsns],
        [number for number in numbers if number < first + len(whole.changes)],
    )
    assert list(given_part.numbers()) == numbers
    again = [data.draw(st.booleans()) for _ in stays]
    where = data.draw(st.sampled_from(("elsewhere", "in the batch", "in the part", "in the list")))

    def leave_out(given: Batch) -> Batch:
        (part,) = given.parts
        assert isinstance(part, TransactionPart)
        kept = [
            msgspec.structs.replace(change) if copied else change
            for change, stay, copied in zip(part.changes, stays, again, strict=True)
            if stay
        ]
        if where == "in the list":
            part.changes[:] = kept
        elif where == "in the part":
            part.changes = kept
        else:
            part = msgspec.structs.replace(part, changes=kept)
        if where == "elsewhere":
            return msgspec.structs.replace(given, parts=[part], events=len(kept))
        given.parts[:] = [part]
        given.events = len(kept)
        return given

    wire_count = given_part.wire_count
    (found,) = transformed(leave_out, batch(given_part)).parts
    assert isinstance(found, TransactionPart)
    assert list(found.numbers()) == [n for n, stay in zip(numbers, stays, strict=True) if stay]
    assert found.wire_count == wire_count
