"""Decoder-neutral messages of an output plugin, with tuples still undecoded.

There is one class per event of the wire, `InsertBlock` for many inserts together, and
`TransactionBlock` for many transactions of one insert; readers must treat objects as immutable. LSNs are
unsigned 64-bit integers, times are microseconds since 1970-01-01 UTC, transaction ids are the
wire's 32-bit numbers.

``lsn`` is the WAL position of the frame that carried the message: where a change's record starts, and
where a transaction ends, if its frame is the commit. It is 0 where the server sends none; 0 is never a
position. ``xid`` of a change is the (sub)transaction that made it while a transaction is streamed in
progress, 0 otherwise.
"""

import enum
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import KW_ONLY, dataclass
from typing import Any

import msgspec

from waltap.base.import_rules import np
from waltap.changes.decode.relation import Relation
from waltap.changes.decode.row_block import LazySequence, RowBlock
from waltap.changes.decode.tuple_image import Tuple


class OldTuple(enum.Enum):
    """Name the kind of old tuple that an update or delete carries."""

    NONE = "none"
    KEY = "key"
    FULL = "full"


# One message per row: gc=False keeps it out of garbage collection. No class is frozen, because a
# frozen Struct takes a third longer to make.
class Begin(msgspec.Struct, gc=False):
    """Start a transaction."""

    lsn: int
    xid: int
    # Known in advance by most plugins, else 0, as is `commit_ts`.
    commit_lsn: int
    commit_ts: int


class Origin(msgspec.Struct, gc=False):
    """Name the replication origin that the open transaction came from."""

    lsn: int
    name: str
    origin_lsn: int


class RelationSeen(msgspec.Struct, gc=False):
    """Announce a relation, perhaps again; the rows that follow refer to it."""

    relation: Relation
    xid: int = 0


class Insert(msgspec.Struct, gc=False):
    """Insert a row."""

    relation: Relation
    lsn: int
    new: Tuple
    xid: int = 0


class InsertBlock(LazySequence[Insert]):
    """Hold neighbouring inserts into one relation as columns.

    A block is a message that represents its inserts, and a sequence of them. ``lsns`` has the LSN
    of each row as a 64-bit integer; ``xid`` is the transaction of all rows.
    """

    __slots__ = ("lsns", "relation", "rows", "xid")

    def __init__(
        self, relation: Relation, lsns: "np.ndarray[Any, Any]", rows: RowBlock, xid: int = 0
    ) -> None:
        super().__init__()
        self.relation, self.lsns, self.rows, self.xid = relation, lsns, rows, xid

    def __len__(self) -> int:
        return len(self.rows)

    def _part(self, start: int, stop: int) -> Sequence[Insert] | None:
        # Inserts that exist stay the same objects: readers compare changes by identity.
        if self._items is not None:
            return None
        rows = self.rows[start:stop]
        assert isinstance(rows, RowBlock)
        return InsertBlock(self.relation, self.lsns[start:stop], rows, self.xid)

    def _make(self) -> list[Insert]:
        relation, xid = self.relation, self.xid
        return [
            Insert(relation, lsn, row, xid)
            for lsn, row in zip(self.lsns.tolist(), self.rows, strict=True)
        ]


def joined(blocks: Sequence[InsertBlock]) -> InsertBlock:
    """Return the inserts of ``blocks`` as one block.

    All are into one relation, by one subtransaction.
    """
    first = blocks[0]
    if len(blocks) == 1:
        return first
    lsns = np.concatenate([block.lsns for block in blocks])
    rows = RowBlock.joined([block.rows for block in blocks])
    return InsertBlock(first.relation, lsns, rows, first.xid)


@dataclass(slots=True, eq=False, repr=False)
class TransactionBlock:
    """Hold neighbouring transactions of one insert each as columns.

    All inserts are into one relation.
    A block is a message that represents the begins, inserts and commits. ``inserts`` has the
    inserts; the arrays have a 64-bit integer for each transaction. ``frames`` has the LSN of each
    begin and of each commit. Immutable.
    """

    inserts: InsertBlock
    frames: "tuple[np.ndarray[Any, Any], np.ndarray[Any, Any]]"
    _: KW_ONLY
    xids: "np.ndarray[Any, Any]"
    commit_lsns: "np.ndarray[Any, Any]"
    end_lsns: "np.ndarray[Any, Any]"
    commit_ts: "np.ndarray[Any, Any]"

    def __len__(self) -> int:
        return len(self.xids)

    def part(self, some: slice) -> "TransactionBlock":
        """Return the transactions of ``some``, a slice without steps."""
        inserts, (begins, commits) = self.inserts, self.frames
        rows = inserts.rows[some]
        assert isinstance(rows, RowBlock)
        return TransactionBlock(
            InsertBlock(inserts.relation, inserts.lsns[some], rows),
            (begins[some], commits[some]),
            xids=self.xids[some],
            commit_lsns=self.commit_lsns[some],
            end_lsns=self.end_lsns[some],
            commit_ts=self.commit_ts[some],
        )

    @property
    def end_lsn(self) -> int:
        return int(self.end_lsns[-1])

    def messages(self) -> Iterator["Begin | Insert | Commit"]:
        for begin, commit, insert, xid, commit_lsn, end_lsn, ts in zip(
            *(lsns.tolist() for lsns in self.frames),
            self.inserts,
            self.xids.tolist(),
            self.commit_lsns.tolist(),
            self.end_lsns.tolist(),
            self.commit_ts.tolist(),
            strict=True,
        ):
            yield Begin(begin, xid, commit_lsn, ts)
            yield insert
            yield Commit(commit, commit_lsn, end_lsn, ts, xid)


