"""Folding and merging beside the commits, which never wait for it.

A thread looks at the tables of the newest commit, and where something is due for one of them has the
format do it (`TableFormat.maintain`) from the table as it stood then. What it wrote becomes part of the
next commit, whatever came meanwhile: pending changes that came later stay pending. Where that does not fit
any more, since the table was replaced or its key changed, it is removed again; nobody has seen it.

This is for formats that write beside what is there; others see to it in their own steps.

Why two threads are safe here:

- *What is shared.* The thread reads `OutputState`, which never changes once it is made, and writes files
  whose names nobody else has. It has an `SparkOutput`, a table format and a Spark session of its
  own, since
  none of them may be used by two threads. What it made goes through a queue. It takes no lock that a
  commit takes, and waits for nothing that a commit does, nor does a commit wait for it: no deadlock.
- *Folding and a commit.* Only the thread that commits names files. It takes a result when all the files
  that this was made of still count (`grafted`); otherwise it removes the new files, which nobody named.
  Files that the thread reads may go meanwhile, when a commit dropped them longer ago than the grace: the
  thread's job fails then; if it did not, the result would not be taken, since these files count no more.
- *Folding and the end.* `stop` has Spark cancel what the thread runs, and waits until the thread is gone.
  What was made and not committed stays on disk, unnamed, until the next `SparkOutput.open` removes it.
- *Folding and kill -9.* The same: the commit file names a result, or it does not.
- *Spark's cores.* Jobs of the thread are in a pool of their own (`POOL`), so that under the fair scheduler
  a commit has its share of the cores while a large table is folded.
"""

import contextlib
import logging
import threading
import time
import uuid
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from queue import Empty, SimpleQueue
from typing import TYPE_CHECKING, Final, Protocol, TypeVar

import msgspec

from waltap_spark.formats import CommitContext, TableFormat
from waltap_spark.output import OutputState, SparkOutput, TableState
from waltap_spark.session import SizedSession, make_active

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

__all__ = ["CompactionResult", "CompactionWorker", "grafted"]

log = logging.getLogger(__name__)

RETRY_S: Final = 60.0
"""How long a table is left alone whose files could not be tended."""

POOL: Final = "waltap-upkeep"
"""Spark's scheduler pool of the thread."""

CANCEL_S: Final = 0.5
"""How often an end that is waited for has Spark cancel what still runs."""


class _HasPath(Protocol):
    @property
    def path(self) -> str: ...


P = TypeVar("P", bound=_HasPath)


@dataclass(frozen=True, slots=True)
class CompactionResult:
    """A table before and after its files were tended."""

    before: TableState
    after: TableState

    @property
    def made(self) -> set[str]:
        """Return the files that were written."""
        return self.after.paths() - self.before.paths()


def grafted(now: TableState, kept: CompactionResult) -> TableState | None:
    """Return ``now`` with the files that ``kept`` made in place of those it made them of; None when these
    do not count any more."""
    before, after = kept.before, kept.after
    folded = before.pending != after.pending and len(after.pending) < len(before.pending)
    if now.key != before.key or (folded and now.base != before.base):
        return None
    was = {part.path: part for part in before.base}
    if any(was.get(part.path, part) != part for part in now.base):
        return None  # columns of theirs count no more
    base = _replaced(now.base, before.base, after.base)
    pending = _replaced(now.pending, before.pending, after.pending)
    changes = _replaced(now.changes, before.changes, after.changes)
    if base is None or pending is None or changes is None:
        return None
    return msgspec.structs.replace(now, base=base, pending=pending, changes=changes)


def _replaced(
    now: tuple[P, ...], before: tuple[P, ...], after: tuple[P, ...]
) -> tuple[P, ...] | None:
    """Do to ``now`` what led from ``before`` to ``after``; None when what went is not there."""
    had, has = {each.path for each in before}, {each.path for each in after}
    gone = had - has
    new = [each for each in after if each.path not in had]
    if not gone <= {each.path for each in now}:
        return None
    found: list[P] = []
    for each in now:
        if each.path not in gone:
            found.append(each)
        elif new:
            found += new
            new = []
    return (*new, *found)


def _own(session: "SparkSession") -> None:
    """Have the jobs that this thread runs in ``session`` scheduled beside all others."""
    from pyspark.errors import PySparkAttributeError

    with contextlib.suppress(PySparkAttributeError):  # Spark Connect: the server's own matter
        session.sparkContext.setLocalProperty("spark.scheduler.pool", POOL)


