"""Define the state of a replication slot."""

import abc
from collections.abc import Callable
from dataclasses import dataclass

from waltap.ports.source.password import Password


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


# The engine reads its slot between two batches. A waiting sink can delay that for hours while the slot
# retains WAL. So the slot monitor has a connection of its own, opened on demand.


@dataclass(frozen=True, slots=True, kw_only=True)
class SlotWatchContext:
    """The settings that a connector makes a watch from."""

    # Returns whether the run must end; asked during waits.
    stopping: Callable[[], bool] = lambda: False
    # As in `ConnectorContext`.
    password: Password | None = None


class SlotWatch(abc.ABC):
    """A connection beside the engine's; one thread uses it."""

    @abc.abstractmethod
    def read(self) -> SlotStatus | None:
        """Return the slot's state, None without a slot. Raises: SourceError."""

    @abc.abstractmethod
    def log_standby_snapshot(self) -> str:
        """Make the server write the record that lets the slot release confirmed WAL.

        Return the reason for a failure, "" on success. Raises: ConnectionLost.
        """

    @abc.abstractmethod
    def drop(self) -> int:
        """End the slot's reader and drop the slot; return the end of the WAL.

        Raises: SourceError.
        """

    @abc.abstractmethod
    def close(self) -> None:
        """Close the connection; may be called twice."""
