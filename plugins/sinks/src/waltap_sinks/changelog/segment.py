"""Write segments: changes of one table version become Arrow, then Parquet."""

import bisect
import os
from collections import Counter
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress
from functools import lru_cache
from operator import attrgetter
from typing import Final

from waltap.base.files.store import FileStore
from waltap.base.import_rules import np, pa, parquet
from waltap.changes.arrow.column import integer_array
from waltap.changes.decode.message import Change, InsertBlock, TransactionBlock, Truncate
from waltap.changes.decode.relation import Relation
from waltap.changes.decode.row_block import RowBlock
from waltap.changes.decode.tuple_image import Tuple
from waltap.changes.transactions.transaction import (
    Batch,
    SnapshotRows,
    TransactionPart,
    TransactionRun,
)
from waltap_sinks.changelog.manifest import Segment, TableEntry
from waltap_sinks.changelog.table_version import LogRows, TableVersion

# Changes of one relation with their numbers in the transaction.
RelationChanges = tuple[Relation, Sequence[Change], Sequence[int]]

_relation_of = attrgetter("relation")


def by_relation(part: TransactionPart) -> Sequence[RelationChanges]:
    """Group the changes of ``part`` by relation.

    A truncate is a change of each table that it empties. The changes of one table stay in order: a
    relation version or name that returns after another one has a second group.
    """
    if isinstance(part.changes, InsertBlock):
        return [(part.changes.relation, part.changes, part.numbers())]
    with suppress(AttributeError):  # truncates and logical messages have no relation
        relations = set(map(_relation_of, part.changes))
        if len(relations) == 1:
            return [(relations.pop(), part.changes, part.numbers())]
    found: list[tuple[Relation, list[Change], list[int]]] = []
    current: dict[Relation, tuple[list[Change], list[int]]] = {}
    last: dict[object, Relation] = {}
    for index, change in zip(part.numbers(), part.changes, strict=True):
        relation = getattr(change, "relation", None)
        truncated = change.relations if type(change) is Truncate else ()
        for each in truncated if relation is None else (relation,):
            group = current.get(each)
            if group is None:
                # the table of its name, and itself under another name
                for key in ((each.schema, each.table), each.oid or each):
                    if key in last:
                        current.pop(last[key], None)
                    last[key] = each
                group = current[each] = [], []
                found.append((each, *group))
            group[0].append(change)
            group[1].append(index)
    return found


# ``_seq`` of snapshot rows: before the first change at the same LSN.
SNAPSHOT_SEQUENCE: Final = -1

# Average bytes of a row from which on a file is made for wide rows.
WIDE_BYTES: Final = 1 << 20

PAGE_BYTES: Final = 1 << 20
# A page has at most so many rows or bytes of values. Readers hold whole pages, and compare their
# size with a limit only once in so many rows.
PAGE_ROWS: Final = 1024

# Bytes of values in a row group of wide rows. Readers hold the compressed bytes of a whole group.
GROUP_BYTES: Final = 32 << 20

# Most rows of a row group. One task reads a whole group.
GROUP_ROWS: Final = 50_000


# Bytes of a table that is encoded in a thread, while the next changes are converted. Encoding is two
# fifths of the work on a large transaction, and needs no interpreter lock. A larger table has wide
# rows: two of them would take too much memory.
BACKGROUND_BYTES: Final = range(1 << 20, 16 << 20)


@lru_cache(maxsize=1)
def _encoder() -> ThreadPoolExecutor:
    """Return the one thread that encodes tables of this process."""
    return ThreadPoolExecutor(1, thread_name_prefix="waltap-segment")


# A forked process has no threads.
os.register_at_fork(after_in_child=_encoder.cache_clear)