class Update(msgspec.Struct, gc=False):
    """Update a row."""

    relation: Relation
    lsn: int
    new: Tuple
    # () where `old_kind` is NONE, else as long as `new`.
    old: Tuple = ()
    old_kind: OldTuple = OldTuple.NONE
    xid: int = 0


class Delete(msgspec.Struct, gc=False):
    """Delete a row."""

    relation: Relation
    lsn: int
    # May be () where the server knows no identity (OldTuple.NONE).
    old: Tuple
    old_kind: OldTuple
    xid: int = 0


class Truncate(msgspec.Struct, gc=False):
    """Empty ``relations`` by one TRUNCATE statement, in the server's order."""

    relations: tuple[Relation, ...]
    lsn: int
    cascade: bool = False
    restart_identity: bool = False
    xid: int = 0


class LogicalMessage(msgspec.Struct, gc=False):
    """Carry a message of ``pg_logical_emit_message``."""

    lsn: int
    # A message that is not transactional is between transactions.
    transactional: bool
    prefix: str
    content: bytes
    xid: int = 0


class Skipped(msgspec.Struct, gc=False):
    """Count changes of relations that are not captured.

    The decoder left the changes out. They still count in the index of changes in their
    transaction, because the index must not depend on filters.
    """

    count: int
    xid: int = 0


class Commit(msgspec.Struct, gc=False):
    """Complete the open transaction."""

    lsn: int
    # Where the commit's record starts, as in `Begin`. 0 if the wire lacks it: then `end_lsn` counts.
    commit_lsn: int
    # The position that the engine may confirm to the server.
    end_lsn: int
    commit_ts: int
    xid: int = 0


class StreamStart(msgspec.Struct, gc=False):
    """Start a segment of the in-progress transaction ``xid``."""

    lsn: int
    xid: int
    first: bool


class StreamStop(msgspec.Struct, gc=False):
    """End the open segment."""

    lsn: int


class StreamCommit(msgspec.Struct, gc=False):
    """A transaction that was streamed in progress has committed."""

    lsn: int
    xid: int
    commit_lsn: int
    end_lsn: int
    commit_ts: int


class StreamAbort(msgspec.Struct, gc=False):
    """Roll back ``subxid`` of the streamed transaction ``xid``.

    All of the transaction rolled back where both ids are equal. Readers drop everything from the
    first change of ``subxid`` on, because children of it are not listed.
    """

    lsn: int
    xid: int
    subxid: int
    abort_lsn: int = 0
    abort_ts: int = 0


class _Prepared(msgspec.Struct, gc=False):
    lsn: int
    xid: int
    prepare_lsn: int
    # The position that the engine may confirm to the server.
    end_lsn: int
    prepare_ts: int
    gid: str


class BeginPrepare(_Prepared, gc=False):
    """Start the changes of a prepared transaction."""


class Prepare(_Prepared, gc=False):
    """Complete the changes of a prepared transaction."""


class StreamPrepare(_Prepared, gc=False):
    """Prepare a transaction that was streamed in progress."""


class CommitPrepared(msgspec.Struct, gc=False):
    """Commit the prepared transaction ``gid``."""

    lsn: int
    xid: int
    commit_lsn: int
    end_lsn: int
    commit_ts: int
    gid: str


class RollbackPrepared(msgspec.Struct, gc=False):
    """Roll back the prepared transaction ``gid``."""

    lsn: int
    xid: int
    prepare_end_lsn: int
    rollback_end_lsn: int
    prepare_ts: int
    rollback_ts: int
    gid: str


Change = Insert | Update | Delete | Truncate | LogicalMessage

SingleMessage = (
    Change
    | Begin
    | BeginPrepare
    | Commit
    | CommitPrepared
    | Origin
    | Prepare
    | RelationSeen
    | RollbackPrepared
    | Skipped
    | StreamAbort
    | StreamCommit
    | StreamPrepare
    | StreamStart
    | StreamStop
)

Message = SingleMessage | InsertBlock | TransactionBlock


def singly(messages: Iterable[Message]) -> Iterator[SingleMessage]:
    """Yield ``messages``, and the messages of a block instead of the block."""
    for message in messages:
        if isinstance(message, InsertBlock):
            yield from message
        elif isinstance(message, TransactionBlock):
            yield from message.messages()
        else:
            yield message


def skip(messages: list[Message], xid: int = 0) -> None:
    """Count one skipped change at the end of ``messages``."""
    last = messages[-1] if messages else None
    # One message per run of skipped changes, not one per change.
    if isinstance(last, Skipped) and last.xid == xid:
        last.count += 1
    else:
        messages.append(Skipped(1, xid))
