"""COPY's text format: what a server writes is read back, as rows and as columns, wherever the bytes are cut."""

from collections.abc import Iterable, Iterator, Sequence
from itertools import cycle

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from waltap.changes.decode.row_block import RowBlock
from waltap.errors import DecodeError
from waltap_postgres.replication.copy_buffer import HEAD, CopyBuffer, HeadedRows
from waltap_postgres.replication.wire import CopyEnded, CopySplitter
from waltap_postgres.snapshot import copy_pieces
from waltap_postgres.snapshot.copy_pieces import copy_block, copy_rows
from waltap_testing.walsender.wire import copy_data, message

TEXT = st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\0"), max_size=12)
NASTY = st.sampled_from(
    ["", "\\N", "\\", "\\.", "\t", "\n", "\r\n", "a\\nb", "\v\f\b", "\u2028", "\x85", "é"]
)
VALUES = st.none() | TEXT | NASTY
WIDTHS = st.integers(1, 5)

ESCAPES = {
    "\\": "\\\\",
    "\b": "\\b",
    "\f": "\\f",
    "\n": "\\n",
    "\r": "\\r",
    "\t": "\\t",
    "\v": "\\v",
}


def written(rows: list[tuple[str | None, ...]]) -> bytes:
    """Encode rows as the server does. Source: PostgreSQL manual, COPY, "Text Format"."""
    lines = []
    for row in rows:
        fields = ["\\N" if v is None else "".join(ESCAPES.get(c, c) for c in v) for v in row]
        lines.append("\t".join(fields) + "\n")
    return "".join(lines).encode()


def pieces_of(data: bytes, cuts: list[int]) -> list[bytes]:
    borders = [0, *sorted(cut % (len(data) + 1) for cut in cuts), len(data)]
    return [data[a:b] for a, b in zip(borders, borders[1:], strict=False)]


TABLES = WIDTHS.flatmap(lambda width: st.lists(st.tuples(*[VALUES] * width), max_size=12))


@given(st.binary(max_size=60), st.integers(0, 4), st.lists(st.integers(0, 60), max_size=3))
def test_any_bytes_give_rows_of_that_width_or_a_decode_error(data, width, cuts):
    try:
        rows = [row for block in copy_rows(pieces_of(data, cuts), width) for row in block]
    except DecodeError as error:
        assert 0 <= error.offset <= len(data)
    else:
        assert all(len(row) == width for row in rows)


@pytest.mark.parametrize(
    "read", [copy_rows, lambda some, width: copy_pieces.pieces_of(iter(some), width, 2)]
)
def test_a_row_of_another_width_is_named_by_its_offset_from_the_first_piece(read):
    with pytest.raises(DecodeError, match="expected 2 columns, found 3 in row [01]") as caught:
        list(read([b"1\t2\n", b"3\t4\n5\t6\t7\n"], 2))
    assert caught.value.offset == 8
    with pytest.raises(DecodeError, match="newline at the end"):
        list(read([b"1\t2\n", b"3\t4"], 2))


# --- as columns ----------------------------------------------------------------------------------

BYTES = st.binary(max_size=60) | st.lists(
    st.sampled_from([b"\\", b"\t", b"\n", b"\r", b"N", b"n", b"\xef\xbb\xbf", b"\x01", b'"', b"a"]),
    max_size=20,
).map(b"".join)


@given(BYTES, st.integers(0, 4))
def test_any_bytes_give_what_the_reader_of_rows_gives_or_nothing(data, width):
    block = copy_block(data, width, data.count(b"\n"))
    if block is not None:
        assert [row for rows in copy_rows([data], width) for row in rows] == list(block)


@given(
    TABLES.filter(bool),
    st.lists(st.integers(0, 2000), max_size=8),
    st.integers(1, 6),
    st.integers(1, 8),
)
def test_pieces_have_all_rows_in_order_however_the_bytes_are_cut(rows, cuts, least, most):
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(copy_pieces, "BLOCK_ROWS", least)
        patch.setattr(copy_pieces, "LOADING_ROWS", least)
        portions = iter(pieces_of(written(rows), cuts))
        found = [piece for piece, _ in copy_pieces.pieces_of(portions, len(rows[0]), most)]
    assert [row for piece in found for row in piece] == rows
    assert all(len(piece) == most for piece in found[:-1])
    assert 0 < len(found[-1]) <= most


