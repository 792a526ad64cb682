"""The contract of a sink. Life cycle: check, open, (write*, flush)*, close. Single-threaded."""

import abc
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from waltap.errors import SinkError
from waltap.events import EventContext
from waltap.snapshot.progress import SnapshotProgress
from waltap.source.completeness import PublicationCompleteness
from waltap.source.position import Position, Positions
from waltap.transactions.transaction import Batch

if TYPE_CHECKING:
    from waltap.capture.capture import CaptureRules
    from waltap.decode.relation import Relation
    from waltap.decode.replica_identity import ReplicaIdentity
    from waltap.mapping.type_mapping import TypeMapper
    from waltap.sink.downstream import DownstreamProgress
    from waltap.snapshot.chunk import SnapshotChunk
    from waltap.source.connector import PreflightCheck

__all__ = ["ReaderGone", "Sink", "SinkCapabilities", "SinkContext"]


class ReaderGone(SinkError):
    """Who read the sink's output has closed it (``jsonl:- | head``). The engine then stops as if it had
    been asked to: what was taken counts as delivered, the rest comes with the next run."""

    code = "WT-5801"
    remedy = "Keep the reading end of {output} open, or write to a file: --sink jsonl:PATH."


@dataclass(frozen=True, slots=True, kw_only=True)
class SinkCapabilities:
    """What a sink takes and what it promises; the kit tests it.

    ``records``: takes rendered records (`Batch.records`); otherwise it takes the changes themselves
    (`Batch.parts`) and renders with the type mapper of its context. ``exactly_once``: data and
    position become durable together, `Sink.open` returns that position, and a batch written again
    after a crash leaves no duplicate. ``truncate``: applies truncates; where it does not, a start of a
    pipeline that does not skip them warns. ``partitions``: keeps the position of each partition of the
    source apart; without it a source of several is refused. ``json_only``: keys and values must be JSON
    text; formats that write anything else are refused (WT-3302). ``resumes_snapshots``: an initial
    snapshot that broke off may go on, with a new instance too, without a piece that opens it: what was
    durable counts, and rows of it may come again (`SnapshotRows`). ``restarts_tables``: then a table that
    is not complete may be read anew (`SnapshotRows.restarts`). ``whole_transactions``: wants what is
    written before a flush to end where a transaction does; the engine holds back what it has received of
    one, up to a batch, so that only a larger one may be cut. ``acknowledged``: others acknowledge what
    was written, batch by batch; `flush` waits for none of them, and `Sink.promised` tells. Every sink
    takes new versions of a relation while open.
    """

    records: bool = True
    exactly_once: bool = False
    truncate: bool = True
    partitions: bool = False
    whole_transactions: bool = False
    json_only: bool = False
    resumes_snapshots: bool = False
    restarts_tables: bool = False
    acknowledged: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class SinkContext:
    """What a sink may know when it is made: its pipeline's name, a folder that it may keep state
    in, how columns are typed, and a way to say how far a long operation has got."""

    pipeline: str
    state_dir: Path
    types: "TypeMapper | None" = None
    describe: "Callable[[Relation], Relation] | None" = None
    """Completes a relation from the catalogue (types, nullability, key); once per version."""
    renew: "Callable[[Relation], Relation] | None" = None
    """Gives a described relation with its data types as they are now; itself where they are the same."""
    identity: "Callable[[Relation], ReplicaIdentity] | None" = None
    """Gives the replica identity to read a relation with; once per version."""
    capture: "CaptureRules | None" = None
    """Which columns are captured, and what is masked."""
    resumes: bool = False
    """Whether a stored offset exists: a sink may then cut torn tails but must not start over."""
    snapshot: SnapshotProgress | None = None
    """How far the initial snapshot is that the stored offset says has begun and not ended."""
    stopping: Callable[[], bool] = lambda: False
    """Tells that the run is to end. A sink that waits for others without an end of its own asks it, and
    raises `waltap.source.connector.StopRequested`: what it had not promised is delivered again."""
    takes_over: bool = False
    """This process has the pipeline's lease: a lock at the destination that a process of the same pipeline
    holds is of one that lost it, and is taken over."""
    may_write: Callable[[], None] = lambda: None
    """Raises where another process may run the pipeline by now. The engine asks before each `write` and
    `flush`; a sink asks once more, as the last thing before something becomes visible for others: the
    process may have been paused for long in between. What it raises is passed on."""
    whole: bool = False
    """Whether every change that the source sends of captured tables comes to this sink: none is left out,
    put aside or given another key on the way. `Sink.begins` then tells what the source sends."""
    repairs: bool = False
    """Whether the run reads tables again that the destination lost: what is missing there is made anew."""
    tolerant: bool = False
    """Whether the pipeline goes on without records that `RecordsRefused` names. A sink then finds out
    which ones those are, where that takes tries."""

    @property
    def events(self) -> EventContext:
        """Return what plans of events are compiled from, for a sink that takes changes."""
        return EventContext(
            describe=self.describe or (lambda relation: relation),
            identity=self.identity,
            capture=self.capture,
            mapper=self.types,
        )


