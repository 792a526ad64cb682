"""What changes come to, with their values moved by the driver and by Spark; rows that change their key."""

import datetime as dt
import logging
import random
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from decimal import Decimal
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from tests.harness.changelog import relation
from tests.harness.spark import Rig

from waltap.base.files.store import FileStore
from waltap_sinks.changelog.manifest import Segment
from waltap_spark.compact import compact_changes, log_columns
from waltap_spark.compact.compaction import compacted
from waltap_spark.compact.log_columns import logged, segment_rows, with_epoch
from waltap_spark.compact.small_sets import arrow_types, frame_of
from waltap_spark.formats.table_format import GroupRows
from waltap_spark.planning.plan import SegmentGroup
from waltap_spark.read.live import LiveTables
from waltap_spark.schema.expression import GONE
from waltap_spark.schema.schema import struct_of, types_of
from waltap_spark.session.session import make_active, prepare
from waltap_spark.state.modes import ModeRules, TableMode
from waltap_spark.state.output import TableState

# --- values moved here and by Spark -----------------------------------------------------------------


@pytest.mark.parametrize(
    ("table_format", "most"), [("parquet", 0), ("parquet", compact_changes.FEW), ("delta", 0)]
)
def test_a_key_is_the_zero_that_the_source_has_last(
    delta, tmp_path, monkeypatch, table_format, most
):
    """The two zeros are one key; what is stored of them is the source's value."""
    monkeypatch.setattr(compact_changes, "FEW", most)
    rules = ModeRules(
        modes=(r"public\.versions:scd2", "scd1"), deletes=(r"public\.soft:soft", "hard")
    )
    rig = Rig(tmp_path, delta, table_format, modes=rules)
    columns = [("id", "float8"), ("n", "float4"), ("large", "text")]
    plain, soft, versions = (
        relation(f"public.{name}", columns, key=("id", "n"))
        for name in ("plain", "soft", "versions")
    )
    for table in (plain, soft, versions):
        rig.db.insert(table, ["1.5", "0.0", "a"], ["0.0", "2.5", "b"])
    rig.follow()
    for table in (plain, soft, versions):
        rig.db.insert(table, ["-0.0", "-0.0", "c"])
    for table in (plain, soft):  # of a row that has versions such a change alone makes none
        rig.db.update(table, ["1.5", "0.0"], ["large"], n="1.0")
        rig.db.update(table, ["1.5", "1.0"], ["large"], n="-0.0")
        rig.db.update(table, ["0.0", "2.5"], id="-0.0")
    rig.follow()
    live = LiveTables(rig.spark, rig.output)
    for table in (plain, soft, versions):
        assert rig.output.table(table.name).failed == ""
        found = live.live_rows(table.name).selectExpr(
            "cast(id as string)", "cast(n as string)", "large"
        )
        assert sorted(tuple(row) for row in found.collect()) == sorted(rig.db.rows[table.name])


EPOCH = 1
LOG = pa.schema(
    {
        "_op": pa.string(), "_commit_lsn": pa.int64(), "_seq": pa.int32(), "_sub": pa.int8(),
        "_lsn": pa.int64(), "_commit_ts": pa.timestamp("us", "UTC"), "_xid": pa.int64(),
        "_unchanged": pa.list_(pa.string()),
    }
)  # fmt: skip
THEN = dt.datetime(2026, 1, 2, tzinfo=dt.UTC)


class Segments:
    """Rows of one table, in segments; ``rows``: values of ``own``, operation, and position."""

    def __init__(
        self,
        folder: Path,
        own: pa.Schema,
        key: tuple[str, ...],
        parts: list[list[Any]],
        *,
        dictionaries: bool = False,
    ) -> None:
        self.store, schema = FileStore(str(folder)), pa.schema([*own, *LOG])
        self.group = SegmentGroup("f", EPOCH, key, (), oid=0)
        for number, rows in enumerate(parts):
            path = f"{number}.parquet"
            listed = [(*own_values, op, *place, 0, THEN, 1, None) for own_values, op, place in rows]
            arrays = [
                pa.array([row[n] for row in listed], kind) for n, kind in enumerate(schema.types)
            ]
            pq.write_table(
                pa.table(arrays, schema=schema), folder / path, use_dictionary=dictionaries
            )
            self.group.segments[path] = Segment(path=path, rows=len(rows), bytes=1, unpacked=1)
            self.group.rows += len(rows)
            self.group.operations.update(op for _own, op, _place in rows)
        types = arrow_types(self.store.parquet_schema("0.parquet"))
        self.table = TableState(
            schema="public", table="many", key=key, columns=types, file_schemas={"f": types},
            mode=TableMode(extra=("_seq",)),
        )  # fmt: skip

    def brought(self, spark: Any) -> GroupRows:
        types = self.table.file_schemas["f"]
        return GroupRows(
            group=self.group,
            read=lambda: with_epoch(logged(spark, self.store, self.group, types), EPOCH),
            files=self.store,
        )


