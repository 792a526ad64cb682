"""Write rows to a database, with their position in one transaction."""

import logging
from collections.abc import Callable, Collection, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor, wait
from contextlib import contextmanager, nullcontext

from waltap.base.redaction import without_frames
from waltap.changes.transactions.position import START, Position, lsn_text
from waltap.changes.transactions.transaction import (
    Batch,
    Part,
    SnapshotRows,
    TransactionPart,
    transactions_in,
)
from waltap.errors import RecordError, SinkError, WaltapError
from waltap.ports.sink import RecordsRefused, RefusedEvent
from waltap.ports.sink.refusal import FailStop, alone, failing
from waltap.ports.sink.sink import Sink, SinkCapabilities, SinkContext
from waltap.ports.sink.stored_position import delivered_changes
from waltap.ports.source.connector import PreflightCheck
from waltap_sinks.sql.applier import AppliedPart, Parts, SqlApplier
from waltap_sinks.sql.errors import (
    SqlColumnMissing,
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
from waltap_sinks.sql.shape import TargetName, TargetShape, TargetShapes
from waltap_sinks.sql.tables import TargetTables
from waltap_sinks.sql.targets import target_of
from waltap_sinks.sql.targets.target import DdlNeeded, SqlTarget

log = logging.getLogger(__name__)


def is_of_a_record(failure: Exception) -> bool:
    """Return whether a single change caused the failure.

    The target, as it is, accepts others.
    """
    return isinstance(failure, SqlConstraintViolated | SqlValueUnfit | RecordError)


def location_of(part: Part, at: int = 0) -> str:
    """Return the location of a change for messages."""
    if isinstance(part, TransactionPart):
        return f"{lsn_text(part.commit_lsn)}, change {part.numbers()[at]}"
    return "a snapshot"


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


# From this number of changes on a batch is applied while the engine makes the next one. Below it
# the switch of threads costs more than it saves, and errors would be one `write` late for nothing.
BACKGROUND_EVENTS = 512


class SqlSink(Sink):
    """Apply changes to the tables of a database.

    Life cycle: open, (write*, flush)*, close. `write` commits complete source transactions and the
    position behind them in one transaction of the target, so a reader sees states of the source.
    The target's transaction stays open within a source transaction that is larger than a batch, up
    to ``transaction.max.rows``, and within an initial snapshot until every table was read.

    Exactly once: `open` returns the committed position, and later deliveries below it are skipped.
    Single-threaded for the caller: a thread of the sink applies a large batch, and the next `write` or
    `flush` waits for it.
    """

    capabilities = SinkCapabilities(
        records=False, exactly_once=True, whole_transactions=True, follows_numbers=True
    )

    def __init__(self, properties: SqlProperties, context: SinkContext) -> None:
        self._properties, self._context = properties, context
        self._target: SqlTarget = target_of(properties, context)
        self._fail_stop = FailStop(self._target.url)
        # After a failed write no write may follow. Positions that were committed before stay valid.
        self._write_stop = FailStop(self._target.url)
        table = TargetName.parsed(properties.position_table, schemas=self._target.schemas)
        self._metadata = SinkMetadata(self._target, table, context.pipeline)
        self._tables = TargetTables(
            self._target, self._metadata, properties, context.types, repairs=context.repairs
        )
        self._shapes = TargetShapes(context.events, properties, schemas=self._target.schemas)
        self._applier = SqlApplier(
            self._target, self._tables, self._shapes, context.types, properties
        )
        self._reset(None)
        # The result of a commit is unknown; the next `open` reads it in the table of positions.
        self._unknown = False

        self._worker: ThreadPoolExecutor | None = None
        self._applying: Future[None] | None = None
        # The batch of `_worker`, or one that it failed to apply. It is committed before all else.
        self._pending: tuple[Parts, Position] | None = None

    def _reset(self, position: Position | None) -> None:
        self._position = self._stored = self._durable = position
        self._skip_below = 0 if position is None else position.end_lsn
        # The target has an open transaction of this sink.
        self._begun = False
        # The last commit is durable only after a later durable one.
        self._lazy = False
        # The commit LSN of a transaction whose end has not arrived.
        self._open_commit = position.commit_lsn if position and position.commit_lsn else None
        self._rows_open = 0
        self._snapshot = False
        self._emptied: set[TargetName] = set()
        self._redelivers: tuple[str, ...] = ()

    # --- life cycle -------------------------------------------------------------------------------

    def check(self) -> list[PreflightCheck]:
        """Check that the target answers and accepts the login. Raises: SinkError."""
        try:
            self._target.open()
            self._metadata.read()
            of_tables = list(self._of_tables()) if self._metadata.made else []
        except Exception as error:
            without_frames(error)
            raise self._failure(error) from error
        finally:
            # `waltap doctor` may run beside the pipeline, so it must keep no lock or transaction.
            self._target.close()
        return [PreflightCheck.ok("sink sql", self._target.url), *of_tables]

    def _of_tables(self) -> Iterator[PreflightCheck]:
        """Return the tables that need a snapshot or may ignore rows."""
        for table in self._metadata.known.values():
            if table.stale:
                yield PreflightCheck.warning(
                    f"target {table.name}",
                    f"it needs a new snapshot: {'; '.join(table.stale)}",
                    "`waltap verify FILE` shows whether rows differ; `waltap run FILE --set "
                    "snapshot.mode=always` takes a new snapshot, which replaces them",
                )
            # An obstacle that certainly swallows writes fails the check; others may spare all rows,
            # so they warn.
            certain = certainly_ignored(self._target, table.name)
            if certain is not None:
                yield PreflightCheck.failed(f"target {table.name}", certain)
                continue
            yield from [
                PreflightCheck.warning(
                    f"target {table.name}",
                    f"{each.problem}: a run ends where it does",
                    each.statement,
                )
                for each in self._target.obstacles(table.name)
            ]

    def open(self) -> Position | None:
        """Connect and return the position that was committed last.

        It waits for a pending commit of an earlier instance and fences that instance. Raises: SinkError.
        """
        if self._context.types is None:
            raise WaltapError("the SQL sink was made without a type mapper")
        self._fail_stop.reset()
        self._write_stop.reset()
        try:
            self._target.open()
            position = self._metadata.open(has_offset=self._context.has_offset)
        except Exception as error:
            without_frames(error)
            raise self._closed_by(error) from error
        self._applier.forget()
        self._tables.forget()
        self._reset(position)
        self._unknown = False
        return position

    def stored_position(self) -> Position | None:
        return self._durable

    def close(self) -> None:
        """Undo uncommitted changes and disconnect. May be called twice."""
        # The thread uses the connection until it ends; its failure was or will be repeated anyway.
        if self._applying is not None:
            wait([self._applying])
        if self._worker is not None:
            self._worker.shutdown()
        self._worker = self._applying = self._pending = None
        self._target.rollback()
        self._target.close()
        self._begun = False

    def redelivered(self) -> Collection[str]:
        """Return the dead letters that the last redelivery committed. Raises: SinkError."""
        try:
            found = self._metadata.redelivered()
            self._target.rollback()  # the query has begun a transaction
        except Exception as error:
            raise self._failure(error) from error
        return found

    # --- batches ----------------------------------------------------------------------------------

    def write(self, batch: Batch) -> None:
        """Apply ``batch``, a large one in the background.

        Raises: SinkError, of this batch or of the one before. After a conflict the batch may come
        again, after RecordsRefused its remaining changes.
        """
        self._fail_stop.check()
        self._write_stop.check()
        midway, open_commit, redelivers = False, self._open_commit, self._redelivers
        try:
            self._finish()  # its commit must not mark dead letters of this batch as redelivered
            self._redelivers = batch.redelivers
            self._tables.redelivers = bool(batch.redelivers)
            self._applier.history.doubtful = bool(batch.redelivers) or self._context.tolerant
            midway, open_commit = self._begun, self._open_commit
            if batch.redelivers:
                self._metadata.make_dead_letters()
            if batch.snapshot:
                self._take_snapshot(batch)
            else:
                self._take(batch)
        except RecordsRefused:
            self._redelivers = redelivers
            if midway or batch.snapshot:  # earlier batches stay; nothing of this one is applied
                self._open_commit = open_commit
            else:
                self._undo()
            raise
        except Exception as error:
            self._redelivers = redelivers  # a refused change is no redelivered dead letter
            failure = self._ended(error, midway=midway, repeated=True)
            if failure is error:
                raise
            raise failure from error

    def flush(self) -> Position | None:
        """Return the position that is committed and durable.

        Earlier commits become durable, and a position that advanced without changes is committed. While a
        large transaction is open, the result is the last durable position.
        """
        self._fail_stop.check()
        if not self._write_stop.failed:
            try:
                self._finish()
            except Exception as error:  # the engine does not repeat a flush
                failure = self._ended(error, midway=True)
                if failure is error:
                    raise
                raise failure from error
        position = self._stored if self._write_stop.failed else self._position
        if self._unknown or self._begun or position is None:
            return self._durable  # a commit would overwrite the unknown result of another one
        # An idle stream flushes every second: without a change that would be a commit each time.
        if position == self._durable and not self._lazy:
            return self._durable
        with self._fail_stop:
            try:
                self._begin()
                self._commit(position, durable=True)
            except Exception as error:
                # What failed was raised already, and the connection may be lost with it.
                if self._write_stop.failed:
                    self._undo()
                    return self._durable
                failure = self._ended(error, midway=False)
                if failure is error:
                    raise
                raise failure from error
        return self._durable

    def _take(self, batch: Batch) -> None:
        waiting: list[AppliedPart] = []
        transactions = transactions_in(batch.parts)
        for part in batch.parts:
            if isinstance(part, SnapshotRows):
                waiting.append(part)
            elif isinstance(part, TransactionPart):
                piece = self._undelivered(part)
                if piece is None:
                    continue
                # A large transaction may end much later or never: commit the ones before it now.
                last = transactions[-1]
                if piece.starts and not last.complete and piece.commit_lsn == last.commit_lsn:
                    self._before_large(waiting)
                    waiting = []
                waiting.append(piece)
                self._open_commit = None if piece.complete else piece.commit_lsn
        due = self._of_one_version(waiting)
        if batch.ends_transaction:
            # With `errors.tolerance` the engine needs the refused change of exactly this batch.
            at_once = self._begun or self._context.tolerant or batch.events < BACKGROUND_EVENTS
            if due and not at_once:
                self._hand_over(due, batch.position)
            elif due:
                self._apply(due, batch.position)
            # A batch without changes for this target only moves the position, at the next flush.
            elif not self._begun and (self._position is None or batch.position > self._position):
                self._position = batch.position
        elif due:
            is_full = self._rows_open + batch.events >= self._properties.transaction_rows
            self._apply(due, batch.position if is_full else None)

    def _before_large(self, waiting: Parts) -> None:
        """Commit durably before a transaction that stays open.

        `flush` returns this position meanwhile.
        """
        if waiting:
            ends = [part.end_lsn for part in waiting if isinstance(part, TransactionPart)]
            position = Position(max(ends)) if ends else self._position
            self._apply(self._of_one_version(waiting), position, durable=True)
        elif not self._begun and self._stored is not None and self._stored != self._durable:
            self._begin()
            self._commit(self._stored, durable=True)

    def _of_one_version(self, parts: Parts) -> Parts:
        """Return the end of ``parts`` with one version per table.

        The rest is committed before, where DDL ends a transaction. Dead letters that come again
        are one commit.
        """
        if self._target.transactional_ddl or self._redelivers:
            return parts
        *earlier, last = self._applier.by_version(parts)
        for some in earlier:
            position = self._stored or START
            for part in some:
                if isinstance(part, TransactionPart):
                    position = part.position(position)
            self._apply(some, position)
        return last

    # --- one batch while the next is made ---------------------------------------------------------

    def _hand_over(self, parts: Parts, position: Position) -> None:
        """Apply and commit ``parts`` in a thread.

        The thread alone uses the target until `_finish`.
        """
        if self._worker is None:
            self._worker = ThreadPoolExecutor(1, thread_name_prefix="waltap-sql")
        self._pending = parts, position
        self._applying = self._worker.submit(self._apply, parts, position)

    def _finish(self) -> None:
        """Wait for the thread; apply its batch again if it failed.

        The failure of the second attempt is raised.
        """
        applied, self._applying = self._applying, None
        if applied is not None:
            if applied.exception() is None:
                self._pending = None
                return
            if self._unknown:
                # A second attempt could apply the batch twice, so raise the failure.
                applied.result()
            log.debug("a batch is applied again", exc_info=applied.exception())
            self._undo()
        if self._pending is not None:  # also after a conflict in the second attempt
            self._apply(*self._pending)
            self._pending = None

    def _ended(self, error: Exception, *, midway: bool, repeated: bool = False) -> SinkError:
        """Undo the transaction and return the meaning of ``error``.

        After a conflict the engine repeats a batch, but neither a flush nor earlier batches.
        """
        self._undo()
        failure = self._failure(error)
        missing = isinstance(failure, SqlColumnMissing)
        if missing and self._target.describe(self._metadata.table) is None:
            # A backup without waltap's tables was restored; the next `open` finds no position.
            failure = SqlPositionChanged(failure.problem, positions=self._metadata.name)
        if midway and self._target.conflict(error):
            failure = SqlConflictMidway(failure.problem, **failure.fields)
        if not repeated or failure.retry is not failure.retry.SAME_BATCH:
            self._write_stop.fail(failure)
        return failure

    def _undelivered(self, part: TransactionPart) -> TransactionPart | None:
        """Return the changes of ``part`` that the target lacks, or None.

        Raises: SqlTransactionGap.
        """
        if part.commit_lsn < self._skip_below:
            return None  # it was committed before a crash or reconnect
        if part.starts and self._begun and self._open_commit is not None:
            self._undo()  # its first delivery was aborted
        # A position with an index is in the middle of a transaction that was too large for one
        # commit.
        stored = self._stored
        if stored is not None and stored.commit_lsn == part.commit_lsn and stored.index:
            skipped = delivered_changes(part.commit_lsn, part.numbers(), stored)
            return part.split(skipped)[1] if skipped else part
        if not part.starts and self._open_commit != part.commit_lsn:
            raise SqlTransactionGap(
                f"a transaction continues at change {part.first_index} without start"
            )
        return part

    # --- snapshots --------------------------------------------------------------------------------

    def _take_snapshot(self, batch: Batch) -> None:
        pieces = [part for part in batch.parts if isinstance(part, SnapshotRows)]
        for part in pieces:
            # A snapshot that opens again replaces an aborted one with all its rows.
            if part.opens:
                self._undo()
                self._reset(None)
                self._tables.rebuild()
                self._snapshot = True
                self._applier.history.opens_snapshot()
            elif not self._snapshot:
                raise SqlTransactionGap(
                    f"a snapshot continues in {part.relation.name} without its start"
                )
        self._begin()
        for part in pieces:
            self._empty(part)
        if self._context.tolerant and self._target.savepoints and pieces:
            self._in_pieces(pieces, self._load)  # type: ignore[arg-type]
        else:
            for part in pieces:
                self._load(part)
        # The empty batch after the last table ends the snapshot, and only then is it committed.
        if not batch.parts:
            self._applier.history.ends_snapshot()
            self._commit(batch.position)

    def _empty(self, part: SnapshotRows) -> None:
        """Find or create ``part``'s table, emptied at first rows."""
        shape = self._shapes.read(part.relation)
        if shape is not None and shape.name not in self._emptied:
            self._emptied.add(shape.name)
            self._applier.empty(shape, part.ts)

    def _load(self, part: SnapshotRows) -> None:
        shape = self._shapes.read(part.relation)
        if shape is not None and part.rows:
            self._applier.load(shape, part.rows, self._read_by(part))

    def _read_by(self, part: SnapshotRows, lsn: int = 0) -> VersionCause:
        """Return the cause of versions of rows that were read.

        ``lsn`` belongs to the changes before them, for a snapshot without one of its own.
        """
        at = lsn if part.lsn is None else part.lsn
        return VersionCause(at, part.ts, committed=False)

    # --- transactions of the target ---------------------------------------------------------------

    def _apply(self, parts: Parts, position: Position | None, *, durable: bool = False) -> None:
        """Apply ``parts`` and commit ``position``.

        Without a position the transaction stays open.
        """
        if not self._target.transactional_ddl:
            self._bind_ahead(parts)
        midway = self._begun
        self._begin()
        self._applier.begins_batch()
        for replaces in (False, True):
            self._applier.replaces = replaces
            try:
                # In a transaction with earlier batches a failure must undo this batch alone.
                with self._attempt(savepoint=midway):
                    self._apply_compacted(parts)
                break
            except Exception as error:
                if (
                    isinstance(error, SinkError)
                    or self._target.lost(error)
                    or self._target.conflict(error)
                    or (midway and not self._target.savepoints)
                ):
                    raise
                log.debug("changes are applied again", exc_info=error)
                # The target may have a row that is new at the source, so the next batches insert
                # by upserts.
                self._applier.distrust()
                if not midway:
                    self._target.rollback()
                    self._target.begin()
        else:
            self._applier.replaces = False
            if self._context.tolerant and self._target.savepoints:
                self._in_pieces(parts, lambda piece: self._apply_compacted([piece]))  # type: ignore[list-item]
            else:
                self._carefully(parts, midway=midway)
        if isinstance(parts[-1], TransactionPart) and parts[-1].complete:  # its pieces were not
            self._applier.end_transaction()
        self._rows_open += sum(
            len(part.changes) if isinstance(part, TransactionPart) else len(part.rows)
            for part in parts
        )
        # After a commit a new process would not know which of the rows that share a key leaves.
        if position is not None and not self._applier.waiting:
            # Changes from an older offset must not move the position back.
            position = position if self._stored is None else max(position, self._stored)
            self._commit(position, durable=durable)

    def _bind_ahead(self, parts: Parts) -> None:
        """Create and alter tables first where DDL ends a transaction.

        A transaction that is open is split there. If its rows share a key, new names wait for its end,
        and for all else it begins again.
        Raises: SqlTransactionGap.
        """
        shapes = self._applier.unbound(parts)
        if not shapes or (self._begun and self._bound_as_they_are(shapes)):
            return
        # A commit would leave rows that share a key behind; the next attempt finds the tables.
        again = self._begun and bool(self._applier.waiting)
        if again and self._bound_as_they_are(shapes, former=True):
            return
        if again:
            self._undo()
        elif self._begun and isinstance(parts[0], TransactionPart):
            end_lsn = 0 if self._stored is None else self._stored.end_lsn
            self._commit(Position(end_lsn, parts[0].commit_lsn, parts[0].first_index))
        self._target.begin()
        for shape in shapes:
            self._tables.of(shape)
        self._target.commit()
        if again:
            names = ", ".join(str(shape.name) for shape in shapes)
            raise SqlTransactionGap(
                f"{names} had to be created or altered while rows of the transaction shared a key"
            )

    def _bound_as_they_are(self, shapes: Sequence[TargetShape], *, former: bool = False) -> bool:
        """Bind ``shapes`` in the open transaction if that needs no DDL."""
        try:
            with self._target.without_ddl():
                for shape in shapes:
                    self._tables.of(shape, former=former)
        except DdlNeeded:
            return False
        return True

    def _apply_compacted(self, parts: Parts) -> None:
        applier, lsn = self._applier, 0 if self._stored is None else self._stored.end_lsn
        for part in parts:
            if isinstance(part, TransactionPart):
                applier.add(part)
                lsn = part.commit_lsn
            else:
                shape = self._shapes.read(part.relation)
                if shape is not None and part.rows:
                    applier.read(shape, part.rows, self._read_by(part, lsn))
        applier.apply()

    def _in_pieces(self, parts: Parts, apply: Callable[[Part], None]) -> None:
        """Apply ``parts`` in pieces within the open transaction.

        A piece that fails is split in halves, in order, each in a savepoint. Raises: RecordsRefused, and
        nothing was applied; SinkError for a failure that no single change caused.
        """

        def attempt(piece: Part) -> None:
            try:
                with self._attempt():
                    apply(piece)
            except Exception as error:
                failed = (
                    error
                    if isinstance(error, RecordError)
                    else self._failure(error, location_of(piece))
                )
                if not is_of_a_record(failed):
                    raise failed from error
                raise RecordError(failed.problem) from failed

        with self._attempt():
            found = failing(parts, attempt)
            if found:
                raise RecordsRefused([_refused(parts, *each) for each in found.items()])

    @contextmanager
    def _attempt(self, *, savepoint: bool = True) -> Iterator[None]:
        """Return a block that is undone, in memory too, if it raises."""
        waiting = self._applier.waiting.copied()
        try:
            with self._target.attempt() if savepoint else nullcontext():
                yield
        except BaseException:
            self._forget()
            self._applier.waiting.update(waiting)
            raise

    def _carefully(self, parts: Parts, *, midway: bool) -> None:
        """Apply ``parts`` change by change, as the source did.

        Raises: SinkError for the first refused change. It is RecordsRefused if the change may be
        left out and a transaction without savepoints loses no earlier batch.
        """
        for part in parts:
            if isinstance(part, SnapshotRows):
                self._tried(part, location_of(part))
                continue
            for index, change in enumerate(part.changes):
                try:
                    self._tried(alone(part, index, index + 1), location_of(part, index))
                except (SinkError, RecordError) as error:
                    if midway or not (self._context.tolerant and is_of_a_record(error)):
                        raise
                    raise RecordsRefused([RefusedEvent(change=change, error=error)]) from error

    def _tried(self, piece: Part, where: str) -> None:
        try:
            self._apply_compacted([piece])  # type: ignore[list-item]
        except SinkError:
            raise
        except Exception as error:
            raise self._failure(error, where) from error

    def _begin(self) -> None:
        if not self._begun:
            self._target.begin()
            self._begun, self._rows_open = True, 0

    def _commit(self, position: Position, *, durable: bool = False) -> None:
        """Commit ``position``, at the latest durable after the next `flush`."""
        # The rows of a snapshot are not read again, so its commit must be durable.
        durable = durable or self._snapshot or not self._target.lazy_commits
        self._metadata.store(position)
        if self._redelivers:
            self._metadata.redelivering(self._redelivers)
        self._commit_target(durable=durable)
        self._metadata.committed(position)
        former = self._tables.committed()
        self._begun = self._snapshot = False
        self._position = self._stored = position
        self._lazy = not durable
        if durable:
            self._durable = position
        self._skip_below = max(self._skip_below, position.end_lsn)
        if former:
            self._begin()
            for shape in former:
                self._tables.of(shape)
            self._commit(position, durable=durable)  # with the new names

    def _commit_target(self, *, durable: bool) -> None:
        # Another instance may have taken the lease while the changes were applied.
        self._context.may_write()
        try:
            self._target.commit(durable=durable)
        except Exception as error:
            if not self._target.lost(error):
                raise
            self._unknown = True
            raise SqlCommitUnknown(
                f"{self._target.url} has not confirmed a commit: {self._target.error_text(error)}",
                positions=self._metadata.name,
            ) from error
        if self._target.replaced():
            raise SqlPositionChanged(
                f"the file of {self._target.url} was moved, deleted or written by others meanwhile",
                positions=self._metadata.name,
            )

    def _undo(self) -> None:
        """Undo the target's transaction and forget its effects."""
        self._target.rollback()
        self._forget()
        self._begun = self._snapshot = False
        self._open_commit = self._stored.commit_lsn if self._stored and self._stored.index else None

    def forget(self, oid: int) -> None:
        self._shapes.forget(oid)
        self._tables.forget_relation(oid)

    def _forget(self) -> None:
        self._applier.forget()
        self._tables.forget()
        self._metadata.forget()

    def _closed_by(self, error: Exception) -> SinkError:
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
            error, table=self._tables.at, position=position, positions=self._metadata.name
        )
