"""Snapshots that tasks of Spark read of a real PostgreSQL, right into the tables or by way of files that wait."""

from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import functions as F
from tests.harness.changelog import context, relation
from tests.harness.handed import ITEMS, Chunk, rows
from tests.harness.handed_snapshot import AssignedSnapshots
from tests.harness.meanwhile import in_background
from tests.harness.pipeline import until
from tests.harness.spark import Died, dying

from waltap.changes.decode.relation import Relation
from waltap_sinks.changelog import ChangeLog, ChangeLogProperties, ChangeLogSink
from waltap_sinks.changelog.errors import RowsInExternalSnapshot
from waltap_spark.apply import external_snapshots
from waltap_spark.apply.applier import OutputApplier
from waltap_spark.apply.snapshot_splits import TableSplits, splits_of
from waltap_spark.config.column_names import ColumnNames
from waltap_spark.config.options import ApplyOptions
from waltap_spark.errors import ChunkSourceUnreachable, ChunksRefused, RowsAwaited
from waltap_spark.formats.choice import FormatChoice
from waltap_spark.formats.work import TableWriter
from waltap_spark.read.live import LiveTables
from waltap_spark.session.session import prepare
from waltap_spark.state.modes import ModeRules
from waltap_spark.state.output import SparkOutput

# --- read by tasks --------------------------------------------------------------------------------

TABLES = """
CREATE TABLE big (
    id int PRIMARY KEY, v text, n numeric(12,2), at timestamptz, t time, a int[], u uuid,
    twice int GENERATED ALWAYS AS (id * 2) STORED);
CREATE TYPE mood AS ENUM ('sad', 'fine');
CREATE DOMAIN few AS int CHECK (VALUE < 10);
CREATE TABLE typed (
    id int PRIMARY KEY, m mood, f few, r int4range, i interval, j jsonb, b bytea, ts timestamp, d date,
    ta time[], na numeric(5,1)[], free numeric, o text);
CREATE TABLE keyless (a int, b text);
CREATE TABLE empty (id int PRIMARY KEY, v text);
INSERT INTO big SELECT g, repeat('v', 900), g / 3.0, '2026-01-02 03:04:05.678901+00', '12:00:00.5',
       ARRAY[g, NULL], '00000000-0000-0000-0000-000000000001' FROM generate_series(1, 3000) g;
INSERT INTO typed VALUES (1, 'fine', 7, '[1,5)', '1 day 02:03:04', '{"a": 1}', '\\x00ff', '2026-01-02 03:04:05.6',
       '2026-02-03', '{12:00:00.25,NULL}', '{1.5,NULL}', 123456789.000000001, NULL);
INSERT INTO typed (id) VALUES (2);
INSERT INTO keyless SELECT g % 3, 'x' FROM generate_series(1, 10) g;
ALTER TABLE keyless REPLICA IDENTITY FULL;
CREATE SCHEMA "a.b" CREATE TABLE c (id int PRIMARY KEY);
CREATE SCHEMA a CREATE TABLE "b.c" (id int PRIMARY KEY, v text);
INSERT INTO a."b.c" VALUES (1), (2);
INSERT INTO "a.b".c VALUES (3);
"""
ROWS = {"public.big": 2000, "public.keyless": 10, "public.empty": 0, "public.typed": 2, "a.b.c": 2}
TYPED = (
    '{1, fine, 7, [1,5), P0Y0M1DT2H3M4S, {"a": 1}, 00FF, 2026-01-02 03:04:05.6, 2026-02-03,'
    " [12:00:00.25, null], [1.5, null], 123456789.000000001, null}"
)
Made = Callable[..., AssignedSnapshots]


@pytest.fixture
def made(database, tmp_path, spark) -> Iterator[Made]:
    database.execute(TABLES)
    rigs: list[AssignedSnapshots] = []

    def make(**options: Any) -> AssignedSnapshots:
        rigs.append(AssignedSnapshots(database, tmp_path, **{"spark": spark, **options}))
        rigs[-1].pipeline.settings["snapshot.max.threads"] = 3
        return rigs[-1]

    yield make
    for rig in rigs:
        rig.close()


def counts(rig: AssignedSnapshots) -> dict[str, int]:
    tables = rig.tables
    assert tables.changes("public.big").count() == tables.current("public.big").count()
    return {name: tables.current(name).count() for name in ROWS}


