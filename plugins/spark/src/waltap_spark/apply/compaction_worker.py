"""Compact table files in a thread beside the commits.

A thread looks at the tables of the newest commit. When a table needs compaction, its format
compacts it from that commit's state (`TableFormat.maintain`). The result becomes part of the next
commit; pending changes that came later stay pending. If the table was replaced or its key changed
in the meantime, the result no longer fits. The commit thread then removes the new files, which no
commit named.

Only formats that write new files beside existing ones use this. Other formats compact in their
own steps.

Why two threads are safe here:

- *Shared data.* The thread reads `OutputState`, which is immutable, and writes files with names
  of its own. It has its own `SparkOutput`, table format and Spark session, because two threads
  must not share them. Results go through a queue. Neither thread waits for a lock of the other,
  so they cannot deadlock.
- *Compaction and a commit.* Only the commit thread names files. It uses a result when all its
  input files still count (`grafted`); otherwise it removes the new files. Files that the thread
  reads may disappear when a commit dropped them longer ago than the retention time. The job then
  fails; its result would be rejected in any case.
- *Compaction and the end.* `stop` makes Spark cancel the thread's jobs, and waits for the thread.
  Uncommitted files stay on disk until the next `SparkOutput.open` removes them.
- *Compaction and kill -9.* A commit file names the result or does not.
- *Spark's cores.* Jobs of the thread have their own pool (`POOL`). Under the fair scheduler a
  commit keeps its share of cores while a large table is compacted.
"""

import contextlib
import logging
import threading
import time
import uuid
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from queue import SimpleQueue
from typing import Final

import msgspec
from pyspark.errors import PySparkAttributeError
from pyspark.sql import SparkSession

from waltap_spark.formats.table_format import CommitContext, TableFormat
from waltap_spark.session.session import SizedSession, make_active
from waltap_spark.state.output import OutputState, SparkOutput, TableState, replaced_sets

log = logging.getLogger(__name__)

# Seconds before a table is tried again after its compaction failed.
RETRY_S: Final = 60.0

# Spark's scheduler pool of the thread.
POOL: Final = "waltap-compaction"

# Seconds between two attempts to cancel running jobs at the end.
CANCEL_S: Final = 0.5


@dataclass(frozen=True, slots=True)
class CompactionResult:
    """A table before and after compaction."""

    before: TableState
    after: TableState

    @property
    def made(self) -> set[str]:
        """Return the written files."""
        return self.after.paths() - self.before.paths()


def grafted(now: TableState, result: CompactionResult) -> TableState | None:
    """Return ``now`` with compacted files in place of their inputs.

    None means that an input file no longer counts.
    """
    before, after = result.before, result.after
    # pending changes went into a new base: it replaces the base that they applied to
    compacted = before.pending != after.pending and len(after.pending) < len(before.pending)
    if now.key != before.key or (compacted and now.base != before.base):
        return None
    was = {part.path: part for part in before.base}
    if any(was.get(part.path, part) != part for part in now.base):
        return None  # a later commit dropped columns from these parts
    base = replaced_sets(now.base, before.base, after.base)
    pending = replaced_sets(now.pending, before.pending, after.pending)
    changes = replaced_sets(now.changes, before.changes, after.changes)
    if base is None or pending is None or changes is None:
        return None
    return msgspec.structs.replace(now, base=base, pending=pending, changes=changes)


