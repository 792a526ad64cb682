"""Deliver the tables that signals request as a whole."""

import logging
import math
from collections.abc import Callable, Iterator, Sequence

from waltap.changes.decode.relation import Relation
from waltap.changes.transactions.transaction import SnapshotRows, TransactionPart
from waltap.errors import RetryVerdict, SnapshotError, SourceError, StopRequested
from waltap.pipeline.delivery.sink_writer import SinkWriter
from waltap.pipeline.runtime.channels import PipelineChannels
from waltap.pipeline.runtime.run_state import RunState
from waltap.pipeline.stages.snapshot_phase import SnapshotReport, deliver
from waltap.ports.signals.signal import SnapshotRequest
from waltap.ports.snapshot.incremental_state import StreamPoint
from waltap.ports.snapshot.later_changes import LaterChanges
from waltap.ports.snapshot.requests import refused, some
from waltap.ports.source.connector import Connector, SourceLacks
from waltap.ports.source.roles import TableReadingSource

log = logging.getLogger(__name__)

# Seconds until the next snapshot is opened after one that could not be used; at least REST_FACTOR times
# what opening took, because the stream waits meanwhile.
RETRY_S, REST_FACTOR = 0.1, 2

# Seconds after which a snapshot is closed that the stream has not reached, since it locks its tables. The
# next one is open for twice as long.
PATIENCE_S = 10.0


class BlockingSnapshot:
    """Deliver requested tables as a whole, at one place in the stream.

    later_changes.py has the theory of operation. ``identifying`` is as for `IncrementalSnapshots`.
    """

    def __init__(
        self,
        state: RunState,
        channels: PipelineChannels,
        connector: Connector,
        delivery: SinkWriter,
        identifying: Callable[[Relation], tuple[int, ...]],
    ) -> None:
        self._state, self._connector, self._delivery = state, connector, delivery
        self._report = SnapshotReport("blocking", state, channels)
        self._identifying = identifying
        # The open snapshot.
        self.later: LaterChanges | None = None
        self._begun, self._open_at = False, -math.inf
        self._close_at, self._patience_s = math.inf, PATIENCE_S
        self._refused: list[SnapshotRequest] = []

    @property
    def until(self) -> int | None:
        """Return the LSN that the stream must reach before the rows.

        None: no snapshot is open.
        """
        return None if self.later is None else self.later.reading.until

    @property
    def waits(self) -> bool:
        """Return whether the rows belong at a later place of the stream."""
        return self.later is not None and not self.later.due

    def split(
        self, parts: Sequence[TransactionPart]
    ) -> tuple[Sequence[TransactionPart], Sequence[TransactionPart]]:
        """Return the parts before and behind the place of the rows."""
        if self.later is None:
            return parts, []
        found = self.later.split(parts)
        if not self.later.usable:
            self.close()
        return found

    def take(
        self, requests: list[SnapshotRequest], point: StreamPoint | None, recent: Sequence[int]
    ) -> bool:
        """Open a snapshot of the tables, or deliver it.

        ``point`` is the signal's position in the stream, None in another channel. ``recent`` has the last
        streamed transactions, which the snapshot must contain. Return False if the stream must continue
        first, or if the run ends before the last row: the snapshot must then be taken again. Raises:
        SinkError, ConnectionLost.
        """
        try:
            if self.later is not None and self.later.requests != requests:  # another signal came
                self.close()
            if self.later is None:
                self._open(requests, recent)
            if self.later is None or not self.later.due:
                return False
            self._begin(requests)
            finished = self._deliver(self.later, point)
        except StopRequested:
            finished = False
        except (SourceError, SnapshotError) as error:
            self._begin(requests)
            self._end(completed=False)
            if error.retry is not RetryVerdict.NEVER:
                raise
            refused(requests, error.problem)
            return True
        except BaseException:
            self._end(completed=False)
            raise
        self._end(completed=finished)
        return finished

    def _open(self, requests: list[SnapshotRequest], recent: Sequence[int]) -> None:
        now = self._state.clock.monotonic()
        if now < self._open_at:
            return
        if not isinstance(self._connector, TableReadingSource):
            raise SourceLacks("this source takes no blocking snapshots")
        reading = self._connector.read_tables(requests, self._refuse)
        took_s, now = self._state.clock.monotonic() - now, self._state.clock.monotonic()
        self._open_at = now + max(RETRY_S, REST_FACTOR * took_s)
        # A change can stream before a reader of its table can see it.
        if reading is not None and any(reading.saw(xid, 0) is False for xid in recent):
            reading.close()
            return
        if reading is not None:
            self.later = LaterChanges(reading, requests, self._identifying)
            self._close_at = now + self._patience_s

    def close_if_late(self) -> None:
        """Close a snapshot that the stream does not reach soon, since it locks its tables."""
        now = self._state.clock.monotonic()
        if not self.waits or now < self._close_at:
            return
        log.info(
            "blocking snapshot: the stream is behind; its tables are read when it has caught up"
        )
        self.close()
        self._open_at = now + self._patience_s
        self._patience_s *= 2

    def _refuse(self, request: SnapshotRequest, why: str) -> None:
        """Report once that a table is not read."""
        if request not in self._refused:
            self._refused.append(request)
            refused([request], why)
            if self._begun:
                self._report.refused(request.name)

    def _begin(self, requests: list[SnapshotRequest]) -> None:
        """Report the beginning, and the tables that were refused so far."""
        if self._begun:
            return
        self._begun = True
        log.info("blocking snapshot: %s will be read, the stream waits", some(requests))
        self._report.started(sorted({request.name for request in requests}))
        for request in self._refused:
            self._report.refused(request.name)

    def _end(self, *, completed: bool) -> None:
        self.close()
        if self._begun:
            self._report.ended(completed=completed)
        self._begun, self._refused, self._patience_s = False, [], PATIENCE_S

    def close(self) -> None:
        """Close an open snapshot; the next `take` opens another."""
        if self.later is not None:
            self.later.reading.close()
            self.later = None

    def _deliver(self, later: LaterChanges, point: StreamPoint | None) -> bool:
        pieces, delivery = self._rows(later, point), self._delivery
        if not deliver(
            pieces, self._report, self._state, self._connector, delivery, snapshot=False
        ):
            return False
        delivery.flush()
        return True

    def _rows(self, later: LaterChanges, point: StreamPoint | None) -> Iterator[SnapshotRows]:
        at = point or StreamPoint(
            lsn=self._delivery.position.end_lsn,
            xid=None,
            previous_end_lsn=self._delivery.previous_end_lsn[self._delivery.partition],
        )
        exact, begun = later.reading.until is not None, set[str]()
        for read in later.reading.pieces():
            piece = later.apply(read)
            piece.kind, piece.lsn, piece.xid = "blocking", at.lsn, at.xid
            piece.previous_end_lsn = at.previous_end_lsn
            name = piece.relation.name
            # Without a key, changes that come again after the rows would repeat some of them.
            replaces = exact or bool(self._identifying(piece.relation))
            piece.all_rows = replaces and name in later.whole
            piece.restarts = piece.all_rows and name not in begun
            begun.add(name)
            yield piece
