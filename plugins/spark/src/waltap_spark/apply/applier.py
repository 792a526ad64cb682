"""Apply the change log to tables, exactly once."""

import contextlib
import logging
import time
import uuid
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from queue import SimpleQueue
from typing import Final

from msgspec.structs import replace
from py4j.protocol import Py4JJavaError
from pyspark.errors import PySparkException
from pyspark.sql import SparkSession

from waltap.errors import WaltapError
from waltap_sinks.changelog import ChangeLog, Manifest
from waltap_sinks.changelog.errors import ChangeLogDamaged, ChangeLogExpired
from waltap_sinks.changelog.manifest import NOTHING, LogPosition
from waltap_spark.apply.commit_attempt import CommitAttempt
from waltap_spark.apply.compaction_worker import CompactionResult, CompactionWorker, grafted
from waltap_spark.apply.damage import without
from waltap_spark.apply.external_snapshots import ExternalSnapshots, read_error
from waltap_spark.apply.resume_requests import ResumeRequests, resumed
from waltap_spark.apply.snapshot_splits import TableSplits
from waltap_spark.config.options import ApplyOptions
from waltap_spark.config.shared_targets import SharedShapes
from waltap_spark.errors import SegmentDamaged, first_words
from waltap_spark.formats.choice import FormatChoice
from waltap_spark.formats.table_format import CommitContext, TableFormat, TableFormatContext
from waltap_spark.planning.column_identity import whereabouts
from waltap_spark.planning.plan import TableTask, apply_added_key, meets_none, plan
from waltap_spark.planning.redelivery import needed, reached
from waltap_spark.planning.table_renames import Name, TableRenames, find_renames, free_place, joined
from waltap_spark.session.failures import OF_ONE, refused, require_one
from waltap_spark.session.session import SizedSession, each_in_one, make_active, prepare
from waltap_spark.state.output import CommitIntent, EntryId, OutputState, SparkOutput, TableState
from waltap_spark.state.version_maps import noted

# Readers find a table at the version of the last commit that changed it. Another process may compact
# the table's files, or write other rows of its target, and remove files of old versions: it does not
# know which version the output names. So an idle table is moved to the newest version once in a while;
# the newest version has the same rows of it.


# Seconds between two looks, far below the few days that formats keep old versions.
REST_S: Final = 3600.0

# Tables of one look, between two checks of the time.
AT_ONCE: Final = 10

# Seconds that a look may delay changes; the next look takes the other tables.
SHARE_S: Final = 2.0


class IdleTables:
    """Moves the idle tables of one output to newer versions."""

    def __init__(self, tables: TableFormat) -> None:
        self._format, self._next = tables, 0.0
        self._remaining: list[str] = []

    def found(
        self, sessions: SimpleQueue[SizedSession], state: OutputState
    ) -> dict[str, TableState]:
        """Return the tables whose version moved, for the next commit.

        One of ``sessions`` reads the versions. No table may have an unfinished step.
        """
        began = time.monotonic()
        if not self._remaining and began >= self._next:
            self._next, self._remaining = began + REST_S, list(state.tables)
        found = dict[str, TableState]()

        def find(spark: SparkSession) -> None:
            commit = CommitContext(
                spark=spark, number=state.number, log_position=state.log_position, attempt=""
            )
            while self._remaining:
                names, self._remaining = self._remaining[:AT_ONCE], self._remaining[AT_ONCE:]
                tables = {name: state.tables[name] for name in names if name in state.tables}
                found.update(self._format.move_idle(commit, tables))
                if time.monotonic() >= began + SHARE_S:
                    break

        if self._remaining:
            each_in_one(sessions, [find], 1)
        return found


log = logging.getLogger(__name__)


# Minimum seconds before a suspended table is retried.
RETRY_S: Final = 60.0

# Duration of a try above which the pause grows in proportion. All other tables wait for a try.
TRY_S: Final = 3.0

