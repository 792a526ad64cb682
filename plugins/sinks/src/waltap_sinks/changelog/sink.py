"""Write changes to a log; publish them with their position."""

import contextlib
import datetime as dt
import logging
from collections.abc import Callable, Iterator, Sequence
from operator import attrgetter

import msgspec

from waltap.base.files.errors import FilesUnavailable
from waltap.base.files.store import FileStore
from waltap.changes.decode.message import Change
from waltap.changes.decode.relation import Relation
from waltap.changes.transactions.position import SOLE, Position, Positions, lsn_text
from waltap.changes.transactions.transaction import (
    Batch,
    SnapshotRows,
    TransactionPart,
    TransactionRun,
)
from waltap.ports.sink.refusal import FailStop
from waltap.ports.sink.sink import Sink, SinkCapabilities, SinkContext
from waltap.ports.sink.stored_position import REREAD, DestinationBehind
from waltap.ports.source.connector import PreflightCheck, PublicationCompleteness
from waltap_sinks.changelog.continuity import TableContinuity, log_identity, make_log_identity
from waltap_sinks.changelog.errors import (
    ChangeLogGone,
    ChangeLogOfAnother,
    ChangeLogOlder,
    TransactionGap,
)
from waltap_sinks.changelog.manifest import (
    NOTHING,
    VERSION,
    LogPosition,
    Manifest,
    SnapshotPart,
    TableEntry,
    manifest_name,
    next_bucket,
)
from waltap_sinks.changelog.progress import CaptureGapFile, PublishedNote, ReadChunks
from waltap_sinks.changelog.properties import ChangeLogProperties
from waltap_sinks.changelog.reader import ChangeLog
from waltap_sinks.changelog.segment import SegmentFiles, TableBuffer, by_relation, estimated_bytes
from waltap_sinks.changelog.table_version import TableVersion, TableVersions

log = logging.getLogger(__name__)


# Schema, table, id of a snapshot's rows, and their chunk until it ends.
BufferKey = tuple[str, str, int | None, int | None]


class PendingTables:
    """Hold the buffers of one manifest or of one open transaction."""

    def __init__(self) -> None:
        self.finished: list[TableEntry] = []
        self.current: dict[BufferKey, TableBuffer] = {}

    def chunks(self) -> dict[BufferKey, TableBuffer]:
        """Return the buffers of unfinished chunks, which are not published."""
        return {key: buffer for key, buffer in self.current.items() if key[3] is not None}

    def drop(self, unwanted: Callable[[str, str, int | None], bool]) -> None:
        """Forget the rows of snapshots by schema, table and id."""
        for key in [key for key in self.current if unwanted(*key[:3])]:
            self.current.pop(key).abandon()
        self.finished = [
            each
            for each in self.finished
            if not unwanted(each.schema, each.table, each.snapshot_id)
        ]

    def __bool__(self) -> bool:
        return bool(self.finished or len(self.current) > len(self.chunks()))


# From this size on even few changes are converted to columns: four rows of 50 MB took 759 MiB
# instead of 1,149.
UNCONVERTED_BYTES = 8 * 1024 * 1024

# The files that `check` compares with their manifests, on a disk and in a bucket, at each start.
EXAMINED, REQUESTED = 2_000, 20


