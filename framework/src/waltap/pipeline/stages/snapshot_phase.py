"""Take the initial snapshot before a connection streams.

The reports and the loop over pieces serve the other kinds of snapshot, too.
"""

import logging
from collections.abc import Iterable, Iterator, Sequence

from waltap.base.plugin_errors import interrupts
from waltap.base.text import in_brief
from waltap.changes.transactions.transaction import SnapshotRows
from waltap.pipeline.delivery.sink_writer import SinkWriter
from waltap.pipeline.runtime.channels import INCREMENTAL, INITIAL, PipelineChannels
from waltap.pipeline.runtime.run_state import RunState
from waltap.ports.snapshot.chunk_source import SnapshotChunk
from waltap.ports.source.connector import Connector, SourceLacks, StartPosition
from waltap.ports.source.roles import (
    SnapshotHoldingSource,
    SnapshotListingSource,
    SnapshotSharingSource,
    tables_of,
)
from waltap.services.monitor.counts import SnapshotTableProgress

log = logging.getLogger(__name__)


class ProgressReport:
    """Report a snapshot to observers, notification channels and the status.

    ``kind`` is as in `SnapshotRows`.
    """

    def __init__(self, kind: str, state: RunState, channels: PipelineChannels) -> None:
        self.kind, self.counts = kind, state.counts
        self._host, self._pipeline = state.host, state.profile.name
        self.channels = channels
        # The table whose rows come, "" before the first.
        self.table = ""

    def observe(self, event: str, table: str, rows: int, total: int | None = None) -> None:
        """Notify observers of an event of a table.

        ``rows`` of about ``total`` were delivered.
        """
        self._host.notify(
            "on_snapshot",
            pipeline=self._pipeline,
            event=event,
            table=table,
            rows=rows,
            total=total,
            kind=self.kind,
        )

    def note(self, rows: int, estimate: int | None, *, complete: bool = False) -> None:
        """Set the table's rows in the status."""
        self.counts.tables[self.table] = SnapshotTableProgress(
            table=self.table, rows=rows, estimate=estimate, complete=complete
        )


class SnapshotReport(ProgressReport):
    """Report a snapshot that reads its tables one after the other.

    Notifications call a blocking snapshot an initial one, as Debezium does.
    """

    def __init__(self, kind: str, state: RunState, channels: PipelineChannels) -> None:
        super().__init__(kind, state, channels)
        self._tables, self._rows = "", 0
        self._total: int | None = None
        # Something was written: rows, or the opening of the snapshot.
        self.begun = False

    def started(self, tables: list[str]) -> None:
        self._tables, self._rows = ",".join(tables), 0
        self.counts.tables.clear()
        self._report_event("started")

    def reads(self, table: str, total: int | None) -> None:
        self._table_done()
        self.table, self._rows, self._total = table, 0, total
        self.note(0, total)
        self.observe("table_started", table, 0, total)
        self.channels.notify(
            INITIAL,
            "IN_PROGRESS",
            current_collection_in_progress=table,
            data_collections=self._tables,
        )

    def progressed(self, rows: int) -> None:
        """Report that so many more rows of the table were delivered."""
        self.begun = True
        self._rows += rows
        self.note(self._rows, self._total)
        self.observe("progress", self.table, self._rows, self._total)

    def ended(self, *, completed: bool) -> None:
        if completed:
            self._table_done()
        self._report_event("completed" if completed else "aborted")

    def refused(self, table: str) -> None:
        self.channels.notify(
            INITIAL, "TABLE_SCAN_COMPLETED", scanned_collection=table, status="SQL_EXCEPTION"
        )
        if table == self.table:
            self.table = ""

    def _report_event(self, event: str) -> None:
        self.counts.snapshot.notified(self.kind, event)
        self.observe(event, "", self._rows)
        self.channels.notify(INITIAL, event.upper())

    def _table_done(self) -> None:
        if not self.table:
            return
        self.note(self._rows, self._rows, complete=True)
        self.observe("table_completed", self.table, self._rows, self._rows)
        self.channels.notify(
            INITIAL,
            "TABLE_SCAN_COMPLETED",
            scanned_collection=self.table,
            data_collections=self._tables,
            total_rows_scanned=str(self._rows),
            status="SUCCEEDED",
        )
        self.table = ""


class IncrementalReport(ProgressReport):
    """Report incremental snapshots from their notifications."""

    def __call__(
        self, kind: str, identifier: str, *, rows: int = 0, observed: bool = True, **data: str
    ) -> None:
        """Report one step of the signal ``identifier``; ``rows`` were read.

        A step that is not ``observed`` is for notifications alone.
        """
        self.channels.notify(INCREMENTAL, kind, identifier, **data)
        self.counts.snapshot.notified(self.kind, kind.lower())
        if not observed:
            return
        if kind == "IN_PROGRESS":
            table = data["current_collection_in_progress"]
            if table != self.table:
                self.observe("table_started", table, 0)
            self.table = table
            self.note(rows, None)
            self.observe("progress", table, rows)
        elif kind == "TABLE_SCAN_COMPLETED":
            self.table = table = data["scanned_collection"]
            complete = data["status"] in {"SUCCEEDED", "EMPTY"}
            self.note(rows, rows if complete else None, complete=complete)
            self.observe("table_completed" if complete else "table_failed", table, rows)
            self.table = ""
        elif kind in {"STARTED", "COMPLETED", "ABORTED"}:
            self.observe(kind.lower(), "", 0)


