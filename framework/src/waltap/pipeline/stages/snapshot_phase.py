"""The part of a connection that comes before streaming: what is there already goes to the sink."""

import logging
from collections.abc import Callable, Sequence

from waltap.changes.transactions.transaction import SnapshotRows
from waltap.pipeline.delivery.sink_writer import SinkWriter
from waltap.pipeline.runtime.channels import INCREMENTAL, INITIAL, PipelineChannels
from waltap.plugins.host import Host
from waltap.ports.snapshot.chunk_source import SnapshotChunk
from waltap.ports.source.connector import Connector, SourceLacks, StartPosition
from waltap.services.monitor.counts import RunCounters, SnapshotTableProgress

__all__ = [
    "IncrementalReport",
    "SnapshotPhase",
    "SnapshotReport",
    "cut",
]

log = logging.getLogger(__name__)


# How far a snapshot is: told to observers, notification channels and the status.


class SnapshotReport:
    """Tells of one snapshot that reads its tables one after the other. ``kind`` as in `SnapshotRows`.

    Notifications call a blocking snapshot an initial one, as Debezium does.
    """

    def __init__(
        self,
        kind: str,
        host: Host,
        channels: PipelineChannels,
        counts: RunCounters,
        *,
        pipeline: str,
    ) -> None:
        self._kind, self._host, self._channels = kind, host, channels
        self._counts, self._pipeline = counts, pipeline
        self._tables = self._table = ""
        self._rows, self._total = 0, None

    _total: int | None

    def started(self, tables: list[str]) -> None:
        """It begins with ``tables`` (schema.table)."""
        self._tables = ",".join(tables)
        self._counts.tables.clear()
        self._counts.snapshot.told(self._kind, "started")
        self._tell("started", "", 0, None)
        self._channels.tell(INITIAL, "STARTED")

    def reads(self, table: str, total: int | None) -> None:
        """Rows of ``table`` come next, about ``total`` of them."""
        self._table_done()
        self._table, self._rows, self._total = table, 0, total
        self._note()
        self._tell("table_started", table, 0, total)
        self._channels.tell(
            INITIAL,
            "IN_PROGRESS",
            current_collection_in_progress=table,
            data_collections=self._tables,
        )

    @property
    def table(self) -> str:
        """Return the table whose rows come, "" before the first."""
        return self._table

    def progressed(self, rows: int) -> None:
        """So many more rows of the table were delivered."""
        self._rows += rows
        self._note()
        self._tell("progress", self._table, self._rows, self._total)

    def completed(self) -> None:
        """Every table was delivered."""
        self._table_done()
        self._counts.snapshot.told(self._kind, "completed")
        self._tell("completed", "", self._rows, None)
        self._channels.tell(INITIAL, "COMPLETED")

    def aborted(self) -> None:
        """It ends before that."""
        self._counts.snapshot.told(self._kind, "aborted")
        self._tell("aborted", "", self._rows, None)
        self._channels.tell(INITIAL, "ABORTED")

    def refused(self, table: str) -> None:
        """A table could not be read."""
        self._channels.tell(
            INITIAL, "TABLE_SCAN_COMPLETED", scanned_collection=table, status="SQL_EXCEPTION"
        )
        if table == self._table:
            self._table = ""

    def _table_done(self) -> None:
        if not self._table:
            return
        self._note(complete=True)
        self._tell("table_completed", self._table, self._rows, self._rows)
        self._channels.tell(
            INITIAL,
            "TABLE_SCAN_COMPLETED",
            scanned_collection=self._table,
            data_collections=self._tables,
            total_rows_scanned=str(self._rows),
            status="SUCCEEDED",
        )
        self._table = ""

    def _note(self, *, complete: bool = False) -> None:
        total = self._rows if complete else self._total
        self._counts.tables[self._table] = SnapshotTableProgress(
            table=self._table, rows=self._rows, estimate=total, complete=complete
        )

    def _tell(self, event: str, table: str, rows: int, total: int | None) -> None:
        self._host.notify(
            "on_snapshot",
            pipeline=self._pipeline,
            event=event,
            table=table,
            rows=rows,
            total=total,
            kind=self._kind,
        )


class IncrementalReport:
    """Tells of incremental snapshots, from what becomes of them as notifications say it."""

    def __init__(
        self, host: Host, channels: PipelineChannels, counts: RunCounters, *, pipeline: str
    ) -> None:
        self._host, self._channels, self._counts = host, channels, counts
        self._pipeline, self._table = pipeline, ""

    def __call__(
        self, kind: str, identifier: str, *, rows: int = 0, observed: bool = True, **data: str
    ) -> None:
        """Tell of one step; ``rows`` are those read of the table, ``identifier`` is the signal's.
        ``observed`` False: it is for notifications alone."""
        self._channels.tell(INCREMENTAL, kind, identifier, **data)
        self._counts.snapshot.told("incremental", kind.lower())
        if not observed:
            return
        if kind == "IN_PROGRESS":
            table = data["current_collection_in_progress"]
            if table != self._table:
                self._tell("table_started", table, 0)
            self._table = table
            self._note(table, rows)
            self._tell("progress", table, rows)
        elif kind == "TABLE_SCAN_COMPLETED":
            table, self._table = data["scanned_collection"], ""
            self._note(table, rows, complete=data["status"] in {"SUCCEEDED", "EMPTY"})
            self._tell("table_completed", table, rows)
        elif kind in {"STARTED", "COMPLETED", "ABORTED"}:
            self._tell(kind.lower(), "", 0)

    def _note(self, table: str, rows: int, *, complete: bool = False) -> None:
        self._counts.tables[table] = SnapshotTableProgress(
            table=table, rows=rows, estimate=rows if complete else None, complete=complete
        )

    def _tell(self, event: str, table: str, rows: int) -> None:
        self._host.notify(
            "on_snapshot",
            pipeline=self._pipeline,
            event=event,
            table=table,
            rows=rows,
            total=None,
            kind="incremental",
        )


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