@pytest.fixture
def session(spark) -> Any:
    session = prepare(spark)
    make_active(session)
    return session


# --- one row for each key ---------------------------------------------------------------------------

AT = dt.datetime(1500, 1, 1, 0, 0, 0, 1)
"""Before the calendar changed."""

VALUES: dict[pa.DataType, list[Any]] = {
    pa.int64(): [-1, 0, 2**32, 2**53, 2**53 + 1],
    pa.float64(): [0.0, -0.0, 1.5, float("nan"), -float("nan"), float("inf")],
    pa.string(): ["", " ", "a", "A", "a ", "é", "e\u0301", "\0", "a\0", "ß", "ss"],
    pa.binary(): [b"", b"\0", b"\0\0", b"\xff", b"a"],
    pa.timestamp("us"): [AT, AT + dt.timedelta(microseconds=1), dt.datetime(2026, 3, 29, 2, 30)],
    pa.decimal128(38, 0): [Decimal(10**37), Decimal(10**37 + 1), Decimal(-1)],
    pa.time64("us"): [dt.time(0), dt.time(0, 0, 0, 1), dt.time(23, 59, 59, 999_999)],
    pa.list_(pa.int32()): [[], [1], [1, 1], [None]],
    pa.struct([("x", pa.float64())]): [{"x": 0.0}, {"x": -0.0}, {"x": None}],
}


@pytest.mark.parametrize("kind", VALUES, ids=str)
def test_values_are_one_key_here_where_they_are_for_spark(session, tmp_path, monkeypatch, kind):
    """Spark groups the rows of each key where readers compact them."""
    session.conf.set("spark.sql.timeType.enabled", "true")
    chance = random.Random(3)
    values = [*VALUES[kind], None]
    rows = [
        ((chance.choice(values), chance.choice(values), n), "d" if n % 7 == 0 else "u", (10, n, 0))
        for n in range(30)
    ]
    chance.shuffle(rows)
    own = pa.schema({"one": kind, "two": kind, "n": pa.int64()})
    segments = Segments(tmp_path, own, ("one", "two"), [rows[:20], rows[20:]])
    brought, table = segments.brought(session), segments.table
    base = session.createDataFrame([], struct_of(table.columns))
    grouped = compacted(table, [segments.group], brought.log(table), base)
    wanted = sorted(map(tuple, grouped.select("n", "_seq", GONE).collect()))
    assert len(wanted) < len(rows)
    for few, most in ((compact_changes.FEW, 0), (0, log_columns.MOST), (0, 0)):
        monkeypatch.setattr(compact_changes, "FEW", few)
        monkeypatch.setattr(log_columns, "MOST", most)
        frame = brought.compacted(table, lambda: base)
        assert frame.columns == ["one", "two", "n", "_seq", GONE]
        assert sorted(map(tuple, frame.select("n", "_seq", GONE).collect())) == wanted


def test_keys_and_positions_are_read_without_spark_where_segments_have_them(tmp_path):
    rows = [((n % 3, n), "u", (10, n, 0)) for n in range(9)]
    own = pa.schema({"id": pa.int64(), "n": pa.int64()})

    def is_read(name: str, change: Callable[[Segments], object], **how: bool) -> bool:
        (tmp_path / name).mkdir()
        made = Segments(tmp_path / name, own, ("id",), [rows], **how)
        change(made)
        return segment_rows(made.table, made.group, made.store) is not None

    assert is_read("plain", lambda made: None)
    assert not is_read("converted", lambda made: made.group.converted.append("elsewhere"))
    assert not is_read("fewer than said", lambda made: setattr(made.group, "rows", 10))
    assert not is_read("gone", lambda made: (tmp_path / "gone" / "0.parquet").unlink())
    hidden = is_read("dictionaries", lambda made: None, dictionaries=True)
    assert not hidden, "nobody knows how much they hold"


