"""Strings joined here are those that pyarrow makes of the same list."""

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from waltap.changes.arrow.column import FEW, LONG, string_array

TEXT = st.text(st.characters(exclude_categories=["Cs"]), max_size=8)


@given(st.lists(st.none() | TEXT, max_size=FEW + 1))
def test_strings(values: list[str | None]) -> None:
    made = string_array(values)
    made.validate(full=True)
    assert made.equals(pa.array(values, pa.string()))


@pytest.mark.parametrize("letter", ["a", "é", "雪"])
def test_a_long_text_outlives_who_made_it(letter: str) -> None:
    made = string_array([letter * LONG])
    made.validate(full=True)
    assert made.equals(pa.array([letter * LONG], pa.string()))
    assert made[0].as_py() == letter * LONG
