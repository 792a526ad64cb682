"""COPY's text format as columns: what the reader of rows reads, or nothing."""

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.property.test_copy_text import TABLES, pieces_of, written

from waltap.errors import DecodeError
from waltap.transactions.row_block import RowBlock
from waltap_postgres.snapshot import copy_pieces
from waltap_postgres.snapshot.copy_block import copy_block
from waltap_postgres.snapshot.copy_text import copy_rows

pytest.importorskip("pyarrow")

BYTES = st.binary(max_size=60) | st.lists(
    st.sampled_from([b"\\", b"\t", b"\n", b"\r", b"N", b"n", b"\xef\xbb\xbf", b"\x01", b'"', b"a"]),
    max_size=20,
).map(b"".join)


@given(BYTES, st.integers(0, 4))
def test_any_bytes_give_what_the_reader_of_rows_gives_or_nothing(data: bytes, width: int) -> None:
    block = copy_block(data, width, data.count(b"\n"))
    if block is not None:
        assert [row for rows in copy_rows([data], width) for row in rows] == list(block)


@given(
    TABLES.filter(bool),
    st.lists(st.integers(0, 2000), max_size=8),
    st.integers(1, 6),
    st.integers(1, 8),
)
def test_pieces_have_all_rows_in_order_however_the_bytes_are_cut(
    rows: list[tuple[str | None, ...]], cuts: list[int], least: int, most: int
) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(copy_pieces, "BLOCK_ROWS", least)
        portions = iter(pieces_of(written(rows), cuts))
        found = [piece for piece, _ in copy_pieces.pieces_of(portions, len(rows[0]), most)]
    assert [row for piece in found for row in piece] == rows
    assert all(len(piece) == most for piece in found[:-1])
    assert 0 < len(found[-1]) <= most


def test_an_offset_counts_from_the_first_piece() -> None:
    with pytest.raises(DecodeError, match="expected 2 columns, found 3") as caught:
        list(copy_pieces.pieces_of(iter([b"1\t2\n3\t4\n", b"5\t6\t7\n"]), 2, 2))
    assert caught.value.offset == 8


def test_rows_of_a_block_are_a_sequence() -> None:
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