def test_rows_of_a_snapshot_are_told_apart_by_their_keys(session, tmp_path, monkeypatch):
    """All of them are at one position; a row that was read twice counts once."""
    monkeypatch.setattr(compact_changes, "FEW", 0)
    rows = [((n % 6, n), "r", (10, -1, 0)) for n in range(6)]
    rows += [rows[2], ((1, 10), "u", (11, 0, 0)), ((3, 11), "d", (11, 1, 0))]
    own = pa.schema({"id": pa.int64(), "n": pa.int64()})
    segments = Segments(tmp_path, own, ("id",), [rows])
    base = session.createDataFrame([], struct_of(segments.table.columns))
    found = segments.brought(session).compacted(segments.table, lambda: base)
    values = found.where(f"not {GONE}").select("id", "n").collect()
    assert sorted(map(tuple, values)) == [(0, 0), (1, 10), (2, 2), (4, 4), (5, 5)]
    assert [row["id"] for row in found.where(GONE).collect()] == [3]


def test_slices_without_replaced_rows_hide_no_others(session, tmp_path, monkeypatch):
    for module, name, most in (
        (compact_changes, "FEW", 0),
        (log_columns, "MOST", 0),
        (compact_changes, "SLICE", 4),
    ):
        monkeypatch.setattr(module, name, most)
    changed = {7, 8, 21, 30}
    rows = [((n, 0), "c", (10, n, 0)) for n in range(32)]
    rows += [((n, 1), "u", (11, n, 0)) for n in changed]
    own = pa.schema({"id": pa.int64(), "n": pa.int64()})
    segments = Segments(tmp_path, own, ("id",), [rows])
    base = session.createDataFrame([], struct_of(segments.table.columns))
    found = segments.brought(session).compacted(segments.table, lambda: base)
    values = sorted(map(tuple, found.select("id", "n").collect()))
    assert values == [(n, int(n in changed)) for n in range(32)]


# --- keys that change -----------------------------------------------------------------------------

COLUMNS = [("id", "int4"), ("name", "text"), ("note", "text")]
PEOPLE = relation("public.people", COLUMNS)
BOTH_WAYS = pytest.mark.parametrize("few", [0, 20_000], ids=["moved by Spark", "moved here"])


@pytest.fixture
def rig(spark, tmp_path) -> Rig:
    return Rig(tmp_path, spark)


def test_a_time_of_day_moves_along(rig):
    """Plans of grouped rows are checked by the settings of the thread's own session, which has to know `time`."""
    clocks = relation("public.clocks", [("id", "int4"), ("at", "time"), ("note", "text")])
    rig.insert(clocks, ["1", "05:17:00.25", "a"], ["2", None, "b"])
    rig.update(clocks, ["1"], id="3", unsent=["note"])
    assert rig.output.table("public.clocks").failed == ""
    with ThreadPoolExecutor(1) as readers:
        readers.submit(rig.check, clocks).result()


@pytest.mark.parametrize(("moves", "few"), [(210, 0), (3000, 20_000)])
def test_a_value_is_kept_through_any_number_of_moves(rig, moves, few, monkeypatch):
    monkeypatch.setattr("waltap_spark.compact.compact_changes.FEW", few)
    rig.insert(PEOPLE, ["1", "a", "far"], ["-1", "b", "near"])
    for n in range(1, moves + 1):
        rig.db.update(PEOPLE, [str(n)], id=str(n + 1), unsent=["note"])
        rig.db.update(PEOPLE, [str(-n)], id=str(-n - 1), unsent=["note"])
        if n % 100 == 0:
            rig.db.update(PEOPLE, [str(-n - 1)], note=f"near {n}")
    rig.commit()
    rig.apply(PEOPLE)


MADE = [
    "__gone", "__code", "_compacted", "note", "Note", "a.b", "we ird,;{}()=\n",
    "__Alive0", "__sent0", "__key0", "__was0", "__base0", "__last", "__stands", "__same0", "__stored", "__epoch",
    "__lsn", "__seq", "__end", "__ended", "__row", "__whole", "__alive", "__turns", "__ts", "__part0",
    "__goes_on", "__moves", "__first", "__xid", "__deletion", "__truncates", "_put", "_verdict", "_was", "_at 0",
    "__waltap_gone", "__Waltap_changed", "__waltap_era", "__waltap_truncated", "__waltap_weight",
    "__waltap_never", "__waltap 0", "__waltap 1",
]  # fmt: skip
"""Names that are made beside a table's columns, for a while."""


