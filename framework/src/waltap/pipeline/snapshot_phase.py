"""The part of a connection that comes before streaming: what is there already goes to the sink."""

from collections.abc import Callable

from waltap.host import Host
from waltap.pipeline.channels import INITIAL, Channels
from waltap.pipeline.counts import TableProgress
from waltap.pipeline.delivery import Delivery
from waltap.source.connector import Connector, Start
from waltap.transactions.transaction import SnapshotRows

__all__ = ["SnapshotPhase"]


class SnapshotPhase:
    """Delivers one initial snapshot, and tells observers how far it is.

    ``flush_s`` is how long rows wait for a flush, in seconds. ``left`` returns how many rows may still be
    delivered, None without a limit; ``ends`` whether the run is to end. ``begun`` tells that rows, or
    the opening of the snapshot, have been written.
    """

    def __init__(
        self,
        delivery: Delivery,
        host: Host,
        channels: Channels,
        *,
        pipeline: str,
        flush_s: float,
        left: Callable[[], int | None],
        ends: Callable[[], bool],
    ) -> None:
        self._delivery, self._host, self._pipeline = delivery, host, pipeline
        self._channels, self._tables = channels, ""
        self._flush_s, self._left, self._ends = flush_s, left, ends
        self.begun = False

    def run(self, connector: Connector, start: Start) -> bool:
        """Deliver every piece and close the snapshot; False when the run ends before that: then what was
        written is flushed, and the snapshot stays open."""
        if self._channels.notified:
            self._tables = ",".join(sorted(set(connector.captured_tables().values())))
        try:
            return self._run(connector, start)
        except BaseException:
            self._channels.tell(INITIAL, "ABORTED")
            raise

    def _run(self, connector: Connector, start: Start) -> bool:
        delivery = self._delivery
        delivery.counts.tables.clear()
        self._tell("started", "", 0, None)
        self._channels.tell(INITIAL, "STARTED")
        table, rows, opens = "", 0, True
        total: int | None = None
        for piece in connector.snapshot(start):
            piece.opens, opens = opens, False
            if piece.relation.name != table:
                self._table_done(table, rows)
                table, rows = piece.relation.name, 0
                total = connector.estimate(piece.relation)
                self._note(table, 0, total)
                self._tell("table_started", table, 0, total)
                self._channels.tell(
                    INITIAL,
                    "IN_PROGRESS",
                    current_collection_in_progress=table,
                    data_collections=self._tables,
                )
            self._cut(piece)
            delivery.write([piece], snapshot=True)
            self.begun = True
            rows += len(piece.rows)
            self._note(table, rows, total)
            self._tell("progress", table, rows, total)
            if delivery.due(self._flush_s):
                delivery.flush()
            if self._ends():
                delivery.flush()
                self._tell("aborted", "", rows, None)
                self._channels.tell(INITIAL, "ABORTED")
                return False
        self._table_done(table, rows)
        delivery.finish_snapshot()
        self._tell("completed", "", rows, None)
        self._channels.tell(INITIAL, "COMPLETED")
        return True

    def _cut(self, piece: SnapshotRows) -> None:
        left = self._left()
        if left is not None and left < len(piece.rows):
            piece.rows, piece.complete, piece.ends_chunk = piece.rows[:left], False, False

    def _table_done(self, table: str, rows: int) -> None:
        if table:
            self._note(table, rows, rows, complete=True)
            self._tell("table_completed", table, rows, rows)
            self._channels.tell(
                INITIAL,
                "TABLE_SCAN_COMPLETED",
                scanned_collection=table,
                data_collections=self._tables,
                total_rows_scanned=str(rows),
                status="SUCCEEDED",
            )

    def _note(self, table: str, rows: int, total: int | None, *, complete: bool = False) -> None:
        progress = TableProgress(table=table, rows=rows, estimate=total, complete=complete)
        self._delivery.counts.tables[table] = progress

    def _tell(self, event: str, table: str, rows: int, total: int | None) -> None:
        self._host.notify(
            "on_snapshot",
            pipeline=self._pipeline,
            event=event,
            table=table,
            rows=rows,
            total=total,
        )
