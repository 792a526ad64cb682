"""The bars of a terminal: rows, rate and time left of each table, then the stream."""

import io

import pytest
from rich.console import Console
from waltap.transactions.transaction import Batch
from waltap.host import Host
from waltap.source.position import Position
from waltap.telemetry import progress
from waltap.telemetry.progress import ProgressDisplay


@pytest.fixture
def screen() -> io.StringIO:
    return io.StringIO()


@pytest.fixture
def host(screen: io.StringIO) -> Host:
    console = Console(file=screen, force_terminal=True, width=120, no_color=True)
    display = ProgressDisplay(console)
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


def test_a_table_shows_rows_estimate_and_then_the_count(host: Host, screen: io.StringIO) -> None:
    snapshot(host, "table_started", "public.big", 0, 2000)
    snapshot(host, "progress", "public.big", 1500, 2000)
    snapshot(host, "table_completed", "public.big", 2100, 2100)
    host.notify("on_state", pipeline="p", state="stopped", detail="")
    last = [line for line in screen.getvalue().split("\r") if "public.big" in line][-1]
    assert "2,100 rows" in last
    assert "✓" in last


def test_an_estimate_that_was_too_low_grows(host: Host, screen: io.StringIO) -> None:
    snapshot(host, "table_started", "public.t", 0, 10)
    snapshot(host, "progress", "public.t", 500, 10)
    host.notify("on_state", pipeline="p", state="stopped", detail="")
    assert "500 of ~501" in screen.getvalue()


def test_streamed_changes_are_counted_and_snapshot_rows_are_not(
    host: Host, screen: io.StringIO
) -> None:
    host.notify("on_state", pipeline="p", state="streaming", detail="0/1")
    for number, is_snapshot in ((40, False), (2, False), (999, True)):
        batch = Batch(parts=[], position=Position(1), events=number, snapshot=is_snapshot)
        host.notify("on_batch", pipeline="p", batch=batch, seconds=0.0)
    host.notify("on_state", pipeline="p", state="stopped", detail="")
    assert "42 changes" in screen.getvalue()
    assert "999" not in screen.getvalue()


def test_trouble_is_said_above_the_bars(host: Host, screen: io.StringIO) -> None:
    host.notify("on_state", pipeline="p", state="reconnecting", detail="link [cut]\nmore")
    host.notify("on_state", pipeline="p", state="stopped", detail="")
    assert "reconnecting: link [cut]" in screen.getvalue()


def test_an_empty_table_leaves_no_line(host: Host, screen: io.StringIO) -> None:
    snapshot(host, "table_started", "public.empty", 0, None)
    snapshot(host, "table_completed", "public.empty", 0, 0)
    host.notify("on_state", pipeline="p", state="stopped", detail="")
    assert "public.empty" not in screen.getvalue().split("\r")[-1]


def test_the_rate_is_that_of_the_last_seconds(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = [100.0]
    monkeypatch.setattr(progress.time, "monotonic", lambda: clock[0])
    meter = progress._Meter()
    clock[0] += 1
    meter.add(500)
    assert meter.per_second() == 500
    clock[0] += 9
    meter.add(30)
    assert meter.per_second() == 30 / progress.WINDOW_S
    clock[0] += 60
    assert meter.per_second() == 0
