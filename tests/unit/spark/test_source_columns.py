"""Which columns a query has: over tables made anew, other names and types, and starts of one frame."""

import datetime as dt
import decimal
from collections.abc import Iterator
from pathlib import Path

import pyarrow as pa
import pytest
from pyarrow import parquet
from pyspark.sql.types import StringType, StructField, StructType
from tests.harness.changelog import relation
from tests.harness.source_log import Frame, SourceLog

from waltap.files.store import FileStore
from waltap_sinks.changelog import LogPosition
from waltap_spark.schema import struct_of
from waltap_spark.source.catalogue import arrow_types
from waltap_spark.source.errors import ColumnsGrew, ValuesUnfit
from waltap_spark.source.rows import RowLimits, SegmentRows, batches

ID = ("id", "int4")
OTHER = relation("public.other", [ID])


@pytest.fixture
def log(tmp_path: Path) -> Iterator[SourceLog]:
    made = SourceLog(tmp_path)
    yield made
    made.sink.close()


def test_columns_of_a_table_that_was_made_anew_go_by_their_names(log: SourceLog) -> None:
    texts = [("first", "text"), ("last", "text")]
    old = relation("public.people", [ID, *texts], numbers=(1, 2, 3), oid=1)
    new = relation("public.people", [ID, *reversed(texts)], numbers=(1, 2, 3), oid=2)
    log.insert(old, ["1", "Ann", "Ames"])
    log.insert(new, ["2", "Boyd", "Bob"])
    frame = log.frame()
    for rows in (frame.rows(), frame.streamed()):
        assert [(row["first"], row["last"]) for row in rows] == [("Ann", "Ames"), ("Bob", "Boyd")]


def test_what_was_not_sent_is_said_by_the_name_that_the_query_has(log: SourceLog) -> None:
    old = relation("public.people", [ID, ("note", "text")], numbers=(1, 2))
    new = relation("public.people", [ID, ("remark", "text")], numbers=(1, 2))
    log.insert(old, ["1", "long"])
    log.db.update(old, ["1"], unsent=["note"])
    log.flush()
    log.insert(new, ["2", "short"])
    frame = log.frame()
    for rows in (frame.rows(), frame.streamed()):
        assert [row["_unchanged"] for row in rows] == [None, ["remark"], None]
        assert [row["remark"] for row in rows] == ["long", None, "short"]


def test_a_frame_that_is_started_again_does_not_leave_out_what_stopped_it(log: SourceLog) -> None:
    log.people("Ann")
    frame = log.frame()
    assert [row["name"] for row in frame.rows()] == ["Ann"]
    columns = [ID, ("name", "text"), ("more", "int4")]
    log.insert(relation("public.people", columns), ["2", "Bob", "9"])
    for _start in range(2):
        with pytest.raises(ColumnsGrew, match="WT-5224 public.people got columns at .*: more"):
            frame.streamed()
        with pytest.raises(ColumnsGrew, match="WT-5224 public.people got columns at .*: more"):
            frame.rows()
    assert [row["more"] for row in log.frame().streamed()] == [None, 9]


def test_a_batch_that_ends_before_a_new_column_is_read(log: SourceLog) -> None:
    log.people("Ann")
    last = log.log.last()
    assert last is not None
    frame = log.frame(endingPosition=str(last.mark))
    columns = [ID, ("name", "text"), ("more", "int4")]
    log.insert(relation("public.people", columns), ["2", "Bob", "9"])
    assert [row["name"] for row in frame.rows()] == ["Ann"]


def test_a_column_renamed_between_load_and_start_stays(log: SourceLog) -> None:
    log.insert(relation("public.people", [ID, ("name", "text")], numbers=(1, 2)), ["1", "Ann"])
    frame = log.frame()
    log.insert(relation("public.people", [ID, ("called", "text")], numbers=(1, 2)), ["2", "Bob"])
    for rows in (frame.rows(), frame.streamed()):
        assert [row["name"] for row in rows] == ["Ann", "Bob"]


def test_a_stream_goes_on_when_all_that_named_its_table_is_retired(log: SourceLog) -> None:
    log.people("Ann")
    frame = log.frame()
    log.insert(OTHER, ["7"])
    last = log.log.last()
    assert last is not None
    assert log.log.retire(last.mark, "9") == 1
    assert (frame.streamed(), frame.rows()) == ([], [])
    log.people("Bob")
    for rows in (frame.rows(), frame.streamed()):
        assert [row["name"] for row in rows] == ["Bob"]


