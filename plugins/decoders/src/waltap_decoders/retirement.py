"""Removal of decoder state for dropped tables.

The server never reports that a table was dropped. It sends rows of an announced table without
announcing it again, so a decoder cannot simply forget old relations. Each time its known relations
have doubled, it asks which of them no longer exist. It drops their state when it reads
transactions that committed later.
"""

from collections.abc import Collection

from waltap.changes.decode.decoder import DecoderContext

# Up to this number, relations are kept without asking the catalogue.
SMALLEST = 128


class RelationRetirement:
    """Decide when one session drops the state of relations."""

    __slots__ = ("_forget", "_gone", "_limit", "_until", "pending")

    def __init__(self, context: DecoderContext) -> None:
        self._gone, self._forget = context.gone, context.forget
        self._limit = SMALLEST
        self._until = 0
        # OIDs that are gone from the catalogue; rows of them may still be on the way.
        self.pending: frozenset[int] = frozenset()

    def grown(self, oids: Collection[int]) -> None:
        """Check the known relations after one was added."""
        if len(oids) < self._limit or self._gone is None or self.pending:
            return
        self.pending, self._until = self._gone(oids)
        # Doubling keeps the number of catalogue queries logarithmic.
        self._limit = 2 * (len(oids) - len(self.pending)) + SMALLEST

    def due(self, lsn: int) -> frozenset[int]:
        """Return, once, the OIDs whose state must be dropped.

        A transaction that committed at ``lsn`` or later begins. The decoder must then call `grown`
        again, since its relations may have grown while OIDs were pending.
        """
        if lsn <= self._until:
            return frozenset()
        due, self.pending = self.pending, frozenset()
        if self._forget is not None:
            for oid in due:
                self._forget(oid, lsn)
        return due
