"""Replace table rows by a snapshot that Spark tasks read.

The change log has only a name for such a snapshot; tasks read its rows from the source, chunk by
chunk. While the engine keeps the snapshot open, tasks can read it again. So a driver that dies
starts the table again with the same rows.

When the engine stops first, the snapshot is *lost*. The engine's next start takes another
snapshot and records it in the log; rows of the lost snapshot are then discarded. Until the log
says so, a driver that needs the rows waits.

A format that writes in place must repeat a step with the same rows. It may have done one of two
steps when driver and engine die. So its rows first go to files of the output: all rows of a table
are in a folder before the first step, and stay there until the commit. Rows in that folder
survive the engine.
"""

import logging
import re
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from typing import Final

import msgspec
from pyspark.sql import DataFrame

from waltap.base.files.errors import FilesUnavailable
from waltap.errors import SinkError
from waltap_sinks.changelog import ChangeLog, Manifest
from waltap_spark.apply.chunks import ChunkRows, chunk_rows, chunk_struct
from waltap_spark.apply.snapshot_splits import TableSplits
from waltap_spark.compact.log_columns import stored_as, with_epoch
from waltap_spark.errors import (
    CatalogueUnreachable,
    ChunkSourceUnreachable,
    ChunksRefused,
    RowsAwaited,
)
from waltap_spark.formats.table_format import CommitContext, GroupRows, TableFormat
from waltap_spark.planning.plan import SegmentGroup, TableTask
from waltap_spark.schema.expression import with_names
from waltap_spark.state.output import SparkOutput, TableState

log = logging.getLogger(__name__)

# Folder of rows that wait for the commit of tables written in place.
# It has a folder for each snapshot.
WAITING: Final = "_waltap/handed"

# File that marks a complete folder of rows, with the tasks' reports as JSON.
# Spark's own marker depends on its settings.
COMPLETE: Final = "_whole"

# An error of waltap within the text of a Java or Python trace.
_REPORTED_ERROR = re.compile(r"WT-\d{4} [^\n]*")


