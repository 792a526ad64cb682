"""Define a lease: the right to run a pipeline, stored at the source.

Of several processes that run one profile with ``waltap.standby``, one has the lease. The lease expires
unless it is renewed, so a paused, disconnected or killed process loses it.
"""

import abc
from collections.abc import Callable
from dataclasses import dataclass

from waltap.ports.source.password import Password


@dataclass(frozen=True, slots=True, kw_only=True)
class LeaseContext:
    """The settings that a connector makes a lease from."""

    # How long a lease lasts without a renewal.
    seconds: float
    # Returns whether the engine wants to stop; asked during waits.
    stopping: Callable[[], bool] = lambda: False
    # As in `ConnectorContext`.
    password: Password | None = None


class LeaderLease(abc.ABC):
    """One process's handle of the lease.

    One thread calls `take` until it succeeds, and then `renew`.

    Two rules ensure that at most one process acts. The source releases a lease that was not renewed for
    ``seconds`` after the last renewal that it received. `held` ends at most ``seconds`` after the last
    renewal was *sent*, by a clock that includes the sleep of the process and the machine. So no process
    holds an expired lease.

    A lease may end otherwise: its session was terminated, or the server restarted. Its former owner may
    then regard it as held for ``seconds``. The next owner waits as long, unless it is sure that the
    former process has ended.
    """

    @abc.abstractmethod
    def take(self) -> str | None:
        """Try to take the lease; return None on success, else its holder.

        The holder is a text for people. Raises: SourceError.
        """

    @abc.abstractmethod
    def renew(self) -> None:
        """Extend the lease. Raises: SourceError if it is lost."""

    @abc.abstractmethod
    def held(self) -> bool:
        """Return whether this process certainly has the lease now.

        Any thread may call it; it does not wait.
        """

    def owner(self) -> str | None:
        """Return the lease's holder as text, without taking the lease.

        None: there is no holder, or the source does not know it. Raises: SourceError.
        """
        return None

    @abc.abstractmethod
    def close(self) -> None:
        """Release the lease if this process has it; may be called twice."""
