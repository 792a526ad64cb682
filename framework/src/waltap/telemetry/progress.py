"""An observer that shows a pipeline on a terminal: a bar per snapshot table, then the stream."""

import time
from collections import deque
from typing import TYPE_CHECKING

from rich.progress import (
    BarColumn,
    Progress,
    ProgressColumn,
    SpinnerColumn,
    Task,
    TextColumn,
    TimeRemainingColumn,
)
from rich.text import Text

from waltap.config.secrecy import redacted
from waltap.hookspecs import hookimpl
from waltap.transactions.transaction import Batch

if TYPE_CHECKING:
    from rich.console import Console
    from rich.progress import TaskID

__all__ = ["ProgressDisplay"]

WINDOW_S = 3.0


class _Rows(ProgressColumn):
    """``12,345 of ~20,000``, and ``20,123 rows`` when all are there."""

    def render(self, task: Task) -> Text:
        if task.total and not task.finished:
            return Text(f"{task.completed:,.0f} of ~{task.total:,.0f}", no_wrap=True)
        return Text(f"{task.completed:,.0f} {task.fields.get('noun', 'rows')}", no_wrap=True)


class _Rate(ProgressColumn):
    """``12,345/s``: over the last seconds; over all of them once a table is done."""

    def render(self, task: Task) -> Text:
        if task.finished:
            rate = task.completed / task.finished_time if task.finished_time else 0.0
        else:
            rate = task.fields["meter"].per_second()
        return Text(f"{rate:,.0f}/s", style="cyan")


class _Meter:
    """How many events came in the last seconds; a quiet stream falls to 0."""

    def __init__(self) -> None:
        self._began = time.monotonic()
        self._seen: deque[tuple[float, int]] = deque()

    def add(self, events: int) -> None:
        self._seen.append((time.monotonic(), events))

    def per_second(self) -> float:
        now = time.monotonic()
        while self._seen and self._seen[0][0] < now - WINDOW_S:
            self._seen.popleft()
        passed = min(WINDOW_S, now - self._began)
        return sum(events for _, events in self._seen) / passed if passed else 0.0


class ProgressDisplay:
    """Bars on ``console`` between `start` and `stop`; the hooks feed them."""

    def __init__(self, console: "Console") -> None:
        self._console = console
        self._progress = Progress(
            SpinnerColumn(finished_text="[green]✓[/]"),
            TextColumn("{task.description}"),
            BarColumn(bar_width=16),
            _Rows(),
            _Rate(),
            TimeRemainingColumn(),
            console=console,
        )
        self._tables: dict[str, TaskID] = {}
        self._rows: dict[str, int] = {}
        self._stream: TaskID | None = None
        self._meter = _Meter()

    def start(self) -> None:
        """Begin to draw."""
        self._progress.start()

    def stop(self) -> None:
        """Leave the last state on the screen."""
        self._progress.stop()

    @hookimpl
    def on_state(self, state: str, detail: str) -> None:
        """Say what the pipeline does now; streaming has a line of its own."""
        if state == "streaming" and self._stream is None:
            self._meter = _Meter()
            self._stream = self._progress.add_task(
                "streaming", total=None, noun="changes", meter=self._meter
            )
        if state == "reconnecting":
            first = redacted(detail.splitlines()[0]) if detail else ""
            line = Text(f"{state}: {first}", style="yellow")
            self._console.print(line)
        elif state not in {"streaming", "failed"}:  # the error itself is shown at the end
            self._console.print(state, style="dim")

    @hookimpl
    def on_snapshot(self, event: str, table: str, rows: int, total: int | None) -> None:
        """Move the bar of a table. An estimate that was too low grows with the rows."""
        if event == "table_started":
            self._meter = _Meter()
            self._tables[table] = self._progress.add_task(table, total=total, meter=self._meter)
            self._rows[table] = 0
        elif event == "progress" and table in self._tables:
            self._meter.add(rows - self._rows[table])
            self._rows[table] = rows
            whole = max(total, rows + 1) if total else None
            self._progress.update(self._tables[table], completed=rows, total=whole)
        elif event == "table_completed" and table in self._tables:
            visible = rows > 0  # a long list of empty tables tells nothing
            self._progress.update(
                self._tables[table], completed=rows or 1, total=rows or 1, visible=visible
            )

    @hookimpl
    def on_batch(self, batch: Batch) -> None:
        """Count streamed changes."""
        if self._stream is not None and not batch.snapshot:
            self._meter.add(batch.events)
            self._progress.advance(self._stream, batch.events)
