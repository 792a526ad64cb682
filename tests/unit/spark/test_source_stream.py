"""A stream of a change log, asked as Spark asks it: offsets, and the rows between two of them."""

import datetime as dt
import json
import pickle
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.harness.changelog import COMMIT_TS, batch
from tests.harness.source_log import PEOPLE, Offset, SourceLog

from waltap.source.position import Position
from waltap_spark.source.errors import SourceOption
from waltap_spark.source.offsets import mark_of
from waltap_spark.source.stream import ChangeLogStream


@pytest.fixture
def log(tmp_path: Path) -> Iterator[SourceLog]:
    made = SourceLog(tmp_path)
    made.people("Ann")
    yield made
    made.sink.close()


@pytest.mark.parametrize(
    ("option", "value"),
    [("endingPosition", "0/1"), ("endingTime", "2026-01-01"), ("standing", "true")],
)
def test_what_is_of_a_batch_is_refused(log: SourceLog, option: str, value: str) -> None:
    with pytest.raises(SourceOption, match=f"WT-5221 {option} is of a batch, not of a stream"):
        log.stream(**{option: value})


def text(lsn: int) -> str:
    return f"{lsn >> 32:X}/{lsn & 0xFFFFFFFF:X}"


def names(stream: ChangeLogStream, start: Offset, end: Offset) -> list[str]:
    """What a batch has, its tasks and its reader each sent to another process."""
    start, end = json.loads(json.dumps((start, end)))
    tasks = pickle.loads(pickle.dumps(stream.partitions(start, end)))
    parts = [part for task in tasks for part in stream.read(task)]
    return [row["name"] for part in parts for row in part.to_pylist()]


def restored(log: SourceLog) -> None:
    """The server is another from here on: a new epoch, whose LSNs begin far below."""
    log.sink.close()
    log.sink = log.opened()
    log.db.lsn = 0x1000


def test_an_lsn_to_start_at_is_one_of_the_history_in_which_the_stream_began(log: SourceLog) -> None:
    log.db.insert(PEOPLE, ["1", "Bob"])
    first = log.db.commit()
    log.db.insert(PEOPLE, ["2", "Cid"])
    log.sink.write(batch(first, log.db.commit()))
    log.sink.flush()
    given = {"startingPosition": text(first.end_lsn)}
    stream = log.stream(**given)
    began = stream.initialOffset()
    end = stream.latestOffset(began, stream.getDefaultReadLimit())
    assert names(stream, began, end) == ["Cid"], "the flush has a row from before, too"

    restored(log)
    log.people("Dan")
    stream = log.stream(**given)
    assert names(stream, began, end) == ["Cid"], "a batch is read again as it was"
    later = stream.latestOffset(end, stream.getDefaultReadLimit())
    assert names(stream, end, later) == ["Dan"]
    assert names(stream, began, later) == ["Cid", "Dan"]
    log.people("Eve")
    newest = stream.latestOffset(later, stream.getDefaultReadLimit())
    assert names(log.stream(**given), later, newest) == ["Eve"]


def test_an_lsn_that_the_log_has_not_reached_is_waited_for_over_restarts(log: SourceLog) -> None:
    stream = log.stream(startingPosition=text(log.db.lsn + 0x1000))
    began = stream.initialOffset()
    log.people("too", "early")
    stream = log.stream(startingPosition=text(log.db.lsn + 0x1000))
    early = stream.latestOffset(began, stream.getDefaultReadLimit())
    assert names(stream, began, early) == []
    log.people("early, too")
    log.db.lsn += 0x1000
    log.people("Bob")
    stream = log.stream(startingPosition="earliest")
    end = stream.latestOffset(early, stream.getDefaultReadLimit())
    assert names(stream, early, end) == ["Bob"], "the first start counts, as Spark has it"
    assert "first" not in end, "what follows is all wanted"


def test_spark_4_1_asks_for_the_end_alone_and_the_lsn_is_waited_for_all_the_same(
    log: SourceLog,
) -> None:
    given = {"startingPosition": text(log.db.lsn + 0x1000)}
    stream = log.stream(**given)
    offsets = [stream.latestOffset()]
    offsets.insert(0, stream.initialOffset())
    assert names(stream, *offsets[-2:]) == []
    for number in range(3):
        log.people(f"early {number}")
        offsets.append(stream.latestOffset())
        assert names(stream, *offsets[-2:]) == []
        if number:
            stream = log.stream(**given)
    log.db.lsn += 0x1000
    log.people("Bob")
    assert names(stream, offsets[-1], stream.latestOffset()) == ["Bob"]


