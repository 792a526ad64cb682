"""Counting events within transactions: Debezium's ``transaction`` block and its END record."""

from collections.abc import Mapping

__all__ = ["TransactionOrder"]


class TransactionOrder:
    """Counters of the open transaction; one transaction is open at a time.

    A transaction that comes in several parts keeps its counters between them. When its first part
    was delivered before a restart, the total goes on from the index of the first change given.
    """

    __slots__ = ("_collections", "_key", "total")

    def __init__(self) -> None:
        self.total = 0
        self._key: tuple[int | None, int] = (None, 0)
        self._collections: dict[str, int] = {}

    def enter(self, xid: int | None, begin_lsn: int, first_index: int, *, starts: bool) -> None:
        """Go on with the transaction, or start counting when it ``starts`` or is another one."""
        key = (xid, begin_lsn)
        if starts or key != self._key:
            self._key, self.total, self._collections = key, first_index, {}

    def next(self, collection: str) -> tuple[int, int]:
        """Count one event; return its place in the transaction and in the collection, from 1."""
        self.total += 1
        order = self._collections[collection] = self._collections.get(collection, 0) + 1
        return self.total, order

    def counts(self) -> Mapping[str, int]:
        """Return the number of events per collection, in order of appearance."""
        return self._collections
