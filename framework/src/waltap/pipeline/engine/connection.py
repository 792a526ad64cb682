"""Run one connection to the source, from its checks to its end."""

import logging
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import replace

import msgspec

from waltap.base.plugin_errors import usable
from waltap.changes.transactions.position import Position, Positions
from waltap.errors import SinkError, SourceError, WaltapError
from waltap.pipeline.delivery.sink_writer import SinkWriter
from waltap.pipeline.engine.build import PipelineStages
from waltap.pipeline.engine.preflight import checks, refuse
from waltap.pipeline.engine.run import PipelineRun
from waltap.pipeline.engine.stream_loop import HeartbeatTimer, StreamLoop
from waltap.pipeline.runtime.channels import INITIAL
from waltap.pipeline.stages.snapshot_phase import SnapshotPhase
from waltap.ports.offsets.offset import Offset
from waltap.ports.sink.roles import CompletenessSink, identity_of
from waltap.ports.sink.stored_position import require_stored
from waltap.ports.source.connector import ChangeStream, Connector, StartPosition
from waltap.ports.source.roles import PartitionedSource, tables_of

log = logging.getLogger(__name__)

OnePartitionOnly = SourceError.define("OnePartitionOnly", "WT-2016")


class SourceConnection:
    """Start, snapshot and stream over one connection."""

    def __init__(
        self, run: PipelineRun, stages: PipelineStages, may_write: Callable[[], None]
    ) -> None:
        """Prepare a connection; ``may_write`` raises if this process may not write."""
        self._run, self._state, self._stages = run, run.state, stages
        self._may_write = may_write
        self._assigned = False
        """The sink got chunks of a snapshot, whose rows count only when all are durable."""

    def go(self) -> None:
        """Capture until the run must end.

        Raises: WaltapError, StopRequested, OutputClosed.
        """
        run, state, stages = self._run, self._state, self._stages
        stored = stages.store.load()
        connector = stages.open_connector(
            state.made,
            reconnects=state.started,
            repairs=state.repairs and not state.started,
            confirmable=state.release,
        )
        state.connected()
        try:
            if state.sink != "open":
                self._open(connector, stored)
            with self._gaps_noted(connector, stored), self._nothing_half_way(connector, stored):
                offset = _streamed_from(connector, stored, newest(stored, state.sink_position))
                start, delivery = self._start(connector, offset)
                if start.snapshot:
                    self._snapshot(connector, delivery, start)
                    if start.stream and not state.stop.is_set():
                        state.wait(state.profile.engine.streaming_delay_ms / 1000)
                streams: Mapping[str, ChangeStream] = {}
                if start.stream and not state.stop.is_set():
                    streams = _streams(connector, delivery.written)
            if streams:
                streaming = StreamLoop(run, connector, streams, stages, delivery)
                try:
                    streaming.go(after_snapshot=start.snapshot)
                except SinkError as error:
                    run.gaps.missed(error, delivery.offset, connector)
                    raise
            elif not start.stream and not state.stop.is_set():
                delivery.write_notifications()
                delivery.drain()
                delivery.flush()  # the heartbeat; the snapshot's rows are durable
                run.ready()
            state.leadership.check()
            if connector.finish():
                stages.store.clear()
                for gone in delivery.offset.partitions.values():
                    state.slot_notice("dropped", gone, gone.position.end_lsn)
        finally:
            connector.close()

    def _open(self, connector: Connector, stored: Offset | None) -> None:
        """Open the sink or its successor. Raises: WaltapError."""
        state, stages = self._state, self._stages
        with self._gaps_noted(connector, stored):
            if state.sink == "unusable":
                stages.renew_sink()
            else:
                with state.counts.calls.call("its checks"):
                    refuse(checks(stages, connector, locked=True))
            state.sink_enters("unusable")  # unless it opens
            with state.counts.calls.call("its opening"):
                stored_position = stages.sink.open()
                usable(stored_position, (Position, Positions, type(None)), stages.sink, "open")
            state.sink_enters("open", stored_position)
            if state.repairs:
                self._run.gaps.given_up()
            elif (
                stored is not None and stored.sink == stages.destination and stored.snapshot is None
            ):
                # The destination must have the data of the stored offset.
                found = Positions.of(stored_position, next(iter(stored.partitions)))
                sink = state.profile.sink.spec.name
                require_stored(sink, stored.sink_positions, found, connector.slot)
                self._run.gaps.brought_back(stored)

    @contextmanager
    def _gaps_noted(self, connector: Connector, stored: Offset | None) -> Iterator[None]:
        """Store a certificate if a start lost its position."""
        try:
            yield
        except WaltapError as error:
            self._run.gaps.missed(error, stored, connector)
            raise

    def _start(
        self, connector: Connector, offset: Offset | None
    ) -> tuple[StartPosition, SinkWriter]:
        def not_streamed(error: WaltapError, names: Sequence[str]) -> None:
            delivery = self._run.delivery
            behind = offset if delivery is None else delivery.offset
            if behind is not None and behind.snapshot is None:
                self._run.gaps.missed(error, behind, connector, names)

        self._stages.new_tables.prepare(connector, not_streamed)
        start = connector.prepare(offset)
        for note in start.notes:
            log.info(note)
        several = len(start.offset.partitions) > 1
        if several and not self._stages.sink.capabilities.partitions:
            raise OnePartitionOnly(
                f"the source has {len(start.offset.partitions)} partitions; the sink "
                f"{self._state.profile.sink.spec.name} takes one"
            )
        known = offset is not None and offset.sink == self._stages.destination
        # Another sink may have been given the changes in between.
        continuous = known and start.completeness.continuous
        if isinstance(self._stages.sink, CompletenessSink):
            with self._state.counts.calls.call("the beginning of a connection"):
                self._stages.sink.begins(replace(start.completeness, continuous=continuous))
        if start.lost is not None:
            self._run.gaps.missed(start.lost, offset, connector)
        if not (start.snapshot or self._state.started):
            self._run.channels.notify(INITIAL, "SKIPPED")
        if start.slot_created:
            for made in start.offset.partitions.values():
                self._state.slot_notice("created", made, made.slot_created_lsn)
        # A snapshot that resumes keeps its first record: what was unpublished since then is missing.
        if start.stream and (start.snapshot or start.slot_created) and not start.resumes:
            self._stages.new_tables.start_over(connector, start.offset)
        return start, self._deliver(start, offset)

    def _deliver(self, start: StartPosition, offset: Offset | None) -> SinkWriter:
        run, state, stages = self._run, self._state, self._stages
        stored = start.offset
        if start.snapshot or start.slot_created or start.lost or offset is None or offset.snapshot:
            # The sink's position is of another stream, perhaps of another server.
            state.forget_sink_position()
        if offset is not None:
            stored = _continued(stored, None if start.snapshot else offset)
        stored = msgspec.structs.replace(
            stored, sink=stages.destination, sink_identity=identity_of(stages.sink) or msgspec.UNSET
        )
        stages.dead_letters.report_to(state.counts, run.channels.notify)
        delivery = SinkWriter(
            pipeline=state.profile.name,
            branch=stages.branch,
            store=stages.store,
            host=state.host,
            offset=stored,
            retries=state.backoff(),
            clock=state.clock,
            counts=state.counts,
            notifications=run.channels.pending,
            notification_topic=state.profile.capture.notification_topic or "",
            may_write=self._may_write,
            on_written=stages.relations.written,
            on_durable=state.sink_retries.succeeded,
            delivered=Positions.of(state.sink_position, next(iter(stored.partitions))),
        )
        run.deliver_by(delivery)
        if start.snapshot or start.stream:  # else an offset would say that a snapshot is complete
            delivery.store(stored)
        return delivery

    def _snapshot(self, connector: Connector, delivery: SinkWriter, start: StartPosition) -> None:
        run, state = self._run, self._state
        state.enter("snapshot", state.profile.name)
        phase = SnapshotPhase(state, run.channels, delivery)
        try:
            if phase.run(connector, start):
                state.reconnects.succeeded()
                state.sink_retries.succeeded()
                if run.gaps.open:
                    captured = set(tables_of(connector).captured_tables().values())
                    left_out = captured.difference(phase.tables(connector))
                    run.gaps.snapshot_taken(state.counts.tables.values(), left_out)
                HeartbeatTimer(state, connector, delivery).beat_if_due(math.inf)
            else:
                state.stop.set()
        finally:
            self._assigned = phase.assigned
            if phase.begun:
                state.capturing()

    # --- a start that fails -------------------------------------------------------------------

    @contextmanager
    def _nothing_half_way(self, connector: Connector, stored: Offset | None) -> Iterator[None]:
        """Undo a start that ends before the sink got anything.

        Objects on the server are removed, and the offset is restored.
        """
        before = self._state.counts.events
        try:
            yield
        except BaseException:
            self._undo(connector, stored, before)
            raise
        delivery = self._run.delivery
        in_snapshot = delivery is not None and delivery.offset.snapshot is not None
        if self._state.stop.is_set() and in_snapshot:
            self._undo(connector, stored, before)

    def _undo(self, connector: Connector, stored: Offset | None, before: int) -> None:
        store = self._stages.store
        delivered = self._assigned or self._state.counts.events > before
        if delivered or not self._state.leadership.held:
            return
        with suppress(WaltapError):
            connector.undo()
            if stored is None:
                store.clear()
            else:
                store.store(stored)


