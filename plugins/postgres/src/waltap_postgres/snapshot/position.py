"""Where rows stand that a transaction of its own snapshot reads beside an older slot: no further than any
change that they lack.

The end of the WAL is asked for before there is a snapshot: what is committed later lies behind it, and
what had been committed is seen. But for one thing: a commit is in the WAL before it is visible, and one
that waits for a synchronous standby may be there for as long as that takes, and be streamed. Source:
PostgreSQL, `CommitTransaction` (`RecordTransactionCommit`, which waits in `SyncRepWaitForLSN`; only then
`ProcArrayEndTransaction`).
"""

from dataclasses import dataclass
from typing import Final, Self

from waltap_postgres.catalog.catalogue import PostgresCatalogue
from waltap_postgres.visibility import WHOLE, SnapshotVisibility

__all__ = ["AskedBefore"]

OPEN_SQL: Final = """
SELECT backend_xid::text::int8 FROM pg_stat_activity
 WHERE backend_xid IS NOT NULL
   AND (state IN ('idle in transaction', 'idle in transaction (aborted)') OR wait_event_type = 'Lock')
"""
"""Transactions that have not come to their commit: they wait for their client, or for a lock."""


@dataclass(frozen=True, slots=True)
class AskedBefore:
    """The end of the WAL, and which transactions may have been committed before it and not be visible yet:
    32 bits of their ids."""

    lsn: int
    committing: frozenset[int]

    @classmethod
    def ask(cls, now: PostgresCatalogue) -> Self | None:
        """Ask, before there is a snapshot; None where the server tells no position of its own."""
        if now.standby() or (lsn := now.wal_end()) is None:
            return None
        text = now.snapshot()
        running = SnapshotVisibility.of_snapshot(text).in_progress if text else frozenset()
        ids = frozenset(xid % WHOLE for xid in running)
        return cls(lsn, ids - {xid for (xid,) in now.query(OPEN_SQL)} if ids else ids)

    def position(self, seen: str, begin: int) -> int:
        """Return where rows of the snapshot that saw ``seen`` stand (`Offset.visible_in`), when the stream
        begins at ``begin``: there, where a transaction may be in doubt, as nothing comes from before."""
        if self.committing and seen:
            running = SnapshotVisibility.of_snapshot(seen.partition("@")[0]).in_progress
            if not self.committing.isdisjoint(xid % WHOLE for xid in running):
                return min(self.lsn, begin)
        return self.lsn
