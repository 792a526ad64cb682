"""Buffer transactions that cannot be delivered yet.

Changes go into a `TransactionBuffer` while their transaction is streamed in progress or prepared,
or while its commit LSN is unknown. A buffer takes messages into its ``tail``; `seal` turns the
tail into chunks of MessagePack, which are an order of magnitude smaller than the objects. Inserts
into one relation, a block or some of the tail, become an Arrow record batch of their LSNs and
columns. Beyond the memory limit of the `SpillArea` the largest buffers move to files. A reader
gets one chunk at a time, so that memory stays bounded then, too.

On disk and in memory a chunk is: u32 size, u32 number of changes, the changes. Files belong to
one process run, and the next area removes them, except files of prepared transactions. Each of
these has a record next to it. Both are written and synced before the end of the PREPARE may be
confirmed, because the server never sends the rows again after that.
"""

import os
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from functools import lru_cache
from pathlib import Path
from struct import Struct
from typing import Any, BinaryIO, Final

import msgspec

from waltap.base.files.durable_file import UNREADABLE, private, private_folder, replace_durably
from waltap.base.import_rules import np, pa
from waltap.changes.decode.message import (
    Change,
    Delete,
    Insert,
    InsertBlock,
    LogicalMessage,
    OldTuple,
    Skipped,
    Truncate,
    Update,
    joined,
)
from waltap.changes.decode.relation import Relation
from waltap.changes.decode.row_block import RowBlock, has_columns
from waltap.changes.decode.tuple_image import ABSENT, UNCHANGED, MissingValue, Tuple
from waltap.changes.transactions.transaction import TransactionPart
from waltap.errors import WaltapError

# Reading a buffer back decodes this many changes at once, at most.
CHUNK_CHANGES = 512

# So many neighbouring inserts of a tail become columns where the transaction has a block or many
# changes. Readers are quickest where all changes of a large transaction are columns.
LEAST_ROWS = 8
MANY_CHANGES = 4096

# A buffer is released in parts of about this many changes,
PART_CHANGES = 4096
# and of about this many bytes: wide rows must not fill the memory.
PART_BYTES = 8 * 1024 * 1024

# A buffer holds these.
Item = Change | Skipped

_HEAD = Struct("<II")
# The chunk of a block begins with a byte that no list in MessagePack begins with, and has the
# relation, the xid and the number of columns before the record batch.
_BLOCK: Final = Struct("<4sIII")
_BLOCK_MARK: Final = b"\xffblk"
_MISSING = frozenset(MissingValue)
_CODES: dict[MissingValue, int] = {UNCHANGED: 0, ABSENT: 1}
_SENTINELS = (UNCHANGED, ABSENT)
_OLD_KINDS = (OldTuple.NONE, OldTuple.KEY, OldTuple.FULL)

_Values = tuple[Any, ...]
# (kind, relation, lsn, xid, new, old, old kind or flags); the integers among values are codes.
_Row = tuple[int, int, int, int, _Values, _Values, int]

_INSERT, _UPDATE, _DELETE, _TRUNCATE, _MESSAGE, _SKIPPED, _WITH_MISSING = 0, 1, 2, 3, 4, 5, 8
_encode = msgspec.msgpack.Encoder().encode
_decode = msgspec.msgpack.Decoder(list[_Row]).decode


SpillFailed = WaltapError.define("SpillFailed", "WT-3101")


class PreparedRecord(msgspec.Struct, kw_only=True):
    """Make a prepared transaction's file readable after a restart."""

    xid: int
    gid: str
    begin_lsn: int
    prepare_lsn: int
    end_lsn: int
    origin: str | None
    origin_lsn: int | None
    count: int
    size: int
    relations: list[Relation]


