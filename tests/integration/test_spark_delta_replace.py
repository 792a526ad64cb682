"""Rows of small Delta tables that the driver replaces without Spark; Spark reads what the model has.

`tests.spark41.test_iceberg_files` runs the tests without a format in their names for Iceberg.
"""

import contextlib
import json
import random
import shutil
from itertools import count, product
from typing import Any, Final

import msgspec
import pyarrow as pa
import pytest
from py4j.protocol import Py4JError
from tests.harness.changelog import relation
from tests.harness.spark import Died, Rig, dying, folder_of
from tests.harness.spark_cost import counted
from tests.integration.test_spark_delta_files import (
    COLUMNS,
    LEFT,
    SKIPPED,
    listed,
    made,
    many,
    streamed,
)

from waltap.errors import WaltapError
from waltap_spark.formats import delta as delta_format
from waltap_spark.formats import merging
from waltap_spark.formats.small_files import delta as delta_files
from waltap_spark.formats.small_files.delta import DeltaTable, DeltaTransaction
from waltap_spark.formats.small_files.delta_log import FileList
from waltap_spark.formats.small_files.iceberg import IcebergTable
from waltap_spark.read.live import LiveTables
from waltap_spark.schema.expression import GONE
from waltap_spark.state.modes import ModeRules
from waltap_spark.state.output import TargetTable

PAIRS: Final = relation(
    "public.pairs",
    [("a", "int4"), ("b", "text"), ("n", "numeric(9,2)"), ("at", "timestamp"), ("note", "text")],
    key=["a", "b"],
)


KEPT: Final = LEFT, relation("public.right", [("id", "int4"), ("amount", "int8"), ("note", "text")])
ROWS: Final = 2
"""The transaction of a commit that replaces rows: the first one adds to the history."""


@pytest.fixture
def rig(delta, tmp_path) -> Rig:
    return Rig(tmp_path, delta, "delta", parallel=2)


def replaced(rig: Rig, *, jobs: int = 0) -> None:
    """Have the tables follow; the rows are replaced without a job that reads or writes rows."""
    rig.commit()
    applied(rig, jobs=jobs)


def applied(rig: Rig, *, jobs: int = 0) -> None:
    """Have the tables follow what the change log has, as `replaced` does."""
    with counted(rig.spark) as cost:
        rig.apply()
    assert len(cost.data_jobs) == jobs, cost.jobs
    kind, name = commits_of(rig)
    assert cost.functions[f"{kind.__name__}.{name}"] == (1 if jobs else ROWS)


def commits_of(rig: Rig) -> tuple[type, str]:
    return (DeltaTransaction if rig.choice.name == "delta" else IcebergTable), "commit"


def read_anew(rig: Rig, *rows: tuple[str | None, ...]) -> None:
    rig.db.rows[LEFT.name] = list(rows)
    rig.start_over()
    rig.snapshot(LEFT)


def left(rig: Rig, rows: int = 6) -> None:
    rig.insert(LEFT, *([str(n), str(n), "x" * n] for n in range(rows)))


def test_deleted_rows_that_a_mode_keeps_stay(delta, tmp_path):
    rules = ModeRules(deletes=(r"public\.left:kept", "soft"))
    rig = Rig(tmp_path, delta, "delta", modes=rules, parallel=2)
    for table in KEPT:
        rig.db.insert(table, *([str(n), str(n), "x"] for n in range(3)))
    rig.follow()
    for table in KEPT:
        rig.db.delete(table, ["1"])
        rig.db.update(table, ["2"], amount="20")
    rig.follow()
    for table in KEPT:
        rows = rig.spark.table(rig.target(table).at).select("id", "amount").collect()
        assert sorted(map(tuple, rows)) == [(0, 0), (1, 1), (2, 20)]


