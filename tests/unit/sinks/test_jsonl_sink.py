"""The JSON lines sink: whole lines, in order, none lost."""

import json
import os
import shutil
import threading
from collections.abc import Callable
from functools import partial
from pathlib import Path

import pytest

from waltap.errors import SinkError
from waltap.format.record import Record
from waltap.format.record_block import RecordBlock
from waltap.sink.jsonl import (
    BEHIND_BYTES,
    TAIL_STEP,
    JsonLinesProperties,
    JsonLinesSink,
    LinesFileError,
)
from waltap.sink.null import NullSink
from waltap.sink.sink import ReaderGone, SinkContext
from waltap.source.connector import StopRequested
from waltap.source.position import Position
from waltap.transactions.transaction import Batch


def batch(*records: Record, end: int = 1) -> Batch:
    return Batch(parts=[], position=Position(end), events=len(records), records=list(records))


def sink(path: str, tmp_path: Path) -> JsonLinesSink:
    return JsonLinesSink(
        JsonLinesProperties(path=path), SinkContext(pipeline="p", state_dir=tmp_path)
    )


def test_a_line_holds_key_and_value_as_objects_and_headers_as_a_list(tmp_path: Path) -> None:
    path = tmp_path / "new folder" / "events.jsonl"
    lines = sink(str(path), tmp_path)
    assert lines.open() is None
    headers = (("__debezium.newkey", b'{"id":2}'), ('quo"te', b'"x"'))
    lines.write(
        batch(
            Record("t.s.a", b'{"id":1}', b'{"op":"c"}'),
            Record("t.s.a", b'{"id":1}', None, headers),
            Record('t"ü', None, b"{}"),
            end=7,
        )
    )
    assert lines.flush().sole == Position(7)
    lines.close()
    assert [json.loads(line) for line in path.read_text().splitlines()] == [
        {"topic": "t.s.a", "key": {"id": 1}, "value": {"op": "c"}, "headers": []},
        {
            "topic": "t.s.a",
            "key": {"id": 1},
            "value": None,
            "headers": [
                {"key": "__debezium.newkey", "value": {"id": 2}},
                {"key": 'quo"te', "value": "x"},
            ],
        },
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
def test_open_cuts_a_torn_last_line_and_appends(tmp_path: Path, before: bytes, kept: bytes) -> None:
    path = tmp_path / "events.jsonl"
    path.write_bytes(before)
    lines = sink(str(path), tmp_path)
    lines.open()
    lines.write(batch(Record("t", None, b"1")))
    lines.flush()
    lines.close()
    assert path.read_bytes() == kept + b'{"topic":"t","key":null,"value":1,"headers":[]}\n'


def test_standard_output_gets_the_lines(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    lines = sink("-", tmp_path)
    lines.open()
    lines.write(batch(Record("t", None, b"1"), end=3))
    assert lines.flush().sole == Position(3)
    lines.close()
    os.fstat(1)  # closing the sink leaves standard output open
    assert json.loads(capfd.readouterr().out)["value"] == 1


def test_a_full_disk_is_an_error_with_a_remedy(tmp_path: Path) -> None:
    lines = sink("/dev/full", tmp_path)
    lines.open()
    with pytest.raises(LinesFileError, match=r"WT-5001 /dev/full cannot be written: No space"):
        lines.write(batch(Record("t", None, b"1")))
    assert lines.flush() is None
    lines.close()


def test_a_folder_that_cannot_be_made_is_an_error_with_a_remedy(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(LinesFileError, match="cannot be opened"):
        sink(str(tmp_path / "file" / "x.jsonl"), tmp_path).open()


def line(number: int) -> bytes:
    return b'{"topic":"t","key":null,"value":%d,"headers":[]}\n' % number


def test_a_folder_that_is_deleted_is_made_again_with_what_was_not_promised(tmp_path: Path) -> None:
    path = tmp_path / "a" / "b" / "events.jsonl"
    lines = sink(str(path), tmp_path)
    lines.open()
    lines.write(batch(Record("t", None, b"1")))
    lines.flush()
    lines.write(batch(Record("t", None, b"2"), end=2))
    shutil.rmtree(tmp_path / "a")
    assert lines.flush().sole == Position(2)
    lines.write(batch(Record("t", None, b"3"), end=3))
    assert lines.flush().sole == Position(3)
    lines.close()
    assert path.read_bytes() == line(2) + line(3)


def test_a_deleted_file_whose_place_is_taken_gets_what_was_not_promised(tmp_path: Path) -> None:
    path = tmp_path / "events.jsonl"
    lines = sink(str(path), tmp_path)
    lines.open()
    lines.write(batch(Record("t", None, b"2"), end=2))
    path.unlink()
    path.write_bytes(line(1) + b"torn")
    assert lines.flush().sole == Position(2)
    lines.close()
    assert path.read_bytes() == line(1) + line(2)


def test_a_file_that_cannot_be_opened_anew_promises_nothing(tmp_path: Path) -> None:
    path = tmp_path / "events.jsonl"
    lines = sink(str(path), tmp_path)
    lines.open()
    lines.write(batch(Record("t", None, b"1")))
    path.unlink()
    path.mkdir()
    with pytest.raises(LinesFileError, match="cannot be made durable"):
        lines.flush()
    path.rmdir()
    with pytest.raises(SinkError, match="nothing more"):
        lines.flush()
    lines.close()


def pipe_sink(tmp_path: Path, stopping: Callable[[], bool] = lambda: False) -> JsonLinesSink:
    path = tmp_path / "pipe"
    os.mkfifo(path)
    context = SinkContext(pipeline="p", state_dir=tmp_path, stopping=stopping)
    return JsonLinesSink(JsonLinesProperties(path=str(path)), context)


def test_a_named_pipes_reader_gets_the_lines_and_its_end_is_noticed(tmp_path: Path) -> None:
    lines = pipe_sink(tmp_path)
    reader = os.open(tmp_path / "pipe", os.O_RDONLY | os.O_NONBLOCK)
    lines.open()
    lines.write(batch(Record("t", None, b"1")))
    assert lines.flush().sole == Position(1)
    assert os.read(reader, 4096) == line(1)
    os.close(reader)
    with pytest.raises(ReaderGone, match="closed by its reader"):
        lines.write(batch(Record("t", None, b"2"), end=2))
    lines.close()


def test_a_named_pipe_waits_for_its_reader(tmp_path: Path) -> None:
    lines = pipe_sink(tmp_path)
    readers: list[int] = []
    path = tmp_path / "pipe"
    thread = threading.Thread(target=lambda: readers.append(os.open(path, os.O_RDONLY)))
    opening = threading.Thread(target=lines.open)
    opening.start()
    thread.start()
    for each in (thread, opening):
        each.join(10)
        assert not each.is_alive()
    lines.write(batch(Record("t", None, b"1")))
    assert os.read(readers[0], 4096) == line(1)
    lines.close()
    assert os.read(readers[0], 4096) == b""
    os.close(readers[0])


def test_a_named_pipe_without_reader_does_not_hold_up_a_stop(tmp_path: Path) -> None:
    asked: list[int] = []

    def stopping() -> bool:
        asked.append(1)
        return len(asked) > 1

    lines = pipe_sink(tmp_path, stopping)
    with pytest.raises(StopRequested):
        lines.open()
    lines.close()


def test_the_null_sink_counts_and_confirms(tmp_path: Path) -> None:
    null = NullSink(None, SinkContext(pipeline="p", state_dir=tmp_path))
    assert null.open() is None
    assert null.flush() is None
    null.write(batch(Record("t", None, b"123"), Record("t", b"1", None), end=9))
    assert null.flush().sole == Position(9)
    assert (null.records, null.bytes) == (2, 3)
    null.close()


def columns(first: int, count: int) -> Batch:
    import pyarrow as pa

    values = pa.array([str(n) for n in range(first, first + count)], pa.string())
    records = RecordBlock("t", [(None, values[:1]), (None, values[1:])], ())
    return Batch(parts=[], position=Position(first), events=count, records=records, snapshot=True)


def test_columns_and_records_stand_in_the_order_they_came(tmp_path: Path) -> None:
    pytest.importorskip("pyarrow")
    path = tmp_path / "events.jsonl"
    lines = sink(str(path), tmp_path)
    lines.open()
    for first in range(0, 600, 100):
        lines.write(columns(first, 99))
        if first % 200:
            lines.write(batch(Record("t", None, b"%d" % (first + 99)), end=first + 99))
        if first == 400:
            lines.write(large(499))
    assert lines.flush().sole == Position(599)
    lines.close()
    expected = [n for n in range(600) if n % 100 != 99 or (n - 99) % 200]
    found = path.read_bytes().splitlines(keepends=True)
    assert b"9" * BEHIND_BYTES in found.pop(expected.index(500))
    assert found == [line(n) for n in expected]


def large(first: int) -> Batch:
    return batch(Record("t", None, b"9" * BEHIND_BYTES), end=first)


@pytest.mark.parametrize(
    "made", [large, partial(columns, count=20_000)], ids=["records", "columns"]
)
@pytest.mark.parametrize("then", ["write", "flush"])
def test_a_large_block_that_could_not_be_written_is_told_of_next(
    tmp_path: Path, then: str, made: Callable[[int], Batch]
) -> None:
    pytest.importorskip("pyarrow")
    path = tmp_path / "events.jsonl"
    lines = sink(str(path), tmp_path)
    lines.open()
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
    lines.close()
    assert path.read_bytes() == line(1) + line(2)


def test_a_sink_that_is_closed_while_columns_are_written_ends(tmp_path: Path) -> None:
    pytest.importorskip("pyarrow")
    path = tmp_path / "events.jsonl"
    lines = sink(str(path), tmp_path)
    lines.open()
    lines.write(columns(1, 20_000))
    lines.close()
    assert path.read_bytes().count(b"\n") == 20_000