class ExternalSnapshots:
    """Decides which external snapshots tasks can read.

    ``table_splits`` returns the chunks of a named snapshot. It returns None where the chunks are
    not here yet, and raises LookupError where none will arrive. ``table_splits`` is None where no
    engine provides chunks.
    """

    def __init__(
        self,
        changelog: ChangeLog,
        table_splits: Callable[[str], TableSplits | None] | None,
        output: SparkOutput,
    ) -> None:
        self._log, self._table_splits, self._output = changelog, table_splits, output
        self._found: dict[str, TableSplits] = {}
        self._seen = True

    def plan(self, manifests: Sequence[Manifest], plans: dict[str, TableTask]) -> None:
        """Find the chunks for ``plans``, and mark groups with lost rows.

        Raises: RowsAwaited, where rows are missing and not known to be lost.
        """
        tasks = plans.values()
        of = [(task, group) for task in tasks for group in task.groups if group.external_snapshot]
        names = {group.external_snapshot for _task, group in of}
        names = names.union(*(manifest.external_snapshots for manifest in manifests))
        splits, nobody = self._table_splits, self._table_splits is None
        try:
            there = {} if splits is None else {name: splits(name) for name in names}
        except LookupError:
            there, nobody = {}, True
        # a snapshot without chunks is either lost or still to come
        self._found = {name: found for name, found in there.items() if found is not None}
        names -= self._found.keys()
        for name in sorted(names):
            if not self._lost(name):
                raise RowsAwaited(
                    "rows of a snapshot are not in the change log, and no engine provides them",
                    changelog=self._log.store.location,
                    nobody=nobody,
                )
        for task, group in of:
            folder = TableState(schema=task.schema, table=task.table).folder
            self._seen = True
            gone = group.external_snapshot in names
            # rows that were copied to the output survive the engine
            group.lost = gone and not _is_complete(self._output, _place(group, folder))

    def remove_waiting(self) -> None:
        """Remove waiting rows when no commit is pending."""
        if not self._seen:
            return
        try:
            self._output.store.delete_folder(WAITING)
            self._seen = False
        except FilesUnavailable as error:
            log.warning("rows that are no longer needed stay until the next commit: %s", error)

    def wait_for(self, commit: CommitContext, table: TableState, group: SegmentGroup) -> None:
        """Copy all rows of ``group`` to files of the output.

        A complete copy of an earlier attempt is used as it is.
        """
        output, place = self._output, _place(group, table.folder)
        if not _is_complete(output, place):
            with self._chunks(commit, table, group) as read:
                read.rows.write.mode("overwrite").parquet(output.uri(place))
                nulls = read.nulls()
            # the marker must not survive a power failure that the rows do not survive
            output.sync(place)
            output.store.publish(f"{place}/{COMPLETE}", msgspec.json.encode(nulls))

    def replaced(
        self, kind: TableFormat, commit: CommitContext, table: TableState, group: SegmentGroup
    ) -> TableState:
        """Return ``table`` with only the snapshot rows of ``group``.

        Formats that write in place take the rows from `wait_for`.
        """

        def replaced(rows: DataFrame) -> TableState:
            named = with_names(rows, group.called)
            read, files = (lambda: with_epoch(named, group.epoch)), self._log.store
            done = kind.replace(commit, table, GroupRows(group=group, read=read, files=files))
            return msgspec.structs.replace(done, rows_of_splits=group.rows)

        if not kind.writes_in_place:
            with self._chunks(commit, table, group) as read:
                done = replaced(read.rows)
                return msgspec.structs.replace(done, split_nulls=read.nulls())
        output, place = self._output, _place(group, table.folder)
        nulls = msgspec.json.decode(output.store.read(f"{place}/{COMPLETE}"), type=tuple[str, ...])
        struct = chunk_struct(stored_as(group, table.file_schemas[group.fingerprint]))
        waiting = commit.spark.read.schema(struct).parquet(output.uri(place))
        # the log does not know how many rows tasks read
        group.count(waiting.count())
        return msgspec.structs.replace(replaced(waiting), split_nulls=nulls)

    def _chunks(
        self, commit: CommitContext, table: TableState, group: SegmentGroup
    ) -> AbstractContextManager[ChunkRows]:
        splits = self._found.get(group.external_snapshot) or {}
        types = stored_as(group, table.file_schemas[group.fingerprint])
        return chunk_rows(commit.spark, splits[group.oid], types)

    def _lost(self, name: str) -> bool:
        """Return whether the log has a later snapshot than ``name``."""
        snapshot_id: int | None = None
        for manifest in self._log.manifests(self._log.begin):
            if name in manifest.external_snapshots and manifest.snapshot is not None:
                snapshot_id = manifest.snapshot.snapshot_id
            if snapshot_id is not None and manifest.last_snapshot_id > snapshot_id:
                return True
        return False


def _place(group: SegmentGroup, folder: str) -> str:
    return f"{WAITING}/{group.external_snapshot}/{folder}"


def _is_complete(output: SparkOutput, place: str) -> bool:
    """Return whether all rows are there, and durable."""
    return COMPLETE in output.store.names(place)


def read_error(error: BaseException, table: str) -> SinkError | None:
    """Return the error for a table whose snapshot failed.

    The error has the task's message: it could not read the source, could not convert rows, or the
    table does not accept them. None means that waltap's code did not fail; a retry may succeed.
    """
    if isinstance(error, CatalogueUnreachable):
        return None  # the rows wait in the output, complete
    if isinstance(error, SinkError):
        return ChunksRefused(f"the snapshot of {table} cannot be kept: {str(error).rstrip('.')}")
    reported = _REPORTED_ERROR.search(str(error))
    if reported is None:
        return None
    text = f"the snapshot of {table} could not be read on executors: {reported.group()}"
    return (ChunkSourceUnreachable if reported.group().startswith("WT-2") else ChunksRefused)(text)