def test_rows_of_a_block_are_a_sequence():
    block = copy_block(b"1\ta\n2\t\\N\n3\t\n", 2, 3)
    assert isinstance(block, RowBlock)
    rows = [("1", "a"), ("2", None), ("3", "")]
    assert [block[0], block[-1], *block[1:], *block[::2]] == [
        rows[0],
        rows[2],
        *rows[1:],
        rows[0],
        rows[2],
    ]
    assert len(block[5:]) == 0
    assert list(block.chosen([1])) == [(row[1],) for row in rows]


# --- where it was received -----------------------------------------------------------------------

# lengths whose bytes are a newline, a tab, a d: 10 - 4, 266 - 4, 2570 - 4, 100 - 4
LENGTHS = st.sampled_from([1, 2, 3, 6, 5, 9, 96, 261, 262, 263, 2566]) | st.integers(1, 400)
ROWS = st.lists(
    st.builds(lambda size, fill: fill * (size - 1) + b"\n", LENGTHS, st.sampled_from([b"a", b"d"])),
    max_size=30,
)
BETWEEN = st.sampled_from([b"", b"N\0\0\0\x05\n", b"S\0\0\0\x0ad\n\n\n\0\n", b"A\0\0\0\x06d\n"])


def answer(rows: Iterable[bytes], between: bytes = b"") -> bytes:
    start = b"H\0\0\0\x09\0\0\x01\0\0" + between
    end = b"c\0\0\0\x04C\0\0\0\x0bCOPY 1\0Z\0\0\0\x05I"
    return start + between.join(map(copy_data, rows)) + end


def filled(buffer: CopyBuffer, data: bytes, sizes: Sequence[int]) -> Iterator[HeadedRows | bytes]:
    """Give ``data`` to ``buffer`` in portions, as a socket would; return what comes of it."""
    at = 0
    for size in cycle(sizes):
        room = buffer.room()
        part = data[at : at + min(len(room), size)]
        assert part, "a buffer has room whenever it is asked for it"
        room[: len(part)] = part
        del room
        buffer.filled_by(len(part))
        yield from buffer.rows()
        at += len(part)
        if at == len(data):
            return


def received(data: bytes, size: int, cuts: list[int]) -> tuple[list[bytes], CopyBuffer]:
    buffer, found = CopyBuffer(size), []
    for rows in filled(buffer, data, [1 + cut for cut in cuts] or [size]):
        if isinstance(rows, HeadedRows):
            headed = bytes(rows.buffer[: rows.size])
            assert all(headed[a : a + len(HEAD)] == HEAD for a in rows.bounds.tolist()[:-1])
            assert rows.has(b"\n")
        found.append(rows.plain() if isinstance(rows, HeadedRows) else rows)
    return found, buffer


@given(ROWS, st.integers(16, 900), st.lists(st.integers(0, 700), max_size=5), BETWEEN)
@example([b"12345\n"] * 40, 64, [], b"")
@example([b"a" * 261 + b"\n"] * 8, 600, [], b"")
@example([b"a" * 3000 + b"\n", b"b\n", b"c\n"] * 3, 64, [7], b"")
def test_all_rows_come_in_order_however_they_are_cut(rows, size, cuts, between):
    found, buffer = received(answer(rows, between), size, cuts)
    assert b"".join(found) == b"".join(rows)
    assert buffer.done


MESSAGES = st.lists(
    st.builds(
        message,
        st.integers(0, 255).map(lambda n: bytes([n]))
        | st.sampled_from([b"d", b"d", b"d", b"N", b"E"]),
        st.binary(max_size=24) | st.sampled_from([b"d\n", b"\n\n", b"\0\n", b"no newline"]),
    ),
    max_size=20,
).map(b"".join)


# an error of a damaged server: no field has this letter
@example(b"E\0\0\0\6\x80xZ\0\0\0\5I", 16, [])
@given(MESSAGES, st.integers(16, 200), st.lists(st.integers(0, 90), max_size=4))
def test_any_messages_give_what_a_splitter_gives(data, size, cuts):
    data = answer([b"first\n", b"second\n"])[:-23] + data + b"Z\0\0\0\x05I"
    outcomes = []
    for way in range(2):
        try:
            found = b"".join(received(data, size, cuts)[0] if way else CopySplitter().split(data))
            outcomes.append((found, None))
        except (DecodeError, CopyEnded) as error:
            outcomes.append((b"", type(error)))
    assert outcomes[0] == outcomes[1]
