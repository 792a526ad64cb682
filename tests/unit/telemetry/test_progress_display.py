"""The bars of a terminal: rows, rate and time left of each table, then the stream."""

import dataclasses
import io
import re

import pytest
from rich.console import Console

from waltap.plugins.host import Host
from waltap.services.monitor.counts import SnapshotTableProgress
from waltap.services.monitor.status import PipelineStatus
from waltap.services.telemetry.progress import ProgressDisplay

NONE = PipelineStatus(pipeline="p", at_ms=0, started_ms=0, state="checking", state_since_ms=0)


def of_table(name: str, rows: int, estimate: int) -> PipelineStatus:
    return dataclasses.replace(
        NONE, snapshot=(SnapshotTableProgress(table=name, rows=rows, estimate=estimate),)
    )


class Screen:
    """A display on a terminal, what the engine shows it, and what is drawn."""

    def __init__(self) -> None:
        self.drawn, self.status = io.StringIO(), NONE
        console = Console(
            file=self.drawn, force_terminal=True, width=120, no_color=True, highlight=False
        )
        self.display = ProgressDisplay(console, lambda: self.status)
        self.host = Host(discover=False)
        self.host.register(self.display, "progress")
        self.display.start()

    def state(self, state: str, detail: str = "") -> None:
        self.host.notify("on_state", pipeline="p", state=state, detail=detail)

    def table(self, event: str, table: str, rows: int, total: int | None) -> None:
        reported = {"event": event, "table": table, "rows": rows, "total": total, "kind": "initial"}
        self.host.notify("on_snapshot", pipeline="p", **reported)

    def end(self, status: PipelineStatus | None = None) -> str:
        """Stop the pipeline with this last status; return all that was drawn."""
        self.status = status or self.status
        self.state("stopped")
        self.display.stop()
        return re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", self.drawn.getvalue())


@pytest.fixture
def screen() -> Screen:
    return Screen()


def test_a_table_shows_rows_estimate_and_then_the_count(screen):
    screen.table("table_started", "public.big", 0, 2000)
    screen.status = of_table("public.big", 1500, 2000)
    screen.table("table_completed", "public.big", 2100, 2100)
    last = [line for line in screen.end().split("\r") if "public.big" in line][-1]
    assert "2,100 rows" in last
    assert "✓" in last


def test_an_estimate_that_was_too_low_grows(screen):
    screen.table("table_started", "public.t", 0, 10)
    assert "500 of ~501" in screen.end(of_table("public.t", 500, 10))


def test_an_empty_table_leaves_no_line(screen):
    screen.table("table_started", "public.empty", 0, None)
    screen.table("table_completed", "public.empty", 0, 0)
    assert "public.empty" not in screen.end().split("\r")[-1]


def test_trouble_is_said_above_the_bars(screen):
    screen.state("reconnecting", "link [cut]\nmore")
    assert "reconnecting: link [cut]" in screen.end()


RATES = ((3, 1234.0), (10, 5.0))


@pytest.mark.parametrize(
    ("counted", "reported", "rate"),
    [
        ({"state": "stopped", "events": 1041, "snapshot_rows": 999}, "42 changes 0/s", False),
        ({"events": 42, "events_per_second": RATES}, "42 changes 1,234/s", True),
        ({"events": 42, "snapshot_rows": 42, "events_per_second": RATES}, "0 changes 0/s", False),
    ],
)
def test_streamed_changes_are_counted_with_their_rate_and_snapshot_rows_are_not(
    screen, counted, reported, rate
):
    screen.state("streaming", "0/1")
    drawn = screen.end(dataclasses.replace(NONE, **counted))
    assert reported in drawn
    assert ("1,234/s" in drawn) is rate
    if counted.get("snapshot_rows") == 999:
        assert "42 changes in 0 transactions and 999 snapshot rows in 0.0 s" in drawn


@pytest.mark.parametrize(("end", "reported"), [("stopped", True), ("failed", False)])
def test_what_a_run_did_is_its_last_line_and_a_failed_start_did_nothing(screen, end, reported):
    screen.status = dataclasses.replace(NONE, state=end)
    screen.state("checking")
    screen.state(end)
    screen.display.stop()
    drawn = screen.drawn.getvalue()
    assert ("0 changes in 0 transactions" in drawn.strip().splitlines()[-1]) is reported
    assert ("transactions" in drawn) is reported
