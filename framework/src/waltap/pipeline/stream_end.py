"""When streaming ends by itself: at an LSN, after a silence, or with the limits of the run."""

from collections.abc import Sequence

from waltap.pipeline.partition_reader import PartitionReader
from waltap.pipeline.run import PipelineRun
from waltap.pipeline.sink_writer import SinkWriter
from waltap.pipeline.stop_conditions import IdleDetector
from waltap.source.connector import Connector

__all__ = ["StreamEnd"]


class StreamEnd:
    """Looks for the end that the run's limits set; of several streams all must be silent."""

    def __init__(
        self,
        run: PipelineRun,
        connector: Connector,
        lanes: Sequence[PartitionReader],
        delivery: SinkWriter,
    ) -> None:
        self._run, self._lanes, self._delivery = run, lanes, delivery
        self._stream = lanes[0].stream
        self._lsn, self._silence = run.limits.until_lsn, _silence(run, connector)

    @property
    def asks(self) -> bool:
        """Tell whether it needs to know how far the server has read."""
        if self._lsn is not None:
            return True
        return self._silence is not None and not self._silence.caught_up

    def changes_came(self, now: float) -> None:
        """Take note that it was not silent."""
        if self._silence is not None:
            self._silence.broken(now)

    def reached(self, now: float) -> bool:
        """Tell whether it is over."""
        return self._run.over() or self._at_lsn() or self._silent(now)

    @property
    def _idle(self) -> bool:
        return all(lane.assembler.idle for lane in self._lanes)

    def _at_lsn(self) -> bool:
        if self._lsn is None:
            return False
        read = self._stream.idle_lsn() if self._idle else 0
        return max(read, self._delivery.written[self._delivery.partition].end_lsn) >= self._lsn

    def _silent(self, now: float) -> bool:
        if self._silence is None or not self._idle:
            return False
        return self._silence.lasted(now, self._stream.idle_lsn())


def _silence(run: PipelineRun, connector: Connector) -> IdleDetector | None:
    if run.limits.until_idle is None:
        return None
    slot = connector.slot()
    target = slot.server_lsn if slot else 0
    return IdleDetector(run.limits.until_idle, target, now=run.clock.monotonic())
