"""How far a snapshot is: told to observers, notification channels and the status."""

from waltap.host import Host
from waltap.pipeline.channels import INCREMENTAL, INITIAL, PipelineChannels
from waltap.pipeline.counts import RunCounters, SnapshotTableProgress

__all__ = ["IncrementalReport", "SnapshotReport"]


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
