"""COPY's rows where they were received: what a splitter of messages gives, however they are cut."""

import struct
from collections.abc import Iterable

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from waltap.errors import DecodeError
from waltap_postgres.replication.copy_buffer import HEAD, CopyBuffer, HeadedRows
from waltap_postgres.replication.wire import CopyEnded, CopySplitter
from waltap_postgres.snapshot.copy_block import copy_block
from waltap_postgres.snapshot.copy_pieces import pieces_of

pytest.importorskip("pyarrow")

# lengths whose bytes are a newline, a tab, a d: 10 - 4, 266 - 4, 2570 - 4, 100 - 4
LENGTHS = st.sampled_from([1, 2, 3, 6, 5, 9, 96, 261, 262, 263, 2566]) | st.integers(1, 400)
ROWS = st.lists(
    st.builds(lambda size, fill: fill * (size - 1) + b"\n", LENGTHS, st.sampled_from([b"a", b"d"])),
    max_size=30,
)
BETWEEN = st.sampled_from([b"", b"N\0\0\0\x05\n", b"S\0\0\0\x0ad\n\n\n\0\n", b"A\0\0\0\x06d\n"])


def message(row: bytes) -> bytes:
    return b"d" + struct.pack("!I", len(row) + 4) + row


def answer(rows: Iterable[bytes], between: bytes = b"") -> bytes:
    start = b"H\0\0\0\x09\0\0\x01\0\0" + between
    end = b"c\0\0\0\x04C\0\0\0\x0bCOPY 1\0Z\0\0\0\x05I"
    return start + between.join(map(message, rows)) + end


def received(data: bytes, size: int, cuts: list[int]) -> tuple[list[bytes], CopyBuffer]:
    """Give ``data`` to a buffer in portions, as a socket would, and return what comes of it."""
    buffer, found, at = CopyBuffer(size), [], 0
    sizes = [1 + cut for cut in cuts] or [size]
    turn = 0
    while at < len(data):
        room = buffer.room()
        part = data[at : at + min(len(room), sizes[turn % len(sizes)])]
        assert part, "a buffer has room whenever it is asked for it"
        room[: len(part)] = part
        del room
        buffer.took(len(part))
        for rows in buffer.rows():
            if isinstance(rows, HeadedRows):
                headed = bytes(rows.buffer[: rows.size])
                assert all(headed[a : a + len(HEAD)] == HEAD for a in rows.bounds.tolist()[:-1])
                assert rows.has(b"\n")
            found.append(rows.plain() if isinstance(rows, HeadedRows) else rows)
        at, turn = at + len(part), turn + 1
    return found, buffer


@given(ROWS, st.integers(16, 900), st.lists(st.integers(0, 700), max_size=5), BETWEEN)
@example([b"12345\n"] * 40, 64, [], b"")
@example([b"a" * 261 + b"\n"] * 8, 600, [], b"")
@example([b"a" * 3000 + b"\n", b"b\n", b"c\n"] * 3, 64, [7], b"")
def test_all_rows_come_in_order_however_they_are_cut(
    rows: list[bytes], size: int, cuts: list[int], between: bytes
) -> None:
    found, buffer = received(answer(rows, between), size, cuts)
    assert b"".join(found) == b"".join(rows)
    assert buffer.done


MESSAGES = st.lists(
    st.builds(
        lambda letter, body: bytes([letter]) + struct.pack("!I", len(body) + 4) + body,
        st.integers(0, 255) | st.sampled_from(b"dddNE"),
        st.binary(max_size=24) | st.sampled_from([b"d\n", b"\n\n", b"\0\n", b"no newline"]),
    ),
    max_size=20,
).map(b"".join)


@given(MESSAGES, st.integers(16, 200), st.lists(st.integers(0, 90), max_size=4))
def test_any_messages_give_what_a_splitter_gives(data: bytes, size: int, cuts: list[int]) -> None:
    data = answer([b"first\n", b"second\n"])[:-23] + data + b"Z\0\0\0\x05I"
    outcomes = []
    for way in range(2):
        try:
            found = b"".join(received(data, size, cuts)[0] if way else CopySplitter().split(data))
            outcomes.append((found, None))
        except (DecodeError, CopyEnded) as error:
            outcomes.append((b"", type(error)))
    assert outcomes[0] == outcomes[1]


def test_an_error_of_the_server_comes_behind_the_rows_before_it() -> None:
    rows = [b"%d\n" % n for n in range(100)]
    error = b"E\0\0\0\x10C57014\0Mno\0\0"
    data = answer(rows)[:-23] + error + b"Z\0\0\0\x05I"
    with pytest.raises(CopyEnded) as caught:
        received(data, 128, [])
    assert caught.value.error is not None
    assert caught.value.error.fields() == {"C": "57014", "M": "no"}


def test_full_buffers_come_as_rows_in_place_and_are_columns() -> None:
    rows = [b"%d\t\\N\ttext %d\n" % (n, n) for n in range(500)]
    data, buffer, at, blocks = answer(rows), CopyBuffer(4096), 0, []
    while at < len(data):
        room = buffer.room()
        part = data[at : at + len(room)]
        room[: len(part)] = part
        buffer.took(len(part))
        at += len(part)
        for found in buffer.rows():
            if isinstance(found, HeadedRows):
                block = copy_block(found, 3, len(found))
                assert block is not None
                blocks += list(block)
            else:
                blocks += [row for some, _ in pieces_of(iter([found]), 3, 1000) for row in some]
    assert blocks == [(str(n), None, f"text {n}") for n in range(500)]