class ChangeLogSink(Sink):
    """Write changes as Parquet segments and publish them by manifests.

    Life cycle: open, (write*, flush)*, close. `write` converts changes to columns, and writes files
    if they exceed the memory limit. `flush` completes the files and publishes everything up to the
    last complete transaction in one atomic step. Exactly once: `open` returns the published
    position, and later deliveries below it are skipped.
    ``log_position`` is the position of the last manifest. Single-threaded.
    """

    capabilities = SinkCapabilities(
        records=False,
        exactly_once=True,
        resumes_snapshots=True,
        restarts_tables=True,
        typed_columns=True,
        follows_numbers=True,
    )

    def __init__(
        self,
        properties: ChangeLogProperties,
        context: SinkContext,
        *,
        store: FileStore | None = None,
    ) -> None:
        self._properties, self._context = properties, context
        self._store = store or FileStore(properties.path, properties)
        self._store.takes_over, self._store.may_write = context.takes_over, context.may_write
        self._fail_stop = FailStop(self._store.location)
        # After a failed write later changes would leave a gap.
        self._write_stop = FailStop(self._store.location)
        self._published_note = PublishedNote(
            context.state_dir / "changelog.published", self._store.path("")
        )
        self._missed = CaptureGapFile(context.state_dir / "changelog.missed")
        self._continuity = TableContinuity(self._store)
        self._versions = TableVersions(context)
        self._batches = 0
        self._reset()

    def _reset(self) -> None:
        self.log_position = NOTHING
        self._epoch = 1
        # OID → schema and table of the last changes.
        self._table_ids: dict[int, tuple[str, str]] = {}
        # The last manifest.
        self._last_path = ""
        self._bucket = ""
        properties = self._properties
        self._files = SegmentFiles(self._store, properties.compression, properties.segment_rows)
        self._published_below = 0
        self._next_snapshot_id = 1
        self._read = ReadChunks()
        # Whether the log ends within a snapshot, also one that has not resumed yet.
        self._in_snapshot = False
        # Tables that a blocking snapshot reads → the id of their snapshot.
        self._replacing: dict[int, int] = {}
        self._forget()

    def _forget(self) -> None:
        """Drop everything unpublished."""
        self._complete, self._open = PendingTables(), PendingTables()
        self._open_commit: int | None = None
        self._routes: dict[tuple[Relation, bool], TableBuffer | None] = {}
        self._unconverted = self._unconverted_bytes = 0
        self._transactions = 0
        self._commit_ts: tuple[int, int] | None = None
        self._position: Position | None = None
        self._skip_below = self._published_below
        self._snapshot_id: int | None = None
        self._snapshot_part: SnapshotPart | None = None

    # --- life cycle -------------------------------------------------------------------------------

    def check(self) -> list[PreflightCheck]:
        """Check that the folder is writable, and has this pipeline's log.

        Raises: FilesUnavailable, FilesInUse, ChangeLogGone, ChangeLogOfAnother, ChangeLogOlder.
        """
        self._store.check(".lock")  # only a write shows a read-only mount or a bucket policy
        last = ChangeLog(self._store).last()
        if last is not None:
            self._check_owner(last)
        if self._context.has_offset and not self._repairs:
            self._require_published(last)
        damages = list(ChangeLog(self._store).damages(EXAMINED if self._store.local else REQUESTED))
        if damages:
            found = f"damaged files: {len(damages):,}; the first: {damages[0].problem}"
            return [PreflightCheck.warning("sink changelog", found, damages[0].advice())]
        return [PreflightCheck.ok("sink changelog", self._store.location)]

    def open(self) -> Position | None:
        """Lock the log and return the position of its last manifest.

        Without a stored offset (``SinkContext.has_offset``) a log with manifests begins a new epoch,
        since the coming LSNs may belong to another server. Raises: FilesInUse, FilesUnavailable,
        ChangeLogGone, ChangeLogOfAnother, ChangeLogOlder.
        """
        self._store.lock(".lock")
        self._fail_stop.reset()
        self._write_stop.reset()
        self._abandon()  # buffers of before a reconnect, whose changes come again
        self._reset()
        # Before the folder by which readers find the log: they take its id once.
        self._published_note.identity = make_log_identity(self._store)
        self._store.make_folder("manifests")
        self._missed.read()
        resumes = self._context.has_offset and not self._repairs
        self._continuity.open(continues=self._context.gets_every_change and resumes)
        log = ChangeLog(self._store)
        last, published = log.last(), self._published_note.read()
        if resumes:
            self._require_published(last)
        if last is None:
            if not resumes:
                self._published_note.forget()
            if self._context.has_offset and published is not None:
                self._epoch = published.epoch + 1  # no position is used twice
            self._start_bucket()
            return None
        self._check_owner(last)
        self.log_position, self._bucket, self._last_path = last.log_position, last.bucket, last.path
        self._next_snapshot_id = last.last_snapshot_id + 1
        self._start_bucket()
        # Segments without a manifest are of a crash; their changes come again.
        log.remove_started_after(last)
        newest = max(last.log_position, published or NOTHING)
        # In an older copy the same LSNs come again, so they must not continue its epoch.
        if not self._context.has_offset or last.log_position < newest:
            self._epoch = newest.epoch + 1
            return None
        self._epoch = last.log_position.epoch
        if last.snapshot is not None and not last.snapshot.complete:
            self._read = ReadChunks(last.snapshot, log.of_snapshot(last.snapshot.snapshot_id))
            self._in_snapshot = True
            return None  # the snapshot resumes, or begins again
        if last.transactions:
            self._skip_below = self._published_below = last.log_position.end_lsn
        return Position(last.log_position.end_lsn)

    def begins(self, completeness: PublicationCompleteness) -> None:
        """Set the tables of which no change is missing. Raises: FilesUnavailable."""
        capture = self._context.capture
        captures = None if capture is None else capture.captures
        if not self._context.gets_every_change:
            completeness = PublicationCompleteness()
        self._continuity.begins(completeness, captures)
        self._routes.clear()

    def stored_position(self) -> Position | None:
        """Return the position of the last manifest, None within a snapshot."""
        there = self.log_position.epoch == self._epoch and not self._in_snapshot
        return Position(self.log_position.end_lsn) if there else None

    @property
    def _repairs(self) -> bool:
        """Return whether the run reads an incomplete log's tables again."""
        return self._context.repairs and self._context.snapshot is None

    def _require_published(self, last: Manifest | None) -> None:
        """Check that a log up to ``last`` has all manifests.

        Raises: ChangeLogGone, ChangeLogOlder.
        """
        published = self._published_note.read()
        if published is None:
            return
        if last is None:
            raise self._gone("is empty, but this pipeline has written to it", has=Positions())
        if last.log_position < published:
            raise ChangeLogOlder(
                f"{self._store.location} ends at {lsn_text(last.log_position.end_lsn)}; this pipeline has "
                f"published up to {lsn_text(published.end_lsn)}",
                has=Positions({SOLE: Position(last.log_position.end_lsn)}),
                path=self._store.location,
                repair=self._reread,
            )

    def _check_owner(self, last: Manifest) -> None:
        if last.pipeline not in {"", self._context.pipeline}:
            raise ChangeLogOfAnother(
                f"{self._store.location} is written by pipeline {last.pipeline!r}",
                owner=last.pipeline,
                path=self._store.location,
            )

    def close(self) -> None:
        """Close files and unlock; publish nothing. May be called twice."""
        self._abandon()
        self._store.unlock()

    def _abandon(self) -> None:
        """Drop everything unpublished, with the open files."""
        for pending in (self._complete, self._open):
            for buffer in pending.current.values():
                buffer.abandon()
        self._store.forget_unsynced()
        self._forget()

    # --- taking batches ---------------------------------------------------------------------------

    def write(self, batch: Batch) -> None:
        """Add the changes of ``batch``.

        A failure drops everything unpublished, and later writes are refused, since they would leave
        a gap. Delivery resumes from the last result of `flush`. Raises: FilesUnavailable,
        TransactionGap, ColumnNameTaken.
        """
        self._fail_stop.check()
        with self._write_stop, self._abandoning():
            self._take(batch)

    def identity(self) -> str:
        return log_identity(self._store)

    def record_gap(self, table: str) -> None:
        self._missed.add(table)
        self._continuity.end(table)
        self._routes.clear()

    def _take(self, batch: Batch) -> None:
        self._batches += 1
        single = batch.parts
        if isinstance(single, TransactionRun) and self._take_run(single):
            single = ()
        for part in single:
            if type(part) is TransactionPart:
                self._take_part(part)
            elif type(part) is SnapshotRows:
                self._take_rows(part, batch)
        if batch.snapshot and not batch.parts:
            self._end_snapshot()
        if batch.ends_transaction:
            self._position = batch.position
        self._unconverted += batch.events
        self._unconverted_bytes += estimated_bytes(batch)
        large = self._unconverted_bytes >= UNCONVERTED_BYTES
        if large or self._unconverted >= self._properties.chunk_rows:
            self._convert()

    def _take_part(self, part: TransactionPart) -> None:
        if part.commit_lsn < self._skip_below:
            return  # redelivered after a crash or reconnect
        if self._continuity.passes(part.commit_lsn):
            self._routes.clear()
        if part.starts:
            if self._open_commit is not None:
                self._drop_open()  # its first delivery was aborted
        elif self._open_commit != part.commit_lsn:
            raise TransactionGap(
                f"a transaction continues at change {part.first_index} without start"
            )
        complete = part.starts and part.complete
        for relation, changes, numbers in by_relation(part) if part.changes else ():
            buffer = self._route(relation, complete, changes)
            if buffer is not None:
                buffer.add_changes(part, changes, numbers)
        if not part.complete:
            self._open_commit = part.commit_lsn
            return
        if not complete:
            self._merge_open()
        if part.xid is not None:
            self._count(1, part.commit_ts, part.commit_ts)
        self._ends(part.end_lsn)

    def _take_run(self, run: TransactionRun) -> bool:
        """Write many transactions; False: write them one by one."""
        block, lsns = run.block, run.block.commit_lsns
        delivered = int(lsns.min()) < self._skip_below
        begins = self._continuity.passes_until(int(lsns.max()))
        if delivered or begins or self._open_commit is not None:
            return False
        buffer = self._route(block.inserts.relation, True, block.inserts)
        if buffer is not None:
            buffer.add_transactions(block)
        self._count(len(block), int(block.commit_ts[0]), int(block.commit_ts[-1]))
        self._ends(block.end_lsn)
        return True

    def _count(self, transactions: int, first_ts: int, last_ts: int) -> None:
        self._transactions += transactions
        first = first_ts if self._commit_ts is None else self._commit_ts[0]
        self._commit_ts = (first, last_ts)

    def _ends(self, end_lsn: int) -> None:
        """Note the end of a complete transaction."""
        self._skip_below = max(self._skip_below, end_lsn)
        if self._position is None or self._position.end_lsn < end_lsn:
            self._position = Position(end_lsn)

    def _take_rows(self, part: SnapshotRows, batch: Batch) -> None:
        if part.kind != "initial":  # These tables are also streamed, so their rows are upserts.
            if part.kind == "blocking":
                self._continuity.reads_again(part.relation.schema, part.relation.table)
                self._routes.clear()
                if part.all_rows and self._take_complete(part, batch):
                    return
            buffer = self._route(part.relation, complete=True)
            if buffer is not None and part.rows:
                buffer.add_snapshot(part, self._reread_at(batch))
            return
        lsn = batch.position.end_lsn if part.lsn is None else part.lsn
        if part.opens:
            self._begin_snapshot(part, batch.position.end_lsn)
        elif part.resumed or self._snapshot_id is None:
            self._go_on(part, batch.position.end_lsn)
        if part.restarts:
            self._restart(part.relation)
        oid = part.relation.oid
        if (version := self._versions.of(part.relation)) is None:
            return
        # A resumed snapshot repeats chunks whose end the offset had not stored.
        if not self._read.has(oid, part.chunk):
            buffer = self._buffer(self._complete, version, self._snapshot_id, part.chunk)
            if part.rows:
                buffer.add_snapshot(part, lsn)
            if part.ends_chunk or part.complete:
                self._end_chunk(oid, part.chunk, buffer)
        if part.complete and not self._read.has_all(oid):
            table = self._buffer(self._complete, version, self._snapshot_id)
            table.complete, table.external_snapshot = True, part.external_snapshot
            self._read.completed(oid)

    def _reread_at(self, batch: Batch) -> int:
        """Return the LSN of rows read beside the stream.

        They come after every earlier transaction and before the next.
        """
        before = self._position or batch.position  # `log_position` may be of another history
        return before.end_lsn or self.log_position.end_lsn

    def _take_complete(self, part: SnapshotRows, batch: Batch) -> bool:
        """Take a piece of a table that a blocking snapshot replaces.

        The table is a snapshot of its own, and is published when it is complete. Return False for
        a table that is not captured, or whose first rows are missing.
        """
        version, oid = self._versions.of(part.relation), part.relation.oid
        if version is None:
            return False
        table_id = part.relation.schema, part.relation.table
        if part.restarts:
            if (unfinished := self._replacing.pop(oid, None)) is not None:  # its reading broke off
                current = self._complete.current
                for key in [key for key in current if key[2] == unfinished]:  # its name may differ
                    current.pop(key).abandon()
            self._replacing[oid] = self._next_snapshot_id
            self._next_snapshot_id += 1
        snapshot_id = self._replacing.get(oid)
        if snapshot_id is None:
            return False
        buffer = self._buffer(self._complete, version, snapshot_id, 0)
        if part.rows:
            buffer.add_snapshot(part, self._reread_at(batch))
        if part.complete:
            del self._replacing[oid]
            self._end_former_name(self._complete, part.relation)
            if (*table_id, None, None) in self._complete.current:
                self._finish(self._complete, (*table_id, None, None))
            buffer.complete = True
            # Now: later changes come behind it.
            self._finish(self._complete, (*table_id, snapshot_id, 0))
            self._routes.clear()
        return True

    # --- snapshots --------------------------------------------------------------------------------

    def _go_on(self, part: SnapshotRows, end_lsn: int) -> None:
        """Resume the snapshot of the stored offset.

        It keeps its snapshot id if something was published. Raises: TransactionGap, ChangeLogGone.
        """
        if self._snapshot_id is not None:  # After a lost connection unfinished chunks come again.
            for key in self._complete.chunks():
                self._complete.current.pop(key).abandon()
            return
        progress = self._context.snapshot
        if progress is None:
            raise TransactionGap(f"a snapshot continues in {part.relation.name} without its start")
        if self._read.lacks(progress):
            raise self._gone("lacks rows of the running snapshot")
        if self._read.part is None:
            self._begin_snapshot(part, end_lsn)
            return
        self._snapshot_id, self._snapshot_part = self._read.part.snapshot_id, self._read.part
        self._skip_below = self._published_below = 0

    def _restart(self, relation: Relation) -> None:
        snapshot_table = (relation.schema, relation.table, self._snapshot_id)
        self._complete.drop(lambda *table: table == snapshot_table)
        self._read.forget(relation.oid)
        version = self._versions.of(relation)
        if version is not None:
            self._buffer(self._complete, version, self._snapshot_id).restarts = True

    def _end_chunk(self, oid: int, chunk: int, buffer: TableBuffer) -> None:
        version, snapshot_id = buffer.version, buffer.snapshot_id
        del self._complete.current[
            version.relation.schema, version.relation.table, snapshot_id, chunk
        ]
        table = self._buffer(self._complete, version, snapshot_id)
        table.absorb(buffer)
        table.chunks.append(chunk)
        self._read.ended(oid, chunk)

    def _begin_snapshot(self, part: SnapshotRows, end_lsn: int) -> None:
        """Start a snapshot with ``part``; discard an unfinished one.

        A position before the last manifest belongs to another history or to an older slot, so a new
        epoch begins.
        """
        if end_lsn < self.log_position.end_lsn and self._epoch == self.log_position.epoch:
            self._publish()
            self._epoch += 1
            self._continuity.end()
        self._complete.drop(lambda _schema, _table, snapshot_id: snapshot_id is not None)
        self._read = ReadChunks()
        self._snapshot_id, self._in_snapshot = self._next_snapshot_id, True
        self._next_snapshot_id += 1
        self._snapshot_part = SnapshotPart(
            snapshot_id=self._snapshot_id, lsn=part.lsn, complete=False, ts=part.ts or None
        )
        self._skip_below = self._published_below = 0

    def _end_snapshot(self) -> None:
        part = self._snapshot_part
        if part is None and self._in_snapshot and self._context.snapshot is not None:
            part = self._read.part  # resumed, with all of its rows published
        if part is not None:
            self._snapshot_part = msgspec.structs.replace(part, complete=True)
        self._snapshot_id, self._in_snapshot = None, False

    def forget(self, oid: int) -> None:
        self._versions.forget(oid)
        for key in [key for key in self._routes if key[0].oid == oid]:
            del self._routes[key]

    # --- routes -----------------------------------------------------------------------------------

    def _route(
        self, relation: Relation, complete: bool, changes: Sequence[Change] = ()
    ) -> TableBuffer | None:
        known = self._versions.get(relation)
        if known is not None and known.grown and known.is_outgrown(changes, self._batches):
            self._versions.put(relation, known.renewed(self._batches))
            self._routes.clear()
        try:
            return self._routes[relation, complete]
        except KeyError:
            version = self._versions.of(relation)
            pending = self._complete if complete else self._open
            buffer = None if version is None else self._buffer(pending, version, None)
            self._routes[relation, complete] = buffer
            return buffer

    def _buffer(
        self,
        pending: PendingTables,
        version: TableVersion,
        snapshot_id: int | None,
        chunk: int | None = None,
    ) -> TableBuffer:
        """Return the buffer of ``version``; finish another version's."""
        table_id = version.relation.schema, version.relation.table
        key = (*table_id, snapshot_id, chunk)
        continuity_id = self._continuity.of(*table_id, read=snapshot_id is not None)
        if snapshot_id is None:
            self._end_former_name(pending, version.relation)
        buffer, like = pending.current.get(key), (version.fingerprint, continuity_id)
        if buffer is not None and (buffer.version.fingerprint, buffer.continuity_id) != like:
            self._finish(pending, key)
            self._routes.clear()
            buffer = None
        if buffer is None:
            buffer = pending.current[key] = TableBuffer(version, snapshot_id, continuity_id)
        elif buffer.version is not version:
            buffer.continue_as(version)
            self._routes.clear()  # the earlier version may return
        return buffer

    def _end_former_name(self, pending: PendingTables, relation: Relation) -> None:
        """Finish a renamed table's buffer, to keep the names' order."""
        table_id, oid = (relation.schema, relation.table), relation.oid
        before = self._table_ids.get(oid, table_id) if oid else table_id
        self._table_ids[oid] = table_id
        key = (*before, None, None)
        if before != table_id and key in pending.current:
            if pending.current[key].version.relation.oid == oid:
                self._finish(pending, key)
            self._routes.clear()

    # --- memory -----------------------------------------------------------------------------------

    def _convert(self) -> None:
        """Convert changes to columns; write them if they exceed the limit."""
        self._unconverted = self._unconverted_bytes = 0
        buffers = [*self._complete.current.values(), *self._open.current.values()]
        for buffer in buffers:
            buffer.convert()
        used = sum(buffer.bytes for buffer in buffers)
        if used > self._properties.memory_bytes:
            # The largest first, and half of the limit: fewer and larger row groups per segment.
            for buffer in sorted(buffers, key=attrgetter("bytes"), reverse=True):
                used -= buffer.bytes
                buffer.spill(self._files)
                if used <= self._properties.memory_bytes // 2:
                    break

    def _finish(self, pending: PendingTables, key: BufferKey) -> None:
        entry = pending.current[key].finish(self._files)
        del pending.current[key]  # after a failure `_abandon` closes its file
        # An empty table of a snapshot needs its entry too: it replaces the rows of before.
        if entry.rows or entry.snapshot_id is not None:
            pending.finished.append(entry)

    def _merge_open(self) -> None:
        """Count a transaction of several parts, which is now complete."""
        current = self._complete.current
        if self._open.finished:
            # A table changed within the transaction: its earlier rows are in these entries.
            for key in [key for key, buffer in current.items() if buffer.snapshot_id is None]:
                self._finish(self._complete, key)
            self._complete.finished += self._open.finished
        named = {each.version.relation.oid: key for key, each in self._open.current.items()}
        for key, buffer in [*current.items()]:
            oid = buffer.version.relation.oid
            # Entries are in the order of a table's names, see `_end_former_name`.
            if oid and buffer.snapshot_id is None and named.get(oid, key) != key:
                self._finish(self._complete, key)
        for key, buffer in self._open.current.items():
            earlier = current.get(key)
            if earlier is not None and buffer.follows(earlier):
                earlier.extend(buffer)
                continue
            if earlier is not None:
                self._finish(self._complete, key)
            current[key] = buffer
        self._open = PendingTables()  # its buffers continue
        self._drop_open()

    def _drop_open(self) -> None:
        for buffer in self._open.current.values():
            buffer.abandon()
        self._open, self._open_commit = PendingTables(), None
        self._routes.clear()

    # --- publishing -------------------------------------------------------------------------------

    def flush(self) -> Position | None:
        """Publish everything up to the last complete transaction.

        Return the position behind it. Raises: FilesUnavailable, ChangeLogGone; everything
        unpublished is dropped then.
        """
        with self._fail_stop, self._abandoning():
            position = self._publish()
            if not self._store.locked():
                raise self._gone("was moved or deleted while it was written")
            return position

    @contextlib.contextmanager
    def _abandoning(self) -> Iterator[None]:
        """Drop everything unpublished after a failure."""
        try:
            yield
        except FilesUnavailable as error:
            self._abandon()
            error.problem += f"; committed up to {lsn_text(self.log_position.end_lsn)}"
            # Without the lock file the folder was moved or deleted: a retry could not repair that.
            if self._store.locked():
                raise
            raise self._gone("was moved or deleted while it was written") from error
        except BaseException:
            self._abandon()
            raise

    @property
    def _reread(self) -> str:
        in_snapshot = self._snapshot_id is not None or self._context.snapshot is not None
        return "" if in_snapshot else REREAD

    def _gone(self, what: str, has: Positions | None = None) -> DestinationBehind:
        location = self._store.location
        return ChangeLogGone(f"{location} {what}", has=has, path=location, repair=self._reread)

    def _publish(self) -> Position | None:
        if self._position is None:
            return None
        snapshot_ended = self._snapshot_part is not None and self._snapshot_part.complete
        if not self._complete and not snapshot_ended:
            return self._position
        self._start_bucket()
        for key in [key for key in self._complete.current if key[3] is None]:
            self._finish(self._complete, key)
        end_lsn = self._position.end_lsn
        previous = self.log_position
        same = previous.epoch == self._epoch and previous.end_lsn == end_lsn
        log_position = LogPosition(self._epoch, end_lsn, previous.ordinal + 1 if same else 0)
        entries = self._missed.marked(self._complete.finished)
        manifest = Manifest(
            version=VERSION,
            log_position=log_position,
            previous=previous,
            bucket=self._bucket,
            transactions=self._transactions,
            rows=sum(entry.rows for entry in entries),
            first_commit_ts=None if self._commit_ts is None else self._commit_ts[0],
            last_commit_ts=None if self._commit_ts is None else self._commit_ts[1],
            last_snapshot_id=self._next_snapshot_id - 1,
            pipeline=self._context.pipeline,
            snapshot=self._snapshot_part,
            tables=entries,
        )
        path = f"manifests/{log_position.epoch:04x}/{self._bucket}/{manifest_name(previous, log_position)}"
        # A manifest that follows a removed one would break the chain.
        if self._last_path and not self._store.has(self._last_path):
            self._require_published(ChangeLog(self._store).last())
            raise self._gone("lacks the manifest that was published last")
        self._continuity.save()  # before the manifest: an id without entries is harmless
        # Readers see the whole step or nothing of it.
        self._store.publish(path, manifest.encode())
        self._last_path = path
        self._published(manifest)
        return self._position

    def _published(self, manifest: Manifest) -> None:
        self.log_position = manifest.log_position
        self._published_note.write(manifest.log_position)
        self._missed.published(manifest.tables)
        if manifest.transactions:
            self._published_below = manifest.log_position.end_lsn
        self._complete.finished = []  # unfinished chunks stay
        # The buffers of an open transaction stay.
        self._routes = {key: buffer for key, buffer in self._routes.items() if not key[1]}
        self._transactions, self._commit_ts = 0, None
        if self._snapshot_id is None:
            self._snapshot_part = None
        self._start_bucket()

    def _start_bucket(self) -> None:
        """Choose new files' folder by time, never an earlier one."""
        self._bucket = next_bucket(self._bucket, dt.datetime.now(dt.UTC))
        self._files.start(self._bucket, str(self.log_position))
