"""Interrupted deliveries, and the engine's part in resuming them."""

import errno
import os
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from waltap.changes.events.event import Record
from waltap.changes.transactions.position import START, Position, Positions
from waltap.changes.transactions.transaction import Batch, Part, events_in
from waltap.errors import RetryVerdict, SinkError
from waltap.ports.sink.sink import Sink
from waltap_testing.crash import (
    MOST_KILLS,
    ChildOutcome,
    CrashChild,
    KillPoint,
    chosen,
    imitated,
    in_child,
    limit_file_size,
    own_files,
)
from waltap_testing.damage import evenly
from waltap_testing.sinks.rig import SinkRig, assert_complete, sole
from waltap_testing.workload import ScriptedWorkload, mixed


def bare(sink: Sink, position: Position, *parts: Part) -> Batch:
    """Return a batch of parts without rows, as engines give it."""
    records: list[Record] | None = [] if sink.capabilities.records else None
    return Batch(parts=list(parts), position=position, events=events_in(parts), records=records)


def written(sink: Sink, batches: Iterable[Batch], *, each: bool = False) -> Position | None:
    """Write ``batches`` and flush; return the promised position.

    ``each`` flushes after each batch, too.
    """
    for batch in batches:
        sink.write(batch)
        if each:
            sink.flush()
    return sole(sink.flush())


def deliver(sink: Sink, batches: Iterable[Batch], *, each: bool = False) -> Position | None:
    """Open, write ``batches``, flush and close; return the promised position."""
    sink.open()
    promised = written(sink, batches, each=each)
    sink.close()
    return promised


def resume(
    rig: SinkRig, folder: Path, workload: ScriptedWorkload, stored: Position
) -> Position | None:
    """Resume as an engine does; return the result of `Sink.open`.

    Delivery starts at the stored offset, or at the sink's position if that is later.
    """
    sink = rig.build(folder, has_offset=True)
    held = sole(sink.open())
    start = stored if held is None else max(stored, held)
    # Another size than before: batches have other limits after a restart.
    written(sink, workload.batches(5, start, records=sink.capabilities.records))
    sink.close()
    return held


class SinkCrash:
    """A killed delivery, and the positions that the sink had promised."""

    def __init__(self, new_rig: Callable[[Path], SinkRig], folder: Path, kill: KillPoint) -> None:
        """Deliver to a new folder in a child that dies."""
        folder.mkdir()
        self.rig = rig = new_rig(folder)
        self.folder = folder
        self.capabilities = rig.build(folder).capabilities
        self.workload = mixed(truncate=self.capabilities.truncate)
        outcome = run(rig, _delivery(rig, folder, self.workload), kill)
        assert outcome.killed or outcome.error is None, outcome.error
        self.steps = outcome.steps
        self._promised = [Position(*report) for report in outcome.reports]
        self._at = f"{kill}, after {outcome.steps[-1] if outcome.steps else 'nothing'}"

    def open_again(self, kill: KillPoint) -> list[str]:
        """Open a sink in a child that dies; return its steps."""

        def act(child: CrashChild) -> None:
            sink = self.rig.opened(self.folder, has_offset=True)
            child.mark("open")
            sink.close()

        outcome = run(self.rig, act, kill)
        assert outcome.killed or outcome.error is None, outcome.error
        self._at += f"; opened again: {kill}, after {outcome.steps[-1:]}"
        return outcome.steps

    def restart(self, *, lose_last_offset: bool) -> int:
        """Deliver the rest to a new sink; count the doubles."""
        # The engine stores its offset after a flush, so a crash between them loses one offset.
        promised = self._promised[:-1] if lose_last_offset else self._promised
        stored = promised[-1] if promised else START
        held = resume(self.rig, self.folder, self.workload, stored)
        once = self.capabilities.exactly_once
        if once and self._promised:
            assert held is not None, f"{self._at}: it promised a position and forgot it"
            assert held >= self._promised[-1], f"{self._at}: opened at {held}, behind its promise"
        doubled = None if once else stored
        return assert_complete(
            self.rig, self.capabilities, self.workload, doubled=doubled, at=self._at
        )


def crashes(new_rig: Callable[[Path], SinkRig], folder: Path) -> Iterator[SinkCrash]:
    """Yield a crash per step, each with a destination."""
    counted = SinkCrash(new_rig, folder / "whole", KillPoint())
    for step in chosen(counted.steps):
        yield SinkCrash(new_rig, folder / f"step-{step}", KillPoint(step=step))


def crashes_of_open(new_rig: Callable[[Path], SinkRig], folder: Path) -> Iterator[SinkCrash]:
    """Yield crashes in the last flush, one per `open` step."""
    whole = SinkCrash(new_rig, folder / "whole", KillPoint())
    flush = KillPoint(step=whole.steps.index("last flush"))
    counted = SinkCrash(new_rig, folder / "counted", flush)
    for step in evenly(chosen(counted.open_again(KillPoint())), MOST_KILLS // 2):
        crash = SinkCrash(new_rig, folder / f"step-{step}", flush)
        crash.open_again(KillPoint(step=step))
        yield crash


def _delivery(
    rig: SinkRig, folder: Path, workload: ScriptedWorkload
) -> Callable[[CrashChild], None]:
    def act(child: CrashChild) -> None:
        sink = rig.opened(folder)
        child.mark("open")
        for number, batch in enumerate(workload.batches(4, records=sink.capabilities.records)):
            sink.write(batch)
            child.mark(f"write {number}")
            if number % 2:
                report_promise(sink.flush(), child)
                child.mark(f"flush after {number}")
        report_promise(sink.flush(), child)
        child.mark("last flush")
        sink.close()

    return act


def run(rig: SinkRig, act: Callable[[CrashChild], None], kill: KillPoint) -> ChildOutcome:
    """Run ``action`` in a child; imitate one if it cannot fork."""
    if rig.forks:
        return in_child(act, kill, own=own_files(rig.spec.factory))
    if kill.at_bytes is not None:
        pytest.skip("the plugin cannot run in a forked process")
    return imitated(act, kill)


def report_promise(durable: Position | Positions | None, child: CrashChild) -> None:
    """Report the position that a flush returned, from which an engine would resume."""
    promised = sole(durable)
    if promised is not None:
        child.report((promised.end_lsn, promised.commit_lsn, promised.index))


def write_and_report(sink: Sink, batch: Batch, child: CrashChild) -> RetryVerdict | None:
    """Write and flush; return the engine's permitted reaction to a failure.

    After a SinkError of the write that is its verdict, after one of the flush NEVER, and None
    without an error. Other errors propagate to the test.
    """
    try:
        sink.write(batch)
    except SinkError as error:
        return error.retry
    try:
        report_promise(sink.flush(), child)
    except SinkError:
        return RetryVerdict.NEVER
    return None


@contextmanager
def failing_sync() -> Iterator[None]:
    """Make every fsync of Python fail, as after a failed write-back."""

    def refuse(_file: object) -> None:
        raise OSError(errno.EIO, os.strerror(errno.EIO))

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(os, "fsync", refuse)
        patch.setattr(os, "fdatasync", refuse)
        yield


@contextmanager
def full_disk() -> Iterator[None]:
    """Make every file write fail, as on a full disk."""
    limit_file_size(0)
    try:
        yield
    finally:
        limit_file_size(None)
