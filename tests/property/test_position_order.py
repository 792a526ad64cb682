"""Positions: their order is the order of delivery; LSNs survive their text."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from waltap.changes.transactions.position import START, Position, lsn_text, parse_lsn
from waltap.ports.offsets.offset import Offset, PartitionOffset, decoded, encoded

LSNS = st.integers(0, (1 << 64) - 1)
POSITIONS = st.builds(Position, LSNS, LSNS, st.integers(0, 1 << 40))


@given(LSNS)
def test_an_lsn_is_read_back_from_its_text_padded_or_not(lsn):
    assert parse_lsn(lsn_text(lsn)) == lsn
    assert parse_lsn(f" {lsn >> 32:08x}/{lsn & 0xFFFFFFFF:08X}\n") == lsn


@pytest.mark.parametrize(
    "text",
    ["", "/", "1", "1/", "/1", "G/0", "1/123456789", "1/2/3", "-1/0", "1_0/0", "1/ 0", "\u0661/0"],
)
def test_what_is_no_lsn_is_refused(text):
    with pytest.raises(ValueError, match=r"."):
        parse_lsn(text)


@given(st.integers(1, 1 << 40), st.integers(1, 1 << 20), st.integers(1, 100), st.integers(1, 100))
def test_positions_grow_inside_a_transaction_and_over_its_end(end, size, one, more):
    """After a transaction; in the next, further on in it; at its end."""
    commit = end + size
    journey = [
        START, Position(end), Position(end, commit, one), Position(end, commit, one + more),
        Position(commit + 8), Position(commit + 8, commit + 100, 1),
    ]  # fmt: skip
    assert journey == sorted(journey)
    assert len(set(journey)) == len(journey)


@given(POSITIONS)
def test_an_offset_is_read_back_as_it_was_stored(position):
    slot = PartitionOffset(position=position, slot="s", database="d", system_id="1", timeline=1)
    offset = Offset.of(slot)
    assert decoded(encoded(offset)) == offset


@given(POSITIONS)
def test_a_position_is_reported_in_the_servers_words(position):
    text = str(position)
    assert text.startswith(lsn_text(position.end_lsn))
    assert text.endswith(f"#{position.index}") is bool(position.index)
