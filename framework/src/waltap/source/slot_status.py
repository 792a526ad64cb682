"""Where a replication slot stands."""

from dataclasses import dataclass

__all__ = ["SlotStatus"]


@dataclass(frozen=True, slots=True, kw_only=True)
class SlotStatus:
    """Where a pipeline's replication slot stands on the server; LSNs are 0 where it gives none.

    ``server_lsn`` is the end of the server's WAL. ``reader`` is the process that reads the slot
    now, None when nobody does. ``wal_status`` is the server's word ("reserved", "lost", …).
    """

    name: str
    decoder: str
    reader: int | None
    restart_lsn: int
    confirmed_lsn: int
    server_lsn: int
    wal_status: str = ""

    @property
    def lag_bytes(self) -> int:
        """Return how much WAL is not confirmed yet."""
        return max(0, self.server_lsn - self.confirmed_lsn)

    @property
    def retained_bytes(self) -> int:
        """Return how much WAL the server keeps because of the slot."""
        return max(0, self.server_lsn - self.restart_lsn) if self.restart_lsn else 0
