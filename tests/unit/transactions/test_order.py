"""Counters of events within transactions: what is stored with a position, and what goes on from it."""

import pytest
from tests.harness.json_events import part as transaction

from waltap.changes.transactions.order import TransactionOrder
from waltap.changes.transactions.position import Position
from waltap.changes.transactions.transaction import TransactionPart


def part(first_index: int = 0, *, starts: bool = True) -> TransactionPart:
    return transaction(commit_lsn=900, first_index=first_index, starts=starts, complete=False)


def counted(order: TransactionOrder, *collections: str) -> list[tuple[int, int]]:
    return [order.next(collection) for collection in collections]


def test_counts_are_in_the_order_of_debeziums_hash_map():
    order = TransactionOrder()
    order.enter(part())
    counted(order, "public.a", "public.b", "public.c", "public.b")
    assert list(order.counts().items()) == [("public.c", 1), ("public.a", 1), ("public.b", 2)]


AGAIN = {
    # of nine changes on the wire six became no event
    "numbers go on from what was stored with the position": ("aba", "", 9, 9, "ab", [(4, 3), (5, 2)]),
    "what was counted beyond the position was never durable": ("a", "aa", 1, 1, "a", [(2, 2)]),
    "counts of another position are not used: the total is the index": ("a", "", 1, 4, "a", [(5, 1)]),
}  # fmt: skip
"""Collections of events before the position and behind it, the index that is stored, and the one that it goes on
from; collections of what comes then, and its numbers."""


@pytest.mark.parametrize("reconnects", [True, False])
@pytest.mark.parametrize("case", AGAIN)
def test_a_transaction_is_gone_on_with(case, reconnects):
    before, lost, stored_at, goes_on_at, after, numbers = AGAIN[case]
    order = TransactionOrder()
    order.enter(part())
    counted(order, *before)
    stored = order.counts_at(Position(50, 900, stored_at))
    counted(order, *lost)
    order = order if reconnects else TransactionOrder()
    order.restore(stored, Position(50, 900, goes_on_at))
    order.enter(part(goes_on_at, starts=False))
    assert counted(order, *after) == numbers
    if stored_at == goes_on_at:
        every = before + after
        assert order.counts() == {name: every.count(name) for name in every}


def test_between_transactions_nothing_is_stored():
    order = TransactionOrder()
    order.enter(part())
    counted(order, "a")
    assert order.counts_at(Position(901)) is None
    assert TransactionOrder().counts_at(Position(50, 900, 1)) is None  # where nothing is counted
