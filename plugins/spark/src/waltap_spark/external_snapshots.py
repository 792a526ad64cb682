"""Snapshots whose rows are not in the change log: tasks read them of the source, in chunks handed over.

The log says of such a table that its rows are elsewhere, under a name. While the engine that gave the name
keeps its snapshot, they can be had, as often as need be: a driver that died begins the table again, and
finds the same rows. When it is gone before the snapshot was complete, they are *lost*: the engine's next
start takes another snapshot, and says so in the log. Then what a table has of the lost one counts for
nothing. Until the log says that, whoever comes to such a table waits.

A format that is written in place must take each of its steps with the same rows, whoever takes it, and may
have taken one of two when driver and engine die. So its tables come by way of files of ours: all rows of a
table are in a folder before the first step is taken, and stay there until the commit. Rows that are there
are not lost with their engine.
"""

import logging
import re
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Final

import msgspec

from waltap.base.files.errors import FilesUnavailable
from waltap.errors import SinkError
from waltap_sinks.changelog import ChangeLog, LogPosition, Manifest
from waltap_spark.chunks import chunk_rows, chunk_struct
from waltap_spark.errors import CatalogueUnreachable, ChunksRefused, ChunksUnread, RowsAwaited
from waltap_spark.expression import with_names
from waltap_spark.formats import CommitContext, GroupRows, TableFormat
from waltap_spark.log_rows import stored_as, with_epoch
from waltap_spark.output import SparkOutput, TableState
from waltap_spark.plan import SegmentGroup, TableTask
from waltap_spark.snapshot_splits import Handed

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

    from waltap.base.files.store import FileStore

__all__ = ["ExternalSnapshots", "replaced_from_chunks", "unread", "wait_for"]

log = logging.getLogger(__name__)

WAITING: Final = "_waltap/handed"
"""Where rows wait for the commit of tables that are written in place, below a folder for each snapshot."""

WHOLE: Final = "_whole"
"""A file beside them, when they are all there: what tasks told of them, as JSON. Whether
Spark writes one of its own is a matter of settings."""

_SAID = re.compile(r"WT-\d{4} [^\n]*")


class ExternalSnapshots:
    """Tells which snapshots can be read. ``handed`` gives the chunks that have a name, None where they are
    not here, or not yet, and raises LookupError where none will be; None where nobody hands any over."""

    def __init__(
        self,
        changelog: ChangeLog,
        handed: Callable[[str], Handed | None] | None,
        output: SparkOutput,
    ) -> None:
        self._log, self._handed, self._output = changelog, handed, output
        self._found: dict[str, Handed] = {}
        self._seen = True

    def of(self, name: str) -> Handed | None:
        """Return the chunks called ``name``, by table, as `look` found them."""
        return self._found.get(name)

    def look(self, manifests: Sequence[Manifest], plans: dict[str, TableTask]) -> None:
        """Find the chunks of ``plans``, and mark groups whose rows are lost. ``manifests`` are those that
        are to be applied.

        Raises: RowsAwaited, where some can be had neither now nor, as far as is known, never.
        """
        of = {name: [g for g in each.groups if g.elsewhere] for name, each in plans.items()}
        names = {group.elsewhere for groups in of.values() for group in groups}
        for manifest in manifests:
            names |= manifest.elsewhere
        nobody = self._handed is None
        try:
            there = {} if self._handed is None else {name: self._handed(name) for name in names}
        except LookupError:
            there, nobody = {}, True
        self._found = {name: handed for name, handed in there.items() if handed is not None}
        names -= self._found.keys()
        for name in sorted(names):
            if not self._lost(name):
                raise RowsAwaited(
                    "rows of a snapshot are not in the change log, and nobody hands them over",
                    changelog=self._log.store.location,
                    nobody=nobody,
                )
        for table, groups in of.items():
            folder = TableState(schema=plans[table].schema, table=plans[table].table).folder
            for group in groups:
                self._seen = True
                gone = group.elsewhere in names
                group.lost = gone and not _is_whole(self._output, _place(group, folder))

    def settle(self) -> None:
        """Remove rows that wait for a commit, when none is owed."""
        if not self._seen:
            return
        try:
            self._output.store.delete_folder(WAITING)
            self._seen = False
        except FilesUnavailable as error:
            log.warning("rows that nobody waits for stay until the next commit: %s", error)

    def _lost(self, name: str) -> bool:
        """Tell whether another snapshot has begun behind the one that is called ``name``."""
        generation: int | None = None
        for manifest in self._log.manifests(self._since()):
            if name in manifest.elsewhere and manifest.snapshot is not None:
                generation = manifest.snapshot.generation
            if generation is not None and manifest.last_generation > generation:
                return True
        return False

    def _since(self) -> LogPosition | None:
        first = self._log.first()
        return None if first is None else first.previous


