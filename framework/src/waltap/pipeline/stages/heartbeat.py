"""Send heartbeats: records, and statements on the server."""

from waltap.changes.transactions.transaction import Heartbeat
from waltap.pipeline.delivery.sink_writer import SinkWriter
from waltap.pipeline.runtime.run_state import RunState
from waltap.ports.source.connector import Connector
from waltap.ports.source.roles import HeartbeatSource


class HeartbeatTimer:
    """Beat every ``heartbeat.interval.ms``; never if that is 0."""

    def __init__(self, state: RunState, connector: Connector, delivery: SinkWriter) -> None:
        self._state, self._delivery = state, delivery
        self._source = connector if isinstance(connector, HeartbeatSource) else None
        self._last = state.clock.monotonic()

    def beat_if_due(self, now: float) -> None:
        """Beat if the period is over."""
        period_s = self._period_s
        if period_s and now - self._last >= period_s:
            self._last = now
            self._beat()

    def beat(self) -> None:
        """Beat now, if there is a period at all."""
        if self._period_s:
            self._beat()

    @property
    def _period_s(self) -> float:
        return self._state.profile.engine.heartbeat_interval_ms / 1000

    def _beat(self) -> None:
        if self._source is not None:
            self._source.heartbeat()
        self._delivery.write([Heartbeat(ts=self._state.now_ms())])
