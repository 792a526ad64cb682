"""Where a run ends, how large a batch is, and when a stream counts as silent."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from waltap.decode.message import Insert
from waltap.decode.relation import Relation
from waltap.pipeline.stop_conditions import IdleDetector, batches, cut
from waltap.source.position import Position
from waltap.transactions.transaction import TransactionPart

RELATION = Relation(oid=1, schema="public", table="t", columns=())


def part(number: int, count: int, gaps: dict[int, int] | None = None) -> TransactionPart:
    """Return a whole transaction with ``count`` changes, and what the decoder left out between them. The
    LSN of a change tells its place on the wire."""
    wire = [n for index in range(count) for n in _before(index, gaps or {})]
    return TransactionPart(
        xid=number,
        begin_lsn=number * 1000,
        commit_lsn=number * 1000 + 900,
        commit_ts=0,
        end_lsn=number * 1000 + 950,
        changes=[Insert(RELATION, number * 1000 + n, ()) for n in wire],
        gaps=sorted((gaps or {}).items()),
    )


def _before(index: int, gaps: dict[int, int]) -> list[int]:
    """Return the place of a change on the wire, as a list."""
    return [index + sum(count for at, count in gaps.items() if at <= index)]


def sized(count: int) -> st.SearchStrategy[tuple[int, dict[int, int]]]:
    places = st.integers(0, count)
    return st.tuples(st.just(count), st.dictionaries(places, st.integers(1, 3), max_size=4))


PARTS = st.lists(st.integers(0, 30).flatmap(sized), max_size=12).map(
    lambda sizes: [part(n, count, gaps) for n, (count, gaps) in enumerate(sizes, 1)]
)


def changes(parts: list[TransactionPart]) -> list[int]:
    return [change.lsn for part in parts for change in part.changes]


def positions(parts: list[TransactionPart]) -> list[Position]:
    found = [Position(0)]
    for each in parts:
        found.append(each.position(found[-1]))
    return found


@given(PARTS, st.integers(1, 40))
def test_batches_are_no_larger_than_asked_and_hold_all_changes_in_order(
    parts: list[TransactionPart], most: int
) -> None:
    before, end = changes(parts), positions(parts)[-1]
    made = list(batches(parts, most))
    assert all(len(changes(batch)) <= most for batch in made)
    flat = [piece for batch in made for piece in batch]
    assert changes(flat) == before
    assert positions(flat)[-1] == end
    assert positions(flat) == sorted(positions(flat))
    assert sum(p.complete for p in flat) == sum(p.complete for p in parts)


@given(PARTS, st.integers(1, 40))
def test_a_position_between_pieces_counts_exactly_what_stood_before_it_on_the_wire(
    parts: list[TransactionPart], most: int
) -> None:
    wires = {each.commit_lsn: each.wire_count for each in parts}
    rest = {each.commit_lsn: [c.lsn % 1000 for c in each.changes] for each in parts}
    for batch in batches(parts, most):
        for piece in batch:
            places = rest[piece.commit_lsn]
            del places[: len(piece.changes)]
            if piece.complete:
                assert piece.first_index + piece.wire_count == wires[piece.commit_lsn]
                continue
            reached = piece.position(Position(0))
            assert all(c.lsn % 1000 < reached.index for c in piece.changes)
            assert all(place >= reached.index for place in places)


@given(PARTS, st.integers(0, 60))
def test_a_cut_delivers_exactly_so_many_changes_and_tells_whether_more_were_there(
    parts: list[TransactionPart], events: int
) -> None:
    before, length = changes(parts), len(parts)
    kept, left_out = cut(parts, events)
    assert changes(kept) == before[:events]
    whole = len(kept) == length and len(changes(kept)) == len(before)
    assert left_out is not whole or (length > 0 and events == 0)


def test_a_cut_transaction_is_not_complete_and_stands_at_its_last_change() -> None:
    (kept,), left_out = cut([part(1, 10, {2: 5, 6: 1})], 4)
    assert (kept.complete, kept.end_lsn, left_out) == (False, 0, True)
    assert kept.position(Position(7)) == Position(7, 1900, 9)


def in_pieces(parts: list[TransactionPart], most: int) -> list[TransactionPart]:
    """Return ``parts`` in pieces of at most ``most`` changes."""
    return [piece for batch in batches(parts, most) for piece in batch]


@given(PARTS, st.integers(1, 40), st.integers(0, 60))
def test_a_cut_between_transactions_is_behind_the_first_that_has_so_many_changes(
    parts: list[TransactionPart], most: int, events: int
) -> None:
    pieces = in_pieces(parts, most)
    kept, left_out = cut(pieces, events, whole=True)
    assert kept == pieces[: len(kept)]
    assert left_out == (len(kept) < len(pieces))
    if left_out:
        assert kept[-1].complete
        assert len(changes(kept)) >= events
    before = kept[: 1 + max((n for n, p in enumerate(kept[:-1]) if p.complete), default=-1)]
    assert not before or len(changes(before)) < events


class TestSilence:
    def test_it_counts_from_the_last_change(self) -> None:
        silence = IdleDetector(2.0, 0, now=10.0)
        assert not silence.lasted(11.9, 0)
        silence.broken(11.9)
        assert not silence.lasted(13.8, 0)
        assert silence.lasted(13.9, 0)

    def test_progress_towards_the_target_breaks_it(self) -> None:
        silence = IdleDetector(1.0, 1000, now=0.0)
        for second, read in enumerate((100, 200, 300), start=1):
            assert not silence.lasted(second + 0.9, read)
        assert not silence.caught_up
        assert not silence.lasted(5.0, 1000)
        assert silence.caught_up
        assert silence.lasted(6.0, 1000)

    def test_a_server_that_never_gets_there_is_given_up_after_patience(self) -> None:
        silence = IdleDetector(1.0, 1000, now=0.0)
        assert not silence.lasted(30.0, 0)
        assert silence.lasted(31.0, 0)

    @pytest.mark.parametrize("target", [0, 5])
    def test_without_a_target_ahead_silence_alone_counts(self, target: int) -> None:
        silence = IdleDetector(0.0, target, now=0.0)
        assert silence.lasted(0.0, 5)