def test_the_offset_of_an_earlier_version_is_read_and_drops_nothing(log: SourceLog) -> None:
    given = {"startingPosition": text(log.db.lsn + 0x1000)}
    stream = log.stream(**given)
    end = log.log.last()
    assert end is not None
    told = {
        "version": 1,
        "log": log.log.identity(),
        "epoch": 1,
        "end_lsn": end.mark.end_lsn,
        "ordinal": 0,
    }
    limit = stream.getDefaultReadLimit()
    assert stream.latestOffset(told, limit) == told
    restored(log)
    log.people("Dan")
    stream = log.stream(**given)
    assert names(stream, told, stream.latestOffset(told, limit)) == ["Dan"]


def test_a_time_to_start_at_goes_for_every_batch(log: SourceLog) -> None:
    log.people("Bob", "Cid")
    since = dt.datetime.fromtimestamp((COMMIT_TS + log.db.lsn - 60) / 1e6, dt.UTC)
    stream = log.stream(startingTime=since.isoformat())
    began = stream.initialOffset()
    end = stream.latestOffset(began, stream.getDefaultReadLimit())
    assert names(stream, began, end) == ["Cid"]


def snapshot(log: SourceLog, ts: int = COMMIT_TS, position: Position | None = None) -> None:
    """The rows of a snapshot, in two manifests of one LSN; ``position`` of one beside an older slot."""
    pieces = log.db.snapshot(PEOPLE, rows_each=1)
    for piece in pieces:
        piece.position = position or piece.position
        for part in piece.parts:
            part.ts = ts
    log.sink.write(pieces[0])
    log.sink.flush()
    for piece in pieces[1:]:
        log.sink.write(piece)
    log.sink.flush()


def test_a_time_to_start_at_has_the_rows_that_were_read_from_then_on(log: SourceLog) -> None:
    log.db.rows[PEOPLE.name] = [("1", "Bob"), ("2", "Cid")]
    since = dt.datetime.fromtimestamp(COMMIT_TS / 1e6, dt.UTC) + dt.timedelta(hours=1)
    snapshot(log, ts=COMMIT_TS + 3_600_000_000)
    frame = log.frame(startingTime=since.isoformat())
    for rows in (frame.rows(), frame.streamed()):
        assert [row["name"] for row in rows] == ["Bob", "Cid"]
    later = since + dt.timedelta(seconds=1)
    assert log.frame(startingTime=later.isoformat()).rows() == []


def test_what_was_read_long_before_a_time_to_start_at_is_passed_over(log: SourceLog) -> None:
    log.db.rows[PEOPLE.name] = [("1", "Ann"), ("2", "Bob")]
    snapshot(log)
    last = log.log.last()
    assert last is not None
    tomorrow = dt.datetime.now(dt.UTC) + dt.timedelta(days=1)
    began = log.stream(startingTime=tomorrow.isoformat()).initialOffset()
    assert mark_of(began) == last.mark


@pytest.mark.parametrize("above", [-1, 0, 1])
def test_two_reads_that_meet_at_an_lsn_have_each_row_once(log: SourceLog, above: int) -> None:
    log.db.rows[PEOPLE.name] = [("1", "Bob"), ("2", "Cid")]
    snapshot(log)
    meeting = text(log.db.lsn + above)
    log.people("Dan")
    halves = [log.frame(endingPosition=meeting).rows(), log.frame(startingPosition=meeting).rows()]
    assert [row["name"] for half in halves for row in half] == ["Ann", "Bob", "Cid", "Dan"]
    assert [len(half) for half in halves] == ([3, 1] if above > 0 else [1, 3])
    streamed = log.frame(startingPosition=meeting).streamed()
    assert streamed == halves[1]


@pytest.mark.parametrize("above", [-1, 0, 1])
def test_so_have_those_around_a_snapshot_beside_an_older_slot(log: SourceLog, above: int) -> None:
    """Its rows stand behind what the slot had given, where the stream goes on."""
    log.db.rows[PEOPLE.name] = [("1", "Bob"), ("2", "Cid")]
    slot = Position(log.db.lsn)
    log.db.lsn += 100
    snapshot(log, position=slot)
    meeting = text(log.db.lsn + above)
    log.people("Dan")
    halves = [log.frame(endingPosition=meeting).rows(), log.frame(startingPosition=meeting).rows()]
    assert [row["name"] for half in halves for row in half] == ["Ann", "Bob", "Cid", "Dan"]