@BOTH_WAYS
def test_columns_may_be_called_as_those_that_are_made_on_the_way(spark, tmp_path, few, monkeypatch):
    monkeypatch.setattr("waltap_spark.compact.compact_changes.FEW", few)
    rules = ModeRules(
        modes=(r".*versions:scd2", "scd1"), deletes=(r".*(soft|versions):soft", "hard")
    )
    rig = Rig(tmp_path, spark, modes=rules)
    columns = [("_id", "int4"), ("_value", "text"), *((name, "text") for name in MADE)]
    tables = [
        relation(f"public.{name}", columns, key=("_id", "_value"))
        for name in ("plain", "soft", "versions")
    ]
    taken = relation("public.taken", [("id", "int4"), ("_epoch", "int4")])
    rig.db.insert(taken, ["1", "2026"])
    for table in tables:
        rig.db.insert(table, *[[n, "v", *(f"{name} of {n}" for name in MADE)] for n in "159"])
    rig.follow()
    assert "WT-5104" in rig.output.table("taken").failed, "the log's own would take its place"
    for table in tables:
        rig.db.update(table, ["1", "v"], ["note", "__gone"], _id="2")
        rig.db.update(table, ["5", "v"], ["note", "_compacted"], __code="other")
        rig.db.delete(table, ["9", "v"])
    rig.follow()
    live = LiveTables(rig.spark, rig.output, allow_stale=True)
    for table in tables:
        assert rig.output.table(table.name).failed == ""
        texts = [f"cast(`{each.name}` as string)" for each in table.columns]
        rows = live.live_rows(table.name).selectExpr(*texts).collect()
        assert sorted(map(tuple, rows)) == sorted(rig.db.rows[table.name])


@pytest.mark.parametrize("known", [True, False])
def test_few_rows_of_many_bytes_are_left_to_spark_and_so_is_what_goes_wrong_which_is_said(
    rig, monkeypatch, caplog, known
):
    read: list[int] = []

    class Counted(compact_changes._Set):
        def last_rows(self, *, live: bool) -> Any:
            read.append(self.count)
            if len(read) > 1:
                raise pa.ArrowInvalid("what nobody thought of")
            return super().last_rows(live=live)

    monkeypatch.setattr(compact_changes, "_Set", Counted)
    monkeypatch.setattr(compact_changes, "LARGE", 20_000)
    if not known:  # as of a log that an earlier version wrote
        monkeypatch.setattr(compact_changes, "unpacked_in_all", lambda _changes: 0)
    rig.insert(PEOPLE, ["1", "a", "n"])
    key = 1
    for size in (30_000, 10, 10, 10):
        rig.update(PEOPLE, [str(key)], ["note"], id=str(key + 1), name="x" * size)
        rig.check(PEOPLE)
        key += 1
    assert read == [1 + 1, 1 + 1, 1 + 1], "the wide row was not read here"
    reported = [each.message for each in caplog.records if each.levelno == logging.WARNING]
    assert [text for text in reported if "what nobody thought of" in text] == reported[:1]


# --- few rows are written without Spark -----------------------------------------------------------

KINDS = {
    "b": pa.bool_(), "i8": pa.int8(), "i16": pa.int16(), "i32": pa.int32(), "i64": pa.int64(),
    "f32": pa.float32(), "f64": pa.float64(), "text": pa.string(), "bytes": pa.binary(),
    "day": pa.date32(), "clock": pa.time64("us"), "ts": pa.timestamp("us"),
    "tz": pa.timestamp("us", tz="UTC"), "n": pa.decimal128(38, 10), "money": pa.decimal128(19, 2),
    "list": pa.list_(pa.int32()), "lists": pa.list_(pa.timestamp("us", tz="UTC")),
    "map": pa.map_(pa.string(), pa.string()),
    "point": pa.struct([("x", pa.float64()), ("y", pa.float64())]),
}  # fmt: skip


def test_types_are_those_that_spark_infers(spark, tmp_path):
    rows = pa.table({name: pa.array([None], kind) for name, kind in KINDS.items()})
    pq.write_table(rows, tmp_path / "every.parquet")
    inferred = types_of(prepare(spark).read.parquet(str(tmp_path / "every.parquet")).schema)
    assert arrow_types(FileStore(str(tmp_path)).parquet_schema("every.parquet")) == inferred
    empty = frame_of(spark, rows.select(["list"]).slice(1), {"list": inferred["list"]})
    assert empty.count() == 0
