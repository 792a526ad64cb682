"""Relations that are gone: what a decoder keeps of them goes, too.

The server never says that a table was dropped, and sends rows of one it has announced without
announcing it again. So a decoder asks, each time the relations it knows have doubled, which of them
exist no more, and lets go of those once it reads transactions that committed after that.
"""

from collections.abc import Collection

from waltap.decode.decoder import DecoderContext

__all__ = ["RelationRetirement"]

SMALLEST = 128
"""So many relations are kept without asking."""


class RelationRetirement:
    """Decides, for one session, when relations are let go of. ``pending`` are those that are gone."""

    __slots__ = ("_forget", "_gone", "_limit", "_until", "pending")

    def __init__(self, context: DecoderContext) -> None:
        self._gone, self._forget = context.gone, context.forget
        self._limit = SMALLEST
        self._until = 0
        self.pending: frozenset[int] = frozenset()

    def grown(self, oids: Collection[int]) -> None:
        """Look at the relations that are known, after one was added."""
        if len(oids) < self._limit or self._gone is None or self.pending:
            return
        self.pending, self._until = self._gone(oids)
        self._limit = 2 * (len(oids) - len(self.pending)) + SMALLEST

    def due(self, lsn: int) -> frozenset[int]:
        """Return, once, the OIDs to let go of, now that a transaction begins that committed at ``lsn`` or
        later. What is known after that is to be looked at again: it may have grown meanwhile."""
        if lsn <= self._until:
            return frozenset()
        due, self.pending = self.pending, frozenset()
        if self._forget is not None:
            for oid in due:
                self._forget(oid, lsn)
        return due
