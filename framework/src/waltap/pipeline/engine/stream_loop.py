"""Stream in one loop, step after step."""

from collections.abc import Mapping, Sequence
from contextlib import suppress
from functools import partial

from waltap.changes.transactions.position import Positions, lsn_text
from waltap.changes.transactions.transaction import Heartbeat, TransactionPart
from waltap.errors import ConnectionLost, SinkError, StopRequested, WaltapError
from waltap.pipeline.delivery.redelivery import RedeliveryAsked
from waltap.pipeline.delivery.sink_writer import SinkWriter
from waltap.pipeline.engine.build import PipelineStages
from waltap.pipeline.engine.preflight import orphan_slots
from waltap.pipeline.engine.run import PipelineRun
from waltap.pipeline.runtime.run_state import IdleDetector, RunState
from waltap.pipeline.stages.partition_reader import PartitionMerge, PartitionReader
from waltap.pipeline.stages.signal_stage import SignalStage
from waltap.ports.source.connector import ChangeStream, Connector
from waltap.ports.source.roles import HeartbeatSource, PartitionedSource, WalSource
from waltap.services.monitor.counts import StreamGauges


class HeartbeatTimer:
    """Send a heartbeat every ``heartbeat.interval.ms``; never if that is 0."""

    def __init__(self, state: RunState, connector: Connector, delivery: SinkWriter) -> None:
        self._state, self._delivery = state, delivery
        self._source = connector if isinstance(connector, HeartbeatSource) else None
        self._last = state.clock.monotonic()

    def beat_if_due(self, now: float) -> None:
        """Beat if the period is over; with infinity as ``now`` it is."""
        period_s = self._state.profile.engine.heartbeat_interval_ms / 1000
        if period_s and now - self._last >= period_s:
            self._last = now
            if self._source is not None:
                self._source.heartbeat()
            self._delivery.write([Heartbeat(ts=self._state.now_ms())])


class SlotAdvancer:
    """Flush, store and confirm, in this order, for the streams of one connection.

    The owner of the run may hold a position back (`RunState.confirmable`).
    """

    def __init__(
        self,
        state: RunState,
        readers: Sequence[PartitionReader],
        delivery: SinkWriter,
    ) -> None:
        self._state, self._readers, self._delivery = state, readers, delivery
        partitions = {} if state.confirmable is None else delivery.offset.partitions
        self._held_back = {name: each.position.end_lsn for name, each in partitions.items()}
        """LSNs that the owner may have held back, by partition, also of a start:

        the server gets them when the owner releases them.
        """
        self._confirmed: dict[str, int] = {}
        self._next_poll = 0.0

    def flush_if_due(self) -> None:
        """Flush batches that have waited long enough, and confirm them."""
        if self._delivery.due(self._state.flush_s):
            self._confirm(self._flushed())
        elif self._held_back and (now := self._state.clock.monotonic()) >= self._next_poll:
            self._next_poll = now + self._state.flush_s
            self._confirm_held_back()

    def flush_now(self) -> None:
        if self._delivery.unflushed_since is not None:
            self._confirm(self._flushed())

    def last(self) -> None:
        """Flush at the end, also after a lost link.

        Without a link nothing is confirmed. Nothing is flushed after a failure of the sink, which would
        confirm lost data, or if another process may run the pipeline.
        """
        if self._delivery.failed or not self._state.leadership.held:
            return
        moved = self._flushed()
        with suppress(ConnectionLost):
            self._confirm(moved)
            self._confirm_held_back()

    def idle(self) -> bool:
        """Store and confirm the server's position if no change is pending.

        So a quiet table beside busy ones never retains WAL. Return False while a change is pending. Not
        for use after a failure or a cut, when received changes may not have been written.
        """
        if self._delivery.unflushed_since is not None:
            return False
        # each one advances, whatever the others do
        idle = [self._idle(reader) for reader in self._readers]
        return all(idle)

    def _idle(self, reader: PartitionReader) -> bool:
        delivery, partition = self._delivery, reader.partition
        if not reader.assembler.idle:
            return False
        stored = delivery.offset.partitions[partition].position
        if delivery.written[partition] != stored:
            delivery.warn_of_silence()
            return False
        delivery.counts.calls.caught_up(self._state.now_ms())
        lsn = reader.assembler.confirmable(reader.stream.idle_lsn())
        if lsn > stored.end_lsn:
            delivery.advance(partition, lsn)
        self._confirm_one(reader, lsn)  # the flush after a signal's rows confirms nothing
        return True

    def _flushed(self) -> Positions:
        self._delivery.check()
        for reader in self._readers:
            reader.assembler.secure()
        return self._delivery.flush()

    def _confirm(self, moved: Positions) -> None:
        for reader in self._readers:
            position = moved.get(reader.partition)
            if position is not None:
                self._confirm_one(reader, reader.assembler.confirmable(position.end_lsn))

    def _confirm_one(self, reader: PartitionReader, lsn: int) -> None:
        partition = self._delivery.offset.partitions[reader.partition]
        stored = partition.position.end_lsn
        assert lsn <= stored, f"would confirm {lsn_text(lsn)}, stored is {lsn_text(stored)}"
        if not reader.stream.confirms:
            return
        if self._state.confirmable is not None:
            wanted = max(lsn, self._held_back.pop(reader.partition, 0))
            lsn = self._state.release(wanted)
            if lsn < wanted:
                self._held_back[reader.partition] = wanted
        if lsn <= self._confirmed.get(reader.partition, 0):
            return
        self._confirmed[reader.partition] = lsn
        reader.stream.confirm(lsn)
        self._state.confirmed(partition, lsn)

    def _confirm_held_back(self) -> None:
        for reader in self._readers:
            lsn = self._held_back.get(reader.partition)
            if lsn is not None:
                self._confirm_one(reader, lsn)