class SpillArea:
    """Manage the folder and the memory that buffers share.

    Without a folder, buffers stay in memory, without limit. Raises SpillFailed from every
    operation that touches the disk.
    """

    def __init__(self, folder: Path | None, memory_bytes: int) -> None:
        self.folder, self.memory_limit = folder, memory_bytes
        self.memory_bytes = 0
        self._buffers: set[TransactionBuffer] = set()
        self._serial = 0
        if folder is not None and folder.is_dir():
            with self.guarded():
                # A record's name has the decision after "@"; its rows' file has none.
                recorded = {
                    path.stem.partition("@")[0] for path in folder.glob("prepared-*.record")
                }
                for path in folder.glob("*.spill"):
                    if path.stem not in recorded:
                        path.unlink()
                # Drafts of records that a crash left.
                for path in folder.glob("*.record.new"):
                    path.unlink()

    @property
    def bytes(self) -> int:
        """Return the size of all buffers; any thread may ask."""
        # The copy guards against a set that grows in the engine's thread.
        return sum(buffer.size for buffer in list(self._buffers))

    def new_buffer(self, xid: int) -> "TransactionBuffer":
        buffer = TransactionBuffer(self, xid)
        self._buffers.add(buffer)
        return buffer

    def relieve(self) -> None:
        """Move the largest buffers to files, down to the limit."""
        if self.folder is None:
            return
        while self.memory_bytes > self.memory_limit:
            max(self._buffers, key=lambda buffer: buffer.memory_bytes).to_file()

    def recover(self) -> "Iterator[tuple[PreparedRecord, int | None, TransactionBuffer]]":
        """Yield the prepared transactions that an earlier run kept.

        Each comes as its record, the end LSN of the decision or None, and its buffer.
        """
        if self.folder is None or not self.folder.is_dir():
            return
        for path in sorted(self.folder.glob("prepared-*.record")):
            with self.guarded():
                record = msgspec.msgpack.decode(path.read_bytes(), type=PreparedRecord)
                name, _, decided = path.stem.partition("@")
                buffer = self.new_buffer(record.xid)
                buffer.restore(record, self.folder / f"{name}.spill", path)
            yield record, int(decided, 16) if decided else None, buffer

    def close(self) -> None:
        """Remove all files except files of prepared transactions."""
        for buffer in list(self._buffers):
            if buffer.record_path is None:
                buffer.discard()
            else:
                buffer.close()

    def forget(self, buffer: "TransactionBuffer") -> None:
        self._buffers.discard(buffer)

    def new_path(self, name: str) -> Path:
        assert self.folder is not None
        with self.guarded():
            private_folder(self.folder)
        self._serial += 1
        return self.folder / f"{name}-{self._serial}.spill"

    @contextmanager
    def guarded(self) -> Iterator[None]:
        """Turn errors of files and records into SpillFailed."""
        try:
            yield
        except (OSError, *UNREADABLE) as error:
            problem = f"a transaction cannot be kept on disk: {error}"
            raise SpillFailed(problem, folder=self.folder) from error


