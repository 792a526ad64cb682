"""Make the slot monitor of a run from its profile."""

from functools import partial
from typing import Protocol

from waltap.base.text import size
from waltap.changes.transactions.position import lsn_text
from waltap.clock import new_identifier
from waltap.config.profile import Profile
from waltap.errors import WaltapError
from waltap.pipeline.delivery.sink_writer import SinkWriter
from waltap.pipeline.runtime.channels import SLOT, PipelineChannels
from waltap.pipeline.runtime.gap_notes import GapNotes
from waltap.pipeline.runtime.run_state import RunState
from waltap.pipeline.setup.build import chosen_password
from waltap.ports.offsets.gaps import GapEnd, moment
from waltap.ports.signals.signal import Signal
from waltap.ports.source.slot_watch import SlotWatch, SlotWatchContext
from waltap.services.slot_monitor.guard import (
    SlotGivenUp,
    SlotMonitor,
    SlotMonitorDependencies,
    WalBudgetPolicy,
)
from waltap.services.slot_monitor.health import SlotHealth

__all__ = ["MonitoredRun", "guardian_of", "orders_of"]

LOOK_S = 10.0


class MonitoredRun(Protocol):
    """The attributes of a run that its slot monitor needs."""

    state: RunState
    channels: PipelineChannels
    gaps: GapNotes
    guard: SlotMonitor
    delivery: SinkWriter | None

    def look_on(self) -> None:
        """Log a call of the sink that does not return."""


def orders_of(profile: Profile) -> WalBudgetPolicy:
    """Return the WAL budget of ``profile``."""
    engine = profile.engine
    return WalBudgetPolicy(
        budget=engine.wal_budget,
        disk=engine.wal_disk,
        warn_at=engine.wal_warn_at,
        act_at=engine.wal_act_at,
        action=engine.wal_action,
    )


def guardian_of(run: MonitoredRun) -> SlotMonitor:
    """Return the slot monitor of a run, which is not started."""
    engine, orders = run.state.profile.engine, orders_of(run.state.profile)
    connects = run.state.profile.connector.spec.slot_watch is not None
    return SlotMonitor(
        orders,
        SlotMonitorDependencies(
            pipeline=run.state.profile.name,
            monotonic=run.state.clock.monotonic,
            now_ms=run.state.now_ms,
            tell=lambda kind, **data: run.channels.tell(SLOT, kind, **data),
            pause=partial(_pause, run),
            gave_up=partial(_gave_up, run),
            open_watch=partial(_open_watch, run) if connects else None,
            every_s=min(engine.status_interval_ms / 1000, LOOK_S),
            look_on=run.look_on,
        ),
    )


def _open_watch(run: MonitoredRun) -> SlotWatch:
    component = run.state.profile.connector
    assert component.spec.slot_watch is not None
    context = SlotWatchContext(
        stopping=run.guard.stopping, password=chosen_password(run.state.host)
    )
    return component.spec.slot_watch(component.properties, context)


def _pause(run: MonitoredRun, wanted: bool) -> None:
    kind = "pause-snapshot" if wanted else "resume-snapshot"
    run.channels.inbox.put(Signal(new_identifier(run.state.chance), kind, ""))


def _gave_up(run: MonitoredRun, health: SlotHealth, end_lsn: int) -> WaltapError:
    """Store the gap behind a dropped slot; return the error that ends the run."""
    now_ms = run.state.now_ms()
    offset = None if run.delivery is None else run.delivery.offset
    begin = "the position at which the slot was made" if offset is None else str(offset.positions)
    problem = (
        f"slot {health.name} kept {size(health.retained_bytes)} of WAL, of "
        f"{size(health.limit_bytes)} that it may, and was dropped as waltap.wal.action = drop has it: "
        "lost for this pipeline is what "
        f"committed behind {begin} up to {lsn_text(end_lsn)}"
    )
    where = "the log"
    if offset is not None:
        end = GapEnd(
            lsn=lsn_text(end_lsn),
            timeline=offset.first.timeline,
            system_id=offset.first.system_id,
            time=moment(now_ms),
        )
        error = SlotGivenUp(problem, certificate=where)
        where = run.gaps.lost(
            error, offset, end=end, tables=run.state.captured_tables, now_ms=now_ms
        )
    return SlotGivenUp(problem, certificate=where)
