"""An observer that shows a pipeline on a terminal: a bar per snapshot table, then the stream."""

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

from waltap.events.transaction import Batch
from waltap.hookspecs import hookimpl

if TYPE_CHECKING:
    from rich.console import Console
    from rich.progress import TaskID

__all__ = ["ProgressDisplay"]


class _Rows(ProgressColumn):
    """``12,345 rows``, with the estimate of the whole while it is one."""

    def render(self, task: Task) -> Text:
        noun = task.fields.get("noun", "rows")
        whole = f" of ~{task.total:,.0f}" if task.total and not task.finished else ""
        return Text(f"{task.completed:,.0f}{whole} {noun}")


class _Rate(ProgressColumn):
    """``12,345/s``, over the last seconds; over all of it once a table is done."""

    def render(self, task: Task) -> Text:
        speed = task.finished_speed or task.speed
        return Text(f"{speed:,.0f}/s" if speed else "", style="cyan")


class ProgressDisplay:
    """Bars on ``console`` between `start` and `stop`; the hooks feed them."""

    def __init__(self, console: "Console") -> None:
        self._console = console
        self._progress = Progress(
            SpinnerColumn(finished_text="[green]✓[/]"),
            TextColumn("{task.description}"),
            BarColumn(bar_width=24),
            _Rows(),
            _Rate(),
            TimeRemainingColumn(),
            console=console,
        )
        self._tables: dict[str, TaskID] = {}
        self._stream: TaskID | None = None

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
            self._stream = self._progress.add_task("streaming", total=None, noun="changes")
        if state in {"reconnecting", "failed"}:
            line = Text(f"{state}: {detail.splitlines()[0] if detail else ''}", style="yellow")
            self._console.print(line)
        elif state != "streaming":
            self._console.print(state, style="dim")

    @hookimpl
    def on_snapshot(self, event: str, table: str, rows: int, total: int | None) -> None:
        """Move the bar of a table. An estimate that was too low grows with the rows."""
        if event == "table_started":
            self._tables[table] = self._progress.add_task(table, total=total)
        elif event == "progress" and table in self._tables:
            whole = max(total, rows + 1) if total else None
            self._progress.update(self._tables[table], completed=rows, total=whole)
        elif event == "table_completed" and table in self._tables:
            self._progress.update(self._tables[table], completed=rows, total=rows or 1)
            if not rows:
                self._progress.update(self._tables[table], completed=1, visible=False)

    @hookimpl
    def on_batch(self, batch: Batch) -> None:
        """Count streamed changes."""
        if self._stream is not None and not batch.snapshot:
            self._progress.advance(self._stream, batch.events)
