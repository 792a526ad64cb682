"""The bars of a terminal: rows, rate and time left of each table, then the stream."""

import dataclasses
import io
import re

import pytest
from rich.console import Console

from waltap.host import Host
from waltap.pipeline.counts import SnapshotTableProgress
from waltap.pipeline.status import PipelineStatus
from waltap.telemetry.progress import ProgressDisplay

NONE = PipelineStatus(pipeline="p", at_ms=0, started_ms=0, state="checking", state_since_ms=0)


def of_table(name: str, rows: int, estimate: int) -> PipelineStatus:
    return dataclasses.replace(
        NONE, snapshot=(SnapshotTableProgress(table=name, rows=rows, estimate=estimate),)
    )


@pytest.fixture
def status() -> list[PipelineStatus]:
    """What the engine answers: the last one."""
    return [NONE]


@pytest.fixture
def screen() -> io.StringIO:
    return io.StringIO()


@pytest.fixture
def host(screen: io.StringIO, status: list[PipelineStatus]) -> Host:
    console = Console(file=screen, force_terminal=True, width=120, no_color=True)
    display = ProgressDisplay(console, lambda: status[-1])
    made = Host(discover=False)
    made.register(display, "progress")
    display.start()
    made.register(_Stopper(display), "stopper")
    return made


class _Stopper:
    """Ends the display when the pipeline has stopped, so that tests read its last state."""

    def __init__(self, display: ProgressDisplay) -> None:
        from waltap.hookspecs import hookimpl

        @hookimpl
        def on_state(state: str) -> None:
            if state == "stopped":
                display.stop()

        self.on_state = on_state


def snapshot(host: Host, event: str, table: str, rows: int, total: int | None) -> None:
    host.notify("on_snapshot", pipeline="p", event=event, table=table, rows=rows, total=total)


def test_a_table_shows_rows_estimate_and_then_the_count(
    host: Host, screen: io.StringIO, status: list[PipelineStatus]
) -> None:
    snapshot(host, "table_started", "public.big", 0, 2000)
    status.append(of_table("public.big", 1500, 2000))
    snapshot(host, "table_completed", "public.big", 2100, 2100)
    host.notify("on_state", pipeline="p", state="stopped", detail="")
    last = [line for line in screen.getvalue().split("\r") if "public.big" in line][-1]
    assert "2,100 rows" in last
    assert "✓" in last


def test_an_estimate_that_was_too_low_grows(
    host: Host, screen: io.StringIO, status: list[PipelineStatus]
) -> None:
    snapshot(host, "table_started", "public.t", 0, 10)
    status.append(of_table("public.t", 500, 10))
    host.notify("on_state", pipeline="p", state="stopped", detail="")
    assert "500 of ~501" in screen.getvalue()


def test_streamed_changes_are_counted_and_snapshot_rows_are_not(
    host: Host, screen: io.StringIO, status: list[PipelineStatus]
) -> None:
    host.notify("on_state", pipeline="p", state="streaming", detail="0/1")
    last = dataclasses.replace(NONE, state="stopped", events=1041, snapshot_rows=999)
    status.append(last)
    host.notify("on_state", pipeline="p", state="stopped", detail="")
    plain = re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", screen.getvalue())
    assert "42 changes 0/s" in plain
    assert "42 changes in 0 transactions and 999 snapshot rows in 0.0 s" in plain


def test_trouble_is_said_above_the_bars(host: Host, screen: io.StringIO) -> None:
    host.notify("on_state", pipeline="p", state="reconnecting", detail="link [cut]\nmore")
    host.notify("on_state", pipeline="p", state="stopped", detail="")
    assert "reconnecting: link [cut]" in screen.getvalue()


def test_an_empty_table_leaves_no_line(host: Host, screen: io.StringIO) -> None:
    snapshot(host, "table_started", "public.empty", 0, None)
    snapshot(host, "table_completed", "public.empty", 0, 0)
    host.notify("on_state", pipeline="p", state="stopped", detail="")
    assert "public.empty" not in screen.getvalue().split("\r")[-1]


@pytest.mark.parametrize("rows", [0, 42])
def test_the_rate_is_that_of_the_status_but_for_one_of_snapshot_rows(
    host: Host, screen: io.StringIO, status: list[PipelineStatus], rows: int
) -> None:
    host.notify("on_state", pipeline="p", state="streaming", detail="0/1")
    rates = ((3, 1234.0), (10, 5.0))
    last = dataclasses.replace(NONE, events=42, snapshot_rows=rows, events_per_second=rates)
    status.append(last)
    host.notify("on_state", pipeline="p", state="stopped", detail="")
    assert ("1,234/s" in screen.getvalue()) is (rows == 0)


@pytest.mark.parametrize(("end", "told"), [("stopped", True), ("failed", False)])
def test_what_a_run_did_is_its_last_line_and_a_failed_start_did_nothing(
    screen: io.StringIO, end: str, told: bool
) -> None:
    console = Console(file=screen, force_terminal=True, width=120, no_color=True, highlight=False)
    display = ProgressDisplay(console, lambda: dataclasses.replace(NONE, state=end))
    display.start()
    display.on_state("checking", "")
    display.on_state(end, "")
    display.stop()
    last = screen.getvalue().strip().splitlines()[-1]
    assert ("0 changes in 0 transactions" in last) is told
    assert ("transactions" in screen.getvalue()) is told
