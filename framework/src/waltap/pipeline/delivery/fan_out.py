"""Write every batch to several sinks, as one sink for the engine.

Each sink has a branch with its transforms, format and position (`PositionedBranch`). A position counts as
durable when it is durable in every sink, so the slowest sink decides what is confirmed. After a restart,
or after the return of a paused sink, the other branches leave out the events that their sinks have.
"""

import logging
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import replace

from waltap.base.text import size
from waltap.changes.transactions.order import TransactionOrder
from waltap.changes.transactions.position import Position, Positions
from waltap.changes.transactions.transaction import (
    Batch,
    Notification,
    position_after,
    transactions_in,
)
from waltap.clock import Clock
from waltap.errors import RetryVerdict, SinkError
from waltap.pipeline.delivery.sink_branch import Attempt, PositionedBranch, reads_rows
from waltap.ports.offsets.offset import BranchPositions
from waltap.ports.sink.roles import (
    DownstreamProgress,
    FlushDelayingSink,
    GapAwareSink,
    MaintainedSink,
    ProgressSink,
    SnapshotChoosingSink,
    checks_of,
)
from waltap.ports.sink.sink import Sink, SinkCapabilities
from waltap.ports.sink.stored_position import begins_snapshot
from waltap.ports.source.connector import PreflightCheck

log = logging.getLogger(__name__)

# The pipeline reconnects, to send it the changes that it missed.
SinkReturned = SinkError.define("SinkReturned", "WT-5802", retry=RetryVerdict.RECONNECT)
SinkPausedTooLong = SinkError.define("SinkPausedTooLong", "WT-5803")


