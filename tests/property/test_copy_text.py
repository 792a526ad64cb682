"""COPY's text format: what a server writes is read back, wherever the pieces are cut."""

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from waltap.errors import DecodeError
from waltap_postgres.snapshot.copy_text import copy_rows

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


@given(TABLES, st.lists(st.integers(0, 2000), max_size=8))
def test_rows_come_back_however_the_bytes_are_cut(
    rows: list[tuple[str | None, ...]], cuts: list[int]
) -> None:
    width = len(rows[0]) if rows else 1
    found = [row for block in copy_rows(pieces_of(written(rows), cuts), width) for row in block]
    assert found == rows


@given(st.integers(0, 50), st.lists(st.integers(0, 60), max_size=4))
def test_rows_of_a_table_without_columns_are_counted(count: int, cuts: list[int]) -> None:
    found = [row for block in copy_rows(pieces_of(b"\n" * count, cuts), 0) for row in block]
    assert found == [()] * count


@given(TABLES.filter(bool), st.data())
def test_data_that_ends_early_is_an_error(
    rows: list[tuple[str | None, ...]], draw: st.DataObject
) -> None:
    data = written(rows)
    ends = [match.end() for match in re.finditer(b"\n", data)]
    kept = draw.draw(st.integers(1, len(data) - 1).filter(lambda n: n not in ends) if len(data) > 1
                     else st.nothing() | st.just(0))  # fmt: skip
    if kept in {0, *ends}:
        return
    with pytest.raises(DecodeError, match="newline at the end"):
        list(copy_rows([data[:kept]], len(rows[0])))


@given(st.binary(max_size=60), st.integers(0, 4), st.lists(st.integers(0, 60), max_size=3))
def test_any_bytes_give_rows_of_that_width_or_a_decode_error(
    data: bytes, width: int, cuts: list[int]
) -> None:
    try:
        rows = [row for block in copy_rows(pieces_of(data, cuts), width) for row in block]
    except DecodeError as error:
        assert 0 <= error.offset <= len(data)
    else:
        assert all(len(row) == width for row in rows)


def test_a_row_of_another_width_is_named_by_its_offset() -> None:
    with pytest.raises(DecodeError, match="expected 2 columns, found 3 in row 1") as caught:
        list(copy_rows([b"1\t2\n", b"3\t4\n5\t6\t7\n"], 2))
    assert caught.value.offset == 8