class Sink(abc.ABC):
    """Takes ownership of batches, in order; only what `flush` returns is promised durable.

    How an initial snapshot arrives, and what follows from it, is the contract of `SnapshotRows`.

    Failures. A `write` that raises a SinkError has not taken its batch. With ``Retry.SAME_BATCH`` it has
    kept those before it, and the engine may write the same batch again; so after `RecordsRefused`, with
    fewer records. With another verdict no write follows, but a flush may, and promises what was kept. Any
    other exception of `write`, and every exception of `flush`, ends the instance: the system may have
    dropped what it could not make durable, and would call a second attempt a success. `write` and `flush`
    raise SinkError from then on (`FailStop` keeps that), `close` is all that follows. The engine stores
    and confirms nothing more; where it goes on, it does so with a new instance, from the last position
    that was stored, or that `open` returns.
    """

    capabilities: SinkCapabilities = SinkCapabilities()

    def check(self) -> list["PreflightCheck"]:
        """Look whether `open` will succeed; makes and changes nothing, here or elsewhere.

        Called before `open`, also on a sink that is never opened. Raises: SinkError for one problem.
        """
        return []

    @abc.abstractmethod
    def open(self) -> Position | Positions | None:
        """Connect and fix what a crash left half done.

        Returns the last position whose data is durable here, when the sink keeps it together with
        the data (exactly once), as `flush` does; None otherwise. Raises: SinkError.
        """

    def begins(self, coverage: PublicationCompleteness) -> None:
        """From here on comes what ``coverage`` says. Where `SinkContext.whole`, it is told each time that
        the source was connected, behind `open` and before anything of that connection. Raises:
        SinkError."""

    @abc.abstractmethod
    def write(self, batch: Batch) -> None:
        """Take ownership of ``batch``; returning says nothing about durability. Raises: SinkError."""

    @abc.abstractmethod
    def flush(self) -> Position | Positions | None:
        """Make all accepted batches durable; return the position of the last one (None: none yet).

        A sink that takes several partitions (`SinkCapabilities.partitions`) returns the position of the
        last batch of each, by `Batch.partition`; a position alone is that of the only one.

        Before it promises, it looks whether what it wrote is still where readers look for it: a file
        may have been moved or deleted meanwhile. Raises: SinkError; nothing may then be assumed of
        batches since the last flush, and every later `write` and `flush` raises too.
        """

    def forget(self, oid: int) -> None:
        """Drop what is kept of a relation that is gone, all of whose rows were written. Called between
        writes."""

    def held(self) -> Position | Positions | None:
        """Return what `open` would return now, asked behind `flush` and at the end of a snapshot.

        A sink that keeps the position with its data says so here. The engine stores it with the offset; an
        `open` that returns less than was stored, or None, then ends the run with `DestinationBehind`: the
        destination was restored from a backup, emptied or made anew. None: nothing is compared. Where a
        table may be lost beside a position that stays, the sink raises that error itself, in `open` and
        before it commits, unless `SinkContext.repairs`.
        """
        return None

    def promised(self) -> int:
        """Return `Batch.number` of the last batch that is promised with all before it, 0 for none; asked
        behind `flush`, in place of what that returns, where `SinkCapabilities.acknowledged`."""
        return 0

    def settle(self) -> None:
        """The run is to end: what others have not acknowledged may be waited for, before the last `flush`.
        Called before a clean end only."""

    def wants_chunks(self) -> bool:
        """Tell whether an initial snapshot that opens now is to come as chunks (`hand_over`), since the
        sink has others that read the source: asked behind `open`, when the rows would come."""
        return False

    def hand_over(self, chunks: "Sequence[SnapshotChunk]") -> str:
        """Take the chunks of a whole snapshot, to have others read them, and return a name for them.

        The engine then writes a piece without rows for each of their tables, complete and with that name
        (`SnapshotRows.elsewhere`), flushes, and asks `handed_over` until the rows are durable; as long as
        that takes it keeps the snapshot. Then it ends the snapshot as any. Where it does not come to that,
        they count for nothing: a later start takes another snapshot. Raises: SinkError.
        """
        raise NotImplementedError

    def handed_over(self) -> "Mapping[str, int] | None":
        """Return the rows of each table (``schema.table``) that was handed over, when all are durable;
        None until then. Raises: SinkError, where that cannot be."""
        raise NotImplementedError

    def identity(self) -> str:
        """Return what the data here is known by wherever it is moved to; "", the default, where there is
        no such thing, or no data yet. Asked before `open`, too. Raises: SinkError."""
        return ""

    def missed(self, table: str) -> None:
        """Take note, durably, that ``table`` (``schema.table``) was captured before, and not for a while:
        told before what comes of it now, perhaps twice, or while this is not open. Rows that are here may
        be gone in the source, until an initial snapshot replaces them. Raises: SinkError."""

    def replayed(self) -> Collection[str]:
        """Return what `Batch.replays` of the last durable batch with any said; asked behind `open`.

        A sink that keeps it with the data gets no dead letter twice, though a replay is killed before it
        is noted. Such a batch comes at a position that the sink may have passed: it is new all the same.
        """
        return ()

    def holds_back(self) -> bool:
        """Tell whether what was written may wait longer for its flush, for a sink that makes few large
        pieces: asked where ``offset.flush.interval.ms`` is over, about once a batch. A `flush` that comes
        all the same (a snapshot's end, a stop) makes everything durable."""
        return False

    def tend(self) -> None:
        """Do what is due while nothing comes: called about every ``status.update.interval.ms``, every ten
        seconds at least, between two batches. Raises: SinkError, as `flush` does."""

    def onward(self) -> "Sequence[DownstreamProgress]":
        """Tell how far those have come who read on from what was flushed, such as another process that
        applies it to tables. Called by any thread, when somebody looks at the status: it only reads, and
        does not wait for the engine's thread. Raises nothing."""
        return ()

    @abc.abstractmethod
    def close(self) -> None:
        """Release everything; never makes anything durable. May be called twice."""
