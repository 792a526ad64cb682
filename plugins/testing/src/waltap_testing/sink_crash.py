"""Deliveries that break off, and the engine's part in going on: the offset, and what comes after it."""

import errno
import os
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import pytest

from waltap.errors import RetryVerdict, SinkError
from waltap.sink.sink import Sink
from waltap.source.position import START, Position, Positions
from waltap.transactions.transaction import Batch
from waltap_testing.crash import (
    NATIVE,
    ChildOutcome,
    CrashChild,
    KillPoint,
    imitated,
    in_child,
    limit_file_size,
    own_files,
)
from waltap_testing.damage import evenly
from waltap_testing.scenarios import mixed
from waltap_testing.sink_findings import assert_complete
from waltap_testing.sink_rig import SinkRig, sole
from waltap_testing.workload import ScriptedWorkload

__all__ = [
    "SinkCrash",
    "crashes",
    "deliver",
    "failing_sync",
    "full_disk",
    "resume",
    "run",
    "write_and_report",
]

MOST_KILLS = 32


def deliver(sink: Sink, workload: ScriptedWorkload) -> None:
    """Open, write all in one go, flush, close."""
    sink.open()
    for batch in workload.batches(1_000, records=sink.capabilities.records):
        sink.write(batch)
    sink.flush()
    sink.close()


def resume(
    rig: SinkRig, folder: Path, workload: ScriptedWorkload, stored: Position
) -> Position | None:
    """Go on as an engine does: from the stored offset, or the sink's position if that is later.

    Batches are cut elsewhere than before, as they are after any restart. Returns what open said.
    """
    sink = rig.build(folder, resumes=True)
    held = sole(sink.open())
    start = stored if held is None else max(stored, held)
    for batch in workload.batches(5, start, records=sink.capabilities.records):
        sink.write(batch)
    sink.flush()
    sink.close()
    return held


class SinkCrash:
    """A delivery that was killed, and what the sink had promised by then."""

    def __init__(
        self,
        rig: SinkRig,
        folder: Path,
        workload: ScriptedWorkload,
        kill: KillPoint,
        outcome: ChildOutcome,
    ) -> None:
        self.rig, self.folder, self.workload = rig, folder, workload
        self.capabilities = rig.build(folder).capabilities
        self._promised = [Position(*report) for report in outcome.reports]
        self._at = f"{kill}, after {outcome.steps[-1] if outcome.steps else 'nothing'}"

    @classmethod
    def of(cls, rig: SinkRig, folder: Path, kill: KillPoint) -> "SinkCrash":
        """Deliver in a process that is killed, or is not where the kill never comes to pass."""
        workload = mixed(truncate=rig.build(folder).capabilities.truncate)
        outcome = run(rig, _delivery(rig, folder, workload), kill)
        assert outcome.killed or outcome.error is None, outcome.error
        return cls(rig, folder, workload, kill, outcome)

    def go_on(self, *, lose_last_offset: bool) -> int:
        """Deliver the rest to a new sink and check everything; return the number of doubles."""
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
    """Give one crash per step of a delivery, each with a destination of its own."""
    whole = folder / "whole"
    whole.mkdir()
    rig = new_rig(whole)
    workload = mixed(truncate=rig.build(whole).capabilities.truncate)
    counted = run(rig, _delivery(rig, whole, workload), KillPoint())
    assert counted.error is None, counted.error
    for step in _chosen(counted.steps):
        own = folder / f"step-{step}"
        own.mkdir()
        yield SinkCrash.of(new_rig(own), own, KillPoint(step=step))


def _chosen(steps: Sequence[str]) -> list[int]:
    """Return the steps to be killed at, by number from 1: as many as may be of what changes files or is
    the suite's own, and of native calls some of each line, since loops make most of them."""
    acts: list[int] = []
    lines: dict[str, list[int]] = {}
    for number, name in enumerate(steps, 1):
        (lines.setdefault(name, []) if name.startswith(NATIVE) else acts).append(number)
    acts = evenly(acts, MOST_KILLS)
    each = max(2, (MOST_KILLS - len(acts)) // max(1, len(lines)))
    natives = sorted(number for found in lines.values() for number in evenly(found, each))
    return sorted([*acts, *evenly(natives, MOST_KILLS)])


def _delivery(
    rig: SinkRig, folder: Path, workload: ScriptedWorkload
) -> Callable[[CrashChild], None]:
    def act(child: CrashChild) -> None:
        sink = rig.build(folder)
        sink.open()
        child.mark("open")
        for number, batch in enumerate(workload.batches(4, records=sink.capabilities.records)):
            sink.write(batch)
            child.mark(f"write {number}")
            if number % 2:
                _report(sink.flush(), child)
                child.mark(f"flush after {number}")
        _report(sink.flush(), child)
        child.mark("last flush")
        sink.close()

    return act


def run(rig: SinkRig, act: Callable[[CrashChild], None], kill: KillPoint) -> ChildOutcome:
    """Run ``act`` where it may die: in a child, or imitated where the rig says so."""
    if rig.forks:
        return in_child(act, kill, own=own_files(rig.spec.factory))
    if kill.at_bytes is not None:
        pytest.skip("the plugin cannot run in a forked process")
    return imitated(act, kill)


def _report(durable: Position | Positions | None, child: CrashChild) -> None:
    promised = sole(durable)
    if promised is not None:
        child.report((promised.end_lsn, promised.commit_lsn, promised.index))


def write_and_report(sink: Sink, batch: Batch, child: CrashChild) -> RetryVerdict | None:
    """Write and flush. Returns what an engine may do after a SinkError of the write, or NEVER after
    one of the flush; None when both went well. Any other error is the test's to judge.
    """
    try:
        sink.write(batch)
    except SinkError as error:
        return error.retry
    try:
        _report(sink.flush(), child)
    except SinkError:
        return RetryVerdict.NEVER
    return None


@contextmanager
def failing_sync() -> Iterator[None]:
    """Let every fsync that Python makes fail, as after a failed write-back."""

    def refuse(_file: object) -> None:
        raise OSError(errno.EIO, os.strerror(errno.EIO))

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(os, "fsync", refuse)
        patch.setattr(os, "fdatasync", refuse)
        yield


@contextmanager
def full_disk() -> Iterator[None]:
    """Let every write to a file fail, as on a full disk."""
    limit_file_size(0)
    try:
        yield
    finally:
        limit_file_size(None)
