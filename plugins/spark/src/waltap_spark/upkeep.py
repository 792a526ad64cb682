"""Folding and merging beside the commits, which never wait for it.

A thread looks at the tables of the newest commit, and where something is due for one of them has the
format do it (`TableFormat.maintain`) from the table as it stood then. What it wrote becomes part of the
next commit, whatever came meanwhile: pending changes that came later stay pending. Where that does not fit
any more, since the table was replaced or its key changed, it is removed again; nobody has seen it.

This is for formats that write beside what is there; others see to it in their own steps.
"""

import logging
import threading
import time
import uuid
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from queue import Empty, SimpleQueue
from typing import TYPE_CHECKING, Final, Protocol, TypeVar

import msgspec

from waltap_spark.formats import Step, TableFormat
from waltap_spark.output import Output, OutputState, TableState

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

__all__ = ["Kept", "Upkeep", "grafted"]

log = logging.getLogger(__name__)

RETRY_S: Final = 60.0
"""How long a table is left alone whose files could not be tended."""


class _HasPath(Protocol):
    @property
    def path(self) -> str: ...


P = TypeVar("P", bound=_HasPath)


@dataclass(frozen=True, slots=True)
class Kept:
    """A table before and after its files were tended."""

    before: TableState
    after: TableState


def grafted(now: TableState, kept: Kept) -> TableState | None:
    """Return ``now`` with the files that ``kept`` made in place of those it made them of; None when these
    do not count any more."""
    before, after = kept.before, kept.after
    folded = before.pending != after.pending and len(after.pending) < len(before.pending)
    if now.key != before.key or (folded and now.base != before.base):
        return None
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


class Upkeep:
    """Tends the files of one output's tables. `start` it, or call `tend` by hand.

    ``tables`` and ``output`` are its own: nothing of them is shared with who commits.
    """

    def __init__(
        self, session: Callable[[], "SparkSession"], output: Output, tables: TableFormat
    ) -> None:
        self._make_session, self._output, self._format = session, output, tables
        self._session: SparkSession | None = None
        self._state: OutputState | None = None
        self._seen: dict[str, TableState] = {}
        self._retry: dict[str, float] = {}
        self._waiting: set[str] = set()
        """Tables whose new files are not part of a commit yet."""
        self._done: SimpleQueue[Kept] = SimpleQueue()
        self._wake, self._ends = threading.Event(), threading.Event()
        self._thread: threading.Thread | None = None

    def look(self, state: OutputState) -> None:
        """Take note of a new commit."""
        self._state = state
        self._wake.set()

    def done(self) -> list[Kept]:
        """Return what was made since the last call; who asks commits it, or has it removed (`discard`)."""
        found = []
        while True:
            try:
                found.append(self._done.get_nowait())
            except Empty:
                return found

    def discard(self, kept: Kept) -> None:
        """Remove what was made and does not fit any more."""
        self.settle([kept.before.name])
        for path in kept.after.paths() - kept.before.paths():
            self._output.remove(path)

    def settle(self, names: Iterable[str]) -> None:
        """Know that the results for tables ``names`` were committed: they may be looked at again."""
        for name in names:
            self._waiting.discard(name)
            self._seen.pop(name, None)

    # --- the work -----------------------------------------------------------------------------------

    def tend(self, *, patient: bool = True) -> bool:
        """Look at all tables that changed since; tell whether something was done.

        ``patient``: a table whose files cannot be tended is left alone for a while, and the others are.
        """
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
                self._retry[table.name] = time.monotonic() + RETRY_S
                self._seen.pop(table.name, None)
                log.warning("files of %s stay as they are for now: %s", table.name, error)
        return worked

    def _tend_one(self, table: TableState, state: OutputState | None) -> bool:
        assert state is not None
        if self._session is None:
            self._session = self._make_session()
        step = Step(
            spark=self._session,
            number=state.number,
            mark=state.mark,
            attempt=uuid.uuid4().hex[:8],
        )
        started = time.monotonic()
        after = self._format.maintain(step, table)
        if after is table:
            return False
        self._output.store.settle()
        self._waiting.add(table.name)
        self._done.put(Kept(table, after))
        took = round((time.monotonic() - started) * 1000)
        log.info("tended %s", table.name, extra={"duration_ms": took})
        return True

    # --- a thread of its own ------------------------------------------------------------------------

    def start(self) -> None:
        """Begin to tend, until `stop`."""
        self._thread = threading.Thread(target=self._run, name="waltap-upkeep", daemon=True)
        self._thread.start()

    def stop(self, patience_s: float = 30.0) -> None:
        """End, after what is being done; what was done and not committed is removed at the next start."""
        self._ends.set()
        self._wake.set()
        if self._thread is not None:
            self._thread.join(patience_s)
            self._thread = None

    def _run(self) -> None:
        while not self._ends.is_set():
            self._wake.wait()
            self._wake.clear()
            self.tend()
