"""``format("waltap")`` without a session: its options, the offsets of a stream, and the columns of its rows."""

import datetime as dt
import decimal
import json
import pickle
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import pyarrow as pa
import pytest
from pyarrow import parquet
from pyspark.sql.types import StringType, StructField, StructType
from tests.harness.changelog import COMMIT_TS, relation
from tests.harness.source_log import PEOPLE, Frame, Offset, SourceLog

from waltap.base.files.store import FileStore
from waltap.changes.transactions.position import Position
from waltap_sinks.changelog import LogPosition
from waltap_sinks.changelog.reader import LogReaders
from waltap_spark.errors import (
    ChangesMissing,
    ColumnsGrew,
    MomentUnreadable,
    OffsetOfAnother,
    SourceOption,
    TableNotLogged,
    ValuesUnfit,
    VersionGone,
)
from waltap_spark.read.catalogue import arrow_types, source_struct
from waltap_spark.read.hosted import HostedEngine
from waltap_spark.read.live import LiveTables
from waltap_spark.read.options import parse_options
from waltap_spark.read.rows import RowLimits, SegmentRows, batches
from waltap_spark.read.stream import ChangeLogStream
from waltap_spark.read.tasks import LogTask, log_position_of
from waltap_spark.schema.schema import struct_of
from waltap_spark.state.output import SparkOutput
from waltap_spark.state.version_maps import parse_position

ID = ("id", "int4")
GOOD = {"path": "log", "table": "public.people"}
LAKE = "s3://lake/shop"


@pytest.fixture
def log(tmp_path) -> Iterator[SourceLog]:
    made = SourceLog(tmp_path)
    yield made
    made.close()


def both(frame: Frame) -> Iterator[list[dict[str, Any]]]:
    """Give the rows of a frame as a batch has them, and as a stream has them."""
    yield frame.rows()
    yield frame.streamed()


def people(*columns: tuple[str, str], **more: Any) -> Any:
    return relation("public.people", [ID, *columns], **more)


# --- options ----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("given", "reported"),
    [
        ({"table": "public.people"}, "no path"),
        ({"path": "log"}, "either table"),
        ({**GOOD, "tables": "*"}, "either table"),
        ({"path": "log", "table": "people"}, "no schema"),
        ({**GOOD, "maxRowsPerBatch": "0"}, "maxRowsPerBatch is 0"),
        ({**GOOD, "maxBytesPerBatch": "many"}, "maxBytesPerBatch is many"),
        ({**GOOD, "newColumns": "maybe"}, "newColumns is maybe, not fail or ignore"),
        ({**GOOD, "startingPosition": "now"}, "startingPosition is now, not earliest"),
        ({**GOOD, "endingTime": "noon"}, "endingTime is noon, not a time"),
        ({**GOOD, "endingTime": "2026-01-01", "endingPosition": "latest"}, "not both"),
        ({**GOOD, "maxrows": "1"}, "option maxrows is not known"),
        ({**GOOD, "profile": "a.toml"}, "path is of a change log, not of a profile"),
        ({"profile": "a.toml", "table": "s.t", "reader": "x"}, "reader is of a change log"),
        (
            {**GOOD, "changelogLocation": "folder"},
            "changelogLocation is where the engine of a profile writes",
        ),
    ],
)
def test_an_option_that_is_wrong_is_named(given, reported):
    with pytest.raises(SourceOption, match="WT-5221") as caught:
        parse_options(given)
    assert reported in str(caught.value)


def test_a_position_that_is_neither_is_refused_wherever_it_is_given(tmp_path):
    output, no_spark = SparkOutput(str(tmp_path)), Any
    state = msgspec.structs.replace(
        output.open("log", "id"), number=1, log_position=LogPosition(1, 16, 0)
    )
    output.commit(state)
    output.close()
    live = LiveTables(no_spark, output)
    for text in "/ yesterday 1A 1A/XYZ 1/2/3 -1/5 2026-03-01 1-2 1-2-x".split():
        with pytest.raises(
            MomentUnreadable, match=f"WT-5264 '{text}' is neither an LSN nor a position"
        ):
            live.at(text)
        with pytest.raises(SourceOption, match=f"WT-5221 startingPosition is {text}, not earliest"):
            parse_options({**GOOD, "startingPosition": text})
    with pytest.raises(VersionGone, match="LSN 11 was not applied yet"):
        live.at("0/11")
    assert parse_position("1A/2b3C") == (0x1A << 32) + 0x2B3C


