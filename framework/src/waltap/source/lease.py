"""The contract of a lease: the right to run a pipeline, kept where the changes come from.

Of several processes that run one profile with ``waltap.standby`` one has it. It lasts for a while and is
renewed; whoever does not renew it, because it was paused, cut off or killed, loses it by itself.
"""

import abc
from collections.abc import Callable
from dataclasses import dataclass

from waltap.source.password import Password

__all__ = ["LeaderLease", "LeaseContext"]


@dataclass(frozen=True, slots=True, kw_only=True)
class LeaseContext:
    """What a connector makes a lease of. ``seconds``: how long one lasts without being renewed.
    ``stopping`` tells, during waits, that the engine wants to stop. ``password``: a connector's."""

    seconds: float
    stopping: Callable[[], bool] = lambda: False
    password: Password | None = None


class LeaderLease(abc.ABC):
    """One process's end of it. `take` comes first and until it is ours; then one thread calls `renew`.

    Two rules make that only one process ever acts on it. The source lets go of a lease that was not
    renewed for ``seconds``, counted from when it heard of it last. `held` ends no later than ``seconds``
    after the last renewal was *sent*, by a clock that runs on while the process or the machine sleeps. So
    a lease that ran out is held by nobody. One that ended otherwise (its session was terminated, the
    server restarted) may still count as held by its former owner for ``seconds``: who takes it then, and
    cannot be sure that this process is gone, waits for as long.
    """

    @abc.abstractmethod
    def take(self) -> str | None:
        """Try to get the lease; None when it is ours, else who has it, for people. Raises: SourceError."""

    @abc.abstractmethod
    def renew(self) -> None:
        """Have it for another while. Raises: SourceError when it is lost."""

    @abc.abstractmethod
    def held(self) -> bool:
        """Tell whether nobody else can have it at this instant. Any thread may ask; no waiting."""

    def owner(self) -> str | None:
        """Return who has the lease, for people, without taking it; None: nobody, or it cannot be known.

        Raises: SourceError.
        """
        return None

    @abc.abstractmethod
    def close(self) -> None:
        """Give it up, if it is ours; may be called twice."""
