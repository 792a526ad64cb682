"""Define the state of a replication slot."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class SlotStatus:
    """The state of a pipeline's replication slot; unknown LSNs are 0."""

    name: str
    decoder: str
    # Process id of the session that reads the slot, None without one.
    reader: int | None
    restart_lsn: int
    confirmed_lsn: int
    # End of the server's WAL.
    server_lsn: int
    # The server's word, such as "reserved" or "lost".
    wal_status: str = ""
    # WAL that may be written before the slot is in danger; None: unlimited or unknown.
    safe_bytes: int | None = None
    # The server's word for why it invalidated the slot, "" for a valid one.
    invalidation: str = ""
    # Size and free space of the WAL's disk; None where that is not visible from here.
    disk_bytes: int | None = None
    free_bytes: int | None = None

    @property
    def lag_bytes(self) -> int:
        """Return how much WAL is not confirmed yet."""
        return max(0, self.server_lsn - self.confirmed_lsn)

    @property
    def retained_bytes(self) -> int:
        """Return how much WAL the server retains for the slot."""
        return max(0, self.server_lsn - self.restart_lsn) if self.restart_lsn else 0
