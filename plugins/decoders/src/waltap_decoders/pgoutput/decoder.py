"""The pgoutput decoder.

It reads protocols 1 to 4, streamed and prepared transactions, values as text.

Source: PostgreSQL manual, "Logical Replication Message Formats" and "Logical Streaming Replication
Protocol"; proto.c and pgoutput.c of PostgreSQL 10 to 18 where the manual is silent.
"""

import enum
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from struct import Struct
from typing import Any, ClassVar

from waltap.changes.decode.decoder import Decoder, DecoderCapabilities, DecoderContext, Frame
from waltap.changes.decode.frame_block import FrameBlock
from waltap.changes.decode.message import (
    Begin,
    BeginPrepare,
    Commit,
    CommitPrepared,
    Delete,
    Insert,
    LogicalMessage,
    Message,
    OldTuple,
    Origin,
    Prepare,
    RelationSeen,
    RollbackPrepared,
    StreamAbort,
    StreamCommit,
    StreamPrepare,
    StreamStart,
    StreamStop,
    Truncate,
    Update,
    skip,
)
from waltap.changes.decode.relation import Relation
from waltap.changes.decode.row_block import has_columns
from waltap.changes.decode.tuple_image import UNCHANGED, Tuple
from waltap.errors import DecodeError
from waltap_decoders.capabilities import PGOUTPUT
from waltap_decoders.pgoutput.payload import PG_EPOCH_US, PayloadReader
from waltap_decoders.pgoutput.properties import PgOutputProperties, negotiate
from waltap_decoders.pgoutput.relation_cache import AnnouncedRelation, RelationCache, RelationScope
from waltap_decoders.pgoutput.tuple_codec import (
    FORMS,
    RowMessage,
    RowReader,
    TupleKind,
    read_tuple,
    row_reader,
)
from waltap_decoders.pgoutput.tuple_columns import (
    BEGIN_BYTES,
    COMMIT_BYTES,
    HEAD_BYTES,
    LEAST_IN_SEGMENT,
    LEAST_ROWS,
    MOST_BYTES,
    SEGMENT_HEAD_BYTES,
    RunKind,
    insert_block,
    runs,
    segment_inserts,
    transaction_block,
)


class _SessionState(enum.Enum):
    """Name the position of a session in the message sequence.

    stream := ( transaction | segment | prepared | M | K | r | c | A | p )*
    transaction := B O? ( Y | R | I | U | D | T | M )* C
    segment := S O? ( Y | R | I | U | D | T | M )* E
    prepared := b O? ( Y | R | I | U | D | T | M )* P
    """

    BETWEEN = "between transactions"
    TRANSACTION = "in a transaction"
    PREPARED = "in a prepared transaction"
    SEGMENT = "in a segment of a streamed transaction"


_NO_READERS: Mapping[bytes, RowReader] = {}
_INSIDE = (_SessionState.TRANSACTION, _SessionState.PREPARED, _SessionState.SEGMENT)
_OUTSIDE = (_SessionState.BETWEEN,)
_ROWS = frozenset((b"I", b"U", b"D"))
_ROW_MESSAGES = frozenset((Insert, Update, Delete))
_STARTS = frozenset((b"B", b"b", b"S"))
# Commit LSN, time and xid; flags, commit LSN, end LSN and time.
_BEGIN, _COMMIT = Struct(">xQqI").unpack, Struct(">xBQQq").unpack
_Parse = Callable[[Any, PayloadReader, list[Message]], None]