@pytest.mark.parametrize(
    ("seed", "commits"),
    [(0, 4), *(pytest.param(n, 30, marks=pytest.mark.exhaustive) for n in (1, 2, 3))],
)
def test_random_changes_of_a_key_of_two_columns(rig, seed, commits):
    """Keys that share one of their columns, and values that are not sent, over checkpoints of the log and
    compactions."""
    chance, db = random.Random(seed), rig.db
    rig.insert(PAIRS, *([str(n % 4), "é" * (n % 3), "1.50", None, "x"] for n in range(0, 12, 4)))
    at = rig.target(PAIRS).at
    rig.spark.sql(f"ALTER TABLE {at} SET TBLPROPERTIES ('delta.checkpointInterval' = '3')")
    for _commit in range(commits):
        for _change in range(chance.randint(1, 6)):
            there = {row[:2] for row in db.rows["public.pairs"]}
            key = [str(chance.randrange(4)), "é" * chance.randrange(3)]
            more = {"n": f"{chance.randrange(99)}.25", "at": "2026-01-01 00:00:00.000001"}
            if tuple(key) not in there:
                db.insert(PAIRS, [*key, more["n"], chance.choice([None, more["at"]]), "new"])
            elif chance.random() < 0.4:
                db.delete(PAIRS, key)
            else:
                moved = [str(chance.randrange(4)), "é" * chance.randrange(3)]
                new = {} if tuple(moved) in there else dict(zip("ab", moved, strict=True))
                unsent = chance.choice(([], ["note"], ["at"]))
                sent = {name: value for name, value in more.items() if name not in unsent}
                db.update(PAIRS, key, unsent, **sent, **new)
        rig.follow()
        if chance.random() < 0.2:
            rig.applier.format.compact_files(rig.spark, at)
        if chance.random() < 0.2:
            rig.reopen()
    if rig.choice.name == "delta":
        log = folder_of(rig.target(PAIRS)) / "_delta_log"
        # a writer of a checkpoint in two parts died behind the first
        part = f"{rig.target(PAIRS).version:020d}.checkpoint.0000000001.0000000002.parquet"
        shutil.copy(min(log.glob("*.checkpoint.parquet")), log / part)
        rig.reopen()
        rig.update(PAIRS, db.rows[PAIRS.name][0][:2], note="last")
    rig.check(PAIRS)


def marked(rig: Rig, monkeypatch: pytest.MonkeyPatch) -> None:
    """Have Spark mark a row of a file as deleted."""
    with monkeypatch.context() as patch:
        patch.setattr(delta_format, "SMALL_TABLE", 0)
        rig.update(LEFT, ["1"], amount="100")
    at = rig.target(LEFT)
    log = (folder_of(at) / "_delta_log" / f"{at.version:020d}.json").read_text()
    assert '"deletionVector"' in log


def test_a_file_of_marked_rows_is_left_to_spark_which_writes_the_table_again(rig, monkeypatch):
    left(rig)
    for snapshot in (False, True):
        marked(rig, monkeypatch)
        if snapshot:
            read_anew(rig, ("3", "10", None))
        else:
            rig.db.update(LEFT, ["2"], amount="200")
            rig.commit()
        applied(rig, jobs=1)
        if not snapshot:
            rig.check(LEFT)
    rig.db.update(LEFT, ["3"], amount="300")
    replaced(rig)
    rig.check(LEFT)


AGED: Final = [("id", "int4"), ("amount", "int8"), ("note", "text"), ("more", "int4")]
AGES: Final = [
    relation("public.left", AGED, numbers=[1, 2, 3, 4]),
    relation("public.left", [*AGED[:3], ("more", "int8")], numbers=[1, 2, 3, 4]),
    relation("public.left", [("id", "int4"), ("text", "text")], numbers=[1, 3]),
]
"""A table after ADD COLUMN, a wider type, and DROP with RENAME."""


def test_files_are_older_than_the_columns(rig):
    table = relation("public.left", AGED[:3], numbers=[1, 2, 3])
    rig.insert(table, *([str(n), str(n), "x" * n] for n in range(8)))
    for number, newer in enumerate(AGES):
        numbers = [column.number for column in table.columns]
        rig.db.rows[table.name] = [
            tuple(
                row[numbers.index(column.number)] if column.number in numbers else None
                for column in newer.columns
            )
            for row in rig.db.rows[table.name]
        ]
        table, last = newer, newer.columns[-1].name
        rig.update(table, [str(number)], **{last: str(number + 7)})
        rig.db.update(table, [str(number + 4)], **{last: None})
        # a column that the source dropped stays in the table, and Spark writes its rows
        replaced(rig) if newer in AGES[:2] else rig.follow()
        if newer in AGES[1:]:
            rig.check(table)


