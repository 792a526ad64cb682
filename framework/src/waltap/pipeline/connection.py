"""One connection to the source, from the checks before it does anything to its end."""

import logging
from collections.abc import Iterator
from contextlib import contextmanager, suppress

import msgspec

from waltap.errors import WaltapError
from waltap.offsets.offset import Offset
from waltap.pipeline.channels import INITIAL
from waltap.pipeline.delivery import Delivery
from waltap.pipeline.heartbeat import Heartbeats
from waltap.pipeline.preflight import checks, refuse
from waltap.pipeline.run import Run
from waltap.pipeline.setup import Stages
from waltap.pipeline.snapshot_phase import SnapshotPhase
from waltap.pipeline.streaming import Streaming
from waltap.source.connector import Connector, Start
from waltap.source.position import Position

__all__ = ["Connection"]

log = logging.getLogger(__name__)


class Connection:
    """Starts, snapshots and streams over one connection of the connector's."""

    def __init__(self, run: Run, stages: Stages) -> None:
        self._run, self._stages = run, stages

    def go(self, held: Position | None) -> None:
        """Capture until the run is to end. ``held`` is the position that the sink, if it was made anew,
        keeps itself. Raises: WaltapError, StopRequested, ReaderGone."""
        run, stages = self._run, self._stages
        stored = stages.store.load()
        connector = stages.open_connector(run.made, reconnects=run.started)
        run.linked = True
        try:
            if not run.sink_open:
                refuse(checks(stages, connector, locked=True))
                run.sink_open = True
                held = stages.sink.open()
            with self._nothing_half_way(connector, stored):
                start, delivery = self._start(connector, _newest(stored, held))
                if start.snapshot:
                    self._snapshot(connector, delivery, start)
                stream = None
                if start.stream and not run.stop.is_set():
                    stream = connector.stream(delivery.written)
            if stream is not None:
                streaming = Streaming(run, connector, stream, stages, delivery)
                streaming.go(whole=start.snapshot)
            elif not start.stream and not run.stop.is_set():
                delivery.flush()  # the heartbeat; the snapshot's rows are durable
                run.ready()
            if connector.finish():
                stages.store.clear()
                run.slot_notice("dropped", delivery.offset, delivery.offset.position.end_lsn)
        finally:
            connector.close()

    def _start(self, connector: Connector, offset: Offset | None) -> tuple[Start, Delivery]:
        self._stages.new_tables.prepare(connector)
        start = connector.prepare(offset)
        for note in start.notes:
            log.info(note)
        if not (start.snapshot or self._run.started):
            self._run.channels.tell(INITIAL, "SKIPPED")
        if start.slot_created:
            self._run.slot_notice("created", start.offset, start.offset.slot_created_lsn)
        if start.stream and (start.snapshot or start.slot_created):
            self._stages.new_tables.start_anew(connector, start.offset)
        return start, self._deliver(start, offset)

    def _deliver(self, start: Start, offset: Offset | None) -> Delivery:
        """Make the delivery of this connection."""
        run, stages = self._run, self._stages
        stored = start.offset
        if offset is not None:
            previous = None if start.snapshot else offset.previous_end_lsn
            stored = msgspec.structs.replace(stored, previous_end_lsn=previous)
        delivery = Delivery(
            pipeline=run.profile.name,
            sink=stages.sink,
            store=stages.store,
            render=stages.format,
            transforms=stages.transforms,
            host=run.host,
            offset=stored,
            retries=run.backoff(),
            clock=run.clock,
            counts=run.counts,
        )
        run.delivery = delivery
        delivery.store(stored)
        return delivery

    def _snapshot(self, connector: Connector, delivery: Delivery, start: Start) -> None:
        run = self._run
        run.enter("snapshot", run.profile.name)
        phase = SnapshotPhase(
            delivery,
            run.host,
            run.channels,
            pipeline=run.profile.name,
            flush_s=run.profile.engine.flush_interval_ms / 1000,
            left=run.left,
            ends=lambda: run.stop.is_set() or run.over(),
        )
        try:
            if phase.run(connector, start):
                run.reconnects.succeeded()
                Heartbeats(run, connector, delivery).beat()
            else:
                run.stop.set()
        finally:
            run.started = run.started or phase.begun

    # --- a start that comes to nothing --------------------------------------------------------

    @contextmanager
    def _nothing_half_way(self, connector: Connector, stored: Offset | None) -> Iterator[None]:
        """A start that fails, or is stopped, before the sink got anything leaves nothing behind: what
        it made on the server is removed, and the offset is what it was."""
        run = self._run
        before = run.counts.events
        try:
            yield
        except BaseException:
            self._undo(connector, stored, before)
            raise
        if run.stop.is_set() and _in_snapshot(run.delivery):
            self._undo(connector, stored, before)

    def _undo(self, connector: Connector, stored: Offset | None, before: int) -> None:
        store = self._stages.store
        if self._run.counts.events > before:
            return
        with suppress(WaltapError):
            connector.undo()
            if stored is None:
                store.clear()
            else:
                store.store(stored)


def _in_snapshot(delivery: Delivery | None) -> bool:
    return delivery is not None and delivery.offset.snapshot is not None


def _newest(offset: Offset | None, held: Position | None) -> Offset | None:
    """A sink that keeps the position with its data may know more than the store."""
    if offset is None or held is None or held <= offset.position:
        return offset
    return msgspec.structs.replace(offset, position=held, previous_end_lsn=held.end_lsn)
