"""Collect changes for Parquet files by folder."""

import logging
from typing import TYPE_CHECKING, Final

from waltap.changes.decode.relation import Relation
from waltap.changes.transactions.transaction import Batch, SnapshotRows, TransactionPart
from waltap.ports.sink.sink import SinkContext
from waltap_sinks.changelog.segment import TableBuffer, by_relation, estimated_bytes
from waltap_sinks.changelog.table_version import TableVersions
from waltap_sinks.files.lines import FolderNames, day_of

if TYPE_CHECKING:
    import pyarrow as pa


log = logging.getLogger(__name__)

# From this number of rows on changes are converted to columns.
UNCONVERTED_ROWS: Final = 16_384


class GatheredColumns:
    """Collect columns of the change log by folder and table version.

    Each group becomes a file.
    """

    ending: Final = ".parquet"

    def __init__(self, folders: FolderNames, compression: str, context: SinkContext) -> None:
        self._folders, self._compression, self._context = folders, compression, context
        self._versions = TableVersions(context)
        self.clear()

    def forget(self, oid: int) -> None:
        """Forget a dropped relation, but not its rows."""
        self._versions.forget(oid)

    def clear(self) -> None:
        """Drop all rows."""
        # The estimated size of the collected rows.
        self.bytes = self._unconverted = 0
        self._buffers: dict[tuple[str, str], TableBuffer] = {}

    def add(self, batch: Batch) -> None:
        """Add the changes of ``batch``."""
        hour = day_of(batch)
        for part in batch.parts:
            if isinstance(part, TransactionPart):
                self._add_changes(part, hour)
            elif isinstance(part, SnapshotRows) and part.rows:
                self._add_rows(part, hour, batch.position.end_lsn)
        # A truncate has no bytes, but must be written.
        self.bytes += max(estimated_bytes(batch), batch.events)
        self._unconverted += batch.events
        if self._unconverted >= UNCONVERTED_ROWS:
            self._convert()

    def take(self) -> "list[tuple[str, pa.Table, int]]":
        """Return and forget the folder, rows and row count of each file."""
        import pyarrow as pa

        self._convert()
        found = []
        for (folder, _), buffer in self._buffers.items():
            batches = buffer.given_up().batches
            if batches:
                rows = pa.Table.from_batches(batches)
                found.append((folder, rows, rows.num_rows))
        self.clear()
        return found

    def content(self, rows: "pa.Table") -> bytes:
        """Return the content of a file, the same for the same rows."""
        import pyarrow as pa
        from pyarrow import parquet

        made = pa.BufferOutputStream()
        parquet.write_table(rows, made, compression=self._compression)
        content: bytes = made.getvalue().to_pybytes()
        return content

    def _add_changes(self, part: TransactionPart, hour: str) -> None:
        for relation, changes, numbers in by_relation(part):
            buffer = self._buffer(relation, hour)
            if buffer is not None:
                buffer.add_changes(part, changes, numbers)

    def _add_rows(self, part: SnapshotRows, hour: str, end_lsn: int) -> None:
        buffer = self._buffer(part.relation, hour)
        if buffer is None:
            return
        lsn = end_lsn if part.lsn is None or part.kind != "initial" else part.lsn
        buffer.add_snapshot(part.rows, lsn=lsn, ts=part.ts, xid=part.xid)

    def _buffer(self, relation: Relation, hour: str) -> TableBuffer | None:
        """Return the buffer for a table's rows of this hour.

        The result is None if the table is not captured.
        """
        version = self._versions.of(relation)
        if version is None:
            return None
        capture = self._context.capture
        topic = relation.name if capture is None else capture.topic(relation.schema, relation.table)
        folder = self._folders.of(relation.name, topic, hour)
        key = folder, version.fingerprint
        buffer = self._buffers.get(key)
        if buffer is None:
            buffer = self._buffers[key] = TableBuffer(version)
        buffer.goes_on_as(version)
        return buffer

    def _convert(self) -> None:
        self._unconverted = 0
        for buffer in self._buffers.values():
            buffer.convert()