class TransactionBuffer:
    """Hold the changes of one transaction, in order.

    `SpillArea.new_buffer` makes it. Callers append messages to ``tail`` directly, and must `seal`
    before they call anything else.
    """

    def __init__(self, area: SpillArea, xid: int) -> None:
        self._area, self.xid = area, xid
        self.tail: list[Item] = []
        self.begin_lsn = 0
        self.origin: str | None = None
        self.origin_lsn: int | None = None
        self.count = 0
        self.memory_bytes = 0
        self.path: Path | None = None
        self.record_path: Path | None = None
        self._blobs: list[bytes] = []
        self._columns = False
        self._file: BinaryIO | None = None
        self._file_bytes = 0
        self._savepoints: dict[int, tuple[int, int]] = {}
        self._relations: list[Relation] = []
        self._numbers: dict[Relation, int] = {}

    @property
    def size(self) -> int:
        return self._file_bytes + self.memory_bytes

    def seal(self) -> None:
        """Turn the tail into chunks."""
        tail, start, last = self.tail, 0, self.xid
        if not self.begin_lsn and tail and not isinstance(tail[0], Skipped):
            self.begin_lsn = tail[0].lsn
        for at, item in enumerate(tail):
            if item.xid != last:
                last = item.xid
                # A chunk begins at the first change of a subtransaction, so that its abort can
                # cut there.
                if self._begins(last):
                    self._add(tail[start:at])
                    start = at
                    self._add_savepoint(last)
            if at - start == CHUNK_CHANGES:
                self._add(tail[start:at])
                start = at
        self._add(tail[start:])
        tail.clear()

    def add_block(self, block: InsertBlock) -> None:
        self.seal()
        self.begin_lsn = self.begin_lsn or int(block.lsns[0])
        if self._begins(block.xid):
            self._add_savepoint(block.xid)
        self._columns = True
        self._add_inserts(block)

    def _begins(self, xid: int) -> bool:
        """Return whether the next change is the first of a subtransaction."""
        return bool(xid) and xid != self.xid and xid not in self._savepoints

    def _add_savepoint(self, subxid: int) -> None:
        self._savepoints[subxid] = (self.size, self.count)

    def cut(self, subxid: int) -> None:
        """Drop everything from the first change of ``subxid`` on.

        A subtransaction without changes drops nothing.
        """
        savepoint = self._savepoints.get(subxid)
        if savepoint is None:
            return
        # The server does not list children of an aborted subtransaction. All later changes belong
        # to them, as `subxact_info` in PostgreSQL's own applier relies on.
        while self._savepoints.popitem()[0] != subxid:
            pass
        size, self.count = savepoint
        while self.memory_bytes and self.size > size:
            dropped = len(self._blobs.pop())
            self.memory_bytes -= dropped
            self._area.memory_bytes -= dropped
        if self._file is not None and self._file_bytes > size:
            with self._area.guarded():
                self._file.truncate(size)
                self._file.seek(size)
            self._file_bytes = size

    def chunks(self) -> Iterator[tuple[list[Item] | InsertBlock, int]]:
        """Yield each chunk's changes and size in bytes."""
        if self._file is not None:
            self.to_file()  # a large transaction's last chunks leave the memory to its reader
            with self._area.guarded():
                self._file.flush()
                self._file.seek(0)
            at = 0
            while at < self._file_bytes:
                with self._area.guarded():
                    size, _ = _HEAD.unpack(self._read(_HEAD.size))
                    blob = self._read(size)
                at += _HEAD.size + size
                yield self._items(blob), size
        for blob in self._blobs:
            yield self._items(blob[_HEAD.size :]), len(blob)

    def parts(
        self, head: TransactionPart, skip: int, *, discard: bool
    ) -> Iterator[TransactionPart]:
        """Yield the parts of the committed transaction.

        ``head`` is the template of all parts and becomes the last one. The first ``skip`` changes are
        left out. Neighbouring blocks of one relation are joined; a part has blocks or single changes.
        """
        changes: list[Change] = []
        blocks: list[InsertBlock] = []
        gaps: list[tuple[int, int]] = []
        size = count = 0

        def rows() -> Sequence[Change]:
            return joined(blocks) if blocks else changes

        for items, chunk_bytes in self.chunks():
            fits = not changes if isinstance(items, InsertBlock) else not blocks
            if blocks and isinstance(items, InsertBlock):
                last = blocks[-1]
                fits = items.relation is last.relation and items.xid == last.xid
            if not fits or count >= PART_CHANGES or size >= PART_BYTES:
                part = msgspec.structs.replace(
                    head, changes=rows(), gaps=gaps, complete=False, end_lsn=0
                )
                head.first_index += part.wire_count
                head.starts = False
                # The part has a copy of joined blocks, so they need not stay while it is written.
                changes, blocks, gaps, size, count = [], [], [], 0, 0
                yield part
            size += chunk_bytes
            if isinstance(items, InsertBlock):
                block = items[skip:]
                if isinstance(block, InsertBlock) and block:
                    blocks.append(block)
                skip = max(0, skip - len(items))
            else:
                skip = _add_items(items, skip, changes, gaps)
            count = len(changes) + sum(map(len, blocks))
        if discard:
            self.discard()
        head.changes, head.gaps = rows(), gaps
        yield head

    def describe(self, describe: Callable[[Relation], Relation]) -> None:
        """Complete the relations that were undescribed when their rows came."""
        self._relations = [
            relation if relation.primary_key is not None else describe(relation)
            for relation in self._relations
        ]
        # The numbers are keyed by the replaced objects.
        self._numbers.clear()

    def to_file(self) -> None:
        with self._area.guarded():
            if self._file is None:
                self.path = self._area.new_path(f"stream-{self.xid}")
                self._file = open(self.path, "w+b", opener=private)  # noqa: SIM115 - `close` does it
            for blob in self._blobs:
                self._file.write(blob)
        self._file_bytes += self.memory_bytes
        self._area.memory_bytes -= self.memory_bytes
        self.memory_bytes = 0
        self._blobs.clear()

    def persist(self, gid: str, prepare_lsn: int, end_lsn: int) -> None:
        """Make the buffer survive a restart.

        When this returns, the buffer is on disk with its record. It does nothing in an area
        without a folder.
        """
        folder = self._area.folder
        if folder is None:
            return
        self.to_file()
        assert self._file is not None
        assert self.path is not None
        name = f"prepared-{end_lsn:016x}-{self.xid}"
        record = PreparedRecord(
            xid=self.xid,
            gid=gid,
            begin_lsn=self.begin_lsn,
            prepare_lsn=prepare_lsn,
            end_lsn=end_lsn,
            origin=self.origin,
            origin_lsn=self.origin_lsn,
            count=self.count,
            size=self._file_bytes,
            relations=self._relations,
        )
        with self._area.guarded():
            self._file.flush()
            # The rows come before the record: a record promises a complete file.
            os.fsync(self._file.fileno())
            self.path = self.path.rename(folder / f"{name}.spill")
            record_path = folder / f"{name}.record"
            replace_durably(record_path, msgspec.msgpack.encode(record))
            self.record_path = record_path

    def restore(self, record: PreparedRecord, path: Path, record_path: Path) -> None:
        """Become the buffer that an earlier run persisted."""
        self.path, self.record_path = path, record_path
        self._file = path.open("r+b")
        actual = os.fstat(self._file.fileno()).st_size
        # More bytes are no damage: only the record's bytes are read.
        if actual < record.size:
            self.close()
            raise OSError(f"{path.name} has {actual} of {record.size} bytes")
        self._file_bytes, self.count = record.size, record.count
        self.begin_lsn = record.begin_lsn
        self.origin, self.origin_lsn = record.origin, record.origin_lsn
        self._relations = record.relations

    def decided(self, end_lsn: int) -> None:
        """Record on disk the commit at ``end_lsn``."""
        if self.record_path is None:
            return
        # A rename is atomic. A later run that resumes at or after the LSN deletes the files.
        name = self.record_path.stem.partition("@")[0]
        # Without its record, a later run cannot use the rows. They are still in the open file, so
        # the error must not keep this run from delivering them.
        with self._area.guarded(), suppress(FileNotFoundError):
            marked = self.record_path.with_name(f"{name}@{end_lsn:x}.record")
            self.record_path = self.record_path.rename(marked)

    def discard(self) -> None:
        """Forget the changes and remove the files; may be called twice."""
        self._area.memory_bytes -= self.memory_bytes
        self.memory_bytes = self.count = 0
        self._blobs.clear()
        self.tail.clear()
        self.close()
        with self._area.guarded():
            if self.record_path is not None:
                self.record_path.unlink(missing_ok=True)
            if self.path is not None:
                self.path.unlink(missing_ok=True)
        self._area.forget(self)

    def close(self) -> None:
        """Close the file and leave it in its folder.

        Unwritten bytes may be lost: `persist` writes everything that must last.
        """
        file, self._file, self._file_bytes = self._file, None, 0
        if file is not None:
            with suppress(OSError):  # closing writes what is left, and a full disk does not take it
                file.close()

    def _read(self, size: int) -> bytes:
        assert self._file is not None
        data = self._file.read(size)
        if len(data) != size:
            raise OSError(f"{self.path}: {len(data)} of {size} bytes left")
        return data

    def _add(self, items: list[Item]) -> None:
        if not items:
            return
        columns = len(items) >= LEAST_ROWS and (self._columns or self.count >= MANY_CHANGES)
        block = _block_of(items) if columns else None
        if block is not None:
            self._add_inserts(block)
            return
        self._add_chunk(_encode([self._packed(item) for item in items]), count=len(items))

    def _add_inserts(self, block: InsertBlock) -> None:
        head = _BLOCK.pack(
            _BLOCK_MARK, self._number(block.relation), block.xid, len(block.rows.columns)
        )
        columns = [pa.array(block.lsns), *block.rows.columns]
        batch = pa.record_batch(columns, schema=_schema(len(columns) - 1)).serialize()
        self._add_chunk(head, batch, count=len(block))

    def _add_chunk(self, *body: "bytes | pa.Buffer", count: int) -> None:
        blob = b"".join([_HEAD.pack(sum(map(len, body)), count), *body])
        self._blobs.append(blob)
        self.count += count
        self.memory_bytes += len(blob)
        self._area.memory_bytes += len(blob)

    def _number(self, relation: Relation) -> int:
        number = self._numbers.get(relation)
        if number is None:
            number = self._numbers[relation] = len(self._relations)
            self._relations.append(relation)
        return number

    def _packed(self, item: Item) -> _Row:
        if isinstance(item, Insert):
            kind, new = _coded(_INSERT, item.new)
            return kind, self._number(item.relation), item.lsn, item.xid, new, (), 0
        if isinstance(item, Update):
            kind, new = _coded(_UPDATE, item.new)
            kind, old = _coded(kind, item.old)
            number = self._number(item.relation)
            return kind, number, item.lsn, item.xid, new, old, _OLD_KINDS.index(item.old_kind)
        if isinstance(item, Delete):
            kind, old = _coded(_DELETE, item.old)
            number = self._number(item.relation)
            return kind, number, item.lsn, item.xid, (), old, _OLD_KINDS.index(item.old_kind)
        # Kinds other than rows put their own fields where a row has values.
        if isinstance(item, Truncate):
            numbers = tuple(self._number(relation) for relation in item.relations)
            flags = item.cascade + 2 * item.restart_identity
            return _TRUNCATE, 0, item.lsn, item.xid, numbers, (), flags
        if isinstance(item, LogicalMessage):
            return _MESSAGE, 0, item.lsn, item.xid, (item.prefix, item.content), (), 0
        return _SKIPPED, 0, item.count, item.xid, (), (), 0

    def _items(self, blob: bytes) -> list[Item] | InsertBlock:
        relations = self._relations
        if blob.startswith(_BLOCK_MARK):
            _, number, xid, width = _BLOCK.unpack_from(blob)
            return _block(blob, relations[number], xid, width)
        items: list[Item] = []
        append = items.append
        for kind, number, lsn, xid, new, old, flags in _decode(blob):
            if kind == _INSERT:
                append(Insert(relations[number], lsn, new, xid))
            elif kind == _TRUNCATE:
                emptied = tuple(relations[n] for n in new)
                append(Truncate(emptied, lsn, bool(flags & 1), bool(flags & 2), xid))
            elif kind == _MESSAGE:
                append(LogicalMessage(lsn, True, new[0], new[1], xid))
            elif kind == _SKIPPED:
                append(Skipped(lsn, xid))
            else:
                append(_row(kind, relations[number], lsn, xid, new, old, flags))
        return items


