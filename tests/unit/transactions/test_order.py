"""Counters of events within transactions: what is stored with a position, and what goes on from it."""

from tests.harness.json_events import part as transaction

from waltap.changes.transactions.order import TransactionOrder
from waltap.changes.transactions.position import Position
from waltap.changes.transactions.transaction import TransactionPart


def part(first_index: int = 0, *, starts: bool = True) -> TransactionPart:
    return transaction(commit_lsn=900, first_index=first_index, starts=starts, complete=False)


def counted(order: TransactionOrder, *collections: str) -> list[tuple[int, int]]:
    return [order.next(collection) for collection in collections]


def test_numbers_go_on_from_what_was_stored_with_the_position():
    order, later = TransactionOrder(), TransactionOrder()
    order.enter(part())
    counted(order, "a", "b", "a")
    position = Position(50, 900, 9)  # of nine changes on the wire six became no event
    stored = order.counts_at(position)
    later.restore(stored, position)
    later.enter(part(9, starts=False))
    assert counted(later, "a", "b") == [(4, 3), (5, 2)]
    assert later.counts() == {"a": 3, "b": 2}


def test_counts_are_in_the_order_of_debeziums_hash_map():
    order = TransactionOrder()
    order.enter(part())
    counted(order, "public.a", "public.b", "public.c", "public.b")
    assert list(order.counts().items()) == [("public.c", 1), ("public.a", 1), ("public.b", 2)]


def test_what_was_counted_beyond_the_position_is_forgotten_at_a_reconnect():
    order = TransactionOrder()
    order.enter(part())
    counted(order, "a")
    position = Position(50, 900, 1)
    stored = order.counts_at(position)
    assert counted(order, "a", "a") == [(2, 2), (3, 3)]  # written, and never durable
    order.restore(stored, position)
    order.enter(part(1, starts=False))
    assert counted(order, "a") == [(2, 2)]


def test_counts_of_another_position_are_not_used():
    order = TransactionOrder()
    order.enter(part())
    counted(order, "a")
    stored = order.counts_at(Position(50, 900, 1))
    order.restore(stored, Position(50, 900, 4))
    order.enter(part(4, starts=False))
    assert counted(order, "a") == [(5, 1)]  # the total goes on from the index


def test_between_transactions_nothing_is_stored():
    order = TransactionOrder()
    order.enter(part())
    counted(order, "a")
    assert order.counts_at(Position(901)) is None
    assert TransactionOrder().counts_at(Position(50, 900, 1)) is None  # where nothing is counted