class PgOutput(Decoder):
    """Decode pgoutput.

    The state belongs to one session, and a DecodeError ends that session.
    """

    name = "pgoutput"
    # Replica identity letters that the plugin may send.
    identities: ClassVar[str] = "dnfi"
    can_carry: ClassVar[DecoderCapabilities] = PGOUTPUT
    # False: a key-only old tuple of an update carries no information and is dropped.
    old_keys_of_updates: ClassVar[bool] = True
    # So many neighbouring inserts into one relation become columns.
    least_together: ClassVar[int] = LEAST_ROWS
    least_in_segment: ClassVar[int] = LEAST_IN_SEGMENT

    def __init__(self, context: DecoderContext) -> None:
        self._options = self._negotiate(context)
        self._streaming = self._options.get("streaming", "off")
        server, can_carry = context.server, self.can_carry
        self.capabilities = replace(
            can_carry,
            truncate=can_carry.truncate and server.version_num >= 110000,
            logical_messages="messages" in self._options,
            streaming=self._streaming != "off",
            two_phase="two_phase" in self._options or server.two_phase_slot,
        )
        self._cache = RelationCache(self.identities, context)
        self._state = _SessionState.BETWEEN
        # A begin was the last message: only then may an Origin follow.
        self._fresh = False
        self._open: Begin | BeginPrepare | None = None
        self._xid = 0
        self._last_end = 0
        # The readers that `feed` may use: none between transactions and in segments.
        self._readers: Mapping[bytes, RowReader] = _NO_READERS

    def _negotiate(self, context: DecoderContext) -> dict[str, str]:
        properties = PgOutputProperties.model_validate(dict(context.options))
        return negotiate(properties, context.server, context.publications)

    def start_options(self) -> dict[str, str]:
        """Return the negotiated plugin options.

        They follow from the server's version and the properties.
        """
        return dict(self._options)

    def prepare(self, relation: Relation) -> None:
        for form in FORMS.values():
            row_reader(relation, form)

    def feed(self, frames: Sequence[Frame]) -> list[Message]:
        messages: list[Message] = []
        segment = self._state is _SessionState.SEGMENT
        least = self.least_in_segment if segment else self.least_together
        if len(frames) < least or not has_columns():
            self._one_by_one(frames, messages)
            return messages
        if not isinstance(frames, FrameBlock):
            if sum([len(data) for _, data in frames]) > MOST_BYTES:
                self._one_by_one(frames, messages)
                return messages
            frames = FrameBlock.of(frames)
        done = 0
        for start, end, kind in runs(frames, least, segment=segment):
            self._one_by_one(frames[done:start], messages)
            self._TOGETHER[kind](self, frames.part(slice(start, end)), messages)
            done = end
        self._one_by_one(frames[done:], messages)
        return messages

    def _inserts(self, frames: FrameBlock, messages: list[Message]) -> None:
        """Decode a run of inserts into one relation."""
        head = frames.payload(0)[:HEAD_BYTES]
        # The first row of a relation is read with care. Without a reader behind it, the next rows
        # need care too.
        if head not in self._readers:
            self._one_by_one(frames[:1], messages)
            frames = frames.part(slice(1, None))
        if head in self._readers:
            block = insert_block(self._relation_of(head), frames)
            if block is not None:
                messages.append(block)
                self._fresh = False
                return
        self._one_by_one(frames, messages)

    def _segments(self, frames: FrameBlock, messages: list[Message]) -> None:
        """Decode a run of inserts in segments by transaction."""
        head = frames.payload(0)[:SEGMENT_HEAD_BYTES]
        key = head[:1] + head[5:]
        # As with `_inserts`.
        if self._state is not _SessionState.SEGMENT or key not in self._scope().readers:
            self._one_by_one(frames[:1], messages)
            frames = frames.part(slice(1, None))
        inserts = segment_inserts(frames, self._xid)
        if inserts is not None and key in self._scope().readers:
            relation = self._scope().relations[int.from_bytes(head[5:9], "big")].relation
            block = insert_block(relation, inserts, segment=True)
            if block is not None:
                messages.append(block)
                self._fresh = False
                return
        self._one_by_one(frames, messages)

    def _transactions(self, frames: FrameBlock, messages: list[Message]) -> None:
        """Decode a run of transactions of one insert into one relation."""
        head, cache = frames.payload(1)[:HEAD_BYTES], self._cache
        # As with `_inserts`, and a begin may change what is known of a relation.
        if head not in cache.session.readers or cache.retirement.pending or cache.valid_until:
            self._one_by_one(frames[:3], messages)
            frames = frames.part(slice(3, None))
        careful = cache.retirement.pending or cache.valid_until
        if head in cache.session.readers and not careful and self._state is _SessionState.BETWEEN:
            block = transaction_block(self._relation_of(head), frames, self._last_end)
            if block is not None:
                messages.append(block)
                self._last_end, self._fresh = block.end_lsn, False
                return
        self._one_by_one(frames, messages)

    _TOGETHER: ClassVar[Mapping[RunKind, Callable[[Any, FrameBlock, list[Message]], None]]] = {
        RunKind.INSERTS: _inserts,
        RunKind.TRANSACTIONS: _transactions,
        RunKind.SEGMENTS: _segments,
    }

    def _relation_of(self, head: bytes) -> Relation:
        return self._cache.session.relations[int.from_bytes(head[1:5], "big")].relation

    def _one_by_one(self, frames: Sequence[Frame], messages: list[Message]) -> None:
        append = messages.append
        readers, between = self._readers, _SessionState.BETWEEN
        for lsn, data in frames:
            # Eight bytes select the reader: type, relation OID, tuple tag, number of columns.
            read = readers.get(data[:8])
            if read is not None:
                message = read(lsn, data[8:], 0)
                if message is not None:
                    append(message)
                    continue
            # Begin and Commit are as frequent as rows in streams of small transactions.
            kind, size = data[:1], len(data)
            if kind == b"C" and size == COMMIT_BYTES and self._state is _SessionState.TRANSACTION:
                flags, commit_lsn, end_lsn, ts = _COMMIT(data)
                begin: Any = self._open
                # The careful reader names the fault of any other commit.
                if not flags and begin.commit_lsn == commit_lsn <= end_lsn >= self._last_end:
                    append(Commit(lsn, commit_lsn, end_lsn, ts + PG_EPOCH_US, begin.xid))
                    self._last_end, self._state, self._open = end_lsn, between, None
                    readers = self._readers = _NO_READERS
                    continue
            elif kind == b"B" and size == BEGIN_BYTES and self._state is between:
                commit_lsn, ts, xid = _BEGIN(data)
                self._begun(Begin(lsn, xid, commit_lsn, ts + PG_EPOCH_US), messages)
                readers, self._fresh = self._readers, True
                continue
            self._other(lsn, data, messages)
            readers = self._readers
        if self._fresh and messages and type(messages[-1]) in _ROW_MESSAGES:
            self._fresh = False

    def _other(self, lsn: int, data: bytes, messages: list[Message]) -> None:
        """Decode one frame that no compiled reader has read."""
        kind, state = data[:1], self._state
        if (
            kind in _ROWS
            and state is _SessionState.SEGMENT
            and self._row_of_segment(lsn, data, messages)
        ):
            return
        method = self._METHODS.get(kind)
        if method is None:
            found = f"0x{data[0]:02x}" if data else "an empty payload"
            raise DecodeError(
                self.name, lsn=lsn, expected="a message type", found=found, payload=data
            )
        states, name, parse = method
        payload = PayloadReader(self.name, lsn, data, name)
        if state not in states:
            allowed = " or ".join(state.value for state in states)
            payload.fail(f"it {allowed}", f"it {state.value}", 0)
        parse(self, payload, messages)
        self._fresh = kind in _STARTS

    def _row_of_segment(self, lsn: int, data: bytes, messages: list[Message]) -> bool:
        """Read a row of a segment by its compiled reader.

        Return whether the reader accepted it.
        """
        # In a segment an xid of four bytes follows the message type.
        read = self._cache.streams[self._xid].readers.get(data[:1] + data[5:12])
        message = read and read(lsn, data[12:], int.from_bytes(data[1:5], "big"))
        if message is None:
            return False
        messages.append(message)
        self._fresh = False
        return True

    # --- transactions ----------------------------------------------------------------------------

    def _begin(self, payload: PayloadReader, messages: list[Message]) -> None:
        commit_lsn = payload.number(8, "final LSN")
        commit_ts = payload.time("commit time")
        xid = payload.number(4, "xid")
        payload.end()
        self._begun(Begin(payload.lsn, xid, commit_lsn, commit_ts), messages)

    def _begun(self, begin: Begin, messages: list[Message]) -> None:
        # The begin's final LSN decides which catalogue answers hold for this transaction.
        if self._cache.retirement.pending:
            self._cache.drop_replaced(begin.commit_lsn)
        if self._cache.valid_until:
            self._cache.withdraw_expired(begin.commit_lsn)
        self._state, self._open = _SessionState.TRANSACTION, begin
        self._readers = self._cache.session.readers
        messages.append(begin)

    def _commit(self, payload: PayloadReader, messages: list[Message]) -> None:
        payload.no_flags()
        commit_lsn = payload.number(8, "commit LSN")
        end_lsn = payload.number(8, "end LSN")
        commit_ts = payload.time("commit time")
        payload.end()
        begin = self._open
        assert isinstance(begin, Begin)
        if commit_lsn != begin.commit_lsn:
            payload.fail(f"commit LSN {begin.commit_lsn:#x} as in Begin", f"{commit_lsn:#x}", 2)
        self._ends(payload, commit_lsn, end_lsn, 10)
        self._leave()
        messages.append(Commit(payload.lsn, commit_lsn, end_lsn, commit_ts, begin.xid))

    def _origin(self, payload: PayloadReader, messages: list[Message]) -> None:
        # `feed` reads rows without a note of it.
        if not self._fresh or (messages and type(messages[-1]) in _ROW_MESSAGES):
            payload.fail("it right after the begin", "it later", 0)
        origin_lsn = payload.number(8, "origin LSN")
        name = payload.string("origin name")
        payload.end()
        messages.append(Origin(payload.lsn, name, origin_lsn))

    def _message(self, payload: PayloadReader, messages: list[Message]) -> None:
        inside = self._state is not _SessionState.BETWEEN
        xid = self._change_xid(payload)
        flags = payload.number(1, "flags")
        if flags > 1:
            payload.fail("flags 0 or 1", str(flags), payload.at - 1)
        # Flag 1 means a transactional message, which only comes inside a transaction.
        if inside != bool(flags):
            found = f"it {self._state.value}"
            payload.fail(f"a message with flags {flags} elsewhere", found, payload.at - 1)
        lsn = payload.number(8, "message LSN")
        prefix = payload.string("prefix")
        start = payload.at
        size = payload.number(4, "content length")
        remaining = len(payload.data) - payload.at
        if size > remaining:
            payload.fail(f"content within the {remaining} bytes left", f"length {size}", start)
        content = payload.data[payload.at : payload.at + size]
        payload.at += size
        payload.end()
        messages.append(LogicalMessage(payload.lsn or lsn, inside, prefix, content, xid))

    # --- relations and rows ----------------------------------------------------------------------

    def _type(self, payload: PayloadReader, messages: list[Message]) -> None:
        self._change_xid(payload)
        self._cache.read_type(payload)

    def _relation(self, payload: PayloadReader, messages: list[Message]) -> None:
        xid = self._change_xid(payload)
        begin = self._open
        relation = self._cache.read_relation(
            payload,
            self._scope(),
            self._xid if begin is None else begin.xid,
            committed=isinstance(begin, Begin),
        )
        messages.append(RelationSeen(relation, xid))

    def _row(self, payload: PayloadReader, messages: list[Message]) -> None:
        """Read a row with the careful reader and compile a reader.

        The compiled reader serves later rows of the same relation and form.
        """
        xid = self._change_xid(payload)
        announced = self._announced(payload)
        if not announced.captured:
            skip(messages, xid)
            return
        start = payload.at
        tag = payload.number(1, "tuple tag")
        form = FORMS.get(payload.data[:1] + bytes((tag,)))
        if form is None:
            tags = {"I": "N", "U": "K, O or N", "D": "K or O"}[chr(payload.data[0])]
            payload.fail(f"tuple tag {tags}", f"0x{tag:02x}", start)
        # The key of `feed`, without the xid that a segment adds.
        prefix = payload.data[:1] + payload.data[start - 4 : start + 3]
        relation = announced.relation
        messages.append(self._careful(payload, relation, form, xid))
        if form == "update key" and not self.old_keys_of_updates:
            form = "update stale"
        self._scope().readers[prefix] = row_reader(relation, form)

    def _careful(
        self, payload: PayloadReader, relation: Relation, form: str, xid: int
    ) -> RowMessage:
        """Read the row message whose first tuple starts at the cursor."""
        lsn = payload.lsn
        kind = OldTuple.KEY if form.endswith("key") else OldTuple.FULL
        old: Tuple = ()
        if form not in ("insert", "update"):
            sent = TupleKind.OLD_KEY if kind is OldTuple.KEY else TupleKind.OLD_ROW
            old = read_tuple(payload, relation, sent)
            if form.startswith("delete"):
                payload.end()
                return Delete(relation, lsn, old, kind, xid)
            start = payload.at
            tag = payload.number(1, "tuple tag")
            if tag != 0x4E:
                payload.fail("tuple tag N after the old tuple", f"0x{tag:02x}", start)
        sent = TupleKind.INSERTED if form == "insert" else TupleKind.UPDATED
        new = read_tuple(payload, relation, sent)
        payload.end()
        if form == "insert" and UNCHANGED not in new:
            return Insert(relation, lsn, new, xid)
        # An INSERT that lacks values was an UPDATE, which moved the row into a row filter. As an
        # update, sinks keep a value that they have, and mark it as unsent otherwise.
        if not old or (kind is OldTuple.KEY and not self.old_keys_of_updates):
            return Update(relation, lsn, new, xid=xid)
        return Update(relation, lsn, new, old, kind, xid)

    def _truncate(self, payload: PayloadReader, messages: list[Message]) -> None:
        xid = self._change_xid(payload)
        start = payload.at
        count = payload.number(4, "number of relations")
        remaining = len(payload.data) - payload.at - 1
        # Check the count against the bytes left, so that a damaged one cannot cause a long loop.
        if not count or count * 4 > remaining:
            payload.fail(f"1 to {max(remaining, 0) // 4} relations", str(count), start)
        flags = payload.number(1, "flags")
        if flags > 3:
            payload.fail("flags 0 to 3", str(flags), payload.at - 1)
        relations = tuple(self._announced(payload).relation for _ in range(count))
        payload.end()
        messages.append(Truncate(relations, payload.lsn, bool(flags & 1), bool(flags & 2), xid))

    # --- transactions streamed in progress -------------------------------------------------------

    def _stream_start(self, payload: PayloadReader, messages: list[Message]) -> None:
        if self._streaming == "off":
            payload.fail("no Stream Start, since streaming was not asked for", "one", 0)
        xid = payload.number(4, "xid")
        first = payload.number(1, "first segment flag")
        if first > 1:
            payload.fail("first segment flag 0 or 1", str(first), 5)
        payload.end()
        # The flag must be set for the first segment of an xid, and for no later one.
        if first == (xid in self._cache.streams):
            known = "a known" if first else "an unknown"
            payload.fail(f"first segment flag {1 - first}", f"{first} for {known} xid {xid}", 5)
        if first:
            self._cache.streams[xid] = RelationScope()
        self._xid = xid
        self._state = _SessionState.SEGMENT
        messages.append(StreamStart(payload.lsn, xid, bool(first)))

    def _stream_stop(self, payload: PayloadReader, messages: list[Message]) -> None:
        payload.end()
        self._leave()
        messages.append(StreamStop(payload.lsn))

    def _stream_commit(self, payload: PayloadReader, messages: list[Message]) -> None:
        xid = payload.number(4, "xid")
        self._require_stream(payload, xid, 1)
        payload.no_flags()
        commit_lsn = payload.number(8, "commit LSN")
        end_lsn = payload.number(8, "end LSN")
        commit_ts = payload.time("commit time")
        payload.end()
        self._ends(payload, commit_lsn, end_lsn, 14)
        self._cache.promote(xid)
        messages.append(StreamCommit(payload.lsn, xid, commit_lsn, end_lsn, commit_ts))

    def _stream_abort(self, payload: PayloadReader, messages: list[Message]) -> None:
        parallel = self._streaming == "parallel"
        xid = payload.number(4, "xid")
        subxid = payload.number(4, "subtransaction xid")
        # Only with streaming=parallel does the server append LSN and time of the abort.
        abort_lsn = payload.number(8, "abort LSN") if parallel else 0
        abort_ts = payload.time("abort time") if parallel else 0
        payload.end()
        # PostgreSQL 18 discards an aborted transaction that it has not streamed, but reports its
        # subtransactions (ReorderBufferCheckAndTruncateAbortedTXN in reorderbuffer.c).
        if subxid != xid and xid not in self._cache.streams:
            return
        self._require_stream(payload, xid, 1)
        # An aborted subtransaction leaves the rest of the stream alive, and its relations.
        if subxid == xid:
            del self._cache.streams[xid]
        messages.append(StreamAbort(payload.lsn, xid, subxid, abort_lsn, abort_ts))

    # --- prepared transactions -------------------------------------------------------------------

    def _begin_prepare(self, payload: PayloadReader, messages: list[Message]) -> None:
        begin = BeginPrepare(payload.lsn, *self._prepared(payload))
        self._state, self._open = _SessionState.PREPARED, begin
        self._readers = self._cache.session.readers
        messages.append(begin)

    def _prepare(self, payload: PayloadReader, messages: list[Message]) -> None:
        payload.no_flags()
        prepare = Prepare(payload.lsn, *self._prepared(payload))
        begin = self._open
        assert isinstance(begin, BeginPrepare)
        # Both messages describe one PREPARE, so all fields must agree.
        same = (begin.prepare_lsn, begin.end_lsn, begin.xid, begin.gid)
        if same != (prepare.prepare_lsn, prepare.end_lsn, prepare.xid, prepare.gid):
            payload.fail(f"LSNs, xid and gid as in Begin Prepare, {same}", "others", 2)
        self._prepares(payload, prepare)
        self._leave()
        self._cache.leave_prepared()
        messages.append(prepare)

    def _stream_prepare(self, payload: PayloadReader, messages: list[Message]) -> None:
        payload.no_flags()
        prepare = StreamPrepare(payload.lsn, *self._prepared(payload))
        self._require_stream(payload, prepare.xid, 26)
        self._prepares(payload, prepare)
        self._cache.promote(prepare.xid)
        messages.append(prepare)

    def _commit_prepared(self, payload: PayloadReader, messages: list[Message]) -> None:
        payload.no_flags()
        commit = CommitPrepared(payload.lsn, *self._prepared(payload, "commit"))
        self._ends(payload, commit.commit_lsn, commit.end_lsn, 10)
        messages.append(commit)

    def _rollback_prepared(self, payload: PayloadReader, messages: list[Message]) -> None:
        payload.no_flags()
        prepare_end_lsn = payload.number(8, "prepare end LSN")
        end_lsn = payload.number(8, "rollback end LSN")
        prepare_ts = payload.time("prepare time")
        rollback_ts = payload.time("rollback time")
        xid = payload.number(4, "xid")
        gid = payload.string("gid")
        payload.end()
        self._ends(payload, prepare_end_lsn, end_lsn, 10)
        messages.append(
            RollbackPrepared(
                payload.lsn, xid, prepare_end_lsn, end_lsn, prepare_ts, rollback_ts, gid
            )
        )

    # --- parts of the above ----------------------------------------------------------------------

    def _prepared(
        self, payload: PayloadReader, act: str = "prepare"
    ) -> tuple[int, int, int, int, str]:
        """Read the rest of a message about a prepared transaction.

        Returns xid, LSNs, time and gid.
        """
        lsn = payload.number(8, f"{act} LSN")
        end_lsn = payload.number(8, "end LSN")
        ts = payload.time(f"{act} time")
        xid = payload.number(4, "xid")
        gid = payload.string("gid")
        payload.end()
        return xid, lsn, end_lsn, ts, gid

    def _leave(self) -> None:
        self._state, self._open = _SessionState.BETWEEN, None
        self._readers = _NO_READERS

    def _scope(self) -> RelationScope:
        if self._state is _SessionState.SEGMENT:
            return self._cache.streams[self._xid]
        return self._cache.session

    def _change_xid(self, payload: PayloadReader) -> int:
        """Read the xid of a message inside a segment; 0 elsewhere."""
        return payload.number(4, "xid") if self._state is _SessionState.SEGMENT else 0

    def _announced(self, payload: PayloadReader) -> AnnouncedRelation:
        start = payload.at
        oid = payload.number(4, "relation OID")
        announced = self._scope().relations.get(oid)
        if announced is None:
            payload.fail("a relation that was announced", f"OID {oid}", start)
        begin = self._open
        # The transaction has committed, so the catalogue can describe relations that were
        # announced in prepared or streamed transactions.
        if isinstance(begin, Begin):
            return self._cache.in_session(announced, begin.xid)
        return announced

    def _require_stream(self, payload: PayloadReader, xid: int, offset: int) -> None:
        if xid not in self._cache.streams:
            payload.fail("the xid of an open stream", str(xid), offset)

    def _prepares(self, payload: PayloadReader, prepare: Prepare | StreamPrepare) -> None:
        """Check the end of a PREPARE.

        Source: ReorderBufferFinishPrepared in reorderbuffer.c (``two_phase_at``).
        """
        # A transaction prepared before the slot decoded two-phase arrives complete at its COMMIT
        # PREPARED, so its end may precede ends that were already read.
        if prepare.end_lsn < self._last_end:
            if prepare.end_lsn < prepare.prepare_lsn:
                expected = f"an end LSN from {prepare.prepare_lsn:#x} on"
                payload.fail(expected, f"{prepare.end_lsn:#x}", 10)
            return
        self._ends(payload, prepare.prepare_lsn, prepare.end_lsn, 10)

    def _ends(self, payload: PayloadReader, lsn: int, end_lsn: int, offset: int) -> None:
        """Check that ends of transactions, which are confirmed, rise."""
        if end_lsn < lsn:
            payload.fail(f"an end LSN from {lsn:#x} on", f"{end_lsn:#x}", offset)
        if end_lsn < self._last_end:
            expected = f"an end LSN from the last one, {self._last_end:#x}, on"
            payload.fail(expected, f"{end_lsn:#x}", offset)
        self._last_end = end_lsn

    _METHODS: ClassVar[Mapping[bytes, tuple[tuple[_SessionState, ...], str, _Parse]]] = {
        b"B": (_OUTSIDE, "Begin", _begin),
        b"C": ((_SessionState.TRANSACTION,), "Commit", _commit),
        b"O": (_INSIDE, "Origin", _origin),
        b"R": (_INSIDE, "Relation", _relation),
        b"Y": (_INSIDE, "Type", _type),
        b"I": (_INSIDE, "Insert", _row),
        b"U": (_INSIDE, "Update", _row),
        b"D": (_INSIDE, "Delete", _row),
        b"T": (_INSIDE, "Truncate", _truncate),
        b"M": ((*_OUTSIDE, *_INSIDE), "Message", _message),
        b"S": (_OUTSIDE, "Stream Start", _stream_start),
        b"E": ((_SessionState.SEGMENT,), "Stream Stop", _stream_stop),
        b"c": (_OUTSIDE, "Stream Commit", _stream_commit),
        b"A": (_OUTSIDE, "Stream Abort", _stream_abort),
        b"b": (_OUTSIDE, "Begin Prepare", _begin_prepare),
        b"P": ((_SessionState.PREPARED,), "Prepare", _prepare),
        b"K": (_OUTSIDE, "Commit Prepared", _commit_prepared),
        b"r": (_OUTSIDE, "Rollback Prepared", _rollback_prepared),
        b"p": (_OUTSIDE, "Stream Prepare", _stream_prepare),
    }