def deliver(
    pieces: Iterable[SnapshotRows],
    report: SnapshotReport,
    state: RunState,
    connector: Connector,
    delivery: SinkWriter,
    *,
    snapshot: bool,
) -> bool:
    """Write ``pieces`` of tables, with flushes in between.

    ``snapshot``: they are of an initial one. Return False if the run ends before the last one.
    """
    for piece in pieces:
        # A stop that comes after the last piece leaves nothing to read again.
        if state.stop.is_set():
            return False
        if piece.relation.name != report.table:
            report.reads(piece.relation.name, tables_of(connector).estimate(piece.relation))
        left_out = cut(piece, state.remaining())
        delivery.write([piece], snapshot=snapshot)
        report.progressed(len(piece.rows))
        if delivery.due(state.flush_s):
            delivery.flush()
        # Where transforms leave room for more records, the rest of the piece is not delivered either.
        if left_out or state.is_finished():
            return False
    return True


class SnapshotPhase:
    """Deliver one initial snapshot, and report its progress."""

    def __init__(self, state: RunState, channels: PipelineChannels, delivery: SinkWriter) -> None:
        self._state, self._delivery, self._notified = state, delivery, channels.notified
        self._report = SnapshotReport("initial", state, channels)
        # The sink has others read the snapshot.
        self.assigned = False

    @property
    def begun(self) -> bool:
        """Return whether rows, or the opening of the snapshot, were written."""
        return self.assigned or self._report.begun

    def run(self, connector: Connector, start: StartPosition) -> bool:
        """Deliver every piece and close the snapshot.

        Return False if the run ends before that: the written pieces are flushed, and the snapshot stays
        open.
        """
        completed = False
        try:
            if self._delivered(connector, start):
                self._delivery.finish_snapshot()
                completed = True
        finally:
            try:
                self._report.ended(completed=completed)
            finally:
                _log_mode(connector, completed=completed)
        return completed

    def _delivered(self, connector: Connector, start: StartPosition) -> bool:
        delivery, report = self._delivery, self._report
        report.started(self.tables(connector) if self._notified else [])
        chunks = self._chunks(connector, start)
        if chunks is not None:
            return self._read_by_sink(chunks)
        pieces = self._pieces(connector, start)
        if deliver(pieces, report, self._state, connector, delivery, snapshot=True):
            return True
        delivery.drain()
        delivery.flush()
        return False

    @staticmethod
    def tables(connector: Connector) -> list[str]:
        """Return the names of the tables that it reads."""
        if isinstance(connector, SnapshotListingSource):
            return sorted(connector.snapshot_tables())
        return sorted(set(tables_of(connector).captured_tables().values()))

    def _pieces(self, connector: Connector, start: StartPosition) -> Iterator[SnapshotRows]:
        first = True
        for piece in connector.snapshot(start):
            piece.opens, piece.resumed = first and not start.resumes, first and start.resumes
            first = False
            yield piece

    def _chunks(self, connector: Connector, start: StartPosition) -> Sequence[SnapshotChunk] | None:
        """Return the snapshot's chunks if the sink has others read them.

        None: the engine reads the snapshot.
        """
        limited = self._state.limits.max_records is not None
        if start.resumes or limited or not self._delivery.takes_chunks():
            return None
        why = "this database shares no snapshot with other processes"
        if isinstance(connector, SnapshotSharingSource):
            try:
                return connector.chunks(start)
            except SourceLacks as error:
                why = error.problem
        log.warning("the engine reads the snapshot: %s", why)
        return None

    def _read_by_sink(self, chunks: Sequence[SnapshotChunk]) -> bool:
        """Have the sink's own readers read the tables.

        The connector keeps the snapshot open meanwhile.
        """
        state, delivery, report = self._state, self._delivery, self._report
        name = delivery.assign_splits(chunks)
        self.assigned = True
        position = delivery.position.end_lsn
        tables = {chunk.relation.table_id: chunk for chunk in chunks}
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
                external_snapshot=name,
                visible=chunk.visible,
            )
            delivery.write([piece], snapshot=True)
            if chunk.count > 1:  # a large table is a step of its own
                delivery.flush()
        delivery.flush()
        log.info("%s tables, in %s chunks, are read by others", len(tables), len(chunks))
        rows = delivery.await_chunks(lambda: state.stop.is_set() or state.is_finished())
        if rows is None:
            return False
        for table in dict.fromkeys(chunk.relation.name for chunk in tables.values()):
            report.reads(table, rows.get(table))
            report.progressed(rows.get(table, 0))
            state.counts.snapshot_rows += rows.get(table, 0)
            state.counts.events += rows.get(table, 0)
        return True


def _log_mode(connector: Connector, *, completed: bool) -> None:
    if not isinstance(connector, SnapshotHoldingSource):
        return
    try:
        connector.snapshot_ended(completed=completed)
    except BaseException as error:  # a plugin's; the snapshot is what it is
        if interrupts(error):
            raise
        log.warning("the snapshot mode failed behind its snapshot: %s", in_brief(error))


def cut(piece: SnapshotRows, remaining: int | None) -> bool:
    """Cut a piece to the remaining number of rows; return whether it had more."""
    more = remaining is not None and remaining < len(piece.rows)
    if more:
        piece.rows, piece.complete, piece.ends_chunk = piece.rows[:remaining], False, False
    return more