def test_profiles_and_patterns_of_tables_are_lists_with_commas_between():
    found = parse_options(
        {"profile": "a.toml, b.toml", "table": "s.t", "changelogLocation": "s3://lake/spool"}
    )
    assert (found.profiles, found.changelog_location) == (("a.toml", "b.toml"), "s3://lake/spool")
    found = parse_options({"path": "log", "tables": "public.a*, sales.x"})
    assert list(map(found.wants, ("public.ab", "public.b", "sales.x"))) == [True, False, True]


@pytest.mark.parametrize(
    ("option", "value"),
    [("endingPosition", "0/1"), ("endingTime", "2026-01-01"), ("skipReplaced", "true")],
)
def test_what_is_of_a_batch_is_refused_by_a_stream(log, option, value):
    log.people("Ann")
    with pytest.raises(SourceOption, match=f"WT-5221 {option} is of a batch, not of a stream"):
        log.stream(**{option: value})


def profile(folder: Path, **sink: Any) -> str:
    file = folder / "shop.toml"
    lines = ['name = "shop"', "[source]", 'type = "postgres"', '"database.dbname" = "shop"']
    lines += ["[sink]", 'type = "changelog"', f'path = "{LAKE}"']
    file.write_text(
        "\n".join([*lines, *(f"{json.dumps(n)} = {json.dumps(sink[n])}" for n in sink)])
    )
    return str(file)


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("storage.endpoint", "http://127.0.0.1:9000"),
        ("storage.access.key", "somebody"),
        ("storage.secret.key", "sesame"),
        ("storage.anonymous", True),
    ],
)
def test_a_change_log_that_the_profile_shows_how_to_reach_is_the_private_log_and_shows_no_secret(
    tmp_path, name, value
):
    """Also in what goes to tasks; another private log is reached as the environment says."""
    file = profile(tmp_path, **{name: value})
    host = HostedEngine(file)
    task = pickle.loads(pickle.dumps(LogTask([], RowLimits(), host.location, host.storage)))
    assert (host.location, host.own) == (LAKE, True)
    assert task.storage.model_dump(by_alias=True)[name] == value
    assert "sesame" not in f"{host.storage!r} {task.__dict__}"
    other = HostedEngine(file, "private_logs")
    assert (other.location, other.storage) == ("private_logs/shop", None)


def test_a_change_log_that_the_environment_shows_of_is_the_private_log(tmp_path):
    host = HostedEngine(profile(tmp_path))
    assert (host.location, host.own, host.storage) == (LAKE, True, None)


# --- offsets of a stream ----------------------------------------------------------------------------


def text(lsn: int) -> str:
    return f"{lsn >> 32:X}/{lsn & 0xFFFFFFFF:X}"


def names(stream: ChangeLogStream, start: Offset, end: Offset) -> list[str]:
    """Return what a batch has, its tasks and its reader each sent to another process."""
    start, end = json.loads(json.dumps((start, end)))
    tasks = pickle.loads(pickle.dumps(stream.partitions(start, end)))
    parts = [part for task in tasks for part in stream.read(task)]
    return [row["name"] for part in parts for row in part.to_pylist()]


def latest(stream: ChangeLogStream, start: Offset) -> Offset:
    return stream.latestOffset(start, stream.getDefaultReadLimit())


def test_an_lsn_that_the_log_has_not_reached_is_waited_for_over_restarts(log):
    log.people("Ann")
    given = {"startingPosition": text(log.db.lsn + 0x1000)}
    began = log.stream(**given).initialOffset()
    log.people("too", "early")
    stream = log.stream(**given)
    early = latest(stream, began)
    assert names(stream, began, early) == []
    log.people("early, too")
    log.db.lsn += 0x1000
    log.people("Bob")
    stream = log.stream(startingPosition="earliest")
    end = latest(stream, early)
    assert names(stream, early, end) == ["Bob"], "the first start counts, as Spark has it"
    assert "first" not in end, "what follows is all wanted"


def test_the_time_of_the_first_start_counts_over_restarts(log):
    now = COMMIT_TS + log.db.lsn
    log.people("too early")
    early, late = (
        dt.datetime.fromtimestamp((now + more) / 1e6, dt.UTC).isoformat()
        for more in (0x2000, 0x9000)
    )
    began = log.stream(startingTime=early).initialOffset()
    log.people("early, too")
    log.db.lsn += 0x3000
    log.people("Bob")
    stream = log.stream(startingTime=late)
    assert names(stream, began, latest(stream, began)) == ["Bob"]
    del began["first"]  # as in a checkpoint of an earlier release
    stream = log.stream(startingTime=late)
    assert names(stream, began, latest(stream, began)) == []


