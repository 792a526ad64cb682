"""Rows that a later one of their key supersedes are those that a dict would have lost."""

from typing import Any

import numpy as np
import pyarrow as pa
from hypothesis import given
from hypothesis import strategies as st

from waltap_spark.compact.drop_overwritten import superseded

KEYS = st.tuples(st.none() | st.integers(-2, 2), st.none() | st.sampled_from(["", "a", "A", "é"]))
ROWS = st.lists(
    st.tuples(KEYS, st.integers(1, 4), st.integers(-1, 3), st.integers(0, 1)), max_size=30
)
"""Keys and positions."""


def reported(rows: list[Any], cuts: list[int]) -> list[bool] | None:
    keys = [
        pa.chunked_array(
            [[row[0][n] for row in rows[at:end]] for at, end in zip(cuts, cuts[1:], strict=False)],
            kind,
        )
        for n, kind in enumerate((pa.int64(), pa.string()))
    ]
    places = [np.array([row[n] for row in rows], np.int64) for n in (1, 2, 3)]
    found = superseded(keys, places)
    return None if found is None else found.tolist()


@given(rows=ROWS, cut=st.integers(0, 30))
def test_the_last_row_of_each_key_is_left(rows: list[Any], cut: int) -> None:
    """Whatever the order in which rows come, and where segments end."""
    rows = list({row[1:]: row for row in rows}.values())
    last: dict[Any, int] = {}
    for number in sorted(range(len(rows)), key=lambda number: rows[number][1:]):
        last[rows[number][0]] = number
    cut = min(cut, len(rows))
    assert reported(rows, [0, cut, len(rows)]) == [last[row[0]] != n for n, row in enumerate(rows)]


@given(rows=ROWS)
def test_what_is_left_out_has_a_place_of_its_own(rows: list[Any]) -> None:
    """Rows of a snapshot are all at one place; where those are distinguished by it, none is lost."""
    found = reported(rows, [0, len(rows)])
    places = [row[1:] for row in rows]
    if found is None:
        assert len(set(places)) < len(places)
        return
    gone = {place for place, left_out in zip(places, found, strict=True) if left_out}
    assert all((place in gone) == out for place, out in zip(places, found, strict=True))
    left = [row for row, out in zip(rows, found, strict=True) if not out]
    assert len({key for key, *_place in left}) == len(left) == len({key for key, *_place in rows})
    assert all(max(row[1:] for row in rows if row[0] == each[0]) == each[1:] for each in left)
