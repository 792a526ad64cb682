"""The engine: one thread pulls from the stream, renders, and writes to the sink.

Back-pressure is the absence of a pull. The only other thread is the stream's own, which answers the
server while a sink blocks. An LSN is confirmed when, and only when, the sink's flush returned it and
the offset store kept it.

Order of an end, clean or not: sink flushed, offset stored, LSN confirmed, stream closed, what a clean
stop asks for on the server, connector closed, sink closed. After a failed flush nothing is flushed,
stored or confirmed; where the engine may go on, it makes the sink anew and starts from what was stored.
"""

import logging
import time
import uuid
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from functools import partial
from pathlib import Path

import msgspec

from waltap.config.profile import Profile
from waltap.errors import (
    ConfigurationError,
    ConnectionLost,
    Problem,
    Retry,
    SinkError,
    SnapshotError,
    SourceError,
    WaltapError,
)
from waltap.host import Host
from waltap.offsets.offset import Offset
from waltap.pipeline.backoff import Backoff
from waltap.pipeline.delivery import Delivery, Part
from waltap.pipeline.gathering import Gathering
from waltap.pipeline.limits import Limits, Silence, batches, cut
from waltap.pipeline.lock import PipelineLock, state_unusable
from waltap.pipeline.preflight import checks, refuse
from waltap.pipeline.setup import Parts, build
from waltap.pipeline.snapshot_phase import SnapshotPhase
from waltap.pipeline.stop import StopFlag
from waltap.pipeline.visibility import Overlap
from waltap.sink.sink import ReaderGone
from waltap.snapshot.incremental import IncrementalSnapshots, State
from waltap.source.connector import (
    ChangeStream,
    Connector,
    ConnectorContext,
    Start,
    StopRequested,
)
from waltap.source.position import Position, lsn_text
from waltap.transactions.assembly import Assembler
from waltap.transactions.transaction import Heartbeat, TransactionPart

__all__ = ["Engine"]

log = logging.getLogger(__name__)

POLL_S = 0.25
ASK_S = 0.05
IDLE_PROGRESS_S = 10.0
FEW_MESSAGES = 256
"""So few that came at once may be large rows: they are not kept while the next are received. Many are,
since memory that is given back as a whole is asked for again at once (10 % of processor time)."""


