"""Commit LSN and number name a change: in every sink that keeps numbers, whatever is left out before it."""

import sqlite3
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
from tests.harness.changelog import batch, context, in_parts, relation
from tests.harness.lakes import delta_rows

from waltap.changes.decode.message import Insert
from waltap.changes.transactions.transaction import Batch, TransactionPart
from waltap.ports.sink.sink import Sink
from waltap.ports.transforms.applied import transformed
from waltap.ports.transforms.filter import FilterProperties, changes_filter
from waltap_lake.plugin import register_sinks
from waltap_lake.properties import DeltaLakeProperties
from waltap_sinks.changelog import ChangeLog
from waltap_sinks.changelog.properties import ChangeLogProperties
from waltap_sinks.changelog.sink import ChangeLogSink
from waltap_sinks.files.properties import FilesProperties
from waltap_sinks.files.sink import FilesSink
from waltap_sinks.sql.properties import SqlProperties
from waltap_sinks.sql.sink import SqlSink

PEOPLE = relation("public.people", [("id", "int4")])
OTHERS = relation("public.others", [("id", "int4")])

Numbers = dict[int, tuple[int, int]]


def _change_log(folder: Path) -> tuple[Sink, Callable[[], Numbers]]:
    given = ChangeLogProperties.model_validate({"path": str(folder / "log")})

    def read() -> Numbers:
        parts = ChangeLog(str(folder / "log")).rows("public", "people")
        return _named([row for part in parts for row in part.to_pylist()])

    return ChangeLogSink(given, context(folder)), read


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
    left_out = changes_filter(FilterProperties.model_validate({"tables": r"public\.others"}))
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
