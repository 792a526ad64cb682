"""Strings joined here are those that pyarrow makes of the same list."""

import pyarrow as pa
from hypothesis import given, settings
from hypothesis import strategies as st
from waltap.arrow.array import FEW, string_array

TEXT = st.text(st.characters(exclude_categories=["Cs"]), max_size=8)


@settings(deadline=None)  # the first import of pyarrow takes long
@given(st.lists(st.none() | TEXT, max_size=FEW + 1))
def test_strings(values: list[str | None]) -> None:
    made = string_array(values)
    made.validate(full=True)
    assert made.equals(pa.array(values, pa.string()))
