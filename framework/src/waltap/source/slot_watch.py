"""The contract of a slot's watch: a look at the slot that does not wait for the engine.

The engine looks at its slot between two batches. A sink that waits keeps it from that for hours, and just
then the slot keeps WAL: so the guardian has a connection of its own, made when it is needed.
"""

import abc
from collections.abc import Callable
from dataclasses import dataclass

from waltap.source.password import Password
from waltap.source.slot_status import SlotStatus

__all__ = ["SlotWatch", "SlotWatchContext"]


@dataclass(frozen=True, slots=True, kw_only=True)
class SlotWatchContext:
    """What a connector makes a watch of. ``stopping`` tells, during waits, that the run is to end.
    ``password``: a connector's."""

    stopping: Callable[[], bool] = lambda: False
    password: Password | None = None


class SlotWatch(abc.ABC):
    """A connection beside the engine's; one thread uses it."""

    @abc.abstractmethod
    def look(self) -> SlotStatus | None:
        """Return where the slot stands, None when there is none. Raises: SourceError."""

    @abc.abstractmethod
    def hasten(self) -> str:
        """Have the server write what lets the slot let go of WAL that is confirmed; return why it could
        not, "" where it did. Raises: ConnectionLost."""

    @abc.abstractmethod
    def drop(self) -> int:
        """End who reads the slot and drop it; return the end of the server's WAL behind that.
        Raises: SourceError."""

    @abc.abstractmethod
    def close(self) -> None:
        """Close the connection; may be called twice."""
