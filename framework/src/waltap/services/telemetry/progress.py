"""Show the progress of a pipeline on a terminal."""

from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING

from rich.console import RenderableType
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

from waltap.base.redaction import redacted
from waltap.plugins.hookspecs import hookimpl
from waltap.services.monitor.status import PipelineStatus
from waltap.services.telemetry.lifecycle import summary_line

if TYPE_CHECKING:
    from rich.console import Console
    from rich.progress import TaskID


class _RowsColumn(ProgressColumn):
    """Show ``12,345 of ~20,000``, or ``20,123 rows`` for a finished table."""

    def render(self, task: Task) -> Text:
        if task.total and not task.finished:
            return Text(f"{task.completed:,.0f} of ~{task.total:,.0f}", no_wrap=True)
        return Text(f"{task.completed:,.0f} {task.fields.get('noun', 'rows')}", no_wrap=True)


class _RateColumn(ProgressColumn):
    """Show ``12,345/s``."""

    def render(self, task: Task) -> Text:
        # the mean of a finished table, the last seconds of any other task
        if task.finished:
            rate = task.completed / task.finished_time if task.finished_time else 0.0
        else:
            rate = task.fields.get("rate", 0.0)
        return Text(f"{rate:,.0f}/s", style="cyan")


class _ProgressBars(Progress):
    """Progress bars that read their numbers before each drawing."""

    def __init__(self, *columns: ProgressColumn, console: "Console") -> None:
        self.ask: Callable[[], object] = lambda: None
        super().__init__(*columns, console=console)

    def get_renderables(self) -> Iterable[RenderableType]:
        self.ask()
        yield from super().get_renderables()


class ProgressDisplay:
    """Show a bar per snapshot table, then a line for the stream.

    Hooks add and remove the bars. Their numbers come from ``status`` (`Engine.status`) at each
    drawing.
    """

    def __init__(self, console: "Console", status: Callable[[], PipelineStatus]) -> None:
        self._console, self._status = console, status
        self._progress = _ProgressBars(
            SpinnerColumn(finished_text="[green]✓[/]"),
            TextColumn("{task.description}"),
            BarColumn(bar_width=16),
            _RowsColumn(),
            _RateColumn(),
            TimeRemainingColumn(),
            console=console,
        )
        self._tables: dict[str, TaskID] = {}
        self._stream: TaskID | None = None
        self._progress.ask = self._take

    def start(self) -> None:
        self._progress.start()

    def stop(self) -> None:
        """Stop drawing and print the summary of the run."""
        self._progress.stop()
        status = self._status()
        if status.state == "stopped" or (status.state == "failed" and status.events):
            self._console.print(summary_line(status), style="dim")

    def _take(self) -> None:
        status = self._status()
        rate = next((rate for _, rate in status.events_per_second), 0.0)
        for table in status.snapshot:
            task = self._tables.get(table.table)
            if task is not None:
                # an estimate that was too low grows, else the bar would be full before the end
                expected = max(table.estimate, table.rows + 1) if table.estimate else None
                self._progress.update(task, completed=table.rows, total=expected, rate=rate)
        if self._stream is not None:
            rate = rate if status.changes else 0.0
            self._progress.update(self._stream, completed=status.changes, rate=rate)

    @hookimpl
    def on_state(self, state: str, detail: str) -> None:
        # streaming has a line with its own numbers
        if state == "streaming" and self._stream is None:
            self._stream = self._progress.add_task("streaming", total=None, noun="changes")
        if state == "reconnecting":
            first = redacted(detail.splitlines()[0]) if detail else ""
            line = Text(f"{state}: {first}", style="yellow")
            self._console.print(line)
        elif state not in {"streaming", "failed"}:  # the error itself is shown at the end
            self._console.print(state, style="dim")

    @hookimpl
    def on_snapshot(self, event: str, table: str, rows: int, total: int | None) -> None:
        """Start and finish the bar of a table."""
        if event == "table_started":
            self._tables[table] = self._progress.add_task(table, total=total)
        elif event in {"table_completed", "table_failed"} and table in self._tables:
            visible = rows > 0  # a long list of empty tables says nothing
            task = self._tables.pop(table)
            self._progress.update(task, completed=rows or 1, total=rows or 1, visible=visible)
