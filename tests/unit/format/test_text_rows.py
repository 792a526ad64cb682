"""Rows of text put together: the same as Python's join, whatever the columns are cut from."""

import tracemalloc

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from waltap.changes.events.event import Record
from waltap.encoders.format import record_block
from waltap.encoders.format.record_block import RecordBlock, TextRows, joined
from waltap.encoders.json.lines import JsonLines

TEXT = st.text(st.characters(exclude_categories=["Cs"]), max_size=6)


@given(st.data(), st.integers(0, 40), st.integers(0, 3), st.integers(1, 60))
def test_rows_are_their_pieces_one_after_the_other(data, count, before, step):
    columns = st.lists(TEXT, min_size=count + before, max_size=count + before)
    drawn = data.draw(st.lists(TEXT | columns, max_size=6))
    pieces = [p if isinstance(p, str) else pa.array(p, pa.string())[before:] for p in drawn]
    expected = [
        "".join(p if isinstance(p, str) else p[before + n] for p in drawn) for n in range(count)
    ]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(record_block, "STEP_BYTES", step)
        patch.setattr(record_block, "MOST_ROWS", 16)
        patch.setattr(record_block, "FIRST_ROWS", 3)
        rows = TextRows(pieces, count)
        found = rows.array()
        found.validate(full=True)
        assert found.to_pylist() == expected
        assert b"".join(rows.texts()).decode() == "".join(expected)
        block = RecordBlock("t", [(None, rows), (rows, rows.within(["<"], ">"))], ())
        assert sum(block.value_bytes()) == len("".join(expected).encode()) * 2 + 2 * count
        assert b"".join(block.lines("[", "|", "]\n")).decode() == "".join(
            [f"[null|{e}]\n" for e in expected] + [f"[{e}|<{e}>]\n" for e in expected]
        )
        assert [record.value for record in block][count:] == [f"<{e}>".encode() for e in expected]


def test_few_rows_of_a_wide_table_take_little_memory():
    values = pa.array(["1"] * 8)
    rows = TextRows([p for n in range(1600) for p in (f'"c{n}":', values)], len(values))
    tracemalloc.start()
    try:
        list(rows.texts())
        assert tracemalloc.get_traced_memory()[1] < 10 << 20
    finally:
        tracemalloc.stop()


@pytest.mark.parametrize("keyed", [True, False])
def test_records_among_blocks_keep_their_order(keyed):
    headers = (("h", b"1"),)
    values = pa.array(["1", "2", "3"])
    block = RecordBlock("t", [(values if keyed else None, values)], headers)
    same = RecordBlock("t", [(None, values[1:])], headers)
    other = RecordBlock("u", [(None, values)], headers)
    key = b"4" if keyed else None
    few = [Record("t", key, b"5", headers), Record("u", None, None)]
    together = joined([block, [], same])
    assert isinstance(together, RecordBlock)
    for pieces in ([block, [], same], [block, other], [few, block, few[1:]], [few[:1], few]):
        records = [record for piece in pieces for record in piece]
        found = joined(pieces)
        assert len(found) == len(records)
        assert b"".join(JsonLines().portions(found)) == JsonLines().lines(records)
        assert list(found) == records
        assert list(found[1:]) == records[1:]