class StreamEnd:
    """Find the end that the run's limits set.

    Of several streams all must be silent.
    """

    def __init__(
        self,
        state: RunState,
        connector: Connector,
        readers: Sequence[PartitionReader],
        delivery: SinkWriter,
        signals: SignalStage,
    ) -> None:
        self._state, self._readers, self._delivery = state, readers, delivery
        self._stream, self._signals = readers[0].stream, signals
        self._lsn, self._silence = state.limits.until_lsn, None
        if state.limits.until_idle is not None:
            slot, now = connector.slot(), state.clock.monotonic()
            target = slot.server_lsn if slot else 0
            self._silence = IdleDetector(state.limits.until_idle, target, now=now)

    @property
    def asks(self) -> bool:
        """Return whether the end depends on the server's position."""
        if self._lsn is not None:
            return True
        return self._silence is not None and not self._silence.caught_up

    def changes_came(self, now: float) -> None:
        if self._silence is not None:
            self._silence.broken(now)

    def is_reached(self, now: float) -> bool:
        return self._state.is_finished() or self._at_lsn() or self._silent(now)

    @property
    def _idle(self) -> bool:
        return all(reader.assembler.idle for reader in self._readers)

    def _at_lsn(self) -> bool:
        if self._lsn is None:
            return False
        read = self._stream.idle_lsn() if self._idle else 0
        return max(read, self._delivery.position.end_lsn) >= self._lsn

    def _silent(self, now: float) -> bool:
        if self._silence is None or not self._idle:
            return False
        return self._silence.lasted(now, self._stream.idle_lsn(), self._signals.awaited)


POLL_S = 0.25
ASK_S = 0.05
MERGE_POLL_S = 0.01
IDLE_PROGRESS_S = 10.0
POLLS_PER_ORPHANS = 30


