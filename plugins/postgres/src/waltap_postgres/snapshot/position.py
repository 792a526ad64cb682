"""Position of the rows of a snapshot that is read beside an older slot.

The position must not be after any change that the rows lack. waltap reads the end of the WAL before
the snapshot exists: later commits are after it, and earlier commits are visible. There is one
exception: a commit is in the WAL before it is visible. A commit that waits for a synchronous standby
can stay in that state for long, and be streamed meanwhile.

Source: PostgreSQL, `CommitTransaction` (`RecordTransactionCommit`, which waits in
`SyncRepWaitForLSN`; only then `ProcArrayEndTransaction`).
"""

from dataclasses import dataclass
from typing import Final, Self

from waltap_postgres.catalog.catalogue import PostgresCatalogue
from waltap_postgres.visibility import WHOLE, SnapshotVisibility

__all__ = ["AskedBefore"]

# Transactions that have not begun their commit: they wait for their client or for a lock.
OPEN_SQL: Final = """
SELECT backend_xid::text::int8 FROM pg_stat_activity
 WHERE backend_xid IS NOT NULL
   AND (state IN ('idle in transaction', 'idle in transaction (aborted)') OR wait_event_type = 'Lock')
"""


@dataclass(frozen=True, slots=True)
class AskedBefore:
    """Hold the server's position before a snapshot."""

    # The end of the WAL.
    lsn: int
    # Transactions that may have committed before ``lsn`` and not be visible: 32 bits of their ids.
    committing: frozenset[int]

    @classmethod
    def ask(cls, now: PostgresCatalogue) -> Self | None:
        """Read the position before the snapshot, None without a position."""
        if now.standby() or (lsn := now.wal_end()) is None:
            return None
        text = now.snapshot()
        running = SnapshotVisibility.of_snapshot(text).in_progress if text else frozenset()
        ids = frozenset(xid % WHOLE for xid in running)
        return cls(lsn, ids - {xid for (xid,) in now.query(OPEN_SQL)} if ids else ids)

    def position(self, seen: str, begin: int) -> int:
        """Return the position of the rows of a snapshot.

        ``seen`` is its visibility (`Offset.visible_in`), ``begin`` the start of the stream.
        """
        if self.committing and seen:
            running = SnapshotVisibility.of_snapshot(seen.partition("@")[0]).in_progress
            if not self.committing.isdisjoint(xid % WHOLE for xid in running):
                # A commit may be before ``lsn`` and not in the snapshot; the stream has nothing
                # from before ``begin``.
                return min(self.lsn, begin)
        return self.lsn