# Longest pause, in multiples of `RETRY_S`.
MOST: Final = 15.0


class TableRetries:
    """Schedules retries of suspended tables; unknown tables are due."""

    def __init__(self) -> None:
        self._failed: dict[str, tuple[float, float]] = {}
        self._spent: dict[str, float] = {}

    def due(self, name: str) -> bool:
        if name not in self._failed:
            return True
        at, spent = self._failed[name]
        return time.monotonic() - at >= RETRY_S * min(MOST, max(1.0, spent / TRY_S))

    @contextlib.contextmanager
    def timed(self, name: str) -> Iterator[None]:
        """Count the block's time to the next try."""
        started = time.monotonic()
        try:
            yield
        finally:
            self._spent[name] = self._spent.get(name, 0.0) + time.monotonic() - started

    def failed(self, name: str) -> None:
        """Start the pause after a failed try."""
        self._failed[name] = time.monotonic(), self._spent.pop(name, 0.0)

    def forget(self, name: str) -> None:
        """Make the table due immediately."""
        self._failed.pop(name, None)
        self._spent.pop(name, None)


class OutputApplier:
    """Applies manifests to an output; call `open` before `apply`.

    One applier writes an output at a time. Each change is applied exactly once, because the
    commit that names new folders or versions also names the log position. A crash leaves folders
    that no commit names; the next applier applies the same manifests from the same position.

    A format that writes in place finds its own steps again. So the applier records the position
    of a commit before it starts the commit, and the next applier finishes exactly that commit
    first.
    """

    def __init__(
        self,
        spark: SparkSession,
        changelog: ChangeLog,
        output: SparkOutput,
        options: ApplyOptions | None = None,
        choice: FormatChoice | None = None,
        table_splits: Callable[[str], TableSplits | None] | None = None,
    ) -> None:
        """Create an applier; ``table_splits`` is for `ExternalSnapshots`."""
        self._spark, self._log, self._output = spark, changelog, output
        self._external_snapshots = ExternalSnapshots(changelog, table_splits, output)
        self._options = options or ApplyOptions()
        self._choice = choice or FormatChoice()
        self.format = self._choice.factory(self._context(output))
        self._compaction: CompactionWorker | None = None
        # Compaction results that the next commit will name.
        self._compacted: list[CompactionResult] = []
        self.state: OutputState
        # Position of a commit that was started and not finished.
        self._pending_intent: LogPosition | None = None
        self._retries = TableRetries()
        self._idle_tables = IdleTables(self.format)
        self._requests = ResumeRequests(output)
        # Whether the log's newest applied manifest is within a snapshot; tables whose request waits
        # for the end of one.
        self._in_snapshot, self._delayed = False, set[str]()
        # Tables of the last commit by the names that the present one gives them.
        self._named: Mapping[str, TableState] | None = None
        # One Spark session for each table that is applied in parallel.
        self._sessions: SimpleQueue[SizedSession] = SimpleQueue()
        self._parallel = max(1, self._options.parallel)

    @property
    def location(self) -> str:
        return self._output.location

    def open(self) -> OutputState:
        """Lock the output and read its state.

        Raises: OutputInUse, OutputMismatch, OutputDamaged, FormatDiffers.
        """
        state = self._output.open(self._log.store.location, self._log.identity())
        try:
            self._choice.require_format_of(state, self.location)
        except WaltapError:
            self._output.close()
            raise
        state = replace(state, format=self._choice.name, format_values=self._choice.values)
        # only a format that writes in place leaves steps of an unfinished commit
        begun = self._output.begun(state) if self.format.writes_in_place else None
        if begun is not None:
            self._pending_intent = begun.log_position
        self.state = state
        if self._pending_intent is None:
            # rows that wait for a pending commit must stay
            self._external_snapshots.remove_waiting()
        if self._compaction is not None:
            self._compaction.stop()
        self._compaction, self._compacted = None, []
        if not self.format.writes_in_place:
            # the thread must not share these objects with the commits
            output = SparkOutput(self._output.store.reached_alike(self._output.location))
            made = self._choice.factory(self._context(output))
            self._compaction = CompactionWorker(lambda: prepare(self._spark), output, made)
            self._compaction.wake(state)
        if self._sessions.empty():
            for _each in range(self._parallel):
                self._sessions.put(SizedSession(prepare(self._spark)))
        return self.state

    def close(self) -> None:
        """Stop the compaction thread and unlock the output."""
        if self._compaction is not None:
            self._compaction.stop()
        self._output.close()

    def _context(self, output: SparkOutput) -> TableFormatContext:
        return TableFormatContext(
            output=output,
            options=self._options,
            identity=lambda: self.state.identity,
            tables=lambda: self.state.tables if self._named is None else self._named,
        )

    def keep_up(self) -> None:
        """Compact files in a thread beside the commits, until `close`."""
        if self._compaction is not None:
            self._compaction.start()

    def maintain(self, *, patient: bool = False) -> OutputState:
        """Compact the files of all tables now, in this thread."""
        while self._compaction is not None and self._compaction.maintain(patient=patient):
            self._apply([], again=False)
        return self.state

    def collect(self) -> int:
        """Delete dropped files after the retention time; return their number."""
        return self._output.collect(self._options.retention_s)

    # --- one commit -------------------------------------------------------------------------------

    def apply(self, manifests: Sequence[Manifest]) -> OutputState:
        """Apply all manifests after the last position as one commit.

        If a previous driver left an unfinished commit, finish exactly that one first. It may
        cover more than ``manifests``.

        A table that fails is suspended (`TableState.failed`) and retried later (`TableRetries`),
        also by every new applier. Other tables continue.

        Raises: FilesUnavailable, and Spark's errors that concern all tables; nothing changes
        then.
        """
        if self._pending_intent is not None:
            pending_intent = self._pending_intent
            # a table tried in that commit has steps up to its position
            self._retries = TableRetries()
            self._apply(
                list(self._log.manifests(self.state.log_position, pending_intent)), repeats=True
            )
            self._pending_intent = None
        new = [each for each in manifests if each.log_position > self.state.log_position]
        state = self._apply(new)
        if new:
            self._in_snapshot = new[-1].unfinished_snapshot is not None
        return state

    def _apply(
        self, manifests: Sequence[Manifest], *, again: bool = True, repeats: bool = False
    ) -> OutputState:
        """Make a commit; ``again`` retries tables, ``repeats`` finishes an earlier one."""
        asked = self._asked() if again else {}
        suspended = (name for name, each in self.state.tables.items() if each.failed and again)
        due = [name for name in suspended if self._retries.due(name)]
        idle = {} if self._pending_intent else self._idle_tables.found(self._sessions, self.state)
        maintained = self._maintained() | idle
        if not manifests and not due and not maintained:
            return self.state
        started, last = time.monotonic(), self.state
        wanted = {table.name: table for table in asked.values()}
        before = replace(last, tables={**last.tables, **maintained, **wanted})
        moves = find_renames(manifests, before.tables)
        tables = moves.applied(before.tables, in_place=self.format.writes_in_place)
        before = replace(before, tables=tables)
        idle_names = list(idle)
        if moves.renamed:
            due, idle_names = moves.names(due), moves.names(idle)
            moves.report()
        number = before.number + 1
        log_position = manifests[-1].log_position if manifests else before.log_position
        plans = self._plans(before.tables, manifests, due, log_position, moves.routes)
        self._external_snapshots.plan(manifests, plans)
        if self.format.writes_in_place:
            before = self._intended(before, log_position, moves, repeats=repeats)
        commit = CommitContext(
            spark=self._spark,
            number=number,
            log_position=log_position,
            attempt=uuid.uuid4().hex[:8],
        )
        times = [each.last_commit_ts for each in manifests if each.last_commit_ts is not None]
        at_us = (times or [before.last_commit_ts or int(time.time() * 1e6)])[-1]
        reach = reached(before, manifests)
        attempt = CommitAttempt(
            commit=commit,
            changelog=self._log,
            output=self._output,
            options=self._options,
            format=self.format,
            called=whereabouts(before.tables),
            at_us=at_us,
            reach=reach,
            external_snapshots=self._external_snapshots,
            shapes=SharedShapes(before.tables),
            repeats=repeats,
        )
        self._named = before.tables
        try:
            applied = self._attempts(attempt, plans, before)
            tables = before.tables | {table.name: table for table, _error in applied}
            tables |= self.format.aligned(self._spark, tables, [*plans, *idle_names])
        except Exception:
            self._output.delete_orphans(commit.given)
            raise
        finally:
            self._named = None
        self._output.delete_orphans(commit.given, *(table for table, _error in applied))
        plans = {name: found for name, found in plans.items() if not tables[name].failed}
        rows = sum(group.rows for found in plans.values() for group in found.groups)
        state = replace(
            before,
            number=number,
            log_position=log_position,
            committed_at=time.time(),
            tables=tables,
            rows_applied=before.rows_applied + rows,
            last_commit_ts=times[-1] if times else before.last_commit_ts,
            reached_by=needed(reach, log_position, tables.values()),
        )
        state = self._write(state, last, moves.renamed)
        self.state, self._pending_intent, self._compacted = state, None, []
        self._clean_up(maintained)
        for path in asked:
            self._requests.answered(path)
        duration_ms, lsn = round((time.monotonic() - started) * 1000), str(state.log_position)
        log.info("applied", extra={"batch_rows": rows, "lsn": lsn, "duration_ms": duration_ms})
        return state

    def _clean_up(self, maintained: Mapping[str, TableState]) -> None:
        """Do a commit's work for which no table waits."""
        each_in_one(self._sessions, self.format.afterwards(), self._parallel)
        if self._compaction is not None:
            self._compaction.handled(maintained)
            self._compaction.wake(self.state)
        self._external_snapshots.remove_waiting()

    def _write(
        self, state: OutputState, last: OutputState, renamed: Mapping[str, tuple[str, str]]
    ) -> OutputState:
        self._output.collect(self._options.retention_s)
        if self.format.writes_in_place:
            state = noted(self._output, state, last, renamed)
        else:
            # Commits do not repeat it.
            self._output.garbage.note(state.number, last.dropped(state.tables))
        self._output.commit(state)
        return state

    def _attempts(
        self, attempt: CommitAttempt, plans: Mapping[str, TableTask], before: OutputState
    ) -> list[tuple[TableState, WaltapError | None]]:
        with ThreadPoolExecutor(self._parallel) as pool:
            found = pool.map(lambda name: self._attempt(attempt, name, plans[name], before), plans)
            applied = list(_reported(found, len(plans), self.state))
        tables = before.tables
        if not all(name in tables and tables[name].failed for name in plans):
            require_one([error for _table, error in applied])
        return applied

    def _intended(
        self, before: OutputState, log_position: LogPosition, moves: TableRenames, *, repeats: bool
    ) -> OutputState:
        """Note that the commit begins, and rename tables in the catalogue."""
        tables, begun = before.tables, self._output.begun(self.state) if repeats else None
        moving = () if begun is None else begun.moves
        if begun is None and moves.renamed:
            after = [tables[name] for name in moves.names(moves.renamed)]
            moving = self.format.moves(self._spark, after)
        # written before the first step: a crash must not lose how far the steps go
        self._output.intend(
            CommitIntent(
                number=before.number + 1,
                log_position=log_position,
                identity=before.identity,
                moves=moving,
            )
        )
        self._pending_intent = log_position
        if not moving:
            return before
        moved = self.format.rename_targets(self._spark, tables, moving)
        return replace(before, tables={**tables, **moved})

    def _maintained(self) -> dict[str, TableState]:
        """Return tables with compaction results since the last commit."""
        if self._compaction is None:
            return {}
        found, fits = dict[str, TableState](), list[CompactionResult]()
        for result in [*self._compacted, *self._compaction.done()]:
            name = result.before.name
            now = self.state.tables.get(name)
            table = None if now is None or now.failed else grafted(now, result)
            if table is None:
                self._compaction.handled([name])
                for path in result.made:
                    self._output.remove(path)
            else:
                found[name] = table
                fits.append(result)
        self._compacted = fits
        return found

    def _asked(self) -> dict[str, TableState]:
        """Return tables that the operator resumed, by request; they are due."""
        asked = dict[str, TableState]()
        for path, request in self._requests.found().items():
            table = self.state.tables.get(request.table)
            if table is None or not table.failed:
                log.info("%s is not suspended", request.table)
            elif request.how == "anew" and self.format.writes_in_place:
                log.warning("%s cannot be refreshed in full in this format", request.table)
            else:
                try:
                    found = self._beginning(table) if request.how == "anew" else table
                except (ChangeLogDamaged, ChangeLogExpired) as error:
                    # refreshed, it would lose its rows and gain none
                    log.warning("%s keeps its rows: %s", table.name, first_words(error))
                    self._requests.answered(path)
                    continue
                if found is not None:
                    asked[path] = resumed(found, request.how)
                    self._retries.forget(table.name)
                continue
            self._requests.answered(path)
        return asked

    def _beginning(self, table: TableState) -> TableState | None:
        """Return ``table`` at the log's beginning, if that is later.

        A snapshot counts as a whole or not at all. None: the log begins with an unfinished one.
        Raises: ChangeLogDamaged, ChangeLogExpired if the changes after it cannot be read.
        """
        if self._in_snapshot and table.name in self._delayed:
            return None
        at, until = table.log_position or NOTHING, self.state.log_position
        try:
            for _manifest in self._log.manifests(at, until):
                pass
        except ChangeLogExpired:
            begin = self._log.begin
            if begin <= at:
                raise
        else:
            return table
        found = None
        for manifest in self._log.manifests(begin, until):
            if found is None and manifest.snapshot is not None:
                begin = manifest.log_position
            if found is None and manifest.unfinished_snapshot is None:
                found = replace(table, log_position=begin, staged=())
        if found is None and table.name not in self._delayed:
            log.info("%s waits for the end of the snapshot with which the log begins", table.name)
            self._delayed.add(table.name)
        return found

    def _plans(
        self,
        tables: Mapping[str, TableState],
        manifests: Sequence[Manifest],
        due: Iterable[str],
        log_position: LogPosition,
        routes: Mapping[EntryId, Name] | None,
    ) -> dict[str, TableTask]:
        # changes of a suspended table wait in the log until its retry
        suspended = {name for name, each in tables.items() if each.failed}
        others = tables
        if suspended:
            others = {name: each for name, each in tables.items() if name not in suspended}
        plans = plan(manifests, others, routes)
        for name in suspended:
            plans.pop(name, None)
        for name in due:
            with self._retries.timed(name):
                table = tables[name]
                try:
                    plans[name] = self._plan_again(table, log_position)
                except (ChangeLogDamaged, ChangeLogExpired) as error:
                    # other tables do not need these manifests
                    plans[name] = TableTask(table.schema, table.table, unreadable=error)
        for each in plans.values():
            for group in each.groups:
                group.until = group.until or log_position
        return plans

    def _plan_again(self, table: TableState, log_position: LogPosition) -> TableTask:
        """Return the pending work of a suspended table.

        In a format that writes in place, groups end where they ended in earlier tries. The retry
        then finds the steps that those tries wrote.
        """
        again = table.attempts if self.format.writes_in_place else ()
        own = schema, name = table.schema, table.table
        routes = dict.fromkeys(table.waits, own)
        found = TableTask(schema, name, staged=list(table.staged))
        since = table.log_position or NOTHING
        for until in [*(each for each in again if since < each < log_position), log_position]:
            staged = replace(table, staged=tuple(found.staged))
            waiting = self._log.manifests(since, until)
            part = plan(waiting, {table.name: staged}, routes).get(table.name)
            if part is not None:
                for group in part.groups:
                    group.until = until
                found.groups += part.groups
                found.staged = part.staged
            since = until
        found.groups = without(found.groups, table.passed)
        return found

    def _attempt(
        self, attempt: CommitAttempt, name: str, found: TableTask, before: OutputState
    ) -> tuple[TableState, WaltapError | None]:
        """Apply ``found`` to one table, or suspend the table."""
        table = before.tables.get(name) or self._new(found, before)
        if not table.columns:  # no row is stored yet
            table = replace(table, place=self._options.places.of(table.schema, table.table))
            table = replace(table, mode=self._options.modes.of(table.target_name))
        apply_added_key(table, found.groups)
        suited = self._sessions.get()
        try:
            make_active(suited.session)
            session = suited.suit(self._rows(suited.session, table, found))
            with self._retries.timed(name):
                done = attempt.table(session, table, found)
        except (*OF_ONE, PySparkException, Py4JJavaError) as error:
            last = found.tried[-1] if found.tried else None
            if last is not None and last.external_snapshot and not last.lost:
                wrong = read_error(error, name)
                if wrong is None:
                    raise  # fails the commit: a later try may find the snapshot gone
                raise wrong from error
            cause = refused(error)
            reason = first_words(cause)
            # the words of an expiry change whenever the log expires further
            expired = isinstance(cause, ChangeLogExpired) and cause.code in table.failed
            if reason != table.failed and not expired:
                log.error("%s is suspended, other tables continue: %s", name, reason)  # noqa: TRY400
            self._retries.failed(name)
            segment = error.fields["segment"] if isinstance(error, SegmentDamaged) else ""
            had = table.attempts
            if found.unreadable is not None and attempt.repeats:
                # the commit's driver may have written its steps when they could be read
                had = (*had, attempt.commit.log_position)
            suspended = replace(
                table,
                failed=reason,
                log_position=table.log_position or before.log_position,
                attempts=found.ends(had, every=attempt.repeats),
                waits=joined(table.waits, found.entries),
                damaged=str(segment),
            )
            return suspended, cause
        finally:
            self._sessions.put(suited)
        self._retries.forget(name)
        if table.failed:
            log.info("%s continues", name)
        fine = {"failed": "", "log_position": None, "attempts": (), "waits": (), "damaged": ""}
        return replace(done, **fine, passed=()), None

    def _rows(self, session: SparkSession, table: TableState, found: TableTask) -> int | None:
        """Estimate how many rows ``found`` has and meets, None if unknown."""
        if found.rows is None or all(meets_none(table, group) for group in found.groups):
            return found.rows
        there = self.format.estimated_rows(session, table)
        return None if there is None else there + found.rows

    def _new(self, found: TableTask, before: OutputState) -> TableState:
        """Return a table of which nothing is stored yet."""
        name, place = (found.schema, found.table), None
        if self.format.writes_in_place:
            place = free_place(before.tables, name, found.oid)
        return TableState(
            schema=found.schema, table=found.table, stored_at=place, former_names=found.former_names
        )


def _reported(
    applied: Iterable[tuple[TableState, WaltapError | None]], count: int, before: OutputState
) -> Iterator[tuple[TableState, WaltapError | None]]:
    """Log each table of a first commit, which may take minutes."""
    for number, (table, error) in enumerate(applied, 1):
        if count > 1 and error is None and table.name not in before.tables:
            log.info("table %d of %d: %s", number, count, table.name)
        yield table, error
