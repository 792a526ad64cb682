"""Rows of each commit and waiting rows, table by table.

A view draws them again and again. A commit says which position it reached; manifests of the change
log say how many rows of each table are between two positions. So the applier writes nothing for
this view, the view is the same for all formats, and it needs no Spark.
"""

import contextlib
import datetime as dt
import threading
import time
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, Self

import msgspec

from waltap.errors import SinkError
from waltap.ports.sink.roles import DownstreamProgress, DownstreamTable
from waltap_sinks.changelog import NOTHING, ChangeLog, LogPosition, Manifest
from waltap_sinks.changelog.errors import ChangeLogDamaged, ChangeLogExpired
from waltap_spark.config.properties import SparkProperties
from waltap_spark.state.output import OutputState, SparkOutput, applied_by_all

if TYPE_CHECKING:
    from rich.table import Table
    from rich.text import Text


# Minimum seconds between two reads of the newest commit.
POLL_S = 2.0


class AppliedSoFar:
    """Reads the commits of a sink's output; safe for threads."""

    def __init__(self, properties: SparkProperties) -> None:
        self._properties = properties
        self._watch: OutputMonitor | None = None
        self._state: OutputState | None = None
        self._progress = OutputProgress(batches=(), tables=())
        self._problem = ""
        self._looked: float | None = None
        self._lock = threading.Lock()

    def downstream_progress(self, log: LogPosition) -> DownstreamProgress:
        """Return Spark's progress; ``log`` is the change log's end."""
        with self._lock:
            now = time.monotonic()
            if self._looked is None or now - self._looked >= POLL_S:
                self._read_progress()
                self._looked = now
            state, problem = self._state, self._problem
        log_position = NOTHING if state is None else applied_by_all(state)
        commit_ts = None if state is None else state.last_commit_ts
        same = log_position.epoch == log.epoch  # LSNs of two source histories are not comparable
        return DownstreamProgress(
            stage="spark",
            lsn=log_position.end_lsn,
            lag_bytes=max(0, log.end_lsn - log_position.end_lsn) if same else None,
            current=log_position >= log,
            committed_ms=None if commit_ts is None else commit_ts // 1000,
            applied_ms=None if state is None else round(state.committed_at * 1000),
            tables=() if state is None else self._tables(state),
            problem=problem,
        )

    def _tables(self, state: OutputState) -> tuple[DownstreamTable, ...]:
        lags = {each.table: each for each in self._progress.tables}
        batches = self._progress.batches
        rows = (batches[-1].rows or {}) if batches else {}
        return tuple(
            DownstreamTable(
                table=name,
                lsn=(table.log_position or state.log_position).end_lsn,
                failed=table.failed,
                batch_rows=rows.get(name, 0),
                waiting_rows=lags[name].waiting_rows if name in lags else None,
                lag_ms=lags[name].lag_ms if name in lags else None,
            )
            for name, table in state.tables.items()
        )

    def _read_progress(self) -> None:
        self._problem = ""
        try:
            if self._watch is None:
                self._watch = OutputMonitor(self._properties.output())
            # an output has no state before its first commit; keep the last state that was read
            self._state = self._watch.output.state() or self._state
            self._progress = self._watch.progress(time.time_ns() // 1_000_000)
        except SinkError as error:
            self._problem = error.problem


SHOWN = 5


class AppliedCommit(msgspec.Struct, frozen=True, kw_only=True):
    """One commit of the output."""

    number: int
    # Milliseconds since 1970 UTC.
    committed_ms: int
    # How long after its last transaction's commit in the source.
    commit_lag_ms: int | None
    # Rows of each table, None when the change log no longer has the manifests.
    rows: dict[str, int] | None


class TableLag(msgspec.Struct, frozen=True, kw_only=True):
    """Rows of one table that are not applied yet."""

    table: str
    # Rows in the change log.
    waiting_rows: int
    # Age of the first waiting row's commit, 0 without any.
    lag_ms: int
    # Why the table is suspended.
    failed: str = ""


class OutputProgress(msgspec.Struct, frozen=True, kw_only=True):
    """The newest commits, oldest first, and every table."""

    batches: tuple[AppliedCommit, ...]
    tables: tuple[TableLag, ...]


class OutputMonitor:
    """Reads an output's commits and its change log. Single-threaded."""

    def __init__(self, output: SparkOutput) -> None:
        self.output = output
        self._batches: dict[int, AppliedCommit] = {}
        # Manifests after the last commit, and its position.
        self._steps: list[_Step] = []
        self._since = NOTHING
        self._waiting: dict[str, _WaitingRows] = {}

    def progress(self, now_ms: int) -> OutputProgress:
        """Return the newest commits and every table's lag.

        Raises: OutputDamaged, FilesUnavailable.
        """
        states = self.output.readable_states()[-SHOWN - 1 :]
        if not states:
            return OutputProgress(batches=(), tables=())
        log = ChangeLog(self.output.store.reached_alike(states[-1].changelog))
        known, self._batches = self._batches, {}
        for before, after in zip([None, *states[:-1]], states, strict=True):
            if before is None and after.number > 1:
                continue  # the commit before it was removed, so its first change is unknown
            found = known.get(after.number)
            self._batches[after.number] = found or _batch(log, before, after)
        return OutputProgress(
            batches=tuple(self._batches.values())[-SHOWN:],
            tables=self._tables(log, states[-1], now_ms),
        )

    def _tables(self, log: ChangeLog, state: OutputState, now_ms: int) -> tuple[TableLag, ...]:
        """Count the rows that wait for each table.

        The waiting log may have days of manifests, so each look reads only the new ones. It adds
        their rows to a suspended table's count, and counts the rows of other tables again.
        """
        known, self._waiting = self._waiting, {}
        for name, table in state.tables.items():
            if table.failed and table.log_position is not None:
                had = known.get(name)
                if had is None or had.since != table.log_position:
                    had = _WaitingRows(table.log_position)
                self._waiting[name] = had
        since = state.log_position
        # an output may be restored from a copy
        known_steps = self._steps if self._since <= since else []
        self._steps = steps = [each for each in known_steps if each.log_position > since]
        self._since = since
        until = steps[-1].log_position if steps else since
        # the applier reports these errors; one table's must not hide the lag of others
        with contextlib.suppress(ChangeLogExpired, ChangeLogDamaged):
            steps.extend(map(_Step.of, log.manifests(until)))
        # A table whose manifests are gone must not hide the rows of another, which is later.
        begins = {each.until for each in self._waiting.values()}
        for begin in sorted(each for each in begins if each < since):
            with contextlib.suppress(ChangeLogExpired, ChangeLogDamaged):
                self._count(map(_Step.of, log.manifests(begin, since)))
                break
        self._count(steps)
        others: dict[str, _WaitingRows] = {}
        for step in steps:
            for name in step.rows.keys() - self._waiting.keys():
                others.setdefault(name, _WaitingRows(since)).take(step, step.rows[name])
        waiting = others | self._waiting
        nothing = _WaitingRows(state.log_position)
        return tuple(
            TableLag(
                table=name,
                waiting_rows=waiting.get(name, nothing).rows,
                lag_ms=waiting.get(name, nothing).lag_ms(now_ms),
                failed=state.tables[name].failed if name in state.tables else "",
            )
            for name in sorted(
                state.tables.keys() | {n for n, each in waiting.items() if each.rows}
            )
        )

    def _count(self, steps: Iterable["_Step"]) -> None:
        for step in steps:
            for name, each in self._waiting.items():
                each.take(step, step.rows.get(name, 0))
                each.until = max(each.until, step.log_position)


@dataclass(frozen=True, slots=True)
class _Step:
    """The rows of one manifest, table by table."""

    log_position: LogPosition
    first_commit_ts: int | None
    # Table → rows.
    rows: Mapping[str, int]

    @classmethod
    def of(cls, manifest: Manifest) -> Self:
        rows: Counter[str] = Counter()
        for entry in manifest.tables:
            rows[entry.name] += entry.rows
        return cls(manifest.log_position, manifest.first_commit_ts, rows)


class _WaitingRows:
    """Rows of one table between the positions ``since`` and ``until``."""

    def __init__(self, since: LogPosition) -> None:
        self.since = self.until = since
        self.rows = 0
        self._first_us: int | None = None

    def take(self, step: _Step, rows: int) -> None:
        """Count ``rows`` of ``step`` once."""
        if rows and step.log_position > self.until:
            self.rows += rows
            if self._first_us is None:
                self._first_us = step.first_commit_ts

    def lag_ms(self, now_ms: int) -> int:
        """Return the age of the first waiting row's commit."""
        return 0 if self._first_us is None else max(0, now_ms - self._first_us // 1000)


def _batch(log: ChangeLog, before: OutputState | None, after: OutputState) -> AppliedCommit:
    counted: Counter[str] = Counter()
    rows: dict[str, int] | None = counted
    try:
        for step in log.manifests(
            None if before is None else before.log_position, after.log_position
        ):
            for entry in step.tables:
                table = after.tables.get(entry.name)
                if table is not None and not (table.failed and table.log_position):
                    counted[entry.name] += entry.rows
    except (ChangeLogExpired, ChangeLogDamaged):
        rows = None
    committed_ms = round(after.committed_at * 1000)
    last = after.last_commit_ts
    moved = before is None or last != before.last_commit_ts
    return AppliedCommit(
        number=after.number,
        committed_ms=committed_ms,
        commit_lag_ms=max(0, committed_ms - last // 1000) if last is not None and moved else None,
        rows=rows,
    )


NO_COMMIT_YET: Final = (
    "nothing was applied here yet. If this is the sink's path, the first commit comes after the "
    "snapshot; spark.log in the state folder shows how far the applier is"
)


def drawn(progress: OutputProgress, title: str) -> "Table | Text":
    """Return a terminal table: tables by commits.

    Before the first commit it is a sentence.
    """
    from rich.markup import escape
    from rich.table import Table
    from rich.text import Text

    if not (progress.batches or progress.tables):
        return Text(f"{title}: {NO_COMMIT_YET}")
    shown = Table(title=escape(title))
    shown.add_column("table")
    shown.add_column("waiting rows", justify="right")
    shown.add_column("lag", justify="right")
    for each in progress.batches:
        at = dt.datetime.fromtimestamp(each.committed_ms / 1000, dt.UTC)
        delay = "" if each.commit_lag_ms is None else f"\n{each.commit_lag_ms / 1000:.1f} s late"
        shown.add_column(f"#{each.number} {at:%H:%M:%S}{delay}", justify="right")
    for table in progress.tables:
        cells = [
            "?" if each.rows is None else f"{each.rows.get(table.table, 0):,}"
            for each in progress.batches
        ]
        lag = "is suspended" if table.failed else f"{table.lag_ms / 1000:.1f} s"
        shown.add_row(escape(table.table), f"{table.waiting_rows:,}", lag, *cells)
    return shown
