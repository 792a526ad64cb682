"""A database as sink: rows as the source has them and the position become durable in one transaction."""

import logging
from bisect import bisect_left
from collections.abc import Callable, Collection, Sequence
from concurrent.futures import Future, ThreadPoolExecutor, wait

from waltap.base.redaction import without_frames
from waltap.changes.transactions.position import Position, lsn_text
from waltap.changes.transactions.transaction import Batch, SnapshotRows, TransactionPart
from waltap.errors import RecordError, SinkError, WaltapError
from waltap.ports.sink import RecordsRefused, RefusedEvent
from waltap.ports.sink.bisect import Part, failing
from waltap.ports.sink.fail_stop import FailStop
from waltap.ports.sink.sink import Sink, SinkCapabilities, SinkContext
from waltap.ports.source.connector import PreflightCheck
from waltap_sinks.sql.applier import SqlApplier
from waltap_sinks.sql.errors import (
    SqlCommitUnknown,
    SqlConflictMidway,
    SqlConstraintViolated,
    SqlPositionChanged,
    SqlTransactionGap,
    SqlValueUnfit,
)
from waltap_sinks.sql.metadata import SinkMetadata
from waltap_sinks.sql.net_changes import VersionCause
from waltap_sinks.sql.properties import SqlProperties
from waltap_sinks.sql.rows import certainly_ignored
from waltap_sinks.sql.shape import TargetName, TargetShapes
from waltap_sinks.sql.tables import TargetTables
from waltap_sinks.sql.targets.target import SqlTarget, target_of

__all__ = [
    "SqlSink",
    "is_of_a_record",
    "place_of",
    "take_in_pieces",
]

log = logging.getLogger(__name__)


# Changes in pieces, each in a savepoint: what the target takes is applied, what it refuses is
# named.


def is_of_a_record(failure: Exception) -> bool:
    """Tell whether a failure is one change's fault: the target, as it is, takes others."""
    return isinstance(failure, SqlConstraintViolated | SqlValueUnfit | RecordError)


def place_of(part: Part, at: int = 0) -> str:
    """Return where a change stands, for people."""
    if isinstance(part, TransactionPart):
        return f"{lsn_text(part.commit_lsn)}, change {part.numbers()[at]}"
    return "a snapshot"


def take_in_pieces(
    parts: Sequence[TransactionPart | SnapshotRows],
    apply: Callable[[Part], None],
    *,
    target: SqlTarget,
    failure: Callable[[Exception, str], SinkError],
    forget: Callable[[], None],
) -> None:
    """Apply ``parts`` in the transaction that is open: what is taken as a whole goes in as a whole, of the
    rest its halves, in order. ``forget`` is called when something was undone.

    Raises: RecordsRefused, and nothing of it was applied; SinkError for what is not a change's fault.
    """

    def attempt(piece: Part) -> None:
        try:
            with target.attempt():
                apply(piece)
        except Exception as error:
            forget()
            told = error if isinstance(error, RecordError) else failure(error, place_of(piece))
            if not is_of_a_record(told):
                raise told from error
            raise RecordError(told.problem) from told

    try:
        with target.attempt():
            found = failing(parts, attempt)
            if found:
                raise RecordsRefused(  # noqa: TRY301 - the block undoes what was applied
                    [_refused(parts, *each) for each in found.items()]
                )
    except RecordsRefused:
        forget()
        raise


def _refused(
    parts: Sequence[TransactionPart | SnapshotRows], where: tuple[int, int], error: RecordError
) -> RefusedEvent:
    reason = error.__cause__
    assert isinstance(reason, WaltapError)
    number, at = where
    part = parts[number]
    if isinstance(part, SnapshotRows):
        return RefusedEvent(rows=part, index=at, error=reason)
    return RefusedEvent(change=part.changes[at], error=reason)


HANDED_OVER = 512
"""From so many changes on a batch is applied while the next one is made."""

