"""Assemble messages into transactions and drop those that were delivered.

Theory of operation. The changes of an ordinary transaction are handed out as they come: its begin
has the commit LSN, so parts of it have a position before it is complete. All other changes wait
in a buffer (spill.py) until the fate of their transaction is known:

- a transaction streamed in progress, until Stream Commit. An abort drops it; the abort of a
  subtransaction truncates its buffer;
- a prepared transaction, until COMMIT PREPARED (policy ``commit``). It waits durably on disk,
  because the server does not send its rows again once the end of its PREPARE is confirmed;
- a transaction whose begin lacks the commit LSN (decoderbufs, wal2json).

Under the policy ``prepare`` a prepared transaction is delivered at PREPARE. Its delivery is
recorded until the transaction is decided (`EarlyDelivery`). If the policy is ``commit`` by
then, the commit is delivered without rows.

A PREPARE that ends at or before `resume` comes from a time before the slot decoded two-phase. The
server sends such a transaction at COMMIT PREPARED, and again until that is confirmed. It is
delivered there, under either policy.

Large transactions are released in parts, a bounded number of them per call
(`TransactionAssembler.backlog`).

The index of a change in its transaction counts every change that the server sent and did not take
back, captured or not. So a stored position means the same under another filter.
"""

from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import chain, compress
from pathlib import Path
from typing import Any, ClassVar, Final, Literal, Never

import msgspec

from waltap.base.files.durable_file import replace_durably
from waltap.changes.decode.message import (
    Begin,
    BeginPrepare,
    Change,
    Commit,
    CommitPrepared,
    Insert,
    InsertBlock,
    LogicalMessage,
    Message,
    Origin,
    Prepare,
    RelationSeen,
    RollbackPrepared,
    Skipped,
    StreamAbort,
    StreamCommit,
    StreamPrepare,
    StreamStart,
    StreamStop,
    TransactionBlock,
)
from waltap.changes.decode.relation import Relation
from waltap.changes.transactions.position import Position, lsn_text
from waltap.changes.transactions.spill import (
    PART_CHANGES,
    Item,
    SpillArea,
    TransactionBuffer,
    add_gap,
)
from waltap.changes.transactions.transaction import TransactionPart, TransactionRun
from waltap.errors import DecodeError, WaltapError

# Record prepared transactions that were delivered at PREPARE.
#
# The server sends only COMMIT PREPARED or ROLLBACK PREPARED for them afterwards, maybe to another
# run under another policy. That run must know that their rows were delivered and are not lost.
# The record ends when their fate is durable.


class EarlyDelivery(msgspec.Struct, kw_only=True):
    """Describe one transaction that was delivered at PREPARE."""

    xid: int
    gid: str
    # The end of its PREPARE.
    end_lsn: int
    # The end of its COMMIT or ROLLBACK PREPARED; 0 before that.
    decided: int = 0


