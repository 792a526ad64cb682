"""Take blocking snapshots: tables are read as a whole while the stream pauses.

Changes that committed between the pause and the reading come after the rows, as in Debezium. The stream
leaves nothing out, since a SELECT of the signal may have chosen only some rows.
"""

import logging
from collections.abc import Iterator

from waltap.changes.transactions.transaction import SnapshotRows
from waltap.errors import RetryVerdict, SnapshotError, SourceError, StopRequested
from waltap.pipeline.delivery.sink_writer import SinkWriter
from waltap.pipeline.runtime.channels import PipelineChannels
from waltap.pipeline.runtime.run_state import RunState
from waltap.pipeline.stages.snapshot_phase import SnapshotReport, deliver
from waltap.ports.signals.signal import SnapshotRequest
from waltap.ports.snapshot.incremental import StreamPoint
from waltap.ports.snapshot.requests import refused, some
from waltap.ports.source.connector import Connector

__all__ = ["BlockingSnapshot"]

log = logging.getLogger(__name__)


class BlockingSnapshot:
    """Deliver requested tables between two parts of the stream."""

    def __init__(
        self,
        state: RunState,
        channels: PipelineChannels,
        connector: Connector,
        delivery: SinkWriter,
    ) -> None:
        self._state, self._connector, self._delivery = state, connector, delivery
        self._report = SnapshotReport("blocking", state, channels)

    def take(self, requests: list[SnapshotRequest], point: StreamPoint | None) -> bool:
        """Deliver the tables of ``requests``.

        ``point`` is the signal's place in the stream, None for a signal of another channel. Return False
        if the run ends before: the snapshot must then be taken again. Raises: SinkError, ConnectionLost.
        """
        report = self._report
        log.info("blocking snapshot: %s will be read, the stream waits", some(requests))
        report.started(sorted({request.name for request in requests}))
        try:
            whole = self._deliver(requests, point)
        except StopRequested:
            whole = False
        except (SourceError, SnapshotError) as error:
            report.aborted()
            if error.retry is not RetryVerdict.NEVER:
                raise
            refused(requests, error.problem)
            return True
        except BaseException:
            report.aborted()
            raise
        if whole:
            report.completed()
        else:
            report.aborted()
        return whole

    def _deliver(self, requests: list[SnapshotRequest], point: StreamPoint | None) -> bool:
        pieces, delivery = self._rows(requests, point), self._delivery
        if not deliver(
            pieces, self._report, self._state, self._connector, delivery, snapshot=False
        ):
            return False
        delivery.flush()
        return True

    def _rows(
        self, requests: list[SnapshotRequest], point: StreamPoint | None
    ) -> Iterator[SnapshotRows]:
        at = point or StreamPoint(
            lsn=self._delivery.position.end_lsn,
            xid=None,
            previous_end_lsn=self._delivery.previous_end_lsn[self._delivery.partition],
        )

        def refuse(request: SnapshotRequest, why: str) -> None:
            refused([request], why)
            self._report.refused(request.name)

        for piece in self._connector.read_tables(requests, refuse):
            piece.kind, piece.lsn, piece.xid = "blocking", at.lsn, at.xid
            piece.previous_end_lsn = at.previous_end_lsn
            yield piece
