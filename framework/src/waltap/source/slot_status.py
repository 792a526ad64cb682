"""Where a replication slot stands."""

from dataclasses import dataclass

__all__ = ["SlotStatus"]


@dataclass(frozen=True, slots=True, kw_only=True)
class SlotStatus:
    """Where a pipeline's replication slot stands on the server; LSNs are 0 where it gives none.

    ``server_lsn`` is the end of the server's WAL. ``reader`` is the process that reads the slot
    now, None when nobody does. ``wal_status`` is the server's word ("reserved", "lost", …),
    ``invalidation`` its word for why it gave the slot up, "" where it did not. ``safe_bytes`` may be
    written before the slot is in danger; None: without end, or it does not say. ``disk_bytes`` and
    ``free_bytes`` are those of the disk that the WAL is on, None where that cannot be seen from here.
    """

    name: str
    decoder: str
    reader: int | None
    restart_lsn: int
    confirmed_lsn: int
    server_lsn: int
    wal_status: str = ""
    safe_bytes: int | None = None
    invalidation: str = ""
    disk_bytes: int | None = None
    free_bytes: int | None = None

    @property
    def lag_bytes(self) -> int:
        """Return how much WAL is not confirmed yet."""
        return max(0, self.server_lsn - self.confirmed_lsn)

    @property
    def retained_bytes(self) -> int:
        """Return how much WAL the server keeps because of the slot."""
        return max(0, self.server_lsn - self.restart_lsn) if self.restart_lsn else 0
