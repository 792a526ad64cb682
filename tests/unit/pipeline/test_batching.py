"""Parts of transactions on their way: cut, gathered, merged; where a run ends, what counts as acknowledged."""

import math
from copy import deepcopy

from hypothesis import given
from hypothesis import strategies as st

from waltap.changes.decode.message import Insert
from waltap.changes.decode.relation import Relation
from waltap.changes.transactions.position import Position
from waltap.changes.transactions.transaction import TransactionPart
from waltap.pipeline.api.batches import BatchStreamSink
from waltap.pipeline.runtime.run_state import IdleDetector
from waltap.pipeline.stages.partition_reader import PartBatcher, PartitionMerge, batches, cut

RELATION = Relation(oid=1, schema="public", table="t", columns=())


def part(
    number: int, count: int = 0, gaps: dict[int, int] | None = None, *, complete: bool = True
) -> TransactionPart:
    """Return a transaction with ``count`` changes, and what the decoder left out between them. The LSN of
    a change shows its place on the wire."""
    left_out = gaps or {}
    wire = [n + sum(left_out[at] for at in left_out if at <= n) for n in range(count)]
    return TransactionPart(
        xid=number,
        begin_lsn=number * 1000,
        commit_lsn=number * 1000 + 900,
        commit_ts=0,
        end_lsn=number * 1000 + 950,
        changes=[Insert(RELATION, number * 1000 + n, ()) for n in wire],
        gaps=sorted(left_out.items()),
        complete=complete,
    )


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
def test_batches_are_no_larger_than_asked_and_hold_all_changes_in_order(parts, most):
    before, end = changes(parts), positions(parts)[-1]
    made = list(batches(parts, most))
    assert all(len(changes(batch)) <= most for batch in made)
    flat = [piece for batch in made for piece in batch]
    assert changes(flat) == before
    assert positions(flat)[-1] == end
    assert positions(flat) == sorted(positions(flat))
    assert sum(p.complete for p in flat) == sum(p.complete for p in parts)


@given(PARTS, st.integers(1, 40))
def test_a_position_between_pieces_counts_exactly_what_stood_before_it_on_the_wire(parts, most):
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
def test_a_cut_delivers_exactly_so_many_changes_and_keeps_the_others(parts, events):
    before = changes(parts)
    kept, left_out = cut(parts, events)
    assert changes(kept) == before[:events]
    assert changes([*kept, *left_out]) == before
    assert sum(part.complete for part in [*kept, *left_out]) == len(parts)


def test_a_cut_transaction_is_not_complete_and_stands_at_its_last_change():
    (kept,), (left_out,) = cut([part(1, 10, {2: 5, 6: 1})], 4)
    assert (kept.complete, kept.end_lsn, left_out.complete) == (False, 0, True)
    assert kept.position(Position(7)) == Position(7, 1900, 9)


@given(PARTS, st.integers(1, 40), st.integers(0, 60))
def test_a_cut_between_transactions_is_behind_the_first_that_has_so_many_changes(
    parts, most, events
):
    pieces = [piece for batch in batches(parts, most) for piece in batch]
    kept, left_out = cut(pieces, events, whole_transactions=True)
    assert [*kept, *left_out] == pieces
    if left_out:
        assert kept[-1].complete
        assert len(changes(kept)) >= events
    before = kept[: 1 + max((n for n, p in enumerate(kept[:-1]) if p.complete), default=-1)]
    assert not before or len(changes(before)) < events


def test_silence_counts_from_the_last_change():
    silence = IdleDetector(2.0, 0, now=10.0)
    assert not silence.lasted(11.9, 0)
    silence.broken(11.9)
    assert not silence.lasted(13.8, 0)
    assert silence.lasted(13.9, 0)
    for target in (0, 5):
        assert IdleDetector(0.0, target, now=0.0).lasted(0.0, 5), "no target is ahead"


def test_progress_towards_the_target_breaks_silence_and_patience_has_an_end():
    silence, given_up = (IdleDetector(1.0, 1000, now=0.0) for _ in range(2))
    for second, read in enumerate((100, 200, 300), start=1):
        assert not silence.lasted(second + 0.9, read)
    assert not silence.caught_up
    assert not silence.lasted(5.0, 1000)
    assert silence.caught_up
    assert silence.lasted(6.0, 1000)
    assert not silence.lasted(7.0, 1000, 3000)
    assert not silence.lasted(37.0, 2000, 3000), "towards a position that rows wait for"
    assert [silence.lasted(at, 2000, 3000) for at in (67.0, 68.0)] == [False, True]
    assert [given_up.lasted(at, 0) for at in (30.0, 31.0)] == [False, True]


# --- changes that wait for more: no longer than asked, and no more than fit -----------------------------


def due(gathered: PartBatcher, now: float) -> bool:
    """Return whether something is to be written now, and leave it there."""
    return bool(deepcopy(gathered).take_due(now))


def gather(gathered: PartBatcher, now: float, *counts: int, ends: bool = True) -> bool:
    """Add parts of so many changes, the last one of a transaction that may go on; show whether they are due."""
    last = len(counts) - 1
    gathered.add([part(1, n, complete=ends or at < last) for at, n in enumerate(counts)], now)
    return due(gathered, now)


