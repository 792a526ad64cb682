"""Chunks that an engine hands to its Spark process, and what the log says of tables that come so."""

import os
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.harness.changelog import context
from tests.harness.handed import ITEMS, Chunk, rows
from tests.harness.pipeline import until

from waltap_sinks.changelog import ChangeLog, ChangeLogProperties, ChangeLogSink
from waltap_sinks.changelog.errors import RowsElsewhere
from waltap_spark.batch_size import AdaptiveBatchSize
from waltap_spark.plan import plan
from waltap_spark.properties import SparkProperties
from waltap_spark.snapshot_splits import NO_MORE, AssignedSplits, DriverInput, packed


@pytest.fixture
def sink(tmp_path: Path) -> Iterator[ChangeLogSink]:
    made = ChangeLogSink(ChangeLogProperties(path=str(tmp_path / "log")), context(tmp_path))
    made.open()
    yield made
    made.close()


def test_a_process_gets_what_is_written_to_it_whole_and_learns_of_the_end(tmp_path: Path) -> None:
    reading, writing = os.pipe()
    chunks = [Chunk(ITEMS, number, 2) for number in range(2)]
    tables = {ITEMS.name: AssignedSplits.of(chunks, context(tmp_path))}
    with open(reading, "rb") as inner, open(writing, "wb") as outer:
        inbox = DriverInput(inner)
        data = packed("one", {**tables, "large": AssignedSplits(count=1, pickled=bytes(3 << 20))})
        outer.write(data[:20])
        outer.flush()
        assert inbox.of("one") is None
        assert not inbox.gone()
        outer.write(data[20:])
        outer.flush()
        until(lambda: inbox.of("one") is not None, "chunks")
        found = inbox.of("one")
        assert inbox.of("two") is None
        assert not inbox.gone()
        outer.write(NO_MORE)
        outer.close()
        until(inbox.gone, "the end")
        with pytest.raises(LookupError):
            inbox.of("one")
    assert found is not None
    assert found[ITEMS.name].count == 2
    terms, read = found[ITEMS.name].unpacked()
    assert terms.described.columns == ITEMS.columns
    assert [chunk.index for chunk in read] == [0, 1]


def test_a_process_ends_that_cannot_read_what_it_is_given(
    caplog: pytest.LogCaptureFixture,
) -> None:
    reading, writing = os.pipe()
    with open(reading, "rb") as inner, open(writing, "wb") as outer:
        inbox = DriverInput(inner)
        outer.write((4).to_bytes(8, "big") + b"what")
        outer.flush()
        until(inbox.gone, "the end")
    assert "cannot be read" in caplog.text


def test_a_table_that_tasks_read_is_one_group_and_one_commit(
    sink: ChangeLogSink, tmp_path: Path
) -> None:
    sink.write(rows("one"))
    sink.flush()
    sink.write(rows("", [("1", "a")]))
    sink.flush()
    manifests = list(ChangeLog(str(tmp_path / "log")).manifests())
    assert [manifest.version for manifest in manifests] == [2, 1]
    assert [len(part) for part in AdaptiveBatchSize(5.0, 1000).portions(manifests)] == [1, 1]
    handed, read = plan(manifests, {})[ITEMS.name].groups
    assert (handed.elsewhere, handed.replaces, handed.rows) == ("one", True, 0)
    assert len(handed.segments) == 1, "it tells the columns"
    assert (read.elsewhere, read.replaces, read.rows) == ("", True, 1)


def test_who_asks_the_log_for_such_rows_is_refused_until_another_snapshot_has_them(
    sink: ChangeLogSink, tmp_path: Path
) -> None:
    log = ChangeLog(str(tmp_path / "log"))
    sink.write(rows("one"))
    sink.flush()
    with pytest.raises(RowsElsewhere, match=r"WT-5112 rows of public\.items"):
        log.rows("public", "items", standing=True)
    sink.write(rows("", [("1", "a")]))
    sink.flush()
    (found,) = log.rows("public", "items", standing=True)
    assert found.column("v").to_pylist() == ["a"]


def test_a_snapshot_that_tasks_read_never_goes_on_as_one_that_is_in_the_log(
    sink: ChangeLogSink, tmp_path: Path
) -> None:
    sink.write(rows("one"))
    sink.flush()
    sink.close()
    again = ChangeLogSink(
        ChangeLogProperties(path=str(tmp_path / "log")), context(tmp_path, resumes=True)
    )
    again.open()
    try:
        again.write(rows("", [("1", "a")]))
        again.flush()
    finally:
        again.close()
    (found,) = ChangeLog(str(tmp_path / "log")).rows("public", "items", standing=True)
    assert found.num_rows == 1


def test_a_profile_that_executors_cannot_serve_is_refused() -> None:
    profile = {"path": "x", "snapshot.readers": "executors", "applier": "none"}
    with pytest.raises(ValueError, match=r"snapshot\.readers = executors wants"):
        SparkProperties.model_validate(profile)