class SegmentFile:
    """Write a Parquet file, invisible until a manifest names it."""

    def __init__(
        self, store: FileStore, path: str, schema: "pa.Schema", compression: str, row_bytes: int = 0
    ) -> None:
        """Begin a file for rows of ``row_bytes`` on average.

        From `WIDE_BYTES` on it has Parquet's second form of data pages. These are joined from
        compressed parts, which saves two copies of a long value.
        """
        self.path, self._page_rows = path, _page_rows(row_bytes)
        self.rows = self.unpacked = 0
        self._encoding: Future[None] | None = None
        self._store = store
        self._stream = store.create(path)
        of = pa.types
        # Only values of bounded size have minimum and maximum: of a text of 50 MB they would be four
        # more copies.
        long = set(_names(schema, (of.is_string, of.is_binary, of.is_nested)))
        # Keys, positions and times become a quarter smaller by their differences and are read faster.
        # Spark reads this encoding of integers without leaving its vectors.
        near = _names(schema, (of.is_integer, of.is_temporal))
        with store.writing(path):
            self._writer = parquet.ParquetWriter(
                self._stream,
                schema,
                compression=compression,
                use_dictionary=False,
                column_encoding=dict.fromkeys(near, "DELTA_BINARY_PACKED"),
                write_statistics=[n for n in schema.names if n not in long],
                data_page_version="2.0" if row_bytes >= WIDE_BYTES else "1.0",
                write_batch_size=self._page_rows,
                write_page_checksum=True,
            )

    def has_pages_for(self, row_bytes: int) -> bool:
        return _page_rows(row_bytes) * 8 >= self._page_rows

    def write(self, table: "pa.Table") -> None:
        """Append ``table`` as one or more row groups.

        The error of a large table comes from the next call, or from `finish`. Raises: FilesUnavailable.
        """
        groups, size = -(-table.num_rows // GROUP_ROWS), table.nbytes
        rows = -(-table.num_rows // max(1, groups)) or 1
        if self._page_rows < PAGE_ROWS:
            fit = table.num_rows * GROUP_BYTES // max(1, size)
            rows = max(1, min(rows, fit))
        self._wait()
        self.rows += table.num_rows
        self.unpacked += size
        if size in BACKGROUND_BYTES:
            self._encoding = _encoder().submit(self._encode, table, rows)
        else:
            self._encode(table, rows)

    def _encode(self, table: "pa.Table", rows: int) -> None:
        with self._store.writing(self.path):
            self._writer.write_table(table, row_group_size=rows)

    def _wait(self) -> None:
        """Wait for the table that the thread encodes. Raises: FilesUnavailable."""
        encoding, self._encoding = self._encoding, None
        if encoding is not None:
            encoding.result()

    def finish(self) -> Segment:
        """Complete the file and make it durable."""
        self._wait()
        with self._store.writing(self.path):
            self._writer.close()
            size: int = self._stream.tell()
            self._stream.close()
        self._store.sync(self.path, size)
        return Segment(path=self.path, rows=self.rows, bytes=size, unpacked=self.unpacked)

    def abandon(self) -> None:
        """Release the file; readers ignore it."""
        with suppress(Exception):  # the failure may be its own, of any kind
            self._wait()
        with suppress(OSError, ValueError):
            self._writer.close()
        with suppress(OSError, ValueError):
            self._stream.close()


@lru_cache(maxsize=16)
def _repeated(value: object, kind: "pa.DataType", count: int) -> "pa.Array":
    """Return an array of one value, ``count`` times, which blocks share."""
    return pa.repeat(pa.scalar(value, kind), count)


def _page_rows(row_bytes: int) -> int:
    return min(PAGE_ROWS, max(1, PAGE_BYTES // max(1, row_bytes)))


def _names(schema: "pa.Schema", kinds: Sequence[Callable[["pa.DataType"], bool]]) -> list[str]:
    """Return the columns of these kinds."""
    return [field.name for field in schema if any(of_kind(field.type) for of_kind in kinds)]


class TableBuffer:
    """Collect rows of one table version for segments.

    Changes stay as they came until `convert` makes columns of them, and columns until `spill` or
    `finish` writes them.
    """

    def __init__(
        self, version: TableVersion, snapshot_id: int | None = None, continuity_id: str = ""
    ) -> None:
        self.version, self.continuity_id = version, continuity_id
        self.snapshot_id = snapshot_id
        self.complete = self.restarts = False
        self.external_snapshot = ""
        self.chunks: list[int] = []
        self.rows = 0
        self.bytes = 0
        # Changes with their numbers in the transaction, by parts.
        self.waiting: list[tuple[TransactionPart, Sequence[Change], Sequence[int]]] = []
        self.batches: list[pa.RecordBatch] = []
        self._file: SegmentFile | None = None
        self.segments: list[Segment] = []
        self.operations: Counter[str] = Counter()
        self.unchanged: dict[str, None] = {}
        self.key_changes = 0
        self.misfits: Counter[str] = Counter()
        self.key_reused = False
        # The commit LSN of the last row in columns, which may have put a key.
        self.put_in = -1

    # --- taking changes ---------------------------------------------------------------------------

    def add_changes(
        self, part: TransactionPart, changes: Sequence[Change], numbers: Sequence[int]
    ) -> None:
        if isinstance(changes, InsertBlock):
            self.convert()
            # Changes are left out before or after a block, never within it.
            sequence = np.arange(numbers[0], numbers[0] + len(changes), dtype="i4")
            lsn = part.commit_lsn
            own = "c", lsn, sequence, 0, changes.lsns, part.commit_ts, part.xid, None
            self._append_block(self.version.block(changes.rows), own, lsn)
            return
        self.waiting.append((part, changes, numbers))

    def add_transactions(self, block: TransactionBlock) -> None:
        """Add inserts, each of a transaction of its own."""
        self.convert()
        inserts = block.inserts
        own = "c", block.commit_lsns, 0, 0, inserts.lsns, block.commit_ts, block.xids, None
        rows = self.version.block(inserts.rows)
        self._append_block(rows, own, int(block.commit_lsns[-1]))

    def add_snapshot(self, part: SnapshotRows, lsn: int) -> None:
        self.convert()
        version, rows = self.version, part.rows
        rows = version.block(rows) if isinstance(rows, RowBlock) else version.projected(rows)
        own = "r", lsn, SNAPSHOT_SEQUENCE, 0, lsn, part.ts, part.xid, None
        self._append_block(rows, own, lsn)

    def continue_as(self, version: TableVersion) -> None:
        """Continue with ``version``, which has the same columns."""
        if version is not self.version:
            self.convert()
            self.version = version

    # --- columns ----------------------------------------------------------------------------------

    def convert(self) -> None:
        """Convert the rows that came since the last call."""
        if not self.waiting:
            return
        waiting, self.waiting = self.waiting, []
        changes, sequence = list[Change](), list[int]()
        commit_lsn, commit_ts, xid = list[int](), list[int](), list[int | None]()
        for part, some, numbers in waiting:
            count = len(some)
            changes.extend(some)
            sequence.extend(numbers)
            commit_lsn.extend([part.commit_lsn] * count)
            commit_ts.extend([part.commit_ts] * count)
            xid.extend([part.xid] * count)
        rows = self.version.rows(changes, commit_lsn)
        count = len(rows.tuples)
        if count == 0:
            return
        lsns = [change.lsn for change in changes]
        if rows.source is not None:
            take = rows.source
            lsns, commit_lsn = [lsns[n] for n in take], [commit_lsn[n] for n in take]
            commit_ts, xid = [commit_ts[n] for n in take], [xid[n] for n in take]
            sequence = [sequence[n] for n in take]
        columns = self.version.codec.arrays(rows.tuples)
        unchanged, names = self.version.unchanged(rows.tuples) if rows.updates else ([], ())
        self.unchanged.update(dict.fromkeys(names))
        if isinstance(rows.operations, str):
            self.operations[rows.operations] += count
            self.put_in = commit_lsn[-1]
        else:
            self.operations.update(rows.operations)
            self._find_reused_key(rows, commit_lsn)
        xids = pa.array(xid, pa.int64()) if None in xid else integer_array("q", xid, pa.int64())  # type: ignore[arg-type]
        own = (
            rows.operations,
            integer_array("q", commit_lsn, pa.int64()),
            integer_array("i", sequence, pa.int32()),
            rows.subs,
            integer_array("q", lsns, pa.int64()),
            integer_array("q", commit_ts, pa.timestamp("us", tz="UTC")),
            xids,
            unchanged if names else None,
        )
        self.key_changes += rows.key_changes
        self._keep(columns, own, count)

    def _append_block(
        self, rows: Sequence[Tuple] | RowBlock, own: tuple[object, ...], lsn: int
    ) -> None:
        """Add rows of one operation, with the columns of the log.

        ``own`` is as in `_keep`, ``lsn`` the commit LSN.
        """
        count = len(rows)
        if count == 0:
            return
        self.operations[str(own[0])] += count
        self.put_in = lsn
        self._keep(self.version.codec.arrays(rows), own, count)

    def _keep(self, columns: "list[pa.Array]", own: tuple[object, ...], count: int) -> None:
        """Keep rows of the table's ``columns``.

        ``own`` are the values of `LOG_COLUMNS`, each of every row or one of all rows.
        """
        self.misfits.update(self.version.misfits())
        kinds = self.version.segment_schema.types[len(columns) :]
        for value, kind in zip(own, kinds, strict=True):
            if value is None:
                columns.append(pa.nulls(count, kind))
            elif isinstance(value, pa.Array):
                columns.append(value)
            elif isinstance(value, (list, np.ndarray)):
                columns.append(pa.array(value, kind))
            else:
                columns.append(_repeated(value, kind, 1 << count.bit_length()).slice(0, count))
        batch = pa.RecordBatch.from_arrays(columns, schema=self.version.segment_schema)
        self.batches.append(batch)
        self.rows += count
        self.bytes += batch.nbytes

    def _find_reused_key(self, rows: LogRows, commit_lsn: list[int]) -> None:
        """Set `TableEntry.key_reused` if the rows need it.

        If a transaction began in earlier columns, any delete counts: its earlier keys are not kept.
        """
        if not self.key_reused and self.version.key and "d" in rows.operations:
            if "c" in rows.operations:
                self.key_reused = self.version.key_reused(rows, commit_lsn)
            if commit_lsn[0] == self.put_in:
                end = bisect.bisect_right(commit_lsn, commit_lsn[0])
                self.key_reused |= "d" in rows.operations[:end]
        self.put_in = commit_lsn[-1]

    # --- files ------------------------------------------------------------------------------------

    def spill(self, files: "SegmentFiles") -> None:
        """Write columns to the open segment, or begin another."""
        if not self.batches:
            return
        table = pa.Table.from_batches(self.batches)
        row_bytes = self.bytes // max(1, table.num_rows)
        self.batches, self.bytes = [], 0
        if self._file is not None and not self._file.has_pages_for(row_bytes):
            self.end_file()
        while table.num_rows:
            if self._file is None:
                self._file = files.begin(self.version, row_bytes)
            room = files.most_rows - self._file.rows
            self._file.write(table.slice(0, room))
            table = table.slice(room)
            if self._file.rows >= files.most_rows:
                self.end_file()
        del table
        # The pool would keep the memory of the written table.
        pa.default_memory_pool().release_unused()

    def finish(self, files: "SegmentFiles") -> TableEntry:
        """Write all remaining rows and return the entry for the manifest."""
        self.convert()
        self.spill(files)
        if self.complete and not self.rows and self._file is None:
            # Readers learn the columns of an empty table from a segment without rows.
            self._file = files.begin(self.version)
        self.end_file()
        version = self.version
        return TableEntry(
            schema=version.relation.schema,
            table=version.relation.table,
            oid=version.relation.oid,
            identity=version.relation.identity,
            key=version.key,
            fingerprint=version.fingerprint,
            columns=version.columns,
            segments=tuple(self.segments),
            rows=self.rows,
            operations=dict(self.operations),
            unchanged=tuple(self.unchanged),
            key_changes=self.key_changes,
            key_reused=self.key_reused,
            misfits=dict(self.misfits),
            snapshot_id=self.snapshot_id,
            complete=self.complete,
            chunks=tuple(self.chunks),
            restarts=self.restarts,
            external_snapshot=self.external_snapshot,
            continuity_id=self.continuity_id,
            former_owner=version.relation.former_owner,
        )

    def columns(self) -> "list[pa.RecordBatch]":
        """Return and forget the rows in the columns of a segment."""
        self.convert()
        given, self.batches, self.rows, self.bytes = self.batches, [], 0, 0
        return given

    def absorb(self, other: "TableBuffer") -> None:
        """Take ``other``'s rows, a snapshot in the same version."""
        self.convert()
        other.convert()
        self.continuity_id = self.continuity_id if self.continuity_id == other.continuity_id else ""
        self._take(other)
        self.put_in = -1
        self.chunks += other.chunks

    def follows(self, other: "TableBuffer") -> bool:
        """Return whether `extend` may join the rows of ``other``."""
        like = self.version.fingerprint, self.continuity_id
        written = self._file is not None or self.segments
        return not written and like == (other.version.fingerprint, other.continuity_id)

    def extend(self, later: "TableBuffer") -> None:
        """Take over the changes of ``later``, a later transaction's."""
        self.continue_as(later.version)
        if later.batches:
            self.convert()
            self.put_in = later.put_in
        self._take(later)
        self.waiting += later.waiting

    def _take(self, other: "TableBuffer") -> None:
        other.end_file()
        self.segments += other.segments
        self.batches += other.batches
        self.operations.update(other.operations)
        self.misfits.update(other.misfits)
        self.unchanged.update(other.unchanged)
        self.key_changes += other.key_changes
        self.key_reused |= other.key_reused
        self.rows += other.rows
        self.bytes += other.bytes

    def end_file(self) -> None:
        if self._file is not None:
            self.segments.append(self._file.finish())
            self._file = None

    def abandon(self) -> None:
        """Forget all rows; an open segment stays as an unnamed file."""
        if self._file is not None:
            self._file.abandon()
            self._file = None


class SegmentFiles:
    """Begin segments; their names have time, table, manifest and number.

    The manifest makes a name unique: no manifest names segments that began after a later one. So
    leftovers of a crash are overwritten or ignored.
    """

    def __init__(self, store: FileStore, compression: str, most_rows: int) -> None:
        self._store, self._compression, self.most_rows = store, compression, most_rows
        self._bucket, self._after, self._number = "", "", 0

    def start(self, bucket: str, after: str) -> None:
        """Use another folder and manifest for the next segments."""
        self._bucket, self._after = bucket, after

    def begin(self, version: TableVersion, row_bytes: int = 0) -> SegmentFile:
        """Begin the next segment of a table; ``row_bytes`` as in `SegmentFile`."""
        self._number += 1
        name = f"{self._after}-{self._number:06x}.parquet"
        path = f"segments/{self._bucket}/{version.folder}/{name}"
        schema = version.segment_schema
        return SegmentFile(self._store, path, schema, self._compression, row_bytes)


# Rows of a part that are sampled for its size.
SAMPLED: Final = 32


def estimated_bytes(batch: Batch) -> int:
    """Estimate the bytes of the values in ``batch``.

    The result is exact for few rows. Few rows of many bytes matter most: they come in small batches.
    """
    total = 0
    if isinstance(batch.parts, TransactionRun):
        return batch.parts.block.inserts.rows.nbytes
    for part in batch.parts:
        if type(part) is TransactionPart:
            changes = part.changes
            if isinstance(changes, InsertBlock):
                total += changes.rows.nbytes
                continue
            stride = len(changes) // SAMPLED + 1
            for change in changes[::stride]:
                total += stride * _length(getattr(change, "new", ()))
                total += stride * _length(getattr(change, "old", ()))
        elif type(part) is SnapshotRows:
            if isinstance(part.rows, RowBlock):
                total += part.rows.nbytes
                continue
            stride = len(part.rows) // SAMPLED + 1
            total += stride * sum(map(_length, part.rows[::stride]))
    return total


def _length(row: Tuple) -> int:
    return sum([len(value) for value in row if isinstance(value, (str, bytes))])
