"""The part of a connection that comes before streaming: what is there already goes to the sink."""

import logging
from collections.abc import Callable, Sequence

from waltap.host import Host
from waltap.pipeline.channels import PipelineChannels
from waltap.pipeline.sink_writer import SinkWriter
from waltap.pipeline.snapshot_report import SnapshotReport
from waltap.snapshot.chunk import SnapshotChunk
from waltap.source.connector import Connector, SourceLacks, StartPosition
from waltap.transactions.transaction import SnapshotRows

__all__ = ["SnapshotPhase", "cut"]

log = logging.getLogger(__name__)


class SnapshotPhase:
    """Delivers one initial snapshot, and tells observers how far it is.

    ``flush_s`` returns how long rows wait for a flush, in seconds. ``left`` returns how many rows may
    still be delivered, None without a limit; ``ends`` whether the run is to end. ``begun`` tells that
    rows, or the opening of the snapshot, have been written; ``handed`` that the sink has others read it.
    """

    def __init__(
        self,
        delivery: SinkWriter,
        host: Host,
        channels: PipelineChannels,
        *,
        pipeline: str,
        flush_s: Callable[[], float],
        left: Callable[[], int | None],
        ends: Callable[[], bool],
    ) -> None:
        self._delivery, self._notified = delivery, channels.notified
        self._flush_s, self._left, self._ends = flush_s, left, ends
        self._report = SnapshotReport("initial", host, channels, delivery.counts, pipeline=pipeline)
        self.begun = self.handed = False

    def run(self, connector: Connector, start: StartPosition) -> bool:
        """Deliver every piece and close the snapshot; False when the run ends before that: then what was
        written is flushed, and the snapshot stays open."""
        completed = False
        try:
            completed = self._run(connector, start)
        except BaseException:
            self._report.aborted()
            raise
        finally:
            _tell_mode(connector, completed=completed)
        return completed

    def _run(self, connector: Connector, start: StartPosition) -> bool:
        delivery, report = self._delivery, self._report
        captured = connector.captured_tables().values() if self._notified else ()
        report.started(sorted(set(captured)))
        chunks = self._chunks(connector, start)
        if chunks is not None:
            return self._handed_over(chunks)
        first = True
        for piece in connector.snapshot(start):
            piece.opens, piece.goes_on = first and not start.resumes, first and start.resumes
            first = False
            if piece.relation.name != report.table:
                report.reads(piece.relation.name, connector.estimate(piece.relation))
            cut(piece, self._left())
            delivery.write([piece], snapshot=True)
            self.begun = True
            report.progressed(len(piece.rows))
            if delivery.due(self._flush_s()):
                delivery.flush()
            if self._ends():
                delivery.settle()
                delivery.flush()
                report.aborted()
                return False
        delivery.finish_snapshot()
        report.completed()
        return True

    def _chunks(self, connector: Connector, start: StartPosition) -> Sequence[SnapshotChunk] | None:
        """Return the chunks of the snapshot where the sink has others read them, None where the engine
        reads it."""
        if start.resumes or self._left() is not None or not self._delivery.takes_chunks():
            return None
        try:
            return connector.chunks(start)
        except SourceLacks as error:
            log.warning("the engine reads the snapshot: %s", error.problem)
            return None

    def _handed_over(self, chunks: Sequence[SnapshotChunk]) -> bool:
        """Have the sink's own readers read the tables; the connector keeps the snapshot meanwhile."""
        delivery, report = self._delivery, self._report
        name = delivery.hand_over(chunks)
        self.begun = self.handed = True
        tables = {chunk.relation.name: chunk for chunk in chunks}
        position = delivery.written[delivery.partition].end_lsn
        for number, chunk in enumerate(tables.values()):
            piece = SnapshotRows(
                relation=chunk.relation,
                rows=[],
                ts=0,
                lsn=position,
                xid=None,
                opens=not number,
                complete=True,
                ends_chunk=True,
                elsewhere=name,
                visible=chunk.visible,
            )
            delivery.write([piece], snapshot=True)
            if chunk.count > 1:  # a large table is a step of its own
                delivery.flush()
        delivery.flush()
        log.info("%s tables, in %s chunks, are read by others", len(tables), len(chunks))
        rows = delivery.await_chunks(self._ends)
        if rows is None:
            report.aborted()
            return False
        for table in tables:
            report.reads(table, rows.get(table))
            report.progressed(rows.get(table, 0))
            delivery.counts.snapshot_rows += rows.get(table, 0)
            delivery.counts.events += rows.get(table, 0)
        delivery.finish_snapshot()
        report.completed()
        return True


def _tell_mode(connector: Connector, *, completed: bool) -> None:
    try:
        connector.snapshot_over(completed=completed)
    except Exception as error:  # noqa: BLE001 - a plugin's; the snapshot is what it is
        log.warning(
            "the snapshot mode failed behind its snapshot: %s: %s", type(error).__name__, error
        )


def cut(piece: SnapshotRows, left: int | None) -> None:
    """Leave only as many rows in a piece as may still be delivered."""
    if left is not None and left < len(piece.rows):
        piece.rows, piece.complete, piece.ends_chunk = piece.rows[:left], False, False