class CompactionWorker:
    """Compacts an output's tables, in a thread or by `maintain`."""

    def __init__(
        self, session: Callable[[], SparkSession], output: SparkOutput, tables: TableFormat
    ) -> None:
        self._make_session, self._output, self._format = session, output, tables
        self._session: SizedSession | None = None
        self._state: OutputState | None = None
        # Tables at the last look: an unchanged table is skipped.
        self._seen: dict[str, TableState] = {}
        # When a failed table may be tried again.
        self._retry: dict[str, float] = {}
        # Tables whose new files are not yet part of a commit.
        self._waiting: set[str] = set()
        self._done: SimpleQueue[CompactionResult] = SimpleQueue()
        self._wake, self._ends = threading.Event(), threading.Event()
        self._maintaining = threading.Lock()
        self._thread: threading.Thread | None = None

    def wake(self, state: OutputState) -> None:
        """Record a new commit."""
        self._state = state
        self._wake.set()

    def done(self) -> list[CompactionResult]:
        """Return the results since the last call.

        The caller commits a result or removes its files (`CompactionResult.made`), and calls
        `handled`.
        """
        return [self._done.get() for _each in range(self._done.qsize())]

    def handled(self, names: Iterable[str]) -> None:
        """Record that the results for tables ``names`` were committed or discarded."""
        for name in names:
            self._waiting.discard(name)
            self._seen.pop(name, None)

    # --- the work -----------------------------------------------------------------------------------

    def maintain(self, *, patient: bool = True) -> bool:
        """Compact all changed tables; return whether any needed it.

        ``patient``: a table that fails is skipped for a while, and the others are compacted.
        """
        with self._maintaining:  # `OutputApplier.maintain` may call it while the thread runs
            return self._maintain(patient=patient)

    def _maintain(self, *, patient: bool) -> bool:
        state, worked = self._state, False
        if state is None:
            return False
        for table in state.tables.values():
            if self._ends.is_set():
                break
            if table.failed or self._seen.get(table.name) is table or table.name in self._waiting:
                continue
            if time.monotonic() < self._retry.get(table.name, 0.0):
                continue
            self._seen[table.name] = table
            try:
                worked |= self._maintain_one(table, state)
            except Exception as error:
                if not patient:
                    raise
                if self._ends.is_set():
                    break  # `stop` cancelled the job
                self._retry[table.name] = time.monotonic() + RETRY_S
                self._seen.pop(table.name, None)
                log.warning("files of %s stay as they are for now: %s", table.name, error)
        return worked

    def _maintain_one(self, table: TableState, state: OutputState) -> bool:
        """Compact one table; return whether it needed it."""
        if self._session is None:
            self._session = SizedSession(self._make_session())
            if threading.current_thread() is self._thread:
                session = self._session.session
                # of a session of Spark Connect the server decides
                with contextlib.suppress(PySparkAttributeError):
                    session.sparkContext.setLocalProperty("spark.scheduler.pool", POOL)
                make_active(session)
        commit = CommitContext(
            spark=self._session.suit(table.stored_rows),
            number=state.number,
            log_position=state.log_position,
            attempt=uuid.uuid4().hex[:8],
        )
        started = time.monotonic()
        try:
            after = self._format.maintain(commit, table)
        except Exception:
            self._output.delete_orphans(commit.given)
            raise
        self._output.delete_orphans(commit.given, after)
        if after is table:
            return False
        # files must be durable before a commit can name them
        self._output.store.make_durable()
        self._waiting.add(table.name)
        self._done.put(CompactionResult(table, after))
        took = round((time.monotonic() - started) * 1000)
        log.info("maintained %s", table.name, extra={"duration_ms": took})
        return True

    # --- a thread of its own ------------------------------------------------------------------------

    def start(self) -> None:
        """Start the thread; a second call does nothing."""
        if self._thread is not None:
            return
        with self._maintaining:
            self._session = None  # it belongs to the thread that called `maintain`
        self._thread = threading.Thread(target=self._run, name="waltap-compaction", daemon=True)
        self._thread.start()

    def stop(self, patience_s: float = 30.0) -> None:
        """Cancel the running compaction and wait for the thread.

        The next start removes files that no commit names.
        """
        self._ends.set()
        self._wake.set()
        limit = time.monotonic() + patience_s
        while self._thread is not None:
            self._cancel()
            self._thread.join(CANCEL_S)
            if not self._thread.is_alive():
                self._thread = None
            elif time.monotonic() >= limit:
                log.warning("files are still being maintained; the result is discarded")
                return

    def _cancel(self) -> None:
        """Cancel the thread's Spark jobs.

        The next call cancels a job that starts later.
        """
        suited = self._session
        if suited is not None:
            with contextlib.suppress(Exception):  # Spark may have ended, and its jobs with it
                suited.session.interruptAll()

    def _run(self) -> None:
        while not self._ends.is_set():
            self._wake.wait(RETRY_S)
            self._wake.clear()
            self.maintain()