class Engine:
    """Runs one profile until it is done, stopped, or failed.

    ``run`` blocks; ``stop`` may be called from a signal handler or another thread.
    """

    def __init__(
        self,
        profile: Profile,
        host: Host,
        *,
        limits: Limits | None = None,
        ready_file: Path | None = None,
    ) -> None:
        self.profile, self.host = profile, host
        self.limits = limits or Limits()
        self.run_id = str(uuid.uuid4())
        self.state = "new"
        self.delivery: Delivery | None = None
        self._ready_file = ready_file
        self._stop = StopFlag()
        self._began = time.monotonic()
        engine = profile.engine
        self._reconnects = Backoff(
            self._wait, retries=engine.max_retries, ceiling_s=engine.retry_delay_ms / 1000
        )
        self._linked = self._opened = self._started_once = self._cut = False
        self._created: set[str] = set()
        self._slots: set[str] = set()
        self._unreadable: dict[str, SourceError] = {}
        self._look: Callable[[], None] = lambda: None

    def stop(self) -> None:
        """Ask for a clean end: what was written is flushed and confirmed first."""
        self._stop.set()

    def run(self) -> None:
        """Capture until done. Raises: WaltapError when it cannot go on, or runs elsewhere."""
        self._began = time.monotonic()
        if self._ready_file is not None:
            with self._ready_file_usable():  # an earlier run's says nothing of this one
                self._ready_file.unlink(missing_ok=True)
        self._enter("checking", self.profile.name)
        try:
            with PipelineLock(self._state_dir()):
                parts = build(
                    self.profile, self.host, run_id=self.run_id, stopping=self._stop.is_set
                )
                try:
                    self._run_until_done(parts)
                finally:
                    if self._opened:
                        parts.sink.close()
            self._enter("stopped", self.profile.name)
        except Exception as error:
            told = state_unusable(error, self._state_dir()) or self.host.blamed(error)
            self._enter("failed", str(told))
            self.host.notify("on_failure", pipeline=self.profile.name, error=told, retried=False)
            if told is error:
                raise
            raise told from error
        except BaseException as error:
            self._enter("failed", str(error))
            raise

    def _run_until_done(self, parts: Parts) -> None:
        """Connect as often as it takes."""
        fresh, held = True, None
        while True:
            try:
                if not fresh:
                    held = parts.renew_sink().open()
                    fresh = True
                self._run_once(parts, held)
            except StopRequested:
                return
            except ReaderGone as end:
                log.warning("%s: stopped", end.problem, extra={"pipeline": self.profile.name})
                return
            except WaltapError as error:
                if not self._may_retry(error):
                    raise
                fresh = not isinstance(error, SinkError) and not self._failed
                self._enter("reconnecting", str(error))
                self.host.notify(
                    "on_failure", pipeline=self.profile.name, error=error, retried=True
                )
                if not self._reconnects.wait():
                    if fresh:
                        return  # a stop: what was written is flushed and stored
                    raise
            else:
                return
            held = None

    def _may_retry(self, error: WaltapError) -> bool:
        """A link that never stood is an error of set-up; one that broke comes back, also before
        anything was delivered, as does a slot that the next connection makes anew."""
        if error.retry is not Retry.RECONNECT or self._reconnects.spent:
            return False
        comes_back = isinstance(error, ConnectionLost | SnapshotError) or bool(self._unreadable)
        return self._started_once or (self._linked and comes_back)

    # --- one connection -----------------------------------------------------------------------

    def _run_once(self, parts: Parts, held: Position | None) -> None:
        spec, properties = self.profile.connector.spec, self.profile.connector.properties
        context = ConnectorContext(
            profile=self.profile,
            captures=parts.capture.captures,
            identity=parts.identity,
            stopping=self._stop.is_set,
            created=self._created,
            slots=self._slots,
            unreadable=self._unreadable,
            reconnects=self._started_once,
            announced=parts.announced,
            memory=parts.memory,
            belongings=parts.belongings,
            forget=parts.forget,
            send_format=parts.send_format,
        )
        stored = parts.store.load()
        connector = spec.factory(properties, context)
        self._linked = True
        parts.connect(connector)
        try:
            if not self._opened:
                refuse(checks(parts, connector, locked=True))
                self._opened = True
                held = parts.sink.open()
            with self._nothing_half_way(connector, parts, stored):
                offset = _newest(stored, held)
                parts.new_tables.prepare(connector)
                start = connector.prepare(offset)
                for note in start.notes:
                    log.info(note)
                if start.slot_created:
                    self._slot_notice("created", start.offset, start.offset.slot_created_lsn)
                delivery = self._deliver(parts, start, offset)
                if start.snapshot:
                    self._snapshot(connector, delivery, start)
                stream = None
                if start.stream and not self._stop.is_set():
                    stream = connector.stream(delivery.written)
            if stream is not None:
                self._stream(connector, stream, parts, delivery, whole=start.snapshot)
            elif not start.stream and not self._stop.is_set():
                delivery.flush()  # the heartbeat; the snapshot's rows are durable
                self._ready()
            if connector.finish():
                parts.store.clear()
                self._slot_notice("dropped", delivery.offset, delivery.offset.position.end_lsn)
        finally:
            connector.close()

    @contextmanager
    def _nothing_half_way(
        self, connector: Connector, parts: Parts, stored: Offset | None
    ) -> Iterator[None]:
        """A start that fails, or is stopped, before the sink got anything leaves nothing behind: what
        it made on the server is removed, and the offset is what it was."""
        before = self.delivery.events if self.delivery is not None else 0
        try:
            yield
            if not self._stop.is_set() or not self._in_snapshot():
                return
        except BaseException:
            self._undo(connector, parts, stored, before)
            raise
        self._undo(connector, parts, stored, before)

    @property
    def _failed(self) -> bool:
        return self.delivery is not None and self.delivery.failed

    def _in_snapshot(self) -> bool:
        return self.delivery is not None and self.delivery.offset.snapshot is not None

    def _undo(self, connector: Connector, parts: Parts, stored: Offset | None, before: int) -> None:
        if self.delivery is not None and self.delivery.events > before:
            return
        with suppress(WaltapError):
            connector.undo()
            if stored is None:
                parts.store.clear()
            else:
                parts.store.store(stored)

    def _deliver(self, parts: Parts, start: Start, offset: Offset | None) -> Delivery:
        """Make the delivery of this connection; counts go on over reconnects."""
        engine = self.profile.engine
        stored = (
            start.offset
            if offset is None
            else msgspec.structs.replace(
                start.offset,
                previous_end_lsn=offset.previous_end_lsn if not start.snapshot else None,
            )
        )
        delivery = Delivery(
            pipeline=self.profile.name,
            sink=parts.sink,
            store=parts.store,
            render=parts.format,
            transforms=parts.transforms,
            host=self.host,
            offset=stored,
            retries=Backoff(
                self._wait, retries=engine.max_retries, ceiling_s=engine.retry_delay_ms / 1000
            ),
        )
        if self.delivery is not None:
            delivery.events, delivery.records = self.delivery.events, self.delivery.records
        self.delivery = delivery
        delivery.store(stored)
        return delivery

    # --- snapshot -----------------------------------------------------------------------------

    def _snapshot(self, connector: Connector, delivery: Delivery, start: Start) -> None:
        self._enter("snapshot", self.profile.name)
        phase = SnapshotPhase(
            delivery,
            self.host,
            pipeline=self.profile.name,
            flush_s=self.profile.engine.flush_interval_ms / 1000,
            left=lambda: self._left(delivery),
            ends=lambda: self._stop.is_set() or self._over(delivery),
        )
        try:
            if phase.run(connector, start):
                self._reconnects.succeeded()
                if self.profile.engine.heartbeat_interval_ms:
                    _beat(connector, delivery)  # at once, however long the period
            else:
                self._stop.set()
        finally:
            self._started_once = self._started_once or phase.begun

    # --- stream -------------------------------------------------------------------------------

    def _stream(
        self,
        connector: Connector,
        stream: ChangeStream,
        parts: Parts,
        delivery: Delivery,
        *,
        whole: bool,
    ) -> None:
        position = delivery.written
        self._started_once = True
        assembler = Assembler(
            resume=position,
            previous_end_lsn=delivery.previous_end_lsn,
            spill_dir=self._state_dir() / "spill",
            spill_memory_bytes=self.profile.engine.spill_memory_bytes,
            two_phase=self.profile.engine.two_phase_policy,
            describe=parts.complete,
            warn=log.warning,
        )
        try:
            try:
                incremental = self._incremental(connector, parts, delivery)
                ask = incremental.ask_for if incremental is not None else None
                parts.new_tables.begin(connector, delivery.offset, whole=whole, ask=ask)
                self._look = partial(parts.new_tables.look, connector)
                self._enter("streaming", str(position))
                self._ready()
                self._pull(connector, stream, assembler, incremental, delivery)
            finally:
                self._flush_last(stream, assembler, delivery)
            if not self._cut:
                with suppress(ConnectionLost):
                    self._idle_progress(stream, assembler, delivery)
        finally:
            stream.close()
            assembler.close()

    def _pull(
        self,
        connector: Connector,
        stream: ChangeStream,
        assembler: Assembler,
        incremental: IncrementalSnapshots | None,
        delivery: Delivery,
    ) -> None:
        engine = self.profile.engine
        overlap = Overlap.parse(delivery.offset.visible, delivery.offset.visible_in)
        flush_s = engine.flush_interval_ms / 1000
        idle_s = min(engine.status_interval_ms / 1000, IDLE_PROGRESS_S)
        beat_s = engine.heartbeat_interval_ms / 1000
        silence = self._silence(connector)
        gathered = Gathering(engine.linger_ms / 1000, engine.batch_events)
        now = time.monotonic()
        next_beat, next_idle, next_look = now + beat_s, now + idle_s, now + idle_s
        while not self._stop.is_set():
            ask = self.limits.until_lsn is not None or (
                silence is not None and not silence.caught_up
            )
            waiting = incremental is not None and incremental.waiting
            if incremental is not None and waiting:
                incremental.resume(_now_us())
            timeout = POLL_S if delivery.unflushed_since is None else min(POLL_S, flush_s)
            timeout = gathered.wait(ASK_S if ask or waiting else timeout, now)
            backlog = assembler.backlog
            messages = [] if backlog else stream.receive(timeout)
            now = time.monotonic()
            if messages or backlog:
                parts = assembler.feed(messages)
                if parts and overlap is not None:
                    parts = overlap.filter(parts)
                if parts:
                    self._reconnects.succeeded()
                    if silence is not None:
                        silence.broken(now)
                    gathered.add(parts, now)
                if len(messages) < FEW_MESSAGES:
                    messages, parts = [], []
            elif ask:
                stream.ask()
            if gathered.due(now):
                self._write(delivery, gathered.take(), incremental)
            if delivery.due(flush_s):
                self._flush(stream, assembler, delivery)
            if beat_s and now >= next_beat:
                next_beat = now + beat_s
                _beat(connector, delivery)
            if now >= next_look:
                self._reconnects.succeeded()  # the link has stood for a while
                self._look()
                next_look = time.monotonic() + idle_s
            if (now >= next_idle or stream.urged()) and not gathered:
                next_idle = now + idle_s
                self._idle_progress(stream, assembler, delivery)
            if self._over(delivery) or self._reached(stream, assembler, delivery):
                break
            if silence is not None and assembler.idle and silence.lasted(now, stream.idle_lsn()):
                break
        if gathered:
            self._write(delivery, gathered.take(), incremental)

    def _incremental(
        self, connector: Connector, parts: Parts, delivery: Delivery
    ) -> IncrementalSnapshots | None:
        """Return the watcher of the signal table, None when the profile names none."""
        table, engine = parts.capture.signal_table, self.profile.engine
        if table is None:
            return None
        source = connector.chunk_source(table, engine.incremental_chunk_size)
        if source is None:
            return None
        watcher = IncrementalSnapshots(
            source,
            table,
            report=lambda kind, identifier, data: self.host.notify(
                "on_signal",
                pipeline=self.profile.name,
                kind=kind,
                identifier=identifier,
                data=data,
            ),
            offset=lambda: str(delivery.written),
            text_of=parts.text_of,
            keys=parts.capture.keys,
            clock=time.monotonic,
            max_bytes=engine.signal_max_bytes,
            match_s=engine.signal_match_timeout_ms / 1000,
            delete_closes=engine.watermarking == "insert_delete",
            state=msgspec.convert(delivery.offset.signals, State),
        )
        watcher.resume(_now_us())
        return watcher

    def _write(
        self,
        delivery: Delivery,
        parts: list[TransactionPart],
        incremental: IncrementalSnapshots | None,
    ) -> None:
        left = self._left(delivery)
        if left is not None:
            parts, self._cut = cut(parts, left)
        for batch in batches(parts, self.profile.engine.batch_events):
            if incremental is None:
                delivery.write(list[Part](batch))
                continue
            with_chunks = incremental.process(batch, _now_us())
            delivery.signals = incremental.stored
            delivery.write(list[Part](with_chunks))

    def _flush(self, stream: ChangeStream, assembler: Assembler, delivery: Delivery) -> None:
        assembler.secure()
        end_lsn = delivery.flush()
        if end_lsn is not None:
            self._confirm(stream, delivery, assembler.confirmable(end_lsn))

    def _flush_last(self, stream: ChangeStream, assembler: Assembler, delivery: Delivery) -> None:
        """Make durable what was written, also when the link is gone: then nothing is confirmed.

        Nothing at all after a failure of the sink: it would promise what it has lost.
        """
        if delivery.failed:
            return
        assembler.secure()
        end_lsn = delivery.flush()
        if end_lsn is not None:
            with suppress(ConnectionLost):
                self._confirm(stream, delivery, assembler.confirmable(end_lsn))

    def _idle_progress(
        self, stream: ChangeStream, assembler: Assembler, delivery: Delivery
    ) -> None:
        """When nothing captured is pending, what the server has read counts as delivered: a quiet
        table beside busy ones never holds WAL.

        Never after a failure or a cut: what was received may then not have been written.
        """
        if delivery.unflushed_since is not None or not assembler.idle:
            return
        if delivery.written != delivery.offset.position:
            return
        lsn = assembler.confirmable(stream.idle_lsn())
        if lsn > delivery.offset.position.end_lsn:
            self._confirm(stream, delivery, delivery.advance(Position(lsn)))

    def _confirm(self, stream: ChangeStream, delivery: Delivery, lsn: int) -> None:
        stored = delivery.offset.position.end_lsn
        assert lsn <= stored, f"would confirm {lsn_text(lsn)}, stored is {lsn_text(stored)}"
        stream.confirm(lsn)
        self._slot_notice("confirmed", delivery.offset, lsn)

    def _slot_notice(self, event: str, offset: Offset, lsn: int) -> None:
        self.host.notify(
            "on_slot", pipeline=self.profile.name, event=event, slot=offset.slot, lsn=lsn
        )

    # --- ends ---------------------------------------------------------------------------------

    def _over(self, delivery: Delivery) -> bool:
        left, seconds = self._left(delivery), self.limits.max_seconds
        if left is not None and left <= 0:
            return True
        return seconds is not None and time.monotonic() - self._began >= seconds

    def _left(self, delivery: Delivery) -> int | None:
        """Return how much may still be delivered, None without a limit."""
        if self.limits.max_records is None:
            return None
        counted = delivery.records if delivery.counts_records else delivery.events
        return self.limits.max_records - counted

    def _silence(self, connector: Connector) -> Silence | None:
        if self.limits.until_idle is None:
            return None
        slot = connector.slot()
        return Silence(self.limits.until_idle, slot.server_lsn if slot else 0, now=time.monotonic())

    def _reached(self, stream: ChangeStream, assembler: Assembler, delivery: Delivery) -> bool:
        lsn = self.limits.until_lsn
        if lsn is None:
            return False
        read = stream.idle_lsn() if assembler.idle else 0
        return max(read, delivery.written.end_lsn) >= lsn

    # --- surroundings -------------------------------------------------------------------------

    def _enter(self, state: str, detail: str) -> None:
        self.state = state
        log.info(state, extra={"pipeline": self.profile.name})
        self.host.notify("on_state", pipeline=self.profile.name, state=state, detail=detail)

    def _ready(self) -> None:
        if self._ready_file is not None:
            with self._ready_file_usable():
                self._ready_file.parent.mkdir(parents=True, exist_ok=True)
                self._ready_file.touch()

    @contextmanager
    def _ready_file_usable(self) -> Iterator[None]:
        try:
            yield
        except OSError as error:
            problem = Problem(str(self._ready_file), f"cannot be written: {error.strerror}")
            raise ConfigurationError([problem], origin="the ready file") from error

    def _state_dir(self) -> Path:
        return self.profile.engine.state_dir / self.profile.name

    def _wait(self, seconds: float) -> bool:
        """Wait; False when a stop, or the end of ``max_seconds``, came in the meantime."""
        most = self.limits.max_seconds
        if most is not None:
            left = most - (time.monotonic() - self._began)
            if left < seconds:
                self._stop.wait(max(0.0, left))
                self._stop.set()
        return not self._stop.wait(seconds)


def _beat(connector: Connector, delivery: Delivery) -> None:
    connector.heartbeat()
    delivery.write([Heartbeat(ts=time.time_ns() // 1_000_000)])


def _now_us() -> int:
    return time.time_ns() // 1000


def _newest(offset: Offset | None, held: Position | None) -> Offset | None:
    """A sink that keeps the position with its data may know more than the store."""
    if offset is None or held is None or held <= offset.position:
        return offset
    return msgspec.structs.replace(offset, position=held, previous_end_lsn=held.end_lsn)
