"""Streaming: the loop that pulls from the server, as one step after the other."""

import logging
from contextlib import suppress

from waltap.errors import ConnectionLost, WaltapError
from waltap.offsets.state_folder import SPILL
from waltap.pipeline.confirmation import Confirmation
from waltap.pipeline.delivery import Delivery
from waltap.pipeline.heartbeat import Heartbeats
from waltap.pipeline.pump import Pump
from waltap.pipeline.run import Run
from waltap.pipeline.setup import Stages
from waltap.pipeline.signal_table import SignalTable
from waltap.pipeline.stream_end import StreamEnd
from waltap.source.connector import ChangeStream, Connector
from waltap.transactions.assembly import Assembler

__all__ = ["Streaming"]

log = logging.getLogger(__name__)

POLL_S = 0.25
ASK_S = 0.05
IDLE_PROGRESS_S = 10.0


class Streaming:
    """One stream, from its first message to what is confirmed last."""

    def __init__(
        self,
        run: Run,
        connector: Connector,
        stream: ChangeStream,
        stages: Stages,
        delivery: Delivery,
    ) -> None:
        engine = run.profile.engine
        self._run, self._connector, self._stream = run, connector, stream
        self._stages, self._delivery = stages, delivery
        self._assembler = Assembler(
            resume=delivery.written[delivery.partition],
            previous_end_lsn=delivery.previous_end_lsn[delivery.partition],
            spill_dir=run.state_dir / SPILL,
            spill_memory_bytes=engine.spill_memory_bytes,
            two_phase=engine.two_phase_policy,
            describe=stages.relations.complete,
            warn=log.warning,
        )
        self._confirmation = Confirmation(
            run, stream, self._assembler, delivery, delivery.partition
        )
        self._pump: Pump | None = None
        self._flush_s = engine.flush_interval_ms / 1000
        self._idle_s = min(engine.status_interval_ms / 1000, IDLE_PROGRESS_S)

    def go(self, *, whole: bool) -> None:
        """Stream until the run is to end. ``whole``: a snapshot has just read every table."""
        run, delivery = self._run, self._delivery
        run.started, run.streaming = True, self
        try:
            try:
                signals = SignalTable(
                    run, self._connector, self._stages, delivery, lambda: self._assembler.undecided
                )
                new_tables = self._stages.new_tables
                new_tables.begin(self._connector, delivery.offset, whole=whole, ask=signals.ask)
                run.enter("streaming", str(delivery.written[delivery.partition]))
                run.ready()
                self._note()
                self._pull(signals)
            finally:
                self._confirmation.last()
            if not run.cut and run.tenure.held:
                with suppress(ConnectionLost):
                    self._confirmation.idle()
        finally:
            run.streaming = None
            self._stream.close()
            self._assembler.close()

    def _pull(self, signals: SignalTable) -> None:
        """Do all that is to be done, again and again; nothing here waits but `Pump.pull`."""
        run, stream, delivery = self._run, self._stream, self._delivery
        clock, stopping = run.clock.monotonic, run.stop.is_set
        overlap = self._connector.overlap(delivery.offset)
        pump = self._pump = Pump(
            run, stream, self._assembler, signals, overlap, self._connector.slot_xmin
        )
        end = StreamEnd(run, self._connector, stream, self._assembler, delivery)
        heartbeats = Heartbeats(run, self._connector, delivery)
        now = clock()
        next_look = next_idle = now + self._idle_s
        while not stopping():
            run.tenure.check()
            asks = end.asks or signals.watching
            run.channels.poll_if_due(now, signals.take)
            signals.resume()
            if signals.blocking:
                pump.write_rest()
                signals.read_at_once()
            came = pump.pull(self._patience(pump, now, hurried=asks or signals.waiting))
            now = clock()
            if came:
                run.reconnects.succeeded()
                end.changes_came(now)
            elif came is None and asks:
                stream.ask()
            pump.write_if_due(now)
            delivery.write_told()
            if signals.watching and self._assembler.idle and not pump.gathered:
                signals.reached(stream.idle_lsn())
            self._confirmation.flush_if_due()
            if now >= next_look:
                run.reconnects.succeeded()  # the link has stood for a while
                self._stages.new_tables.look(self._connector)
                self._note()
                next_look = clock() + self._idle_s
            if stream.urged():
                next_idle = now
            if now >= next_idle and not pump.gathered and self._confirmation.idle():
                next_idle = now + self._idle_s
            heartbeats.beat_if_due(now)  # behind idle progress: that waits for the next flush
            if end.reached(now):
                break
        pump.write_rest()
        delivery.write_told()

    def _note(self) -> None:
        """Take note of what a status tells and only the server knows, where it answers."""
        run = self._run
        run.captured_tables = self._stages.new_tables.captured
        with suppress(WaltapError):
            slot = self._connector.slot()
            run.server_lsn = None if slot is None else slot.server_lsn

    def _patience(self, pump: Pump, now: float, *, hurried: bool) -> float:
        """Return how long the next pull may wait, in seconds."""
        if hurried:
            longest = ASK_S
        elif self._delivery.unflushed_since is None:
            longest = POLL_S
        else:
            longest = min(POLL_S, self._flush_s)
        return pump.gathered.wait(longest, now)

    # --- for any thread (`StreamGauges`) ----------------------------------------------------------

    @property
    def queued_events(self) -> int:
        return 0 if self._pump is None else self._pump.gathered.changes

    @property
    def open_transactions(self) -> int:
        return self._assembler.open_transactions

    @property
    def held_bytes(self) -> int:
        return self._assembler.held_bytes

    @property
    def spilled_bytes(self) -> int:
        return self._assembler.spilled_bytes