def test_tables_have_the_rows_of_the_snapshot_and_none_that_came_later(made, database):
    """Nor any of a snapshot that was lost before somebody came, or while its chunks were read."""
    rig = made()
    with rig.engine("lost"):
        there = dict(rig._there)
    with pytest.raises(RowsAwaited, match="WT-5258"):
        rig.apply()
    rig._there.update(there)
    with pytest.raises(ChunkSourceUnreachable, match="WT-2001 the exported snapshot is gone"):
        rig.apply()
    assert rig.output.state() is None
    rig._there.clear()
    database.execute("DELETE FROM big WHERE id > 2000")
    with rig.engine("one") as chunks:
        assert [chunk.relation.table for chunk in chunks].count("big") == 3
        database.execute(
            "UPDATE big SET v = 'later' WHERE id < 100; DELETE FROM big WHERE id > 1990"
        )
        database.execute("INSERT INTO empty VALUES (1); INSERT INTO keyless VALUES (7)")
        rig.apply()
    assert counts(rig) == ROWS
    big = rig.tables.current("public.big")
    found = big.where("id = 3").selectExpr("cast(struct(n, at, t, a, u) as string)").collect()
    assert found[0][0] == (
        "{1.00, 2026-01-02 03:04:05.678901, 12:00:00.5, [3, null],"
        " 00000000-0000-0000-0000-000000000001}"
    )
    typed = rig.tables.current("public.typed")
    reported = "cast(struct(id, m, f, r, i, j, hex(b), ts, d, ta, na, free, o) as string)"
    found = typed.where("id = 1").selectExpr(reported).collect()
    assert found[0][0] == TYPED
    assert big.agg(F.sum("id")).collect()[0][0] == 2000 * 2001 // 2
    assert {row[0] for row in big.selectExpr("length(v)").distinct().collect()} == {900}
    history = rig.tables.changes("public.big")
    (reported,) = history.select("_op", "_commit_lsn", "_seq", "_epoch").distinct().collect()
    assert tuple(reported)[::3] == ("r", rig.output.state().log_position.epoch)
    assert reported[1] == rig.log.last().log_position.end_lsn  # type: ignore[union-attr]
    (other,) = (name for name in rig.tables.names if name.startswith("a.b.c@"))
    assert [tuple(row) for row in rig.tables.current(other).collect()] == [(3,)]
    state = rig.output.state()
    assert {name: state.tables[name].rows_of_splits for name in ROWS} == ROWS
    with pytest.raises(RowsInExternalSnapshot, match="WT-5112 .*public.big"):
        rig.log.rows("public", "big")


def test_ddl_that_waits_for_a_snapshot_ends_it(made, database):
    """Tasks wait behind it, and it waits for the engine, which waits for the tasks."""
    rig = made()
    rig.pipeline.settings["snapshot.lock.timeout.ms"] = 50
    waits = "SELECT pid FROM pg_locks WHERE NOT granted AND relation = 'big'::regclass"
    with rig.engine("one"):
        done = in_background(database.execute, "ALTER TABLE big ADD more int")
        until(lambda: database.execute(waits), "DDL that waits")
        with pytest.raises(ChunksRefused, match=r"WT-4003 DDL of public\.big waits"):
            rig.apply()
    done.result(60)


@pytest.mark.parametrize("table_format", ["parquet", "delta"])
def test_versions_are_those_of_the_last_snapshot_also_where_one_before_was_committed_and_lost(
    made, database, delta, table_format
):
    """Values that became null are reported. Delta Lake's tables get their rows by way of files, which keep that."""
    database.execute(
        "INSERT INTO big (id, n, at) VALUES (3001, 'NaN', 'infinity'), (3002, 'NaN', NULL)"
    )
    modes = ModeRules(modes=(r"public\.big:scd2", r"public\.empty:append", "scd1"))
    names = ColumnNames(renames=(r"public\.big\.v:value",))
    rig = made(table_format=table_format, spark=delta, modes=modes, names=names)
    with rig.engine("one"):
        rig.apply()
    state = rig.output.state()
    reported = state.tables["public.big"].split_nulls
    assert [text.partition(" of ")[0] for text in reported] == ["column at", "column n"], reported
    assert all("null is written" in text for text in reported)
    assert state.tables["public.typed"].split_nulls == ()
    big = rig.tables.current("public.big")
    assert big.where("id > 3000 and n is null and at is null").count() == 2
    assert big.where("_current and _to_lsn is null").count() == big.count() == 3002
    assert big.where("length(value) = 900").count() == 3000
    assert rig.tables.current("public.empty").count() == 0
    database.execute("DELETE FROM big WHERE id > 5")
    with rig.engine("two"):
        rig.apply()
    big = rig.tables.current("public.big")
    assert big.where("_current and _to_lsn is null").count() == big.count() == 5
    assert rig.tables.changes("public.big").count() == 3007


# --- rows that wait in files ----------------------------------------------------------------------

