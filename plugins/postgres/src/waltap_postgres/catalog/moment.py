"""The order of transactions, as far as their ids tell it."""

from dataclasses import dataclass

__all__ = ["WRAP", "Moment"]

WRAP, _HALF = 1 << 32, 1 << 31


@dataclass(frozen=True, slots=True)
class Moment:
    """A transaction, and the first id that no transaction had when the catalogue was asked."""

    xid: int = 0
    horizon: int = 0

    def precedes(self, changed: int) -> bool:
        """Tell whether a row of the catalogue that transaction ``changed`` wrote is newer.

        What was changed takes a lock that excludes writers of the table, so that of two such
        transactions one ended before the other touched the table; ids tell which, unless one began long
        before it did. An id that is ahead of all is an old one, of before the last wrap-around.
        """
        if not self.xid or not changed:
            return False
        later = 0 < (changed - self.xid) % WRAP < _HALF
        return later and 0 < (self.horizon - changed) % WRAP < _HALF