def taken(gathered: PartBatcher) -> list[int]:
    return [len(each.changes) for each in gathered.take_due(math.inf)]


def test_the_wait_counts_from_the_first_part():
    gathered = PartBatcher(1.0, 100)
    assert gathered.wait(0.25, 99.0) == 0.25, "nothing is gathered"
    gather(gathered, 5.0, 1)
    gather(gathered, 5.9, 1)
    assert not due(gathered, 5.99)
    assert gathered.wait(0.25, 5.9) < 0.11
    assert gathered.wait(0.05, 5.9) == 0.05
    assert due(gathered, 6.0)
    assert taken(gathered) == [1, 1]
    gather(gathered, 7.0, 1)
    assert not due(gathered, 7.9)


def test_a_full_batch_waits_no_longer_and_without_linger_none_does():
    gathered, at_once = PartBatcher(60.0, 100), PartBatcher(0.0, 100)
    assert [gather(gathered, 0.0, 60), gather(gathered, 0.0, 40)] == [False, True]
    assert taken(gathered) == [60, 40]
    assert not gather(gathered, 0.0, 60)
    assert not due(at_once, 5.0)
    assert gather(at_once, 5.0, 1)
    assert taken(at_once) == [1]
    assert not at_once


def test_what_came_of_a_transaction_waits_for_its_end_where_that_is_wanted():
    gathered = PartBatcher(0.0, 100, whole_transactions=True)
    assert gather(gathered, 5.0, 1, 2, 3, ends=False)
    assert taken(gathered) == [1, 2]
    assert gathered
    assert not due(gathered, 9.0)
    assert gathered.wait(0.25, 9.0) == 0.25, "nothing to hurry for"
    assert not gather(gathered, 9.0, 4, ends=False)
    gather(gathered, 9.0, 5, 6, ends=False)
    assert taken(gathered) == [3, 4, 5]
    assert [len(each.changes) for each in gathered.take_all()] == [6]
    assert (bool(gathered), gathered.changes) == (False, 0)
    lingering = PartBatcher(1.0, 100, whole_transactions=True)
    gather(lingering, 0.0, 1, ends=False)
    gather(lingering, 5.0, 1)
    assert [due(lingering, at) for at in (5.9, 6.0)] == [False, True]


def test_a_transaction_that_fills_a_batch_does_not_wait_for_its_end():
    gathered = PartBatcher(0.0, 100, whole_transactions=True)
    gather(gathered, 5.0, 1, 60, ends=False)
    assert taken(gathered) == [1]
    assert gather(gathered, 5.0, 40, ends=False)
    assert taken(gathered) == [60, 40]
    assert gathered.changes == 0


# --- transactions of several partitions, in the order of their commits ------------------------------------


def order(taken: list[tuple[str, list[TransactionPart]]]) -> list[int]:
    return [each.xid for _, parts in taken for each in parts]


def test_nothing_goes_on_before_every_partition_was_heard():
    merge = PartitionMerge(["a", "b"], quiet_s=1.0, most=100, now=0.0)
    merge.add("a", [part(10), part(30)], 0.0)
    assert merge.take(0.5) == []
    merge.add("b", [part(20)], 0.5)
    assert order(merge.take(0.5)) == [10, 20]
    assert order(merge.take(1.4)) == []
    assert order(merge.take(1.6)) == [30]  # b has been silent for long enough
    assert not merge


def test_parts_of_one_transaction_stay_together():
    merge = PartitionMerge(["a", "b"], quiet_s=1.0, most=100, now=0.0)
    merge.add("a", [part(10, complete=False)], 0.0)
    merge.add("b", [part(9), part(20)], 0.0)
    assert order(merge.take(0.0)) == [9, 10]
    assert merge.take(9.0) == []  # its end has not come
    merge.add("a", [part(10)], 9.0)
    assert order(merge.take(10.5)) == [10, 20]


@given(st.lists(st.tuples(st.sampled_from("ab"), st.integers(1, 50)), max_size=30))
def test_all_comes_out_in_the_order_of_commits(found):
    merge = PartitionMerge(["a", "b"], quiet_s=1.0, most=100, now=0.0)
    for name in "ab":
        merge.add(name, [part(number) for each, number in sorted(found) if each == name], 0.0)
    assert order(merge.take(2.0)) == sorted(number for _, number in found)


# --- acknowledged batches of a loop ----------------------------------------------------------------------


def test_those_before_one_that_is_done_with_by_itself_are_meant_too():
    """A commit may come in a read of its own: a batch without changes, which nobody has to acknowledge."""
    sink = BatchStreamSink(records=True, each=False, most=10)
    sink.enter(1)
    sink.enter(2)
    last = sink.enter(3)
    later = sink.enter(4)
    sink.acknowledge(last, earlier=False)
    assert sink.acknowledged() == 0
    sink.acknowledge(last, earlier=True)
    assert sink.acknowledged() == 3
    assert not later.given