Parts = Sequence[TransactionPart | SnapshotRows]


class SqlSink(Sink):
    """Applies changes to the tables of a database.

    Life cycle: open, (write*, flush)*, close. `write` commits whole source transactions, with the position
    after them, in one transaction of the target: a reader there sees states that the source had. Only of a
    transaction larger than a batch the target's stays open until its end has come, or until
    ``transaction.max.rows``; and that of an initial snapshot until every table was read. Exactly once:
    `open` returns the position that was committed, and what is delivered again below it is left out.
    Single-threaded for the caller: a large batch is applied by a thread of the sink's, which is waited for
    before the next one and in `flush`.
    """

    capabilities = SinkCapabilities(records=False, exactly_once=True, whole_transactions=True)

    def __init__(self, properties: SqlProperties, context: SinkContext) -> None:
        self._properties, self._context = properties, context
        self._target: SqlTarget = target_of(properties, context)
        self._fail_stop = FailStop(self._target.url)
        self._gap = FailStop(self._target.url)
        """After a failed write nothing follows; what was committed before it stays promised."""
        table = TargetName.parsed(properties.position_table, schemas=self._target.schemas)
        self._books = SinkMetadata(self._target, table, context.pipeline)
        self._tables = TargetTables(self._target, self._books, properties, repairs=context.repairs)
        self._shapes = TargetShapes(context.events, properties, schemas=self._target.schemas)
        self._applier = SqlApplier(
            self._target, self._tables, self._shapes, context.types, properties
        )
        self._reset(None)
        self._unknown = False
        """Nobody here knows what became of a commit: the next `open` asks the table of positions."""

        self._worker: ThreadPoolExecutor | None = None
        self._handed: Future[None] | None = None
        self._pending: tuple[Parts, Position] | None = None
        """What `_worker` applies, or could not; it is committed before anything else is done."""

    def _reset(self, position: Position | None) -> None:
        self._position = self._stored = self._durable = position
        self._skip_below = 0 if position is None else position.end_lsn
        self._begun = False
        """The target has an open transaction, of ours."""
        self._lazy = False
        """The last commit is durable only after the next that is."""
        self._open_commit = position.commit_lsn if position and position.commit_lsn else None
        """Where the transaction commits of which more is to come."""
        self._rows_open = 0
        self._snapshot = False
        self._emptied: set[TargetName] = set()
        self._replays: tuple[str, ...] = ()

    # --- life cycle -------------------------------------------------------------------------------

    def check(self) -> list[PreflightCheck]:
        """Look whether the target answers and lets us in. Raises: SinkError."""
        try:
            self._target.open()
            self._books.read()
            of_tables = self._of_tables() if self._books.made else []
        except Exception as error:
            without_frames(error)
            raise self._failure(error) from error
        finally:
            self._target.close()
        return [PreflightCheck.ok("sink sql", self._target.url), *of_tables]

    def _of_tables(self) -> list[PreflightCheck]:
        """Return which tables need a snapshot, and what keeps rows from them, or may."""
        found = []
        for table in self._books.known.values():
            if table.stale:
                found.append(
                    PreflightCheck.warning(
                        f"target {table.name}",
                        f"it needs a new snapshot: {'; '.join(table.stale)}",
                        "`waltap verify FILE` tells whether rows differ; `waltap run FILE --set "
                        "snapshot.mode=always` takes a new snapshot, which replaces them",
                    )
                )
            certain = certainly_ignored(self._target, table.name)
            if certain is not None:
                found.append(PreflightCheck.failed(f"target {table.name}", certain))
                continue
            found += [
                PreflightCheck.warning(
                    f"target {table.name}",
                    f"{each.problem}: a run ends where it does",
                    each.statement,
                )
                for each in self._target.obstacles(table.name)
            ]
        return found

    def open(self) -> Position | None:
        """Connect, and return the position that was committed here last.

        Waits for a commit of the instance before that is still going on, and ends that instance: it
        commits nothing more. Raises: SinkError.
        """
        if self._context.types is None:
            raise WaltapError("the SQL sink was made without a type mapper")
        self._fail_stop.reset()
        self._gap.reset()
        try:
            self._target.open()
            position = self._books.open(resumes=self._context.resumes)
        except Exception as error:
            without_frames(error)
            raise self._closed_by(error) from error
        self._applier.forget()
        self._tables.forget()
        self._reset(position)
        self._unknown = False
        return position

    def held(self) -> Position | None:
        """Return the position that is durable in the target."""
        return self._durable

    def close(self) -> None:
        """Let go; what is not committed is undone. May be called twice."""
        if self._handed is not None:
            wait([self._handed])
        if self._worker is not None:
            self._worker.shutdown()
        self._worker = self._handed = self._pending = None
        self._target.rollback()
        self._target.close()
        self._begun = False

    def replayed(self) -> Collection[str]:
        """Return what the last replay committed. Raises: SinkError."""
        try:
            found = self._books.replayed()
            self._target.rollback()  # it looked, in a transaction
        except Exception as error:
            raise self._failure(error) from error
        return found

    # --- batches ----------------------------------------------------------------------------------

    def write(self, batch: Batch) -> None:
        """Apply ``batch``; a large one while the next is made. Raises: SinkError, of this batch or of the
        one before; of a conflict the batch may come again, and after RecordsRefused what is left of it."""
        self._fail_stop.check()
        self._gap.check()
        midway, open_commit, replays = False, self._open_commit, self._replays
        try:
            self._finish()  # its commit must not take letters of this batch for replayed
            self._replays = batch.replays
            if self._applier.history is not None:
                self._applier.history.doubtful = bool(batch.replays) or self._context.tolerant
            midway, open_commit = self._begun, self._open_commit
            if batch.replays:
                self._books.make_letters()
            if batch.snapshot:
                self._take_snapshot(batch)
            else:
                self._take(batch)
        except RecordsRefused:
            self._replays = replays
            if midway or batch.snapshot:  # what came before stays; nothing of the batch is in
                self._open_commit = open_commit
            else:
                self._undo()
            raise
        except Exception as error:
            self._replays = replays  # what was refused is no letter that is in
            self._undo()
            failure = self._failure(error)
            if midway and self._target.conflict(error):
                failure = SqlConflictMidway(failure.problem, **failure.fields)
            if failure.retry is not failure.retry.SAME_BATCH:
                self._gap.fail(failure)
            if failure is error:
                raise
            raise failure from error

    def flush(self) -> Position | None:
        """Return the position that is committed and durable; what was committed before is made so now, and
        one that moved without changes is committed.

        While a large transaction is open, it is the position that was durable before.
        """
        self._fail_stop.check()
        if not self._gap.failed:
            self._finish_or_fail()
        position = self._stored if self._gap.failed else self._position
        if self._unknown or self._begun or position is None:
            return self._durable  # a commit would write over what another, unknown one, says
        if position == self._durable and not self._lazy:
            return self._durable
        with self._fail_stop:
            try:
                self._begin()
                self._commit(position, durable=True)
            except Exception as error:
                self._undo()
                failure = self._failure(error)
                if (
                    self._gap.failed
                ):  # it is told of already, and the connection may be gone with it
                    return self._durable
                if failure is error:
                    raise
                raise failure from error
        return self._durable

    def _take(self, batch: Batch) -> None:
        waiting: list[TransactionPart | SnapshotRows] = []
        for part in batch.parts:
            if isinstance(part, SnapshotRows):
                waiting.append(part)
            elif isinstance(part, TransactionPart):
                taken = self._undelivered(part)
                if taken is None:
                    continue
                if taken.starts and not taken.complete:
                    self._before_large(waiting)
                    waiting = []
                waiting.append(taken)
                self._open_commit = None if taken.complete else taken.commit_lsn
        if self._open_commit is None:
            if waiting and batch.events >= HANDED_OVER and self._may_hand_over():
                self._hand_over(waiting, batch.position)
            elif waiting:
                self._apply(waiting, batch.position)
            elif not self._begun and (self._position is None or batch.position > self._position):
                self._position = batch.position
        elif waiting:
            whole = self._rows_open + batch.events >= self._properties.transaction_rows
            self._apply(waiting, batch.position if whole else None)

    def _before_large(self, waiting: Parts) -> None:
        """Commit what is before a transaction that stays open, durably: it is promised meanwhile."""
        if waiting:
            position = self._end_of(waiting)
            self._apply(waiting, position, durable=True)
        elif not self._begun and self._stored is not None and self._stored != self._durable:
            self._begin()
            self._commit(self._stored, durable=True)

    # --- one batch while the next is made ---------------------------------------------------------

    def _may_hand_over(self) -> bool:
        """Tell whether what a batch fails with may be told at the next."""
        return not self._begun and not self._context.tolerant

    def _hand_over(self, parts: Parts, position: Position) -> None:
        """Apply and commit ``parts`` in a thread; it alone uses the target until `_finish`."""
        if self._worker is None:
            self._worker = ThreadPoolExecutor(1, thread_name_prefix="waltap-sql")
        self._pending = parts, position
        self._handed = self._worker.submit(self._apply, parts, position)

    def _finish(self) -> None:
        """Wait for what was handed over. What could not be applied is tried here, and raises here."""
        handed, self._handed = self._handed, None
        if handed is not None:
            if handed.exception() is None:
                self._pending = None
                return
            if self._unknown:
                handed.result()
            log.debug("a batch is applied again", exc_info=handed.exception())
            self._undo()
        if self._pending is not None:  # still so where a conflict broke off the second try
            self._apply(*self._pending)
            self._pending = None

    def _finish_or_fail(self) -> None:
        """Finish for a flush, which nobody repeats."""
        try:
            self._finish()
        except Exception as error:
            self._undo()
            failure = self._failure(error)
            if self._target.conflict(error):
                failure = SqlConflictMidway(failure.problem, **failure.fields)
            self._gap.fail(failure)
            if failure is error:
                raise
            raise failure from error

    def _undelivered(self, part: TransactionPart) -> TransactionPart | None:
        """Return what of ``part`` is not here yet, None if all is. Raises: SqlTransactionGap."""
        if part.commit_lsn < self._skip_below:
            return None
        if part.starts and self._begun and self._open_commit is not None:
            self._undo()  # its first delivery broke off
        stored = self._stored
        if stored is not None and stored.commit_lsn == part.commit_lsn and stored.index:
            part = _behind(part, stored.index)
        elif not part.starts and self._open_commit != part.commit_lsn:
            raise SqlTransactionGap(
                f"a transaction goes on at change {part.first_index} without start"
            )
        return part

    def _end_of(self, parts: Parts) -> Position | None:
        ends = [part.end_lsn for part in parts if isinstance(part, TransactionPart)]
        return Position(max(ends)) if ends else self._position

    # --- snapshots --------------------------------------------------------------------------------

    def _take_snapshot(self, batch: Batch) -> None:
        pieces = [part for part in batch.parts if isinstance(part, SnapshotRows)]
        for part in pieces:
            if part.opens:
                self._undo()
                self._reset(None)
                self._tables.rebuild()
                self._snapshot = True
                if self._applier.history is not None:
                    self._applier.history.opens_snapshot()
            elif not self._snapshot:
                raise SqlTransactionGap(
                    f"a snapshot goes on in {part.relation.name} without its start"
                )
        self._begin()
        for part in pieces:
            self._empty(part)
        if self._context.tolerant and self._target.savepoints and pieces:
            self._load_what_fits(pieces)
        else:
            for part in pieces:
                self._load(part)
        if not batch.parts:
            if self._applier.history is not None:
                self._applier.history.ends_snapshot()
            self._commit(batch.position)

    def _empty(self, part: SnapshotRows) -> None:
        """Make or find the table of ``part``, and empty it when the snapshot comes to it."""
        shape = self._shapes.read(part.relation)
        if shape is not None and shape.name not in self._emptied:
            self._emptied.add(shape.name)
            self._applier.empty(shape, part.ts)

    def _load(self, part: SnapshotRows) -> None:
        shape = self._shapes.read(part.relation)
        if shape is not None and part.rows:
            self._applier.load(shape, part.rows, self._read_by(part))

    def _read_by(self, part: SnapshotRows, lsn: int = 0) -> VersionCause:
        """Return what rows that were read begin by; ``lsn`` is that of the changes before them, for a
        snapshot that has none of its own."""
        at = lsn if part.lsn is None else part.lsn
        return VersionCause(at, part.ts, committed=False)

    def _load_what_fits(self, pieces: list[SnapshotRows]) -> None:
        """Load rows. Raises: RecordsRefused, and none was."""
        try:
            with self._target.attempt():
                for part in pieces:
                    self._load(part)
        except Exception as error:
            self._forget()
            if not (is_of_a_record(error) or is_of_a_record(self._failure(error))):
                raise
            self._in_pieces(pieces, self._load)  # type: ignore[arg-type]

    # --- transactions of the target ---------------------------------------------------------------

    def _apply(self, parts: Parts, position: Position | None, *, durable: bool = False) -> None:
        """Apply ``parts``, and commit them with ``position``; None: the transaction stays open."""
        if not self._target.transactional_ddl:
            self._bind_ahead(parts)
        midway = self._begun
        self._begin()
        try:
            if midway:
                with self._target.attempt():
                    self._fold(parts)
            else:
                self._fold(parts)
        except Exception as error:
            if (
                isinstance(error, SinkError)
                or self._target.lost(error)
                or self._target.conflict(error)
            ):
                raise
            log.debug("changes are applied in pieces", exc_info=error)
            self._applier.distrust()
            self._again(midway=midway)
            if self._context.tolerant and self._target.savepoints:
                self._in_pieces(parts, lambda piece: self._fold([piece]))  # type: ignore[list-item]
            else:
                self._carefully(parts, midway=midway)
        self._rows_open += sum(
            len(part.changes) if isinstance(part, TransactionPart) else len(part.rows)
            for part in parts
        )
        if position is not None:  # what comes again from an older offset moves nothing back
            position = position if self._stored is None else max(position, self._stored)
            self._commit(position, durable=durable)

    def _bind_ahead(self, parts: Parts) -> None:
        """Make and alter tables before the transaction that needs them, where DDL ends one. One that is
        under way is split there."""
        shapes = self._applier.unbound(parts)
        if not shapes:
            return
        if self._begun and isinstance(parts[0], TransactionPart):
            end_lsn = 0 if self._stored is None else self._stored.end_lsn
            self._commit(Position(end_lsn, parts[0].commit_lsn, parts[0].first_index))
        self._target.begin()
        for shape in shapes:
            self._tables.of(shape)
        self._target.commit()

    def _fold(self, parts: Parts) -> None:
        """Apply ``parts`` as what they come to."""
        applier, lsn = self._applier, 0 if self._stored is None else self._stored.end_lsn
        for part in parts:
            if isinstance(part, TransactionPart):
                applier.add(part)
                lsn = part.commit_lsn
            else:
                shape = self._shapes.read(part.relation)
                if shape is not None and part.rows:
                    applier.read(shape, part.rows, self._read_by(part, lsn))
        applier.settle()

    def _in_pieces(self, parts: Parts, apply: Callable[[Part], None]) -> None:
        """Apply ``parts`` in pieces. Raises: RecordsRefused with those that cannot be."""
        take_in_pieces(
            parts, apply, target=self._target, failure=self._failure, forget=self._forget
        )

    def _carefully(self, parts: Parts, *, midway: bool) -> None:
        """Apply ``parts`` change by change, as the source did. Raises: SinkError that names the first one
        that cannot be: RecordsRefused, where it may be left out, and nothing came before that a
        transaction without savepoints would lose."""
        applier = self._applier
        for part in parts:
            if isinstance(part, SnapshotRows):
                self._tried(lambda part=part: self._fold([part]), "a snapshot")  # type: ignore[misc]
                continue
            for index, change in enumerate(part.changes):
                try:
                    where = place_of(part, index)
                    self._tried(lambda p=part, at=index: self._one(p, at), where)  # type: ignore[misc]
                except (SinkError, RecordError) as error:
                    if midway or not (self._context.tolerant and is_of_a_record(error)):
                        raise
                    raise RecordsRefused([RefusedEvent(change=change, error=error)]) from error
        applier.settle()

    def _one(self, part: TransactionPart, at: int) -> None:
        self._applier.add_one(part, at)
        self._applier.settle()

    def _tried(self, apply: Callable[[], None], where: str) -> None:
        try:
            apply()
        except SinkError:
            raise
        except Exception as error:
            raise self._failure(error, where) from error

    def _begin(self) -> None:
        if not self._begun:
            self._target.begin()
            self._begun, self._rows_open = True, 0

    def _commit(self, position: Position, *, durable: bool = False) -> None:
        """Commit with ``position``. What is not ``durable`` is so after the next `flush`."""
        durable = durable or self._snapshot or not self._target.lazy_commits
        self._books.store(position)
        if self._replays:
            self._books.replaying(self._replays)
        self._commit_target(durable=durable)
        self._books.committed(position)
        self._begun = self._snapshot = False
        self._position = self._stored = position
        self._lazy = not durable
        if durable:
            self._durable = position
        self._skip_below = max(self._skip_below, position.end_lsn)

    def _commit_target(self, *, durable: bool) -> None:
        self._context.may_write()
        try:
            self._target.commit(durable=durable)
        except Exception as error:
            if not self._target.lost(error):
                raise
            self._unknown = True
            raise SqlCommitUnknown(
                f"the connection to {self._target.url} was lost while a transaction was being committed",
                positions=self._books.name,
            ) from error
        if self._target.replaced():
            raise SqlPositionChanged(
                f"the file of {self._target.url} was moved, deleted or written by others meanwhile",
                positions=self._books.name,
            )

    def _undo(self) -> None:
        """Undo the target's transaction, and what is known from it."""
        self._target.rollback()
        self._forget()
        self._begun = self._snapshot = False
        self._open_commit = self._stored.commit_lsn if self._stored and self._stored.index else None

    def _again(self, *, midway: bool) -> None:
        """Begin the same anew; ``midway``: the transaction holds what came before, and goes on."""
        if not midway:
            self._target.rollback()
            self._target.begin()
        self._forget()

    def forget(self, oid: int) -> None:
        self._shapes.forget(oid)
        self._tables.forget_relation(oid)

    def _forget(self) -> None:
        """Forget what is known from what was undone."""
        self._applier.forget()
        self._tables.forget()
        self._books.forget()

    def _closed_by(self, error: Exception) -> SinkError:
        """Let go; return what ``error`` means, told by the connection as it was."""
        try:
            return self._failure(error)
        finally:
            self.close()

    def _failure(self, error: Exception, where: str = "") -> SinkError:
        if isinstance(error, SinkError):
            return error
        if isinstance(error, WaltapError) or not self._target.speaks(error):
            raise error
        position = where or ("the start" if self._stored is None else str(self._stored))
        return self._target.failure(
            error, table=self._applier.at, position=position, positions=self._books.name
        )


def _behind(part: TransactionPart, index: int) -> TransactionPart:
    """Return ``part`` without changes of the wire before ``index``."""
    kept = bisect_left(part.numbers(), index)
    return part.split(kept)[1] if kept else part
