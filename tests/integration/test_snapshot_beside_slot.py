"""A snapshot beside an older slot, on a real server: the stream leaves out what it read, and nothing else."""

import json
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pytest
from waltap.decode.message import LogicalMessage
from waltap.decode.relation import Relation
from waltap.hookspecs import hookimpl
from waltap.snapshot import Snapshotter, SnapshotStart
from waltap.specs import SnapshotterSpec
from waltap.transactions.transaction import Batch, SnapshotRows, TransactionPart

from tests.harness.pipeline import PipelineRig
from tests.harness.servers.postgres import Database

ONLY_T = {"snapshot.include.collection.list": r"public\.t"}


def with_slot(database: Database, folder: Path, **settings: Any) -> PipelineRig:
    """Return a pipeline whose slot somebody made before it ran, and behind which there are changes."""
    pipeline = PipelineRig(database, folder, {"slot.adopt": True} | settings)
    plugin = str(settings.get("plugin.name", "pgoutput"))
    database.execute(
        "CREATE TABLE t (id int PRIMARY KEY, v int); CREATE TABLE other (id int PRIMARY KEY, v int);"
        "CREATE TABLE void (id int PRIMARY KEY, v int);"
        f"CREATE PUBLICATION {pipeline.slot} FOR ALL TABLES"
    )
    database.execute(f"SELECT pg_create_logical_replication_slot('{pipeline.slot}', '{plugin}')")
    return pipeline


def told(pipeline: PipelineRig, *tables: str) -> list[tuple[str, str, str | None]]:
    return [
        (event.table.removeprefix("public."), event.op, event.row.get("id"))
        for event in pipeline.destination.of(*(tables or ("t", "other", "void")))
    ]


def messages(pipeline: PipelineRig) -> list[bytes]:
    return [
        change.content
        for batch in pipeline.destination.batches
        for part in batch.parts
        if isinstance(part, TransactionPart)
        for change in part.changes
        if isinstance(change, LogicalMessage)
    ]


@pytest.mark.parametrize("plugin", ["pgoutput", "wal2json", "decoderbufs"])
def test_changes_of_tables_that_the_snapshot_does_not_read_arrive(
    database: Database, tmp_path: Path, plugin: str
) -> None:
    pipeline = with_slot(database, tmp_path, **{"plugin.name": plugin}, **ONLY_T)
    database.execute("INSERT INTO other VALUES (1, 1)")
    database.execute("INSERT INTO t VALUES (1, 1)")
    database.execute("INSERT INTO t VALUES (2, 1); INSERT INTO other VALUES (2, 1)")
    pipeline.catch_up()
    assert told(pipeline, "t") == [("t", "r", "1"), ("t", "r", "2")]
    assert told(pipeline, "other") == [("other", "c", "1"), ("other", "c", "2")]


def test_a_truncate_counts_for_the_tables_alone_that_were_not_read(
    database: Database, tmp_path: Path
) -> None:
    pipeline = with_slot(database, tmp_path, **{"skipped.operations": "none"}, **ONLY_T)
    database.execute("INSERT INTO t VALUES (1, 1); INSERT INTO other VALUES (1, 1)")
    database.execute("TRUNCATE t, other")
    database.execute("INSERT INTO t VALUES (2, 1)")
    pipeline.catch_up()
    assert [(table, op) for table, op, _ in told(pipeline)] == [
        ("t", "r"),
        ("other", "c"),
        ("other", "t"),
    ]


def test_messages_of_transactions_that_the_snapshot_saw_arrive(
    database: Database, tmp_path: Path
) -> None:
    pipeline = with_slot(database, tmp_path)
    database.execute("SELECT pg_logical_emit_message(false, 'app', 'at once')")
    database.execute(
        "INSERT INTO t VALUES (1, 1); SELECT pg_logical_emit_message(true, 'app', 'within');"
    )
    database.execute("SELECT pg_logical_emit_message(true, 'app', 'alone')")
    pipeline.catch_up()
    assert told(pipeline) == [("t", "r", "1")]
    assert messages(pipeline) == [b"at once", b"within", b"alone"]