def _block_of(items: list[Item]) -> InsertBlock | None:
    """Return the inserts ``items`` as columns.

    Return None if they are of several kinds, relations or subtransactions, or if a value is neither
    text nor NULL.
    """
    first = items[0]
    if not isinstance(first, Insert) or not first.new or not has_columns():
        return None
    relation, xid = first.relation, first.xid
    rows: list[Tuple] = []
    lsns: list[int] = []
    for item in items:
        if not isinstance(item, Insert) or item.relation is not relation or item.xid != xid:
            return None
        rows.append(item.new)
        lsns.append(item.lsn)
    block = RowBlock.of(rows)
    return None if block is None else InsertBlock(relation, np.array(lsns, "u8"), block, xid)


def _block(blob: bytes, relation: Relation, xid: int, width: int) -> InsertBlock:
    """Return the block of a chunk, whose columns stay in ``blob``."""
    batch = pa.py_buffer(blob).slice(_BLOCK.size)
    lsns, *columns = pa.ipc.read_record_batch(batch, _schema(width)).columns
    return InsertBlock(relation, lsns.to_numpy(), RowBlock(columns, len(lsns)), xid)


@lru_cache(maxsize=16)
def _schema(width: int) -> "pa.Schema":
    fields = [("lsn", pa.uint64()), *((str(number), pa.string()) for number in range(width))]
    return pa.schema(fields)