def wait_for(
    step: CommitContext,
    table: TableState,
    group: SegmentGroup,
    handed: Handed | None,
    output: SparkOutput,
) -> None:
    """See that all rows of ``group`` are in files of ours."""
    place = _place(group, table.folder)
    if not _is_whole(output, place):
        types = stored_as(group, table.versions[group.fingerprint])
        with chunk_rows(step.spark, (handed or {})[table.name], types) as read:
            read.rows.write.mode("overwrite").parquet(output.uri(place))
            told = read.told()
        output.sync(place)
        output.store.publish(f"{place}/{WHOLE}", msgspec.json.encode(told))


def replaced_from_chunks(
    format_: TableFormat,
    step: CommitContext,
    table: TableState,
    group: SegmentGroup,
    handed: Handed | None,
    files: "FileStore",
    output: SparkOutput,
) -> TableState:
    """Return ``table`` with the rows that tasks read for ``group``, or have read (`wait_for`), and no
    others."""
    types = stored_as(group, table.versions[group.fingerprint])

    def replaced(rows: "DataFrame") -> TableState:
        named = with_names(rows, group.called) if group.called else rows
        brought = GroupRows(group=group, read=lambda: with_epoch(named, group.epoch), files=files)
        done = format_.replace(step, table, brought)
        return msgspec.structs.replace(done, handed_rows=group.rows)

    if not format_.writes_in_place:
        with chunk_rows(step.spark, (handed or {})[table.name], types) as read:
            done = replaced(read.rows)
            return msgspec.structs.replace(done, handed_nulls=read.told())
    place = _place(group, table.folder)
    text = output.store.read(f"{place}/{WHOLE}") or b"[]"  # 0.1: nothing was told
    told = msgspec.json.decode(text, type=tuple[str, ...])
    waiting = step.spark.read.schema(chunk_struct(types)).parquet(output.uri(place))
    group.count(waiting.count())
    return msgspec.structs.replace(replaced(waiting), handed_nulls=told)


def _place(group: SegmentGroup, folder: str) -> str:
    return f"{WAITING}/{group.elsewhere}/{folder}"


def _is_whole(output: SparkOutput, place: str) -> bool:
    """Tell whether all rows are there, and durable."""
    return WHOLE in output.store.names(place)


def unread(error: BaseException, table: str) -> SinkError | None:
    """Return what to tell of a table whose snapshot came to nothing: what the task said that could not
    read, or not make columns of what it read, or why the table does not take it. None where nothing of
    ours failed; the job may then succeed another time."""
    if isinstance(error, CatalogueUnreachable):
        return None  # the rows wait, and are whole
    if isinstance(error, SinkError):
        return ChunksRefused(f"the snapshot of {table} cannot be kept: {error}")
    said = _SAID.search(str(error))
    if said is None:
        return None
    text = f"the snapshot of {table} could not be read on executors: {said.group()}"
    return (ChunksUnread if said.group().startswith("WT-2") else ChunksRefused)(text)
