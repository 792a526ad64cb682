"""The order of transactions, as far as their ids, the server and the wire tell it."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace

__all__ = ["WRAP", "CatalogVersion"]

WRAP, _HALF = 1 << 32, 1 << 31

NEAR = 16
"""So far apart the ids of savepoints of one transaction are taken to be, on a server with other work."""


@dataclass(frozen=True, slots=True)
class CatalogVersion:
    """A transaction, and the first id that no transaction had when the catalogue was asked.

    ``later`` tells, by id, whether the server itself has said that a transaction committed after this
    one (see `Descriptions`). ``reach``: an id up to which what was written is not newer, as the wire
    shows what that id wrote: it is the transaction's own id, or that of one of its subtransactions.
    """

    xid: int = 0
    horizon: int = 0
    later: Mapping[int, bool] = field(default_factory=dict)
    reach: int = 0

    def precedes(self, changed: int) -> bool:
        """Tell whether a row of the catalogue that transaction ``changed`` wrote is newer.

        What was changed takes a lock that excludes writers of the table, so that of two such
        transactions one ended before the other touched the table; ids tell which, unless one began long
        before it did, or the later id is of a subtransaction of this one: no id tells whose it is. An id
        that is ahead of all is an old one, of before the last wrap-around.
        """
        if not self.xid or not changed:
            return False
        told = self.later.get(changed)
        if told is not None:
            return told
        later = 0 < (changed - (self.reach or self.xid)) % WRAP < _HALF
        return later and 0 < (self.horizon - changed) % WRAP < _HALF

    def is_before(self, xid: int) -> bool:
        """Tell whether ``xid`` is a later id than the transaction's own."""
        return 0 < (xid - self.xid) % WRAP < _HALF

    def reaching(self, shown: Iterable[int], written: Iterable[int] = ()) -> "CatalogVersion":
        """Return the same moment, given the ids of transactions whose work the wire shows.

        With one that is later than its own, it is a transaction that does DDL under savepoints. What else
        was ``written`` with ids close by is taken for its work, too.
        """
        ahead = [(xid - self.xid) % WRAP for xid in shown if self.precedes(xid)]
        if not ahead:
            return self
        reach = max(ahead)
        for further in sorted((xid - self.xid) % WRAP for xid in written if self.precedes(xid)):
            if reach < further <= reach + NEAR:
                reach = further
        return replace(self, reach=(self.xid + reach) % WRAP)
