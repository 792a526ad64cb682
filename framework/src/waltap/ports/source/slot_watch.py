"""Define a slot watch, which reads the slot's state beside the engine.

The engine reads its slot between two batches. A waiting sink can delay that for hours while the slot
retains WAL. So the slot monitor has a connection of its own, opened on demand.
"""

import abc
from collections.abc import Callable
from dataclasses import dataclass

from waltap.ports.source.password import Password
from waltap.ports.source.slot_status import SlotStatus


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
    def look(self) -> SlotStatus | None:
        """Return the slot's state, None without a slot. Raises: SourceError."""

    @abc.abstractmethod
    def hasten(self) -> str:
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