def test_the_metadata_of_a_transaction_counts_what_was_delivered_of_it(
    database: Database, tmp_path: Path
) -> None:
    file = tmp_path / "out.jsonl"
    sink = {"sink.type": "jsonl", "sink.path": str(file), "provide.transaction.metadata": True}
    pipeline = with_slot(database, tmp_path, **sink, **ONLY_T)
    database.execute(
        "INSERT INTO t VALUES (1, 1), (2, 1); INSERT INTO other VALUES (1, 1); UPDATE t SET v = 2"
    )
    pipeline.catch_up()
    values = [json.loads(line)["value"] for line in file.read_text().splitlines()]
    (change,) = (v for v in values if v.get("source", {}).get("table") == "other")
    place = change["transaction"]
    assert (place["total_order"], place["data_collection_order"]) == (1, 1)
    (end,) = (v for v in values if v.get("status") == "END" and v["event_count"])
    assert end["id"].split(":")[0] == place["id"].split(":")[0]  # its number
    assert end["event_count"] == 1
    assert end["data_collections"] == [{"data_collection": "public.other", "event_count": 1}]


def test_tables_that_were_read_and_empty_are_left_out_of_the_stream(
    database: Database, tmp_path: Path
) -> None:
    """Nor does what was under a table's name before it: those rows are not in it."""
    pipeline = with_slot(database, tmp_path)
    database.execute("INSERT INTO void VALUES (1, 1); DELETE FROM void")
    database.execute("INSERT INTO t VALUES (1, 1)")
    database.execute("DROP TABLE t; CREATE TABLE t (id int PRIMARY KEY, v int)")
    database.execute("INSERT INTO t VALUES (2, 2)")
    pipeline.catch_up()
    assert told(pipeline) == [("t", "r", "2")]
    database.execute("INSERT INTO void VALUES (3, 3)")
    pipeline.catch_up()
    assert told(pipeline) == [("t", "r", "2"), ("void", "c", "3")]


class Skips(Snapshotter):
    """As ``initial``, without the table ``other``."""

    def reads(self, relation: Relation, start: SnapshotStart) -> bool:
        return relation.table != "other"


class Plugin:
    @hookimpl
    def register_snapshotters(self) -> Iterable[SnapshotterSpec]:
        return [SnapshotterSpec(name="skips", summary="A mode.", factory=lambda _: Skips())]


def test_changes_of_a_table_that_the_snapshot_mode_skips_arrive(
    database: Database, tmp_path: Path
) -> None:
    mode = {"snapshot.mode": "custom", "snapshot.mode.custom.name": "skips"}
    pipeline = with_slot(database, tmp_path, **mode)
    database.execute("INSERT INTO other VALUES (1, 1); INSERT INTO t VALUES (1, 1)")
    with pipeline.running(Plugin()) as run:
        run.until(lambda: pipeline.destination.of("other"), "the change of the other table")
    assert told(pipeline) == [("t", "r", "1"), ("other", "c", "1")]


class Killed(BaseException):
    """The process is gone: nothing of it runs any more."""


@pytest.mark.parametrize("pieces", [0, 1, 2])
def test_a_snapshot_that_goes_on_still_leaves_out_all_that_it_read(
    database: Database, tmp_path: Path, pieces: int
) -> None:
    """Tables are read together: of those behind the first no row had come when it broke off."""
    pipeline = with_slot(database, tmp_path)
    pipeline.destination.resumes = True
    database.execute("INSERT INTO t VALUES (1, 1); INSERT INTO other VALUES (1, 1)")
    database.execute("UPDATE t SET v = 2; UPDATE other SET v = 2; INSERT INTO void VALUES (1, 1)")
    seen = iter(range(pieces))

    def stop(batch: Batch) -> None:
        rows = any(isinstance(part, SnapshotRows) for part in batch.parts)
        if rows and next(seen, None) is None:
            raise Killed

    pipeline.destination.before_write = stop
    with pytest.raises(Killed):
        pipeline.run()
    pipeline.destination.before_write = lambda batch: None
    database.execute("UPDATE t SET v = 3")
    pipeline.catch_up()
    assert [event for event in told(pipeline) if event[1] != "r"] in (
        [],
        [("t", "u", "1")],
    )
    rows = {table: list(pipeline.destination.table(table).values()) for table in ("t", "other")}
    assert rows == {"t": [{"id": "1", "v": "3"}], "other": [{"id": "1", "v": "2"}]}