class FanOut(Sink):
    """Give every batch to every branch.

    ``load`` returns the positions of the stored offset, None without one. ``failed`` gets the error of a
    sink that is paused.
    """

    # As `SinkBranch` has them, for what the branches do.
    renders = transforms = False
    left_out: Sequence[int] = ()

    def __init__(
        self,
        branches: Sequence[PositionedBranch],
        positions: BranchPositions,
        *,
        load: Callable[[], Positions | None],
        clock: Clock,
        failed: Callable[[SinkError], None] = lambda _error: None,
        repairs: bool = False,
    ) -> None:
        self.branches, self._file, self._load = branches, positions, load
        self._clock, self._failed = clock, failed
        self._repairs = repairs
        self.order = TransactionOrder()

    def renew(self) -> None:
        """Make sinks, which are not open."""
        for branch in self.branches:
            branch.renew()
        self.begin(Positions(), lambda durable: durable)
        self._given: tuple[Batch | None, set[str]] = None, set()
        self.capabilities = _shared(
            [each.sink.capabilities for each in self.branches],
            pauses=any(map(_may_pause, self.branches)),
        )

    @property
    def notifies(self) -> bool:
        """Return whether one of the sinks takes notifications."""
        return any(branch.renders for branch in self.branches)

    @property
    def takes_rows(self) -> bool:
        """Return whether no sink is paused: no stream repeats rows."""
        return all(branch.paused is None for branch in self.branches)

    @property
    def sink(self) -> Sink:
        return self

    def check(self) -> list[PreflightCheck]:
        """Return the checks of every sink.

        A failed check of a sink that may be paused is a warning.
        """
        found: list[PreflightCheck] = []
        for branch in self.branches:
            try:
                checks = checks_of(branch.sink)
            except SinkError as error:
                checks = [PreflightCheck.failed(f"sink {branch.name}", error)]
            found += [
                PreflightCheck.warning(each.name, each.found, each.remedy)
                if each.verdict == "error" and _may_pause(branch)
                else each
                for each in checks
            ]
        return found

    def open(self) -> Positions | None:
        """Open every sink.

        If the pipeline continues from an offset, a sink that may be paused and does not open is paused.
        Raises: SinkError.
        """
        stored = self._load() or Positions()
        progress = self._file.load(stored)
        for branch in self.branches:
            with self._pausing(branch, may=bool(stored)):
                branch.open(progress.get(branch.name), stored, repairs=self._repairs)
        if not stored or not self.capabilities.exactly_once:
            return None
        # The branches get a transaction from its start, to count the events that their sinks have.
        return Positions({n: Position(p.end_lsn) for n, p in self._slowest().items()})

    def begin(self, offset: Positions, storable: Callable[[Positions], Positions]) -> None:
        """Record as `SinkBranch.begin` does that changes after a stored offset come."""
        self._written, self._offset, self._storable = offset, offset, storable

    def advance(self, partition: str, lsn: int) -> None:
        """Record that no change is left before ``lsn``: each sink has all of them."""
        self._written = self._written.passed(partition, lsn)
        self._offset = self._offset.passed(partition, lsn)
        for branch in self.branches:
            branch.advance(partition, lsn)

    def forget(self, oid: int) -> None:
        for branch in self.branches:
            branch.forget(oid)

    def downstream_progress(self) -> Sequence[DownstreamProgress]:
        found = []
        for branch in self.branches:
            durable, written = branch.durable, self._written
            lsn = min((each.end_lsn for each in durable.values()), default=0)
            newest = max((each.end_lsn for each in written.values()), default=lsn)
            found.append(
                DownstreamProgress(
                    stage=branch.name,
                    lsn=lsn,
                    lag_bytes=max(0, newest - lsn) if lsn else None,
                    current=all(durable.get(n, p) >= p for n, p in written.items()),
                    applied_ms=branch.flushed_ms,
                    problem="" if branch.paused is None else branch.paused.problem,
                )
            )
            if isinstance(branch.sink, ProgressSink):
                behind = branch.sink.downstream_progress()
                found += [replace(each, stage=f"{branch.name}/{each.stage}") for each in behind]
        return found

    def rendered(self, given: Batch) -> Batch:
        """Return ``given``: each branch renders for itself."""
        return given

    def give(self, given: Batch, _own: Batch, attempt: Attempt) -> None:
        """Write ``given``, as `SinkBranch.give` does."""
        attempt(self.write, given)

    def write(self, batch: Batch) -> None:
        """Write ``batch`` to each running sink.

        A second call with the same batch writes to the sinks that do not have it yet. Raises: SinkError of
        a sink that may not be paused, or not now.
        """
        if self._given[0] is not batch and batch.snapshot and begins_snapshot(batch):
            for branch in self.branches:
                branch.begin_again()
        self._each(batch, lambda branch: branch.write(batch))

    def notify(
        self, notifications: Sequence[Notification], topic: str, batch: Batch, attempt: Attempt
    ) -> Batch:
        """Write notifications to the sinks of records, as `SinkBranch.notify` does."""

        def notified(branch: PositionedBranch) -> None:
            if branch.renders:
                branch.notify(notifications, topic, batch)

        def write(batch: Batch) -> None:
            self._each(batch, notified)

        attempt(write, batch)
        return batch

    def _each(self, batch: Batch, call: Callable[[PositionedBranch], object]) -> None:
        """Call ``call`` for each running branch that does not have ``batch``."""
        if self._given[0] is not batch:
            self._given = batch, set()
        served = self._given[1]
        for branch in self.branches:
            if branch.name in served:
                continue
            if branch.paused is not None:
                if reads_rows(batch):
                    raise branch.paused
                continue
            with self._pausing(branch, batch):
                call(branch)
            served.add(branch.name)
        # By the changes alone: other batches may have the position of a sink that is ahead of the offset.
        before = self._written.get(batch.partition, batch.position)
        reached = position_after(transactions_in(batch.parts), before)
        if batch.snapshot:
            reached = batch.position
        self._written = self._written.advanced(batch.partition, reached)

    def flush(self) -> Positions | None:
        """Flush each running sink, and return the positions durable in all.

        The progress of each sink is stored. Raises: SinkError, after the others were flushed.
        """
        failure: BaseException | None = None
        for branch in self.branches:
            if branch.paused is not None:
                continue
            try:
                with self._pausing(branch):
                    branch.flush()
            except Exception as error:  # noqa: BLE001 - a plugin's; the others are worth their promises
                failure = failure or error
        # After a kill all sinks can have more than the stored offset, and than what came since.
        reached = self._written
        slowest = self._storable(
            Positions({n: min(p, reached[n]) for n, p in self._slowest().items() if n in reached})
        )
        progress = {branch.name: branch.own_progress() for branch in self.branches}
        self._file.store(progress, slowest, self._offset)
        if failure is not None:
            raise failure
        # The engine stores later ones, or never flushes again.
        for name, position in slowest.items():
            self._offset = self._offset.raised(name, position)
        return slowest or None

    def holds_back(self) -> bool:
        """Return whether every running sink holds its flush back.

        A position is confirmed only when all sinks have it.
        """
        running = [each.sink for each in self.branches if each.paused is None]
        return bool(running) and all(
            isinstance(sink, FlushDelayingSink) and sink.holds_back() for sink in running
        )

    def record_gap(self, table: str) -> None:
        """Record an interrupted table in every sink.

        A paused sink gets it too, since it gets no second call. Raises: SinkError.
        """
        for branch in self.branches:
            if isinstance(branch.sink, GapAwareSink):
                branch.sink.record_gap(table)

    def maintain(self) -> None:
        """Run periodic work of sinks, and try paused ones.

        Raises: SinkReturned, SinkPausedTooLong; SinkError of a sink that stops the pipeline.
        """
        now = self._clock.monotonic()
        for branch in self.branches:
            if branch.paused is None:
                if isinstance(branch.sink, MaintainedSink):
                    with self._pausing(branch):
                        branch.sink.maintain()
                continue
            self._check_retained_wal(branch)
            if now >= branch.retry_at:
                self._try(branch)

    def close(self) -> None:
        """Close every sink; may be called twice.

        Raises: SinkError, the first one, after the others were closed.
        """
        failed: SinkError | None = None
        for branch in self.branches:
            try:
                branch.close()
            except SinkError as error:
                failed = failed or error
        if failed is not None:
            raise failed

    # --- pauses -------------------------------------------------------------------------------------

    @contextmanager
    def _pausing(
        self, branch: PositionedBranch, batch: Batch | None = None, *, may: bool = True
    ) -> Iterator[None]:
        """Continue without a sink that fails in the block: it gets the changes later.

        Raises: SinkError of a sink that may not be paused, or not with ``batch``.
        """
        try:
            yield
        except SinkError as error:
            may = may and _may_pause(branch) and not error.loses
            reads = branch.holds_rows or (batch is not None and reads_rows(batch))
            if not may or reads:
                raise
            with suppress(Exception):
                branch.close()
            branch.pause(error)
            log.warning("sink %s is paused: %s", branch.name, error)
            self._failed(error)

    def _try(self, branch: PositionedBranch) -> None:
        """Try to open a paused sink. Raises: SinkReturned."""
        candidate = branch.make()
        try:
            candidate.open()
        except SinkError as error:
            branch.pause(error)
            return
        finally:
            with suppress(Exception):
                candidate.close()
        raise SinkReturned(f"sink {branch.name} answers again")

    def _check_retained_wal(self, branch: PositionedBranch) -> None:
        most = branch.properties.pause_bytes
        for name, position in branch.durable.items():
            written = self._written.get(name)
            behind = 0 if written is None else written.end_lsn - position.end_lsn
            if behind > most:
                why = branch.paused.problem if branch.paused else ""
                raise SinkPausedTooLong(
                    f"the server keeps {size(behind)} of WAL for {branch.name}, which is paused ({why})",
                    sink=branch.name,
                )

    def wants_chunks(self) -> bool:
        """Return False: all sinks get the rows of one reading."""
        sinks = [branch.sink for branch in self.branches]
        if any(isinstance(sink, SnapshotChoosingSink) and sink.wants_chunks() for sink in sinks):
            log.warning("the engine reads the snapshot: it goes to several sinks")
        return False

    def _slowest(self) -> Positions:
        """Return the positions durable in all sinks.

        A partition that one sink does not know is left out.
        """
        every = [branch.durable for branch in self.branches]
        shared = set(every[0]).intersection(*every[1:])
        return Positions({name: min(each[name] for each in every) for name in sorted(shared)})


def _shared(each: Sequence[SinkCapabilities], *, pauses: bool) -> SinkCapabilities:
    """Return the capabilities that all of these sinks have.

    With ``pauses`` a failing sink may be left behind: rows that are durable in the others need not be
    durable in it.
    """
    return SinkCapabilities(
        records=False,
        exactly_once=all(one.exactly_once for one in each),
        truncate=all(one.truncate for one in each),
        partitions=all(one.partitions for one in each),
        whole_transactions=any(one.whole_transactions for one in each),
        resumes_snapshots=not pauses and all(one.resumes_snapshots for one in each),
        restarts_tables=all(one.restarts_tables for one in each),
        typed_columns=all(one.typed_columns for one in each),
        follows_numbers=any(one.follows_numbers for one in each),
    )


def _may_pause(branch: PositionedBranch) -> bool:
    return branch.properties.on_failure == "pause"
