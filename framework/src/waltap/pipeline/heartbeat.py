"""Heartbeats: records, and statements on the server, at a period of the profile's."""

from waltap.pipeline.delivery import Delivery
from waltap.pipeline.run import Run
from waltap.source.connector import Connector
from waltap.transactions.transaction import Heartbeat

__all__ = ["Heartbeats"]


class Heartbeats:
    """Beats every ``heartbeat.interval.ms``; never where that is 0."""

    def __init__(self, run: Run, connector: Connector, delivery: Delivery) -> None:
        self._clock, self._connector, self._delivery = run.clock, connector, delivery
        self._period_s = run.profile.engine.heartbeat_interval_ms / 1000
        self._next = self._clock.monotonic() + self._period_s

    def beat_if_due(self, now: float) -> None:
        """Beat when the period is over."""
        if self._period_s and now >= self._next:
            self._next = now + self._period_s
            self._beat()

    def beat(self) -> None:
        """Beat at once, however long the period."""
        if self._period_s:
            self._beat()

    def _beat(self) -> None:
        self._connector.heartbeat()
        self._delivery.write([Heartbeat(ts=self._clock.time_ns() // 1_000_000)])
