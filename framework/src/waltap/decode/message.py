"""Decoder-neutral messages: what an output plugin said, with tuples still undecoded.

One class per thing that can happen; all are immutable to their readers. They are made once per row,
so they take no part in garbage collection (``gc=False``) and are not frozen (a frozen Struct costs
a third more to make): treat them as frozen. LSNs are unsigned 64-bit integers, times are
microseconds since 1970-01-01 UTC, transaction ids are the wire's 32-bit numbers.

``lsn`` is the WAL start of the frame that carried the message (0 where the server sends none: it is
never a position). ``xid`` of a change is the (sub)transaction that made it while a transaction is
streamed in progress, 0 otherwise.
"""

import enum

import msgspec

from waltap.decode.relation import Relation
from waltap.decode.tuple_image import Tuple

__all__ = [
    "Begin",
    "BeginPrepare",
    "Change",
    "Commit",
    "CommitPrepared",
    "Delete",
    "Insert",
    "LogicalMessage",
    "Message",
    "OldTuple",
    "Origin",
    "Prepare",
    "RelationSeen",
    "RollbackPrepared",
    "Skipped",
    "StreamAbort",
    "StreamCommit",
    "StreamPrepare",
    "StreamStart",
    "StreamStop",
    "Truncate",
    "Update",
]


class OldTuple(enum.Enum):
    """What kind of old tuple an update or delete carries."""

    NONE = "none"
    KEY = "key"
    FULL = "full"


class Begin(msgspec.Struct, gc=False):
    """A transaction starts; ``commit_lsn`` and ``commit_ts`` are known in advance (0 if not)."""

    lsn: int
    xid: int
    commit_lsn: int
    commit_ts: int


class Origin(msgspec.Struct, gc=False):
    """The open transaction was replayed from the replication origin ``name``."""

    lsn: int
    name: str
    origin_lsn: int


class RelationSeen(msgspec.Struct, gc=False):
    """The server announced (or announced again) a relation; rows that follow refer to it."""

    relation: Relation
    xid: int = 0


class Insert(msgspec.Struct, gc=False):
    """A row was inserted."""

    relation: Relation
    lsn: int
    new: Tuple
    xid: int = 0


class Update(msgspec.Struct, gc=False):
    """A row was updated. ``old`` is () when ``old_kind`` is NONE, else as long as ``new``."""

    relation: Relation
    lsn: int
    new: Tuple
    old: Tuple = ()
    old_kind: OldTuple = OldTuple.NONE
    xid: int = 0


class Delete(msgspec.Struct, gc=False):
    """A row was deleted. ``old`` may be () where the server knows no identity (OldTuple.NONE)."""

    relation: Relation
    lsn: int
    old: Tuple
    old_kind: OldTuple
    xid: int = 0


class Truncate(msgspec.Struct, gc=False):
    """One TRUNCATE statement emptied ``relations``, in the server's order."""

    relations: tuple[Relation, ...]
    lsn: int
    cascade: bool = False
    restart_identity: bool = False
    xid: int = 0


class LogicalMessage(msgspec.Struct, gc=False):
    """``pg_logical_emit_message``. Not transactional: it stands between transactions."""

    lsn: int
    transactional: bool
    prefix: str
    content: bytes
    xid: int = 0


class Skipped(msgspec.Struct, gc=False):
    """``count`` changes of relations that are not captured stood here; the decoder left them out.

    They count in the index of changes in their transaction, which must not depend on filters.
    """

    count: int
    xid: int = 0


class Commit(msgspec.Struct, gc=False):
    """The open transaction is complete; ``end_lsn`` is the position that may be confirmed."""

    lsn: int
    commit_lsn: int
    end_lsn: int
    commit_ts: int
    xid: int = 0


class StreamStart(msgspec.Struct, gc=False):
    """A segment of the in-progress transaction ``xid`` starts."""

    lsn: int
    xid: int
    first: bool


class StreamStop(msgspec.Struct, gc=False):
    """The open segment ends."""

    lsn: int


class StreamCommit(msgspec.Struct, gc=False):
    """A transaction that was streamed in progress has committed."""

    lsn: int
    xid: int
    commit_lsn: int
    end_lsn: int
    commit_ts: int


class StreamAbort(msgspec.Struct, gc=False):
    """``subxid`` of the streamed transaction ``xid`` rolled back (all of it where they are equal).

    Drop everything from the first change of ``subxid`` on: children of it are not listed.
    """

    lsn: int
    xid: int
    subxid: int
    abort_lsn: int = 0
    abort_ts: int = 0


class BeginPrepare(msgspec.Struct, gc=False):
    """A prepared transaction's changes follow."""

    lsn: int
    xid: int
    prepare_lsn: int
    end_lsn: int
    prepare_ts: int
    gid: str


class Prepare(msgspec.Struct, gc=False):
    """The changes of a prepared transaction are complete; ``end_lsn`` may be confirmed."""

    lsn: int
    xid: int
    prepare_lsn: int
    end_lsn: int
    prepare_ts: int
    gid: str


class CommitPrepared(msgspec.Struct, gc=False):
    """COMMIT PREPARED of ``gid``."""

    lsn: int
    xid: int
    commit_lsn: int
    end_lsn: int
    commit_ts: int
    gid: str


class RollbackPrepared(msgspec.Struct, gc=False):
    """ROLLBACK PREPARED of ``gid``."""

    lsn: int
    xid: int
    prepare_end_lsn: int
    rollback_end_lsn: int
    prepare_ts: int
    rollback_ts: int
    gid: str


class StreamPrepare(msgspec.Struct, gc=False):
    """A transaction that was streamed in progress has been prepared."""

    lsn: int
    xid: int
    prepare_lsn: int
    end_lsn: int
    prepare_ts: int
    gid: str


Change = Insert | Update | Delete | Truncate | LogicalMessage

Message = (
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
