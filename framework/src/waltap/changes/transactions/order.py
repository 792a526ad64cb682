"""Count events for Debezium's ``transaction`` block and its END record."""

from collections.abc import Mapping
from typing import Final

import msgspec

from waltap.changes.mapping.java_number import java_order
from waltap.changes.transactions.position import Position
from waltap.changes.transactions.transaction import TransactionPart

# The transaction's commit LSN, its events, and the events of each collection.
OrderSavepoint = tuple[int | None, int, dict[str, int]]
NOTHING_COUNTED: Final[OrderSavepoint] = (None, 0, {})


class TransactionCounts(msgspec.Struct, frozen=True, kw_only=True):
    """Count the events of a transaction's first ``index`` changes.

    They are part of the offset, next to the position that they belong to.
    """

    # The transaction commits here.
    commit_lsn: int
    index: int
    # Events of all collections.
    total: int
    collections: dict[str, int] = {}


class TransactionOrder:
    """Count the events of the one open transaction.

    A transaction that comes in several parts keeps its counters between them, also over restarts.
    `counts_at` gives the counters to store with the position; `restore` continues from them.
    Where the stored position has none, for example because an operator moved it, the total
    continues from the index of the first change.
    """

    __slots__ = ("_collections", "_key", "counting", "total")

    def __init__(self) -> None:
        # Events were counted: the profile asks for transaction metadata.
        self.counting = False
        self.total = 0
        self._key: int | None = None
        self._collections: dict[str, int] = {}

    def enter(self, part: TransactionPart) -> None:
        """Continue with ``part``'s transaction, or start another one."""
        self.counting = True
        # A part without its begin continues after a restart; its first index is the best total
        # known.
        if part.starts or part.commit_lsn != self._key:
            self._key, self.total, self._collections = part.commit_lsn, part.first_index, {}

    def next(self, collection: str) -> tuple[int, int]:
        """Count one event; return its order in the transaction and collection.

        Both orders start at 1.
        """
        self.total += 1
        order = self._collections[collection] = self._collections.get(collection, 0) + 1
        return self.total, order

    def counts(self) -> Mapping[str, int]:
        """Return the events per collection, in the order of Debezium's hash map."""
        if len(self._collections) < 2:
            return self._collections
        return {name: self._collections[name] for name in java_order(self._collections)}

    def counts_at(self, position: Position) -> TransactionCounts | None:
        """Return the counters to store with ``position``.

        They are None between transactions, and where nothing is counted.
        """
        if not position.index or position.commit_lsn != self._key:
            return None
        return TransactionCounts(
            commit_lsn=position.commit_lsn,
            index=position.index,
            total=self.total,
            collections=dict(self._collections),
        )

    def savepoint(self) -> OrderSavepoint:
        """Return the counters so far, for `back_to`."""
        return self._key, self.total, dict(self._collections)

    def back_to(self, savepoint: OrderSavepoint) -> None:
        """Count from the `savepoint` again: the events since will be rendered again."""
        self._key, self.total, collections = savepoint
        # A copy: the caller may return to one savepoint more than once.
        self._collections = dict(collections)

    def restore(self, counts: TransactionCounts | None, position: Position) -> None:
        """Continue from the counters that were stored with ``position``."""
        self.back_to(NOTHING_COUNTED)
        at = position.commit_lsn, position.index
        # Another position: the operator moved it.
        if counts is not None and (counts.commit_lsn, counts.index) == at:
            self.counting = True
            self.back_to((counts.commit_lsn, counts.total, counts.collections))
