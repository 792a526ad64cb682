"""The JSON lines sink: whole lines, in order, none lost."""

import json
import os
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from waltap.changes.events.event import Record
from waltap.changes.transactions.position import Position
from waltap.changes.transactions.transaction import Batch
from waltap.encoders.format.record_block import RecordBlock
from waltap.errors import SinkError, StopRequested
from waltap.ports.sink.jsonl import (
    BEHIND_BYTES,
    TAIL_STEP,
    JsonLinesProperties,
    JsonLinesSink,
    LinesFileError,
)
from waltap.ports.sink.sink import SinkContext


def batch(*records: Record, end: int = 1) -> Batch:
    return Batch(parts=[], position=Position(end), events=len(records), records=list(records))


def row(number: int) -> Batch:
    return batch(Record("t", None, b"%d" % number), end=number)


def line(number: int) -> bytes:
    return b'{"topic":"t","key":null,"value":%d,"headers":[]}\n' % number


def sink(path: Path | str, **more: Any) -> JsonLinesSink:
    context = SinkContext(pipeline="p", state_dir=Path("unused"), **more)
    return JsonLinesSink(JsonLinesProperties(path=str(path)), context)


@contextmanager
def opened(path: Path | str) -> Iterator[JsonLinesSink]:
    lines = sink(path)
    assert lines.open() is None
    yield lines
    lines.close()


def test_a_line_holds_key_and_value_as_objects_and_headers_as_a_list(tmp_path):
    path = tmp_path / "new folder" / "events.jsonl"
    headers = (("__debezium.newkey", b'{"id":2}'), ('quo"te', b'"x"'))
    records = (
        Record("t.s.a", b'{"id":1}', b'{"op":"c"}'),
        Record("t.s.a", b'{"id":1}', None, headers),
        Record('t"ü', None, b"{}"),
    )
    with opened(path) as lines:
        lines.write(batch(*records, end=7))
        assert lines.flush().sole == Position(7)
    reported = [{"key": "__debezium.newkey", "value": {"id": 2}}, {"key": 'quo"te', "value": "x"}]
    assert [json.loads(text) for text in path.read_text().splitlines()] == [
        {"topic": "t.s.a", "key": {"id": 1}, "value": {"op": "c"}, "headers": []},
        {"topic": "t.s.a", "key": {"id": 1}, "value": None, "headers": reported},
        {"topic": 't"ü', "key": None, "value": {}, "headers": []},
    ]


@pytest.mark.parametrize(
    ("before", "kept"),
    [
        pytest.param(b"", b"", id="empty"),
        pytest.param(b"{}\n{}\n", b"{}\n{}\n", id="whole"),
        pytest.param(b'{}\n{"a', b"{}\n", id="torn"),
        pytest.param(b'{"a', b"", id="only-a-torn-line"),
        pytest.param(b"{}\n" + b"x" * (3 * TAIL_STEP), b"{}\n", id="torn-line-longer-than-a-step"),
        pytest.param(b"x" * (TAIL_STEP - 1) + b"\n", b"x" * (TAIL_STEP - 1) + b"\n", id="edge"),
    ],
)
def test_open_cuts_a_torn_last_line_and_appends(tmp_path, before, kept):
    path = tmp_path / "events.jsonl"
    path.write_bytes(before)
    with opened(path) as lines:
        lines.write(row(1))
        lines.flush()
    assert path.read_bytes() == kept + line(1)


def test_a_full_disk_or_a_folder_that_cannot_be_made_is_an_error(tmp_path):
    with opened("/dev/full") as lines:
        with pytest.raises(LinesFileError, match=r"WT-5001 /dev/full cannot be written: No space"):
            lines.write(row(1))
        assert lines.flush() is None
    (tmp_path / "file").write_text("")
    with pytest.raises(LinesFileError, match="cannot be opened"):
        sink(tmp_path / "file" / "x.jsonl").open()


def test_a_deleted_file_whose_place_is_taken_gets_what_was_not_promised(tmp_path):
    path = tmp_path / "events.jsonl"
    with opened(path) as lines:
        lines.write(row(2))
        path.unlink()
        path.write_bytes(line(1) + b"torn")
        assert lines.flush().sole == Position(2)
    assert path.read_bytes() == line(1) + line(2)


def test_a_file_that_cannot_be_opened_anew_promises_nothing(tmp_path):
    path = tmp_path / "events.jsonl"
    with opened(path) as lines:
        lines.write(row(1))
        path.unlink()
        path.mkdir()
        with pytest.raises(LinesFileError, match="cannot be made durable"):
            lines.flush()
        path.rmdir()
        with pytest.raises(SinkError, match="nothing more"):
            lines.flush()


@pytest.fixture
def pipe(tmp_path) -> Path:
    os.mkfifo(tmp_path / "pipe")
    return tmp_path / "pipe"


def test_a_named_pipe_waits_for_its_reader(pipe):
    lines, readers = sink(pipe), list[int]()
    opening = threading.Thread(target=lines.open)
    reading = threading.Thread(target=lambda: readers.append(os.open(pipe, os.O_RDONLY)))
    for each in (opening, reading):
        each.start()
    for each in (reading, opening):
        each.join(120)
        assert not each.is_alive()
    lines.write(row(1))
    assert os.read(readers[0], 4096) == line(1)
    lines.close()
    assert os.read(readers[0], 4096) == b""
    os.close(readers[0])


def test_a_named_pipe_without_reader_does_not_hold_up_a_stop(pipe):
    asked = iter([False, True])
    lines = sink(pipe, stopping=lambda: next(asked))
    with pytest.raises(StopRequested):
        lines.open()
    lines.close()


def columns(first: int, count: int = 20_000) -> Batch:
    values = pa.array([str(n) for n in range(first, first + count)], pa.string())
    records = RecordBlock("t", [(None, values[:1]), (None, values[1:])], ())
    return Batch(parts=[], position=Position(first), events=count, records=records, snapshot=True)


def large(first: int) -> Batch:
    return batch(Record("t", None, b"9" * BEHIND_BYTES), end=first)


@pytest.mark.parametrize("made", [large, columns])
@pytest.mark.parametrize("then", ["write", "flush"])
def test_a_large_block_that_could_not_be_written_is_reported_next(tmp_path, then, made):
    path = tmp_path / "events.jsonl"
    with opened(path) as lines:
        lines.write(columns(1, 2))
        assert lines.flush().sole == Position(1)
        reading = os.open(path, os.O_RDONLY)
        os.dup2(reading, lines._fd)
        os.close(reading)
        lines.write(made(3))
        with pytest.raises(LinesFileError, match="cannot be written"):
            lines.write(made(5)) if then == "write" else lines.flush()
        for again in (lines.flush, lambda: lines.write(made(7))):
            with pytest.raises(SinkError, match="takes and promises nothing more"):
                again()
    assert path.read_bytes() == line(1) + line(2)