OLD = [("1", "old"), ("2", "old"), ("3", "gone")]
NEW = [("1", "new"), ("2", "old")]


class Tables:
    """A log, its tables, and what an engine hands over."""

    def __init__(self, folder: Path, spark: Any, kind: str = "delta") -> None:
        self.folder, self.spark, self.kind = folder, prepare(spark), kind
        self.handed: dict[str, TableSplits] = {}
        self.reopen()

    def reopen(self) -> None:
        place = context(self.folder, has_offset=True)
        self.sink = ChangeLogSink(ChangeLogProperties(path=str(self.folder / "log")), place)
        self.sink.open()

    def assign_splits(
        self, name: str, content: Sequence[tuple[str, ...]], table: Relation = ITEMS
    ) -> None:
        """Hand ``content`` over, a row a chunk, and say so in the log; what was handed before is gone."""
        chunks = [Chunk(table, n, len(content), [row]) for n, row in enumerate(content)]
        self.handed = {name: splits_of(chunks, context(self.folder))}
        self.sink.write(rows(name, table=table))
        self.sink.flush()

    def apply(self) -> None:
        """Apply all there is by a driver of its own."""
        log, output = ChangeLog(str(self.folder / "log")), SparkOutput(str(self.folder / "out"))
        applier = OutputApplier(
            prepare(self.spark), log, output, ApplyOptions(parallel=1), FormatChoice(self.kind),
            self.handed.get,
        )  # fmt: skip
        applier.open()
        try:
            applier.apply(list(log.manifests(applier.state.log_position)))
        finally:
            applier.close()

    def apply_and_die(self, place: object, name: str) -> None:
        with pytest.raises(Died), dying((place, name)):
            self.apply()

    def read(self, what: str) -> list[tuple[str, ...]]:
        tables = LiveTables(self.spark, SparkOutput(str(self.folder / "out")))
        found = getattr(tables, what)(ITEMS.name).selectExpr("cast(id as string)", "v")
        return sorted(map(tuple, found.collect()))

    @property
    def waiting(self) -> list[Path]:
        return list((self.folder / "out" / external_snapshots.WAITING).rglob("*.parquet"))


def test_a_step_that_was_taken_keeps_its_rows_when_driver_and_engine_die(delta, tmp_path):
    die_between_two_steps(Tables(tmp_path, delta))


def die_between_two_steps(tables: Tables) -> None:
    """The history has the first snapshot's rows, the table has none yet: both go on with these."""
    tables.assign_splits("one", OLD)
    tables.apply_and_die(TableWriter, "overwrite")
    assert tables.waiting
    tables.sink.close()
    tables.reopen()
    tables.assign_splits("two", NEW)
    tables.apply()
    assert tables.read("current") == NEW
    assert tables.read("changes") == sorted([*OLD, *NEW])
    assert not tables.waiting
    tables.sink.close()


def test_rows_of_which_some_are_missing_are_read_again(delta, tmp_path, monkeypatch):
    """A driver that dies when they are written and not yet durable, and an engine that lives."""
    tables = Tables(tmp_path, delta)
    tables.assign_splits("one", OLD)
    tables.apply_and_die(SparkOutput, "sync")
    before = set(tables.waiting)
    assert before
    assert not list((tmp_path / "out").rglob("_delta_log")), (
        "no step is taken before they are there"
    )
    with monkeypatch.context() as patch:
        patch.setattr(external_snapshots.ExternalSnapshots, "remove_waiting", lambda _self: None)
        tables.apply()
    assert tables.waiting
    assert not before & set(tables.waiting), "they were written again"
    assert tables.read("current") == tables.read("changes") == OLD
    tables.apply()
    assert not tables.waiting, "who opens the tables next, and owes nothing, clears them away"
    tables.sink.close()


def test_a_snapshot_that_is_lost_before_its_rows_are_there_leaves_nothing(delta, tmp_path):
    """Until the next one the table may have got other columns."""
    tables = Tables(tmp_path, delta)
    tables.assign_splits("one", OLD)
    tables.apply_and_die(external_snapshots, "chunk_rows")
    tables.sink.close()
    tables.reopen()
    wider = relation(ITEMS.name, [("id", "int8"), ("v", "text"), ("more", "int4")])
    tables.assign_splits("two", [("5000000000", "new", "7")], wider)
    tables.apply()
    assert tables.read("current") == tables.read("changes") == [("5000000000", "new")]
    more = LiveTables(delta, SparkOutput(str(tmp_path / "out"))).current(ITEMS.name).select("more")
    assert [row[0] for row in more.collect()] == [7]
    tables.sink.close()