def _coded(kind: int, values: Tuple) -> tuple[int, _Values]:
    """Return ``values`` with codes instead of missing values.

    The returned kind says whether there is any.
    """
    if _MISSING.isdisjoint(values):
        return kind, values
    coded = tuple(_CODES[value] if isinstance(value, MissingValue) else value for value in values)
    return kind | _WITH_MISSING, coded


def _plain(values: _Values) -> Tuple:
    return tuple(_SENTINELS[value] if value.__class__ is int else value for value in values)


def _row(
    kind: int, relation: Relation, lsn: int, xid: int, new: _Values, old: _Values, flags: int
) -> Insert | Update | Delete:
    """Return an update, a delete, or a row with missing values."""
    after: Tuple = _plain(new) if kind & _WITH_MISSING else new
    before: Tuple = _plain(old) if kind & _WITH_MISSING else old
    kind &= ~_WITH_MISSING
    if kind == _INSERT:
        return Insert(relation, lsn, after, xid)
    if kind == _UPDATE:
        return Update(relation, lsn, after, before, _OLD_KINDS[flags], xid)
    return Delete(relation, lsn, before, _OLD_KINDS[flags], xid)


def _add_items(
    items: Sequence[Item], skip: int, changes: list[Change], gaps: list[tuple[int, int]]
) -> int:
    """Add ``items`` but the first ``skip`` changes; return the rest of ``skip``."""
    for item in items:
        count = item.count if isinstance(item, Skipped) else 1
        dropped = min(count, skip)
        skip -= dropped
        if isinstance(item, Skipped):
            if count > dropped:
                add_gap(gaps, len(changes), count - dropped)
        elif not dropped:
            changes.append(item)
    return skip


def add_gap(gaps: list[tuple[int, int]], at: int, count: int) -> None:
    """Record ``count`` missing changes before change ``at``."""
    # Adjacent gaps become one, so that the list stays short where whole tables are filtered.
    if gaps and gaps[-1][0] == at:
        gaps[-1] = at, gaps[-1][1] + count
    else:
        gaps.append((at, count))