def test_a_commit_beside_a_compaction_is_made_again(rig, monkeypatch):
    """Its user compacts the table behind the driver's look at its files, and before the driver's commit."""
    left(rig, 2)
    rig.insert(LEFT, ["7", "7", None])
    at = rig.target(LEFT).at
    sql = f"OPTIMIZE {at}"
    if rig.choice.name == "iceberg":
        catalog, _, name = at.replace("`", "").partition(".")
        sql = f"CALL {catalog}.system.rewrite_data_files(table => '{name}', options => map('rewrite-all', 'true'))"
    kind, name = commits_of(rig)
    commits, made = getattr(kind, name), count(1)

    def late(*given: Any) -> None:
        if next(made) == ROWS:
            rig.spark.sql(sql).collect()
        commits(*given)

    monkeypatch.setattr(kind, name, late)
    rig.update(LEFT, ["7"], amount="5")
    assert next(made) > ROWS + 1
    assert rig.output.table("left").failed == ""
    rig.check(LEFT)


def test_a_snapshot_is_written_without_a_job_and_removes_the_earlier_rows(rig):
    rig.db.rows[LEFT.name] = [(str(n), str(n), "x" * n) for n in range(6)]
    rig.snapshot(LEFT)
    applied(rig)
    rig.check(LEFT)
    at = rig.target(LEFT)
    read_anew(rig, ("1", "10", None), ("9", None, "new"))
    applied(rig)
    rig.check(LEFT)
    before = rig.spark.sql(f"SELECT id FROM {at.at} VERSION AS OF {at.version}").collect()
    assert sorted(row["id"] for row in before) == [0, 1, 2, 3, 4, 5]
    for rows in ([], [], [("1", None, "again")]):
        read_anew(rig, *rows)
        rig.apply(LEFT)


MOMENTS: Final = ((False, 1), (False, ROWS), (True, 1), (True, ROWS))
"""Which commit of the format's a driver dies at, that of the history or of the rows: before it, with a file that no
commit names; behind it, where its answer is lost."""


def apply_and_die(rig: Rig, *, behind: bool, number: int) -> None:
    """Apply what waits by a driver that dies so; another follows."""
    kind, name = commits_of(rig)
    if not behind:
        with pytest.raises(Died), dying((kind, name), at=number):
            rig.apply()
    else:
        commits, made = getattr(kind, name), count(1)

        def lost(*arguments: Any) -> None:
            commits(*arguments)
            if next(made) == number:
                raise Py4JError("Error while receiving")  # as py4j calls a connection that broke

        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(kind, name, lost)
            with contextlib.suppress(Py4JError, WaltapError):
                rig.apply()
    rig.reopen()


def test_a_driver_that_dies_at_its_commit_loses_and_doubles_nothing(rig):
    left(rig)
    for row, (behind, number) in enumerate(MOMENTS):
        rig.db.update(LEFT, [str(row)], amount=f"1{row}")
        rig.commit()
        apply_and_die(rig, behind=behind, number=number)
        rig.apply()
    rig.check(LEFT)
    changes = LiveTables(rig.spark, rig.output).changes("left")
    assert sorted(row["id"] for row in changes.collect()) == [0, 0, 1, 1, 2, 2, 3, 3, 4, 5]
    if rig.choice.name == "delta":
        files = list(folder_of(rig.target(LEFT, "changes")).glob("*.parquet"))
        assert len(files) > len(changes.inputFiles())
    read_anew(rig, ("1", "10", None), ("9", None, "new"))
    apply_and_die(rig, behind=True, number=ROWS)
    rig.update(LEFT, ["1"], note="again")
    rig.check(LEFT)
    assert LiveTables(rig.spark, rig.output).changes("left").count() == 10 + 2 + 1


def test_small_files_are_joined_and_a_stream_reads_each_change_once(rig, tmp_path, monkeypatch):
    monkeypatch.setattr(delta_files, "FILES", 3)
    left(rig, 2)
    target = rig.target(LEFT, "changes")

    for number in range(3, 7):
        rig.insert(LEFT, [str(number), "1", None])
        if number == 5:
            streamed(rig, target, tmp_path)
    rig.update(LEFT, ["0"], amount="5")
    rig.check(LEFT)
    for each in rig.output.table("left").stored_table.targets.values():
        assert len(rig.spark.table(each.at).inputFiles()) <= 4
    assert streamed(rig, target, tmp_path) == [0, 0, 1, *range(3, 7)]