def _continued(start: Offset, before: Offset | None) -> Offset:
    known = {} if before is None else before.partitions
    partitions = {
        name: msgspec.structs.replace(
            each,
            previous_end_lsn=known[name].previous_end_lsn if name in known else None,
            counted=known[name].counted if name in known else msgspec.UNSET,
        )
        for name, each in start.partitions.items()
    }
    return msgspec.structs.replace(start, partitions=partitions)


def newest(offset: Offset | None, stored_position: Position | Positions | None) -> Offset | None:
    """Return the offset with later positions that the sink keeps itself."""
    # Before the end of a snapshot the sink has a position from before it, perhaps of another server.
    if offset is None or offset.snapshot is not None or stored_position is None:
        return offset
    partitions = dict(offset.partitions)
    for name, position in Positions.of(stored_position, next(iter(partitions))).items():
        if name not in partitions:
            continue
        before = partitions[name].position
        if (latest := position.passed(before.end_lsn)) > before:
            partitions[name] = msgspec.structs.replace(
                partitions[name], position=latest, previous_end_lsn=latest.end_lsn
            )
    return msgspec.structs.replace(offset, partitions=partitions)


def _streamed_from(
    connector: Connector, stored: Offset | None, latest: Offset | None
) -> Offset | None:
    """Return the offset where the stream begins.

    That is the stored one, since its signals belong to its position: a signal between the two offsets
    would be lost. The sink gets nothing twice (`SinkWriter`). Where the slot no longer has the stored
    position, as after a copy of an older offset was put back, it is the ``latest``.
    """
    if stored is None or latest == stored or len(stored.partitions) > 1:
        return latest
    slot = connector.slot()
    if slot is None or slot.confirmed_lsn > stored.sole.position.end_lsn:
        return latest
    return stored


def _streams(connector: Connector, positions: Positions) -> Mapping[str, ChangeStream]:
    """Start streaming; return the streams by partition. Raises: as `Connector.stream`."""
    if isinstance(connector, PartitionedSource):
        return connector.streams(positions)
    (name,) = positions
    return {name: connector.stream(positions.sole)}