def test_spark_4_1_asks_for_the_end_alone_and_the_lsn_is_waited_for_all_the_same(log):
    log.people("Ann")
    given = {"startingPosition": text(log.db.lsn + 0x1000)}
    stream = log.stream(**given)
    offsets = [stream.latestOffset()]
    offsets.insert(0, stream.initialOffset())
    for number in range(4):
        assert names(stream, *offsets[-2:]) == []
        log.people(f"early {number}")
        offsets.append(stream.latestOffset())
        stream = log.stream(**given) if number else stream
    log.db.lsn += 0x1000
    log.people("Bob")
    assert names(stream, offsets[-1], stream.latestOffset()) == ["Bob"]


def test_the_offset_of_an_earlier_version_is_read_and_drops_nothing(log):
    log.people("Ann")
    given = {"startingPosition": text(log.db.lsn + 0x1000)}
    lsn = log.newest.log_position.end_lsn
    reported = {"version": 1, "log": log.log.identity(), "epoch": 1, "end_lsn": lsn, "ordinal": 0}
    assert latest(log.stream(**given), reported) == reported
    # The server is another from here on: a new epoch, whose LSNs begin far below.
    log.close()
    log.open()
    log.db.lsn = 0x1000
    log.people("Dan")
    stream = log.stream(**given)
    assert names(stream, reported, latest(stream, reported)) == ["Dan"]


def snapshot(log: SourceLog, ts: int = COMMIT_TS, position: Position | None = None) -> None:
    """The rows of a snapshot, in two manifests of one LSN; ``position`` of one beside an older slot."""
    log.people("Ann")
    log.db.rows[PEOPLE.name] = [("1", "Bob"), ("2", "Cid")]
    log.db.lsn += 100 if position else 0
    pieces = log.db.snapshot(PEOPLE, rows_each=1)
    for piece in pieces:
        piece.position = position or piece.position
        for part in piece.parts:
            part.ts = ts
    log.flush(pieces[0])
    log.flush(*pieces[1:])


def test_a_time_to_start_at_has_the_rows_of_a_snapshot_that_were_read_from_then_on(log):
    since = dt.datetime.fromtimestamp(COMMIT_TS / 1e6, dt.UTC) + dt.timedelta(hours=1)
    snapshot(log, ts=COMMIT_TS + 3_600_000_000)
    for rows in both(log.frame(startingTime=since.isoformat())):
        assert [row["name"] for row in rows] == ["Bob", "Cid"]
    later = since + dt.timedelta(seconds=1)
    assert log.frame(startingTime=later.isoformat()).rows() == []
    tomorrow = dt.datetime.now(dt.UTC) + dt.timedelta(days=1)
    began = log.stream(startingTime=tomorrow.isoformat()).initialOffset()
    assert log_position_of(began) == log.newest.log_position, (
        "what was read long before is passed over"
    )


def test_a_batch_begins_and_ends_where_it_is_reported(log):
    for name in "abcd":
        log.people(name)
    first = log.db.inserted(PEOPLE, ["11", "e"])
    log.flush(first, log.db.inserted(PEOPLE, ["12", "f"]))
    positions = [each.log_position for each in log.manifests()]
    lsn, within = text(positions[1].end_lsn), text(first.end_lsn)  # within a flush
    at = dt.datetime.fromtimestamp((COMMIT_TS + first.commit_lsn) / 1e6, dt.UTC).isoformat()
    for given, found in (
        ({}, "abcdef"),
        ({"startingPosition": str(positions[2])}, "def"),
        ({"startingPosition": lsn, "endingPosition": str(positions[3])}, "cd"),
        ({"startingPosition": within}, "f"),
        ({"endingPosition": within}, "abcde"),
        ({"endingPosition": "earliest"}, ""),
        ({"startingPosition": "latest"}, ""),
        ({"startingTime": at}, "ef"),
        ({"endingTime": at}, "abcde"),
    ):
        assert "".join(row["name"] for row in log.frame(**given).rows()) == found, given
    between = f"{str(positions[2])[:-1]}1"
    for read in (
        log.frame(startingPosition=between).rows,
        log.stream(startingPosition=between).initialOffset,
    ):
        with pytest.raises(SourceOption, match=f"the log has no position {between}"):
            read()


