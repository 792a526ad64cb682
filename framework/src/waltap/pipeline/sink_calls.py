"""The call that the sink is at, and what it has not acknowledged, for any thread that looks on."""

from collections.abc import Iterator
from contextlib import contextmanager

from waltap.clock import Clock
from waltap.errors import SinkError

__all__ = ["SinkCalls", "SinkHeld"]


class SinkHeld(SinkError):
    """The sink did not return from a call within `waltap.stop.timeout.ms` of a stop; the process ends."""

    code = "WT-5004"
    remedy = (
        "Nothing is lost: what was not durable comes again at the next start. Find out why the "
        "destination does not answer (its process may be stopped, its disk full, or a lock held), then "
        "start again with `waltap run FILE`."
    )


class SinkCalls:
    """Since when the sink is at a call, or owes the acknowledgement of a batch; when the oldest change
    committed that is not durable; and when, last, all that the server had sent was (``current_ms``). The
    engine's thread writes, any reads."""

    __slots__ = ("_clock", "_now", "awaited", "current_ms", "oldest_commit_ms", "owed_since")

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._now: tuple[str, float] | None = None
        # Another server than the sink's that the call at hand waits for.
        self.awaited: str | None = None
        self.owed_since: float | None = None
        self.oldest_commit_ms: int | None = None
        self.current_ms: int | None = None

    @contextmanager
    def call(self, what: str) -> Iterator[None]:
        """Be at a call of the sink while the block lasts; ``what`` names it for people."""
        before, self._now = self._now, (what, self._clock.monotonic())
        try:
            yield
        finally:
            self._now = before

    @contextmanager
    def wait_for(self, name: str) -> Iterator[None]:
        """Wait for the server ``name`` while the block lasts."""
        self.awaited = name
        try:
            yield
        finally:
            self.awaited = None

    def at_hand(self, since: float | None = None) -> tuple[str, float] | None:
        """Return the call at hand, and for how many seconds it lasts, counted from ``since`` at the
        earliest; None where there is none."""
        found = self._now
        if found is None:
            return None
        began = found[1] if since is None else max(since, found[1])
        return found[0], max(0.0, self._clock.monotonic() - began)

    def in_flight(self) -> tuple[str, float] | None:
        """Return what the sink has not come to an end with, and for how many seconds: the call at hand, or
        batches that it took and has not acknowledged."""
        call, owed = self.at_hand(), self.owed_since
        if owed is None:
            return call
        age = max(0.0, self._clock.monotonic() - owed)
        return call if call is not None and call[1] >= age else ("an acknowledgement", age)