class CompactionWorker:
    """Tends the files of one output's tables. `start` it, or call `tend` by hand.

    ``tables`` and ``output`` are its own: nothing of them is shared with who commits.
    """

    def __init__(
        self, session: Callable[[], "SparkSession"], output: SparkOutput, tables: TableFormat
    ) -> None:
        self._make_session, self._output, self._format = session, output, tables
        self._session: SizedSession | None = None
        self._state: OutputState | None = None
        self._seen: dict[str, TableState] = {}
        self._retry: dict[str, float] = {}
        self._waiting: set[str] = set()
        """Tables whose new files are not part of a commit yet."""
        self._done: SimpleQueue[CompactionResult] = SimpleQueue()
        self._wake, self._ends = threading.Event(), threading.Event()
        self._tending = threading.Lock()
        self._thread: threading.Thread | None = None

    def look(self, state: OutputState) -> None:
        """Take note of a new commit."""
        self._state = state
        self._wake.set()

    def done(self) -> list[CompactionResult]:
        """Return what was made since the last call. Who asks commits it, or removes it
        (`CompactionResult.made`), and says so (`settle`)."""
        found = []
        while True:
            try:
                found.append(self._done.get_nowait())
            except Empty:
                return found

    def settle(self, names: Iterable[str]) -> None:
        """Know that the results for tables ``names`` were committed or given up: they may be looked at
        again."""
        for name in names:
            self._waiting.discard(name)
            self._seen.pop(name, None)

    # --- the work -----------------------------------------------------------------------------------

    def tend(self, *, patient: bool = True) -> bool:
        """Look at all tables that changed since; tell whether something was done.

        ``patient``: a table whose files cannot be tended is left alone for a while, and the others are.
        """
        with self._tending:  # by hand (`Applier.maintain`) while a thread does it, too
            return self._tend(patient=patient)

    def _tend(self, *, patient: bool) -> bool:
        state = self._state
        worked = False
        for table in () if state is None else tuple(state.tables.values()):
            if self._ends.is_set():
                break
            if table.failed or self._seen.get(table.name) is table or table.name in self._waiting:
                continue
            if time.monotonic() < self._retry.get(table.name, 0.0):
                continue
            self._seen[table.name] = table
            try:
                worked |= self._tend_one(table, state)
            except Exception as error:
                if not patient:
                    raise
                if self._ends.is_set():
                    break  # Spark was told to cancel it
                self._retry[table.name] = time.monotonic() + RETRY_S
                self._seen.pop(table.name, None)
                log.warning("files of %s stay as they are for now: %s", table.name, error)
        return worked

    def _tend_one(self, table: TableState, state: OutputState | None) -> bool:
        assert state is not None
        if self._session is None:
            self._session = SizedSession(self._make_session())
            if threading.current_thread() is self._thread:
                _own(self._session.session)
                make_active(self._session.session)
        step = CommitContext(
            spark=self._session.suit(table.stored_rows),
            number=state.number,
            mark=state.mark,
            attempt=uuid.uuid4().hex[:8],
        )
        started = time.monotonic()
        try:
            after = self._format.maintain(step, table)
        except Exception:
            self._output.remove_vain(step.given)
            raise
        self._output.remove_vain(step.given, after)
        if after is table:
            return False
        self._output.store.settle()
        self._waiting.add(table.name)
        self._done.put(CompactionResult(table, after))
        took = round((time.monotonic() - started) * 1000)
        log.info("tended %s", table.name, extra={"duration_ms": took})
        return True

    # --- a thread of its own ------------------------------------------------------------------------

    def start(self) -> None:
        """Begin to tend, until `stop`; nothing where that was done already."""
        if self._thread is not None:
            return
        with self._tending:
            self._session = None  # that of who tended by hand
        self._thread = threading.Thread(target=self._run, name="waltap-upkeep", daemon=True)
        self._thread.start()

    def stop(self, patience_s: float = 30.0) -> None:
        """End: cancel what is being done, and wait for the thread. What was made and not committed is
        removed at the next start."""
        self._ends.set()
        self._wake.set()
        limit = time.monotonic() + patience_s
        while self._thread is not None:
            self._cancel()
            self._thread.join(CANCEL_S)
            if not self._thread.is_alive():
                self._thread = None
            elif time.monotonic() >= limit:
                log.warning("files are still being tended; what comes of it counts for nothing")
                return

    def _cancel(self) -> None:
        """Have Spark end the jobs of the thread; one that begins then is for the next call."""
        suited = self._session
        if suited is not None:
            with contextlib.suppress(Exception):  # Spark may be gone already, and its jobs with it
                suited.session.interruptAll()

    def _run(self) -> None:
        while not self._ends.is_set():
            self._wake.wait(RETRY_S)
            self._wake.clear()
            self.tend()