def test_changes_that_the_log_lacks_end_a_query_unless_it_reads_on_without_them(log):
    other = relation("public.other", [ID])
    log.people("Ann")
    log.sink.record_gap(other.name)  # of which nothing came before
    log.insert(other, ["1"])
    assert len(log.frame(table=other.name).rows()) == 1
    stream = log.stream()
    end = latest(stream, stream.initialOffset())
    log.sink.record_gap(PEOPLE.name)
    log.people("Bob")
    for read in (log.frame().rows, lambda: names(stream, end, latest(stream, end))):
        with pytest.raises(
            ChangesMissing, match="WT-5272 public.people was not captured for a while"
        ):
            read()
    for rows in both(log.frame(failOnDataLoss="false")):
        assert [row["name"] for row in rows] == ["Ann", "Bob"]
    later = latest(stream, end)
    log.people("Cid")
    assert names(stream, later, latest(stream, later)) == ["Cid"], "later batches lack nothing"


@pytest.mark.parametrize("older_slot", [False, True])
@pytest.mark.parametrize("above", [-1, 0, 1])
def test_two_reads_that_meet_at_an_lsn_have_each_row_once(log, above, older_slot):
    """Also around a snapshot beside an older slot: its rows stand behind what the slot had given."""
    snapshot(log, position=Position(log.db.lsn + 120) if older_slot else None)
    meeting = text(log.db.lsn + above)
    log.people("Dan")
    halves = [log.frame(endingPosition=meeting).rows(), log.frame(startingPosition=meeting).rows()]
    assert [row["name"] for half in halves for row in half] == ["Ann", "Bob", "Cid", "Dan"]
    if not older_slot:
        assert [len(half) for half in halves] == ([3, 1] if above > 0 else [1, 3])
        assert log.frame(startingPosition=meeting).streamed() == halves[1]


# --- columns ----------------------------------------------------------------------------------------


def test_a_table_that_is_not_there_is_named(log):
    log.people("Ann")
    with pytest.raises(
        TableNotLogged, match=r"WT-5223 .* has no table public.nobody.* public.people"
    ):
        log.frame(table="public.nobody")


@pytest.mark.parametrize("name", ["_epoch", "_generation"])
def test_a_column_called_as_one_of_the_data_sources_own_is_not_lost(log, name):
    log.insert(people((name, "text")), ["1", "mine"])
    path = {"path": log.path}
    with pytest.raises(SourceOption, match=f"public.people has a column {name} itself: use tables"):
        source_struct(log.log, parse_options({**path, "table": PEOPLE.name}))
    struct = source_struct(log.log, parse_options({**path, "tables": PEOPLE.name}))
    assert struct[PEOPLE.name].dataType[name].dataType.typeName() == "string"


def test_columns_of_a_table_that_was_made_anew_go_by_their_names(log):
    texts = [("first", "text"), ("last", "text")]
    log.insert(people(*texts, numbers=(1, 2, 3), oid=1), ["1", "Ann", "Ames"])
    log.insert(people(*reversed(texts), numbers=(1, 2, 3), oid=2), ["2", "Boyd", "Bob"])
    for rows in both(log.frame()):
        assert [(row["first"], row["last"]) for row in rows] == [("Ann", "Ames"), ("Bob", "Boyd")]


def test_what_was_not_sent_is_said_by_the_name_that_the_query_has(log):
    old = people(("note", "text"), numbers=(1, 2))
    log.insert(old, ["1", "long"])
    log.db.update(old, ["1"], unsent=["note"])
    log.flush(log.db.commit())
    log.insert(people(("remark", "text"), numbers=(1, 2)), ["2", "short"])
    for rows in both(log.frame()):
        assert [row["_unchanged"] for row in rows] == [None, ["remark"], None]
        assert [row["remark"] for row in rows] == ["long", None, "short"]


def test_a_frame_that_is_started_again_does_not_leave_out_what_stopped_it(log):
    log.people("Ann")
    frame, ignoring = log.frame(), log.frame(newColumns="ignore")
    last = str(log.newest.log_position)
    before = log.frame(endingPosition=last)
    assert [row["name"] for row in frame.rows()] == ["Ann"]
    log.insert(people(("name", "text"), ("more", "int4")), ["2", "Bob", "9"])
    for read in (frame.streamed, frame.rows) * 2:
        with pytest.raises(ColumnsGrew, match="WT-5224 public.people got columns at .*: more"):
            read()
    for rows in both(ignoring):
        assert [row["name"] for row in rows] == ["Ann", "Bob"]
    assert [row["more"] for row in log.frame().streamed()] == [None, 9]
    assert [row["name"] for row in before.rows()] == ["Ann"], "a batch that ends before is read"


def test_a_stream_goes_on_when_all_that_named_its_table_is_expired(log):
    log.people("Ann")
    frame = log.frame()
    log.insert(relation("public.other", [ID]), ["7"])
    assert log.log.expire(log.newest.log_position, "9") == 1
    assert (frame.streamed(), frame.rows()) == ([], [])
    log.people("Bob")
    for rows in both(frame):
        assert [row["name"] for row in rows] == ["Bob"]


