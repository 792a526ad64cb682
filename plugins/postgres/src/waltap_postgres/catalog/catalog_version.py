"""The order of transactions, by their ids, the server and the wire."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace

__all__ = ["WRAP", "CatalogVersion"]

# Transaction ids have 32 bits; of two ids, the later is at most half of them ahead.
WRAP, _HALF = 1 << 32, 1 << 31

# Ids of savepoints of one transaction are assumed to be at most so far apart: other transactions
# take ids in between.
NEAR = 16


@dataclass(frozen=True, slots=True)
class CatalogVersion:
    """Compare a transaction with the writers of the catalogue's rows."""

    # The transaction.
    xid: int = 0
    # The first id that no transaction had when the catalogue was read.
    horizon: int = 0
    # Id → whether it committed after this transaction, as the server's commit timestamps say.
    later: Mapping[int, bool] = field(default_factory=dict)
    # Rows written up to this id are not newer. It is the transaction's own id, or that of a
    # subtransaction whose work the wire shows.
    reach: int = 0

    def precedes(self, changed: int) -> bool:
        """Return whether a catalogue row that ``changed`` wrote is newer.

        DDL takes a lock that excludes writers of the table. So of two such transactions, one ended
        before the other touched the table. The order of ids can be wrong if one began long before
        that, or if the later id is a subtransaction of this transaction.
        """
        if not self.xid or not changed:
            return False
        told = self.later.get(changed)
        if told is not None:
            return told
        later = 0 < (changed - (self.reach or self.xid)) % WRAP < _HALF
        # An id ahead of the horizon is an old one, from before the last wrap-around.
        return later and 0 < (self.horizon - changed) % WRAP < _HALF

    def is_before(self, xid: int) -> bool:
        """Return whether ``xid`` is later than the transaction's own id."""
        return 0 < (xid - self.xid) % WRAP < _HALF

    def reaching(self, shown: Iterable[int], written: Iterable[int] = ()) -> "CatalogVersion":
        """Return the version extended by ids whose work the wire shows.

        A later id among ``shown`` means that the transaction does DDL under savepoints. Then ids of
        ``written`` that are close by belong to it as well.
        """
        ahead = [(xid - self.xid) % WRAP for xid in shown if self.precedes(xid)]
        if not ahead:
            return self
        reach = max(ahead)
        for further in sorted((xid - self.xid) % WRAP for xid in written if self.precedes(xid)):
            if reach < further <= reach + NEAR:
                reach = further
        return replace(self, reach=(self.xid + reach) % WRAP)
