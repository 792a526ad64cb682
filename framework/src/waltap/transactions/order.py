"""Counting events within transactions: Debezium's ``transaction`` block and its END record."""

from collections.abc import Mapping

import msgspec

from waltap.source.position import Position
from waltap.transactions.transaction import TransactionPart

__all__ = ["TransactionCounts", "TransactionOrder"]


class TransactionCounts(msgspec.Struct, frozen=True, kw_only=True):
    """How many events the first ``index`` changes of the transaction that commits at ``commit_lsn``
    became: in all, and by collection. Part of the offset, next to the position that it belongs to."""

    commit_lsn: int
    index: int
    total: int
    collections: dict[str, int] = {}

    def belong_to(self, position: Position) -> bool:
        """Tell whether these are the counts up to ``position``: it may have been moved by other means."""
        return (self.commit_lsn, self.index) == (position.commit_lsn, position.index)


class TransactionOrder:
    """Counters of the open transaction; one transaction is open at a time.

    A transaction that comes in several parts keeps its counters between them, over restarts too: what
    `counts_at` gives is stored with the position, `restore` goes on from there. Where nobody knows them
    (the position was moved by hand, say), the total goes on from the index of the first change given.
    """

    __slots__ = ("_collections", "_key", "total")

    def __init__(self) -> None:
        self.total = 0
        self._key: int | None = None
        self._collections: dict[str, int] = {}

    def enter(self, part: TransactionPart) -> None:
        """Go on with the transaction of ``part``, or start counting when it is another one."""
        if part.starts or part.commit_lsn != self._key:
            self._key, self.total, self._collections = part.commit_lsn, part.first_index, {}

    def next(self, collection: str) -> tuple[int, int]:
        """Count one event; return its place in the transaction and in the collection, from 1."""
        self.total += 1
        order = self._collections[collection] = self._collections.get(collection, 0) + 1
        return self.total, order

    def counts(self) -> Mapping[str, int]:
        """Return the number of events per collection, in order of appearance."""
        return self._collections

    def counts_at(self, position: Position) -> TransactionCounts | None:
        """Return the counters to store with ``position``, up to where everything was counted: None between
        transactions, and where nothing is counted."""
        if not position.index or position.commit_lsn != self._key:
            return None
        return TransactionCounts(
            commit_lsn=position.commit_lsn,
            index=position.index,
            total=self.total,
            collections=dict(self._collections),
        )

    def mark(self) -> tuple[int | None, int, dict[str, int]]:
        """Return what was counted so far, for `back_to`."""
        return self._key, self.total, dict(self._collections)

    def back_to(self, mark: tuple[int | None, int, dict[str, int]]) -> None:
        """Count from where `mark` was taken: what came since is to be rendered again."""
        self._key, self.total, collections = mark
        self._collections = dict(collections)

    def restore(self, counts: TransactionCounts | None, position: Position) -> None:
        """Forget what was counted, and go on from what was stored with ``position``."""
        self._key, self.total, self._collections = None, 0, {}
        if counts is not None and counts.belong_to(position):
            self._key, self.total = counts.commit_lsn, counts.total
            self._collections = dict(counts.collections)