class EarlyDeliveries:
    """Keep a pipeline's early deliveries in a JSON file.

    They are in memory only where ``path`` is None. `keep` makes new records durable; it must
    return before a position that contains them is stored anywhere. Methods raise OSError, and
    `load` also the errors of UNREADABLE.
    """

    def __init__(self, path: Path | None) -> None:
        self._path = path
        self._entries: dict[tuple[int, str], EarlyDelivery] = {}
        # The file differs from the records, so `keep` has something to do.
        self.unsaved = False

    def load(self, resume_lsn: int, slot_lsn: int = 0) -> list[str]:
        """Read the records of an earlier run.

        A slot that began at ``slot_lsn`` does not send the decision about an earlier PREPARE: return
        the GIDs of such transactions, and drop their records.
        """
        if self._path is None or not self._path.exists():
            return []
        found = msgspec.json.decode(self._path.read_bytes(), type=list[EarlyDelivery])
        unknown = []
        for entry in found:
            # A PREPARE that ends after the position comes again; a decision that ends before it
            # does not.
            if entry.end_lsn > resume_lsn or 0 < entry.decided <= resume_lsn:
                continue
            if entry.end_lsn <= slot_lsn:
                unknown.append(entry.gid)
            else:
                self._entries[entry.xid, entry.gid] = entry
        # A later start would take what is dropped here for undecided.
        self.unsaved = len(self._entries) < len(found)
        return unknown

    def __bool__(self) -> bool:
        return bool(self._entries)

    def note(self, xid: int, gid: str, end_lsn: int) -> None:
        """Record a transaction that is delivered now.

        After a restart the server may send it, and this may record it, again.
        """
        self._entries[xid, gid] = EarlyDelivery(xid=xid, gid=gid, end_lsn=end_lsn)
        self.unsaved = True

    def decide(self, xid: int, gid: str, end_lsn: int) -> bool:
        """Record the decision at ``end_lsn``; return whether the entry exists."""
        entry = self._entries.get((xid, gid))
        if entry is None:
            return False
        entry.decided = end_lsn
        self.unsaved = True
        return True

    def undecided(self) -> list[str]:
        """Return the GIDs of undecided transactions, in order of delivery."""
        return [gid for (_, gid), entry in self._entries.items() if not entry.decided]

    def keep(self) -> None:
        if self._path is None or not self.unsaved:
            return
        entries = list(self._entries.values())
        if entries:
            replace_durably(self._path, msgspec.json.format(msgspec.json.encode(entries), indent=1))
        else:
            self._path.unlink(missing_ok=True)
        self.unsaved = False

    def passed(self, end_lsn: int) -> None:
        """Forget transactions whose decision is at or before ``end_lsn``.

        Everything up to ``end_lsn`` is durable.
        """
        finished = [key for key, entry in self._entries.items() if 0 < entry.decided <= end_lsn]
        for key in finished:
            del self._entries[key]
        # The last entry removes the file. Before that the file stays: `load` ignores decided
        # entries.
        if finished and not self._entries:
            self.unsaved = True
            self.keep()


TwoPhasePolicy = Literal["commit", "prepare"]

# In the spill folder: transactions that were delivered at PREPARE and are undecided.
EARLY: Final = "delivered-at-prepare.json"

ROLLED_BACK: Final = (
    "prepared transaction %r was rolled back after its rows had been delivered at PREPARE, as "
    "two.phase.policy=prepare has it: what the sink has of it was never committed"
)
DECIDED_UNSEEN: Final = (
    "prepared transaction %r was decided before the slot began, after its rows had been delivered at "
    "PREPARE: if it was rolled back, what the sink has of it was never committed"
)
UNKNOWN: Final = (
    "prepared transaction %r was committed, and it is not known here whether its rows were delivered at "
    "PREPARE: the spill folder under waltap.state.dir does not say"
)
PreparedTransactionLost = WaltapError.define("PreparedTransactionLost", "WT-3102")