def test_only_a_table_that_the_driver_did_not_write_last_is_compacted_by_spark(rig, monkeypatch):
    compacted: list[str] = []
    monkeypatch.setattr(merging, "COMPACT_STEPS", 2)
    form = rig.applier.format
    monkeypatch.setattr(form, "compact_files", lambda _spark, at: compacted.append(at))
    left(rig)
    rig.update(LEFT, ["0"], amount="5")
    compacted.clear()
    for number in range(3):
        rig.update(LEFT, ["1"], amount=str(number))
    assert not compacted
    with monkeypatch.context() as patch:
        patch.setattr(delta_format, "SMALL_TABLE", 0)
        for number in range(2):
            rig.update(LEFT, ["1"], amount=str(number))
    assert set(compacted) == {rig.target(LEFT).at}
    rig.check(LEFT)


@pytest.fixture
def typed(rig) -> TargetTable:
    rows, target = many(), made(rig, "typed", listed())
    frame = rig.spark.createDataFrame(rows, rig.spark.table(target.at).schema).coalesce(1)
    frame.write.format("delta").mode("append").save(target.at.split("`")[1])
    return msgspec.structs.replace(target, version=1)


def test_rows_of_spark_are_the_same_in_a_file_that_is_written_again(rig, typed):
    form, gone = rig.applier.format, pa.array([True])
    texts = [f"cast(`{name.replace('`', '``')}` as string)" for name in COLUMNS]

    def rows() -> list[tuple[Any, ...]]:
        return sorted(map(tuple, rig.spark.table(typed.at).selectExpr(*texts).collect()), key=str)

    before, net = rows(), many().select(["id"]).slice(3).append_column(GONE, gone)
    write = form.replacing(rig.spark, typed, ["id"], lambda: net)
    assert write is not None
    write()
    assert rows() == before[:3]


def test_a_key_of_each_type_removes_its_row_alone(rig, typed, monkeypatch):
    """Also null, which a value becomes that the column does not have."""
    store, place = rig.output.store, rig.output.uri("")
    path = typed.at.split("`")[1]
    within = path.removeprefix(place).lstrip("/")
    monkeypatch.setattr(DeltaTransaction, "committing", lambda _own, entries, **_how: entries)
    table = DeltaTable(rig.spark, path, store, within, lambda _id: FileList(store, within))
    for name, number in product(set(SKIPPED) - {"f", "d"}, range(4)):
        values = many().column(name).to_pylist()
        row = table.stored(many().slice(number, 1))
        assert row is not None
        assert table.schema is not None
        entries: Any = table.replacing([name, "id"], row, pa.array([True]))
        written = store.read_parquet(f"{within}/{entries[-1]['add']['path']}")
        ids = written.column(table.schema.physical.field(0).name).to_pylist()
        assert ids == [n for n in range(4) if n != number], name
        alone: Any = table.replacing([name], row, pa.array([True]))
        remaining = json.loads(alone[-1]["add"]["stats"])["numRecords"]
        assert remaining == sum(value != values[number] for value in values), name


def test_what_the_driver_does_not_replace(rig, monkeypatch):
    at = f"delta.`{rig.output.uri('tables/t')}`"
    own = delta_format.table_properties(rig.spark, at)
    rig.spark.sql(f"CREATE TABLE {at} (id int, far double) USING delta {own}")
    rig.spark.sql(f"INSERT INTO {at} VALUES (1, 0.0)")
    gone = pa.table({"id": pa.array([1], pa.int32()), "far": [0.0], GONE: [True]})

    def replaces(key: str, rows: pa.Table | None = gone) -> bool:
        target = TargetTable(at=at, version=1)
        return rig.applier.format.replacing(rig.spark, target, [key], lambda: rows) is not None

    assert replaces("id")
    assert not replaces("far"), "two zeros are one key"
    assert not replaces("id", None)
    monkeypatch.setattr(delta_format, "SMALL_TABLE", 10)
    assert not replaces("id"), "the table is large"