@pytest.mark.parametrize("asked_alone", [False, True])
def test_a_query_without_changes_reports_that_its_reader_is_alive(log, asked_alone):
    """A job that finds nothing for days has no batch; what comes then must wait for its next run."""
    log.people("Ann")
    stream = log.stream(reader="daily")
    end = latest(stream, stream.initialOffset())
    stream.commit(end)
    path = Path(log.log.store.path("readers/daily.json"))
    path.write_text(json.dumps({**json.loads(path.read_text()), "seen": 0.0}))
    stream = log.stream(reader="daily")
    assert (stream.latestOffset() if asked_alone else latest(stream, end)) == end
    log.people("Bob")
    log.people("Cid")
    assert log.log.expire(log.newest.log_position, "9") == 1, "what the reader has read"
    assert names(stream, end, latest(stream, end)) == ["Bob", "Cid"]


def test_a_reader_begins_where_the_log_does_when_it_is_registered(log, monkeypatch):
    """Retention, which does not know it yet, removes what the query found first."""

    def register(*given: Any, **named: Any) -> Any:
        log.log.expire(log.newest.log_position, "9")
        return register_reader(*given, **named)

    register_reader = LogReaders.register
    log.people("Ann")
    log.people("Bob")
    stream = log.stream(reader="daily")
    monkeypatch.setattr(LogReaders, "register", register)
    start = stream.initialOffset()
    assert names(stream, start, latest(stream, start)) == ["Bob"]


def test_a_running_query_notices_that_its_log_was_begun_anew(log, monkeypatch):
    """Its server is another, whose LSNs are lower: nothing would come, without an error."""
    monkeypatch.setattr("waltap_spark.read.stream.PROGRESS_S", 0.0)
    log.people("Ann")
    stream = log.stream()
    end = latest(stream, stream.initialOffset())
    log.close()
    shutil.rmtree(log.path)
    log.db.lsn = 0x1000
    with log.open(has_offset=False):
        log.people("Bob")
        with pytest.raises(OffsetOfAnother, match="is no longer in"):
            latest(stream, end)


@pytest.mark.parametrize(
    ("old", "before", "new", "after"),
    [
        ("float4", "0.1", "float8", "0.1"),
        ("date", "2026-01-01", "timestamp", "2026-01-01 12:00:00"),
        ("int4", "1", "int8", "8589934592"),
        ("int4", "1", "text", "one"),
    ],
)
def test_a_type_that_a_query_does_not_know_stops_it(log, old, before, new, after):
    log.insert(people(("value", old), numbers=(1, 2)), ["1", before])
    frames = [log.frame(), log.frame(newColumns="ignore")]
    log.insert(people(("value", new), numbers=(1, 2)), ["2", after])
    for read in [read for frame in frames for read in (frame.streamed, frame.rows)]:
        with pytest.raises(ColumnsGrew, match="WT-5224 public.people has other types at .*: value"):
            read()
    assert [row["id"] for row in log.frame().streamed()] == [1, 2]


def test_values_from_before_a_type_that_does_not_hold_them_are_reported(log):
    log.insert(people(("value", "text"), numbers=(1, 2)), ["1", "one"])
    log.insert(people(("value", "int4"), numbers=(1, 2)), ["2", "2"])
    frame = log.frame()
    reported = r"WT-5269 value of public.people was string and does not fit int32: .*'one'"
    for read in (frame.rows, frame.streamed):
        with pytest.raises(ValuesUnfit, match=reported):
            read()
    texts = [
        StructField(each.name, StringType()) if each.name == "value" else each
        for each in frame.schema
    ]
    wider = Frame({"path": log.path, "table": "public.people"}, StructType(texts))
    for rows in both(wider):
        assert [row["value"] for row in rows] == ["one", "2"]
    second = str(log.manifests()[0].log_position)
    assert [row["value"] for row in log.frame(startingPosition=second).rows()] == [2]


CLOCK = pa.struct([("opens", pa.time64("us")), ("seats", pa.int32())])
NESTED = {
    "hours": (CLOCK, {"opens": dt.time(8, 30), "seats": 4}),
    "days": (pa.list_(CLOCK), [{"opens": dt.time(9), "seats": None}, None]),
    "wide": (pa.map_(pa.string(), pa.decimal256(50, 1)), [("a", decimal.Decimal("1.5"))]),
}


def test_times_and_wide_decimals_are_text_wherever_they_are(tmp_path):
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
        path="segment.parquet", rows=2, table="p.t", epoch=1, snapshot_id=None, called=called
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