class TransactionAssembler:
    """Turn the messages of one session into parts of transactions.

    Single-threaded. The assembler drops all changes before ``resume``. ``previous_end_lsn`` is
    the end LSN of the last delivered transaction, for `TransactionPart.previous_end_lsn`.
    ``describe`` completes relations that were announced before their transaction had committed,
    when the rows are handed out. ``warn`` gets a text and the GID when a prepared transaction's
    fate differs from the fate of its delivered rows. Transactions that were prepared before
    ``slot_lsn``, where the slot began, are forgotten.

    Beyond ``spill_memory_bytes``, waiting changes go to files in ``spill_dir``. None keeps them
    in memory only: then prepared transactions do not survive a restart, and they hold back
    `confirmable`.

    A non-transactional logical message is a part by itself and counts as a commit at its LSN, as
    in Debezium.

    Raises SpillFailed, PreparedTransactionLost, and DecodeError for messages in an order that no
    decoder may produce.
    """

    def __init__(
        self,
        resume: Position,
        previous_end_lsn: int | None,
        spill_dir: Path | None,
        spill_memory_bytes: int,
        *,
        slot_lsn: int = 0,
        two_phase: TwoPhasePolicy = "commit",
        describe: Callable[[Relation], Relation] | None = None,
        warn: Callable[[str, str], None] = lambda _text, _gid: None,
    ) -> None:
        self._resume, self._previous = resume, previous_end_lsn
        self._policy, self._describe, self._warn = two_phase, describe, warn
        self._area = SpillArea(spill_dir, spill_memory_bytes)
        self._streams: dict[int, TransactionBuffer] = {}
        self._prepared: dict[tuple[int, str], tuple[int, TransactionBuffer]] = {}
        self._decided: list[tuple[int, TransactionBuffer]] = []
        # The open transaction whose commit LSN is known, with the changes to hand out next.
        self._open: TransactionPart | None = None
        # The changes of it to drop, because an earlier run delivered them; None: all.
        self._drop: int | None = 0
        # Blocks of it, and the changes before each.
        self._before: list[Sequence[Change]] = []
        self._gaps: list[tuple[int, int]] = []
        self._buffer: TransactionBuffer | None = None
        self._begun: Begin | BeginPrepare | None = None
        # Takes a run of changes.
        self._extend: Callable[[Sequence[Item]], None] = _reject
        self._release: Iterator[TransactionPart] | None = None
        self._queue: list[Message] = []
        for record, decided, buffer in self._area.recover():
            # The position contains the commit, so the server does not send it again. A new slot
            # sends nothing of what was prepared before it, or all of it.
            durable = decided is not None and decided <= resume.end_lsn
            if durable or record.end_lsn <= slot_lsn:
                buffer.discard()
            else:
                self._prepared[record.xid, record.gid] = record.prepare_lsn, buffer
        self._early = EarlyDeliveries(spill_dir and spill_dir / EARLY)
        with self._area.guarded():
            for gid in self._early.load(resume.end_lsn, slot_lsn):
                self._warn(DECIDED_UNSEEN, gid)

    # --- what the engine asks --------------------------------------------------------------------

    @property
    def backlog(self) -> bool:
        """Return whether more parts are ready.

        The engine then calls ``feed(())`` before it receives anything.
        """
        return self._release is not None or bool(self._queue)

    @property
    def open_transactions(self) -> int:
        current = self._begun is not None or self._open is not None
        return len(self._streams) + len(self._prepared) + current

    @property
    def held_bytes(self) -> int:
        return self._area.bytes

    @property
    def spilled_bytes(self) -> int:
        return self._area.bytes - self._area.memory_bytes

    @property
    def idle(self) -> bool:
        """Return whether every committed transaction has been handed out.

        The engine may then confirm the server's idle LSN, once the delivered parts are durable.
        Transactions streamed in progress do not prevent that: they commit later, and the server
        sends them again.
        """
        return self._open is None and self._begun is None and not self.backlog

    @property
    def undecided(self) -> list[str]:
        """Return the GIDs of delivered prepared transactions without a decision.

        Queries of the database do not see their changes.
        """
        return self._early.undecided()

    def secure(self) -> None:
        """Make durable the records that a later run needs.

        The engine must call it before it makes a position durable that contains the parts handed
        out so far.
        """
        if self._early.unsaved:
            with self._area.guarded():
                self._early.keep()

    def confirmable(self, end_lsn: int) -> int:
        """Return the LSN to confirm when ``end_lsn`` is durable.

        The engine calls it after everything up to ``end_lsn`` became durable. The result is less
        than ``end_lsn`` only where prepared transactions wait in memory alone.
        """
        self.secure()
        if self._early:
            with self._area.guarded():
                self._early.passed(end_lsn)
        # Their commit is durable: a restart needs their files no longer.
        while self._decided and self._decided[0][0] <= end_lsn:
            self._decided.pop(0)[1].discard()
        # A crash would lose them, so the server must keep their WAL.
        if self._area.folder is None and self._prepared:
            return min(end_lsn, *(lsn for lsn, _ in self._prepared.values()))
        return end_lsn

    def close(self) -> None:
        """Remove files that no later run can use. Idempotent."""
        self._area.close()

    # --- feed ------------------------------------------------------------------------------------

    def feed(self, messages: Iterable[Message]) -> list[TransactionPart]:
        """Return the parts ready after ``messages``, in commit order.

        A transaction still open at the end is handed out as an incomplete part. While `backlog`
        is true, more is ready than this call returned.
        """
        parts: list[TransactionPart] = []
        for each in self.runs(messages):
            if isinstance(each, TransactionRun):
                parts += each
            else:
                parts.append(each)
        return parts

    def runs(self, messages: Iterable[Message]) -> list[TransactionPart | TransactionRun]:
        """Return the parts of `feed`, with runs of transactions as they came."""
        parts: list[Any] = []
        if self._release is not None or self._queue:
            self._queue.extend(messages)
            if self._release is not None and not self._released(parts):
                return parts
            messages, self._queue = self._queue, []
        found: list[Any] = messages if isinstance(messages, list) else list(messages)
        control, at = self._CONTROL, 0
        # Runs of changes are moved as lists: no step in Python is for a single row.
        for index in compress(range(len(found)), map(control.__contains__, map(type, found))):
            if index > at:
                self._extend(found[at:index])
            at, message = index + 1, found[index]
            control[type(message)](self, message, parts)
            if self._release is not None and not self._released(parts):
                self._queue = found[at:]
                return parts
        if at < len(found):
            self._extend(found[at:] if at else found)
        if self._open is not None:
            # An open transaction must not wait for its commit: it may be larger than memory.
            self._hand_out(self._open, parts)
        elif self._buffer is not None:
            self._buffer.seal()
            self._area.relieve()
        return parts

    def _released(self, parts: list[TransactionPart]) -> bool:
        """Move released parts to ``parts``; return whether all are out."""
        assert self._release is not None
        budget = PART_CHANGES
        for part in self._release:
            parts.append(part)
            budget -= len(part.changes)
            if budget <= 0 and not part.complete:
                return False
        self._release = None
        return True

    # --- ordinary transactions -------------------------------------------------------------------

    def _begin(self, message: Begin, _parts: list[TransactionPart]) -> None:
        if self._open is not None or self._buffer is not None:
            self._between(message)
        commit_lsn = message.commit_lsn
        # Its position is unknown until the commit, so its changes wait in a buffer.
        if not commit_lsn:
            self._begun = message
            self._hold(self._area.new_buffer(0), message.lsn)
            return
        part = self._open = TransactionPart(
            xid=message.xid,
            begin_lsn=message.lsn,
            commit_lsn=commit_lsn,
            commit_ts=message.commit_ts,
            previous_end_lsn=self._previous,
            changes=[],
            complete=False,
        )
        self._extend = part.changes.extend  # type: ignore[attr-defined]
        resume = self._resume
        if commit_lsn < resume.end_lsn:
            self._drop, self._extend = None, _ignore
        # The last run delivered the first changes of this transaction.
        elif commit_lsn == resume.commit_lsn and resume.index:
            part.starts, part.first_index = False, resume.index
            self._drop, self._extend = resume.index, self._drop_first

    def _drop_first(self, changes: Sequence[Item]) -> None:
        assert self._open is not None
        assert self._drop is not None
        self._open.changes.extend(changes[self._drop :])  # type: ignore[attr-defined]
        self._drop = max(0, self._drop - len(changes))

    def _hand_out(self, part: TransactionPart, parts: list[TransactionPart]) -> None:
        """Add the changes of the open transaction so far as incomplete parts."""
        if not part.changes and not self._before:
            return
        rest = self._open = self._emitted(part, self._pieces(part), parts)
        self._extend = rest.changes.extend  # type: ignore[attr-defined]

    def _emitted(
        self, part: TransactionPart, pieces: list[Sequence[Change]], parts: list[TransactionPart]
    ) -> TransactionPart:
        """Add ``pieces`` of an open transaction; return the part that follows."""
        for changes in pieces:
            part.changes = changes
            if self._gaps or not part.begin_lsn:
                self._complete(part)
            parts.append(part)
            first = part.first_index + part.wire_count
            part = msgspec.structs.replace(
                part, changes=[], gaps=(), first_index=first, starts=False
            )
        return part

    def _pieces(self, part: TransactionPart) -> list[Sequence[Change]]:
        """Return and forget the changes so far: blocks and lists.

        They are one list if changes were left out between them.
        """
        pieces, self._before = self._before, []
        if part.changes:
            pieces.append(part.changes)
        if len(pieces) > 1 and self._gaps:
            return [list(chain.from_iterable(pieces))]
        return pieces

    def _complete(self, part: TransactionPart) -> None:
        # 0 is no position: the plugin sent none with the begin.
        if not part.begin_lsn and part.changes:
            part.begin_lsn = part.changes[0].lsn
        if self._gaps:
            part.gaps, self._gaps = self._gaps, []

    def _commit(self, message: Commit, parts: list[TransactionPart]) -> None:
        part = self._open
        if part is not None:
            self._open, self._extend = None, _reject
            if self._drop is None:
                self._drop = 0
                return
            if self._before:
                *others, last = self._pieces(part)
                part = self._emitted(part, others, parts)
                part.changes = last
            if self._gaps or not part.begin_lsn:
                self._complete(part)
            part.complete, part.end_lsn = True, message.end_lsn
            # 0: the plugin sends the time with the begin only.
            if message.commit_ts:
                part.commit_ts = message.commit_ts
            parts.append(part)
            self._drop, self._previous = 0, message.end_lsn
            return
        if not isinstance(self._begun, Begin):
            _out_of_order(message, "an open transaction")
        buffer, begin = self._unhold(), self._begun
        self._begun = None
        commit_lsn = message.commit_lsn or message.end_lsn
        commit_ts = message.commit_ts or begin.commit_ts
        self._deliver(buffer, begin.xid or message.xid, commit_lsn, commit_ts, message.end_lsn)

    def _origin(self, message: Origin, _parts: list[TransactionPart]) -> None:
        target = self._open or self._buffer
        if target is None:
            _out_of_order(message, "an open transaction")
        target.origin, target.origin_lsn = message.name, message.origin_lsn

    def _logical(self, message: LogicalMessage, parts: list[TransactionPart]) -> None:
        if message.transactional:
            self._extend((message,))
            return
        self._between(message)
        # Its LSN is its commit: a resume position that contains it says that it was delivered.
        lsn = message.lsn
        if lsn <= self._resume.end_lsn:
            return
        self._previous = lsn
        parts.append(
            TransactionPart(
                xid=None,
                begin_lsn=lsn,
                commit_lsn=lsn,
                commit_ts=0,
                end_lsn=lsn,
                previous_end_lsn=lsn,
                changes=[message],
            )
        )

    def _skipped(self, message: Skipped, _parts: list[TransactionPart]) -> None:
        part = self._open
        if part is None:
            self._extend((message,))
            return
        count = message.count
        if self._drop is None:
            return
        if self._drop:
            dropped = min(count, self._drop)
            self._drop -= dropped
            count -= dropped
        if count:
            add_gap(self._gaps, len(part.changes) + sum(map(len, self._before)), count)

    def _inserts(self, message: InsertBlock, _parts: list[TransactionPart]) -> None:
        part = self._open
        if self._buffer is not None:
            self._buffer.add_block(message)
        elif part is None:
            self._extend(message)
        elif self._drop is not None:
            block = message[self._drop :] if self._drop else message
            self._drop = max(0, self._drop - len(message))
            if block:
                if part.changes:
                    self._before.append(part.changes)
                    changes: list[Change] = []
                    part.changes, self._extend = changes, changes.extend  # type: ignore[assignment]
                self._before.append(block)

    def _transactions(self, message: TransactionBlock, parts: list[Any]) -> None:
        if self._open is not None or self._buffer is not None:
            _out_of_order(message.inserts[0], "a change inside a transaction")
        # An earlier run delivered some of them.
        if int(message.commit_lsns.min()) <= max(self._resume.end_lsn, self._resume.commit_lsn):
            for each in message.messages():
                if isinstance(each, Insert):
                    self._extend((each,))
                else:
                    self._CONTROL[type(each)](self, each, parts)
            return
        parts.append(TransactionRun(message, self._previous))
        self._previous = message.end_lsn

    def _relation(self, message: RelationSeen, _parts: list[TransactionPart]) -> None:
        """Ignore an announcement: every change names its relation."""

    # --- streamed transactions -------------------------------------------------------------------

    def _stream_start(self, message: StreamStart, _parts: list[TransactionPart]) -> None:
        self._between(message)
        buffer = self._streams.get(message.xid)
        if buffer is None:
            buffer = self._streams[message.xid] = self._area.new_buffer(message.xid)
        self._hold(buffer, message.lsn)

    def _stream_stop(self, message: StreamStop, _parts: list[TransactionPart]) -> None:
        if self._buffer is None or self._begun is not None:
            _out_of_order(message, "an open segment")
        self._unhold()
        self._area.relieve()

    def _stream_commit(self, message: StreamCommit, _parts: list[TransactionPart]) -> None:
        buffer = self._streamed(message)
        del self._streams[message.xid]
        self._deliver(buffer, message.xid, message.commit_lsn, message.commit_ts, message.end_lsn)

    def _stream_abort(self, message: StreamAbort, _parts: list[TransactionPart]) -> None:
        buffer = self._streamed(message)
        if message.subxid == message.xid:
            del self._streams[message.xid]
            buffer.discard()
        else:
            buffer.cut(message.subxid)

    # --- prepared transactions -------------------------------------------------------------------

    def _begin_prepare(self, message: BeginPrepare, _parts: list[TransactionPart]) -> None:
        self._between(message)
        self._begun = message
        self._hold(self._area.new_buffer(0), message.lsn)

    def _prepare(self, message: Prepare, _parts: list[TransactionPart]) -> None:
        if not isinstance(self._begun, BeginPrepare):
            _out_of_order(message, "an open prepared transaction")
        self._begun = None
        buffer = self._unhold()
        buffer.xid = message.xid
        self._keep(buffer, message)

    def _stream_prepare(self, message: StreamPrepare, _parts: list[TransactionPart]) -> None:
        buffer = self._streamed(message)
        del self._streams[message.xid]
        self._keep(buffer, message)

    def _keep(self, buffer: TransactionBuffer, message: Prepare | StreamPrepare) -> None:
        """Deliver or keep a prepared transaction.

        The policy decides whether it is delivered here or at its commit.
        """
        key = message.xid, message.gid
        known = self._prepared.pop(key, None)
        if known is not None:  # sent again: its PREPARE was not confirmed before a restart
            known[1].discard()
        before_resume = message.end_lsn <= self._resume.end_lsn
        # An earlier run delivered the first rows at PREPARE, so the others follow here.
        begun = self._resume.index and message.prepare_lsn == self._resume.commit_lsn
        if (self._policy == "prepare" or begun) and not before_resume:
            self._early.note(message.xid, message.gid, message.end_lsn)
            self._deliver(
                buffer, message.xid, message.prepare_lsn, message.prepare_ts, message.end_lsn
            )
            return
        if not before_resume:
            buffer.persist(message.gid, message.prepare_lsn, message.end_lsn)
        self._prepared[key] = message.prepare_lsn, buffer

    def _commit_prepared(self, message: CommitPrepared, parts: list[TransactionPart]) -> None:
        _, buffer = self._prepared.pop((message.xid, message.gid), (0, None))
        known = self._early.decide(message.xid, message.gid, message.end_lsn)
        if known and buffer is not None:  # sent by another slot
            buffer.discard()
        if known or buffer is None:
            self._commit_without_rows(message, parts, known=known)
            return
        self._deliver(
            buffer,
            message.xid,
            message.commit_lsn,
            message.commit_ts,
            message.end_lsn,
            prepared=True,
        )

    def _commit_without_rows(
        self, message: CommitPrepared, parts: list[TransactionPart], *, known: bool
    ) -> None:
        """Deliver a commit whose rows were delivered at PREPARE, if that is ``known``.

        Rows that were never delivered are lost. Under the policy ``prepare`` nothing is delivered
        at a commit.
        """
        gid, end_lsn = message.gid, message.end_lsn
        if end_lsn <= self._resume.end_lsn:
            return
        if self._policy == "prepare":
            if not known:
                self._warn(UNKNOWN, gid)
            return
        if not known:
            what = f"the rows of prepared transaction {gid!r} are no longer here"
            raise PreparedTransactionLost(what, gid=gid, xid=message.xid)
        parts.append(
            TransactionPart(
                xid=message.xid,
                begin_lsn=message.commit_lsn,
                commit_lsn=message.commit_lsn,
                commit_ts=message.commit_ts,
                end_lsn=end_lsn,
                previous_end_lsn=self._previous,
                changes=[],
            )
        )
        self._previous = end_lsn

    def _rollback_prepared(self, message: RollbackPrepared, _parts: list[TransactionPart]) -> None:
        _, buffer = self._prepared.pop((message.xid, message.gid), (0, None))
        if buffer is not None:
            buffer.discard()
        if self._early.decide(message.xid, message.gid, message.rollback_end_lsn):
            self._warn(ROLLED_BACK, message.gid)

    # --- buffers ----------------------------------------------------------------------------------

    def _hold(self, buffer: TransactionBuffer, lsn: int) -> None:
        buffer.begin_lsn = buffer.begin_lsn or lsn
        self._buffer = buffer
        self._extend = buffer.tail.extend

    def _unhold(self) -> TransactionBuffer:
        buffer = self._buffer
        assert buffer is not None
        buffer.seal()
        self._buffer = None
        self._extend = _reject
        return buffer

    def _deliver(
        self,
        buffer: TransactionBuffer,
        xid: int,
        commit_lsn: int,
        commit_ts: int,
        end_lsn: int,
        *,
        prepared: bool = False,
    ) -> None:
        if end_lsn <= self._resume.end_lsn:
            buffer.discard()
            return
        skip = self._resume.index if commit_lsn == self._resume.commit_lsn else 0
        part = TransactionPart(
            xid=xid,
            begin_lsn=buffer.begin_lsn,
            commit_lsn=commit_lsn,
            commit_ts=commit_ts,
            end_lsn=end_lsn,
            previous_end_lsn=self._previous,
            changes=[],
            first_index=skip,
            starts=not skip,
            origin=buffer.origin,
            origin_lsn=buffer.origin_lsn,
        )
        # Its file must survive until the commit is durable, as the server does not send the rows
        # again.
        if prepared:
            buffer.decided(end_lsn)
            self._decided.append((end_lsn, buffer))
        if self._describe is not None:
            buffer.describe(self._describe)
        self._previous = end_lsn
        self._release = buffer.parts(part, skip, discard=not prepared)

    def _streamed(self, message: StreamCommit | StreamAbort | StreamPrepare) -> TransactionBuffer:
        self._between(message)
        buffer = self._streams.get(message.xid)
        if buffer is None:
            _out_of_order(message, "the xid of a streamed transaction")
        return buffer

    def _between(self, message: Message) -> None:
        # A segment or a transaction must end before another message of this kind comes.
        if self._open is not None or self._buffer is not None:
            _out_of_order(message, "it between transactions")

    _CONTROL: ClassVar[dict[type, Callable[..., None]]] = {
        Begin: _begin,
        BeginPrepare: _begin_prepare,
        Commit: _commit,
        CommitPrepared: _commit_prepared,
        InsertBlock: _inserts,
        LogicalMessage: _logical,
        Origin: _origin,
        Prepare: _prepare,
        RelationSeen: _relation,
        RollbackPrepared: _rollback_prepared,
        Skipped: _skipped,
        StreamAbort: _stream_abort,
        StreamCommit: _stream_commit,
        StreamPrepare: _stream_prepare,
        StreamStart: _stream_start,
        StreamStop: _stream_stop,
        TransactionBlock: _transactions,
    }


def _ignore(_changes: Sequence[Item]) -> None:
    """Drop changes of a transaction that was delivered before."""


def _reject(changes: Sequence[Item]) -> None:
    _out_of_order(changes[0], "a change inside a transaction")


def _out_of_order(message: Message, expected: str) -> Never:
    lsn = getattr(message, "lsn", 0)
    found = f"{type(message).__name__} at {lsn_text(lsn)}"
    raise DecodeError("message sequence", lsn=lsn, expected=expected, found=found)