class StreamLoop:
    """Run the streams of one connection, mostly one."""

    def __init__(
        self,
        run: PipelineRun,
        connector: Connector,
        streams: Mapping[str, ChangeStream],
        stages: PipelineStages,
        delivery: SinkWriter,
    ) -> None:
        engine = run.state.profile.engine
        self._run, self._state, self._connector = run, run.state, connector
        self._stages, self._delivery = stages, delivery
        self._readers = [
            PartitionReader(run.state, stages.relations.complete, delivery, name, stream)
            for name, stream in streams.items()
        ]
        self._confirmation = SlotAdvancer(run.state, self._readers, delivery)
        self._merge: PartitionMerge | None = None
        self._polls = self._restart_lsn = 0
        self._idle_s = min(engine.status_interval_ms / 1000, IDLE_PROGRESS_S)

    def go(self, *, after_snapshot: bool) -> None:
        """Stream until the run must end.

        ``after_snapshot``: a snapshot has just read every table.
        """
        state = self._state
        try:
            with self._run.stream_by(self._gauges):
                try:
                    self._stream(after_snapshot=after_snapshot)
                except SinkError:
                    # The sink's refusal of later batches may hide a failure that can be retried.
                    with suppress(SinkError):
                        self._end()
                    raise
                except BaseException:
                    self._end()
                    raise
                self._end()
                if not (state.cut or self._merge) and state.leadership.held:
                    with suppress(ConnectionLost):
                        self._confirmation.idle()
        finally:
            self._run.channels.pause()
            for each in self._readers:
                each.close()

    def _end(self) -> None:
        """Flush, and answer the signals that are stored, also where a stop ended a wait."""
        self._confirmation.last()
        if self._state.leadership.held and not self._delivery.failed:
            self._run.channels.confirm()

    def _stream(self, *, after_snapshot: bool) -> None:
        state, delivery = self._state, self._delivery
        signals = SignalStage(
            state,
            self._run.channels,
            self._connector,
            delivery,
            self._stages.relations,
            lambda: [gid for reader in self._readers for gid in reader.assembler.undecided],
            self._run.guard.pauses_snapshots,
        )
        new_tables = self._stages.new_tables
        new_tables.begin(
            self._connector,
            delivery.offset,
            after_snapshot=after_snapshot,
            ask=signals.ask,
            is_stored=signals.is_stored,
            missed=delivery.record_gap,
        )
        self._note()  # before observers learn that it streams
        state.enter("streaming", str(delivery.position))
        self._run.ready()
        self._pull(signals)
        delivery.drain()
        delivery.keep_signals()
        new_tables.save_known()

    def _pull(self, signals: SignalStage) -> None:
        """Do all periodic steps in order; only `PartitionReader.pull` waits."""
        run, state, delivery = self._run, self._state, self._delivery
        clock, stopping = state.clock.monotonic, state.stop.is_set
        self._begin(signals)
        first, proven = self._readers[0], False
        end = StreamEnd(state, self._connector, self._readers, delivery, signals)
        heartbeats = HeartbeatTimer(state, self._connector, delivery)
        now = clock()
        next_poll = next_idle = now + self._idle_s
        if not self._connector.reconnectable:
            run.redeliveries.close(
                "a redelivery would end the temporary slot: stop the pipeline first"
            )
        while not stopping():
            state.leadership.check()
            run.guard.check()
            if run.redeliveries:
                raise RedeliveryAsked
            asks = end.asks or signals.watching
            run.channels.poll_if_due(now)
            signals.resume()
            if signals.blocking:
                self._write_rest()
                signals.read_at_once()
            came = self._receive(now, briefly=asks or signals.waiting)
            now = clock()
            if came:
                if not proven:  # an error of this connection ends the loop
                    proven = True
                    state.reconnects.succeeded()
                end.changes_came(now)
            elif came is None and asks:
                first.stream.request_keepalive()
            self._write_if_due(now)
            delivery.write_notifications()
            # After a cut the rest of a received transaction is nowhere: progress would skip it.
            waits = state.cut or self._has_unwritten
            if signals.watching and first.assembler.idle and not waits:
                signals.advance_to(first.stream.idle_lsn())
            self._confirmation.flush_if_due()
            if now >= next_poll:
                state.reconnects.succeeded()  # the connection has lasted for a while
                try:
                    self._stages.new_tables.poll(self._connector)
                    self._note()
                except StopRequested:  # the loop would end at its head
                    break
                delivery.maintain()
                next_poll = clock() + self._idle_s
            # A list: each stream forgets its request when it is read.
            requests = [each.stream.reply_requested() for each in self._readers]
            if run.guard.must_confirm():
                self._confirmation.flush_now()
                first.stream.request_keepalive()
                next_idle = now
            if any(requests):
                next_idle = now
            if now >= next_idle and not waits and self._confirmation.idle():
                next_idle = now + self._idle_s
            heartbeats.beat_if_due(now)  # behind idle progress: that waits for the next flush
            if end.is_reached(now):
                break
        self._write_rest()
        delivery.write_notifications()

    # --- several readers --------------------------------------------------------------------------

    def _begin(self, signals: SignalStage) -> None:
        state, connector = self._state, self._connector
        overlap = connector.overlap(self._delivery.offset)
        if overlap is not None and len(self._readers) == 1:  # LSNs of several cannot be compared
            self._delivery.expect_overlap(overlap.horizon)
        names = [each.partition for each in self._readers]
        quiet_s = connector.merges_within_s if isinstance(connector, PartitionedSource) else None
        if quiet_s is not None and len(names) > 1:
            most = state.profile.engine.batch_events
            self._merge = PartitionMerge(names, quiet_s, most, state.clock.monotonic())
        read_xmin = connector.xmin_reader() if isinstance(connector, WalSource) else None
        for each in self._readers:
            accept = None if self._merge is None else partial(self._hold, each.partition)
            each.begin(signals, overlap, read_xmin, accept)

    def _hold(self, partition: str, parts: list[TransactionPart]) -> None:
        assert self._merge is not None
        self._merge.add(partition, parts, self._state.clock.monotonic())

    def _receive(self, now: float, *, briefly: bool) -> bool | None:
        """Receive from each reader; return whether changes came.

        None: nothing came at all. The readers wait one after the other, together as long as one would.
        """
        readers, merge = self._readers, self._merge
        if len(readers) == 1:
            return readers[0].pull(self._patience(readers[0], now, briefly=briefly))
        found: list[bool | None] = []
        for each in readers:
            if merge is not None and merge.full(each.partition):
                continue
            patience = min(self._patience(each, now, briefly=briefly), ASK_S) / len(readers)
            found.append(each.pull(0.0 if merge else patience))
        if merge is not None and not any(found):
            self._state.wait(MERGE_POLL_S)
        return True if True in found else None if set(found) <= {None} else False

    def _write_if_due(self, now: float) -> None:
        if self._merge is not None:
            readers = {each.partition: each for each in self._readers}
            for partition, parts in self._merge.take(now):
                readers[partition].take(parts)
                readers[partition].write_rest()
        for each in self._readers:
            each.write_if_due(now)

    def _write_rest(self) -> None:
        for each in self._readers:
            each.write_rest()

    @property
    def _has_unwritten(self) -> bool:
        return bool(self._merge) or any(bool(each.batcher) for each in self._readers)

    def _note(self) -> None:
        """Record the captured tables and the slot for the status."""
        self._state.captures(self._stages.new_tables.captured)
        with suppress(WaltapError), self._connector.once():
            slot = self._connector.slot()
            self._run.guard.take(slot, self._orphans())
            if len(self._readers) == 1:
                # The one of the look before: the server shows a new one before it is on its disk.
                self._delivery.note_restart_lsn(self._restart_lsn)
                self._restart_lsn = 0 if slot is None else slot.restart_lsn

    def _orphans(self) -> list[str] | None:
        """Return slots without a reader and a pipeline of the folder.

        None except at the first look and seldom after it. Raises: SourceError.
        """
        polls, self._polls = self._polls, self._polls + 1
        if polls % POLLS_PER_ORPHANS:
            return None
        stages = self._stages
        return [each.name for each in orphan_slots(stages.profile, self._connector, stages.store)]

    def _patience(self, reader: PartitionReader, now: float, *, briefly: bool) -> float:
        """Return the seconds that the next pull may wait."""
        since, flush_s = self._delivery.unflushed_since, self._state.flush_s
        if briefly:
            longest = ASK_S
        elif since is None:
            longest = POLL_S
        elif self._delivery.awaits_acks:
            longest = ASK_S  # an acknowledgement does not wake this thread
        else:
            # The sink holds back a flush that is due: asked without a wait, it would take a processor.
            longest = min(POLL_S, flush_s if now - since < flush_s else max(flush_s, ASK_S))
        return reader.batcher.wait(longest, now)

    def _gauges(self) -> StreamGauges:
        assemblers = [each.assembler for each in self._readers]
        return StreamGauges(
            queued_events=sum(each.batcher.changes for each in self._readers),
            open_transactions=sum(each.open_transactions for each in assemblers),
            held_bytes=sum(each.held_bytes for each in assemblers),
            spilled_bytes=sum(each.spilled_bytes for each in assemblers),
        )