def test_a_column_may_be_called_like_that_which_names_the_tables(log: SourceLog) -> None:
    named = relation("public.people", [ID, ("_table", "text")])
    log.insert(named, ["1", "of wood"])
    frame = log.frame()
    log.insert(named, ["2", "of stone"])
    for rows in (frame.rows(), frame.streamed()):
        assert [row["_table"] for row in rows] == ["of wood", "of stone"]


TYPES = [
    ("float4", "0.1", "float8", "0.1"),
    ("date", "2026-01-01", "timestamp", "2026-01-01 12:00:00"),
    ("int4", "1", "int8", "8589934592"),
    ("int4", "1", "text", "one"),
]


@pytest.mark.parametrize(("old", "before", "new", "after"), TYPES)
def test_a_type_that_a_query_does_not_know_stops_it(
    log: SourceLog, old: str, before: str, new: str, after: str
) -> None:
    log.insert(relation("public.people", [ID, ("value", old)], numbers=(1, 2)), ["1", before])
    frames = [log.frame(), log.frame(newColumns="ignore")]
    log.insert(relation("public.people", [ID, ("value", new)], numbers=(1, 2)), ["2", after])
    for frame in frames:
        with pytest.raises(ColumnsGrew, match="WT-5224 public.people has other types at .*: value"):
            frame.streamed()
        with pytest.raises(ColumnsGrew, match="WT-5224 public.people has other types at .*: value"):
            frame.rows()
    assert [row["id"] for row in log.frame().streamed()] == [1, 2]


def test_values_from_before_a_type_that_does_not_hold_them_are_told_of(log: SourceLog) -> None:
    log.insert(relation("public.people", [ID, ("value", "text")], numbers=(1, 2)), ["1", "one"])
    log.insert(relation("public.people", [ID, ("value", "int4")], numbers=(1, 2)), ["2", "2"])
    frame = log.frame()
    told = r"WT-5269 value of public.people was string and does not fit int32: .*'one'"
    for read in (frame.rows, frame.streamed):
        with pytest.raises(ValuesUnfit, match=told):
            read()
    texts = [
        StructField(each.name, StringType()) if each.name == "value" else each
        for each in frame.schema
    ]
    wider = Frame({"path": log.path, "table": "public.people"}, StructType(texts))
    for read in (wider.rows, wider.streamed):
        assert [row["value"] for row in read()] == ["one", "2"]
    assert [row["value"] for row in log.frame(startingPosition=str(_second(log))).rows()] == [2]


def _second(log: SourceLog) -> LogPosition:
    return next(iter(log.log.manifests())).mark


CLOCK = pa.struct([("opens", pa.time64("us")), ("seats", pa.int32())])
NESTED = {
    "hours": (CLOCK, {"opens": dt.time(8, 30), "seats": 4}),
    "days": (pa.list_(CLOCK), [{"opens": dt.time(9), "seats": None}, None]),
    "wide": (pa.map_(pa.string(), pa.decimal256(50, 1)), [("a", decimal.Decimal("1.5"))]),
}


def test_times_and_wide_decimals_are_text_wherever_they_are(tmp_path: Path) -> None:
    types = {name: kind for name, (kind, _value) in NESTED.items()}
    types |= {"_commit_lsn": pa.int64(), "_commit_ts": pa.timestamp("us", tz="UTC")}
    values = {name: [value, None] for name, (_kind, value) in NESTED.items()}
    own = {"_commit_lsn": [1, 2], "_commit_ts": [0, 0]}
    rows = pa.table({**values, **own}, schema=pa.schema(types.items()))
    parquet.write_table(rows, tmp_path / "segment.parquet")
    struct = struct_of(arrow_types(rows.select(list(NESTED)).schema))
    assert struct.simpleString() == (
        "struct<hours:struct<opens:string,seats:int>,"
        "days:array<struct<opens:string,seats:int>>,wide:map<string,string>>"
    )
    called = dict(zip(NESTED, NESTED, strict=True))
    segment = SegmentRows(
        path="segment.parquet", rows=2, table="p.t", epoch=1, generation=None, called=called
    )
    (part,) = batches(FileStore(str(tmp_path)), [segment], struct, RowLimits(), many=False)
    assert part.to_pylist() == [
        {
            "hours": {"opens": "08:30:00.000000", "seats": 4},
            "days": [{"opens": "09:00:00.000000", "seats": None}, None],
            "wide": [("a", "1.5")],
        },
        dict.fromkeys(NESTED),
    ]
