"""Heartbeats: records, and statements on the server, at a period of the profile's."""

from waltap.changes.transactions.transaction import Heartbeat
from waltap.pipeline.run import PipelineRun
from waltap.pipeline.sink_writer import SinkWriter
from waltap.ports.source.connector import Connector

__all__ = ["HeartbeatTimer"]


class HeartbeatTimer:
    """Beats every ``heartbeat.interval.ms``; never where that is 0."""

    def __init__(self, run: PipelineRun, connector: Connector, delivery: SinkWriter) -> None:
        self._run, self._connector, self._delivery = run, connector, delivery
        self._last = run.clock.monotonic()

    def beat_if_due(self, now: float) -> None:
        """Beat when the period is over."""
        period_s = self._period_s
        if period_s and now - self._last >= period_s:
            self._last = now
            self._beat()

    def beat(self) -> None:
        """Beat at once, however long the period."""
        if self._period_s:
            self._beat()

    @property
    def _period_s(self) -> float:
        return self._run.profile.engine.heartbeat_interval_ms / 1000

    def _beat(self) -> None:
        self._connector.heartbeat()
        self._delivery.write([Heartbeat(ts=self._run.clock.time_ns() // 1_000_000)])
