"""The engine: one thread pulls from the stream, renders, and writes to the sink.

Back-pressure is the absence of a pull. The only other thread is the stream's own, which answers the
server while a sink blocks. An LSN is confirmed when, and only when, the sink's flush returned it and
the offset store kept it.

Order of an end, clean or not: sink flushed, offset stored, LSN confirmed, stream closed, what a clean
stop asks for on the server, connector closed, sink closed. A failed flush skips what follows from it.
"""

import logging
import threading
import time
import uuid
from contextlib import suppress
from pathlib import Path

import msgspec

from waltap.config.profile import Profile
from waltap.errors import Retry, WaltapError
from waltap.events.assembly import Assembler
from waltap.events.transaction import Heartbeat, TransactionPart
from waltap.host import Host
from waltap.offsets.offset import Offset
from waltap.pipeline.backoff import Backoff
from waltap.pipeline.delivery import Delivery, Part
from waltap.pipeline.limits import Limits, cut
from waltap.pipeline.setup import Parts, build
from waltap.pipeline.visibility import Visibility
from waltap.snapshot.incremental import IncrementalSnapshots, State
from waltap.source.connector import ChangeStream, Connector, ConnectorContext, Start
from waltap.source.position import Position

__all__ = ["Engine"]

log = logging.getLogger(__name__)

POLL_S = 0.25
ASK_S = 0.05
IDLE_PROGRESS_S = 10.0


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
        self._stop = threading.Event()
        self._began = self._idle_since = time.monotonic()
        engine = profile.engine
        self._reconnects = Backoff(
            self._wait, retries=engine.max_retries, ceiling_s=engine.retry_delay_ms / 1000
        )
        self._started_once = False

    def stop(self) -> None:
        """Ask for a clean end: what was written is flushed and confirmed first."""
        self._stop.set()

    def run(self) -> None:
        """Capture until done. Raises: WaltapError when it cannot go on."""
        self._began = time.monotonic()
        self._enter("checking", self.profile.name)
        parts = build(self.profile, self.host, run_id=self.run_id)
        sink = parts.sink
        try:
            held = sink.open()
            while True:
                try:
                    self._run_once(parts, held)
                    break
                except WaltapError as error:
                    if not self._may_retry(error):
                        raise
                    self._enter("reconnecting", str(error))
                    self.host.notify(
                        "on_failure", pipeline=self.profile.name, error=error, retried=True
                    )
                    if not self._reconnects.wait():
                        raise
                held = None
            self._enter("stopped", self.profile.name)
        except BaseException as error:
            self._enter("failed", str(error))
            if isinstance(error, Exception):
                self.host.notify(
                    "on_failure", pipeline=self.profile.name, error=error, retried=False
                )
            raise
        finally:
            sink.close()

    def _may_retry(self, error: WaltapError) -> bool:
        """A link that never stood is an error of set-up; one that broke comes back."""
        return (
            error.retry is Retry.RECONNECT and self._started_once and not self._stop.is_set()
        ) and not self._reconnects.spent

    # --- one connection -----------------------------------------------------------------------

    def _run_once(self, parts: Parts, held: Position | None) -> None:
        spec, properties = self.profile.connector.spec, self.profile.connector.properties
        context = ConnectorContext(
            profile=self.profile,
            captures=parts.capture.captures,
            identity=parts.identity,
            stopping=self._stop.is_set,
        )
        connector = spec.factory(properties, context)
        parts.connect(connector)
        try:
            offset = _newest(parts.store.load(), held)
            start = self._prepare(connector, offset)
            delivery = self._deliver(parts, start, offset)
            if start.snapshot:
                self._snapshot(connector, delivery, start)
            if start.stream and not self._stop.is_set():
                self._stream(connector, parts, delivery, start)
            else:
                self._ready()
            connector.finish()
        finally:
            connector.close()

    def _prepare(self, connector: Connector, offset: Offset | None) -> Start:
        try:
            start = connector.prepare(offset)
        except BaseException:
            with suppress(WaltapError):
                connector.undo()
            raise
        for note in start.notes:
            log.info(note)
        return start

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
        delivery.store(stored)
        self.delivery = delivery
        return delivery

    # --- snapshot -----------------------------------------------------------------------------

    def _snapshot(self, connector: Connector, delivery: Delivery, start: Start) -> None:
        self._enter("snapshot", self.profile.name)
        interval = self.profile.engine.flush_interval_ms / 1000
        notify, name = self.host.notify, self.profile.name
        notify("on_snapshot", pipeline=name, event="started", table="", rows=0, total=None)
        table, rows = "", 0
        try:
            for piece in connector.snapshot(start):
                if piece.relation.name != table:
                    self._table_done(table, rows)
                    table, rows = piece.relation.name, 0
                    total = connector.estimate(piece.relation)
                    notify(
                        "on_snapshot",
                        pipeline=name,
                        event="table_started",
                        table=table,
                        rows=0,
                        total=total,
                    )
                delivery.write([piece], snapshot=True)
                rows += len(piece.rows)
                notify(
                    "on_snapshot",
                    pipeline=name,
                    event="progress",
                    table=table,
                    rows=rows,
                    total=total,
                )
                if self._due(delivery, interval):
                    delivery.flush()
                if self._stop.is_set() or self._over(delivery):
                    self._stop.set()
                    delivery.flush()
                    notify(
                        "on_snapshot",
                        pipeline=name,
                        event="aborted",
                        table="",
                        rows=rows,
                        total=None,
                    )
                    return
            self._table_done(table, rows)
            delivery.finish_snapshot()
        except WaltapError:
            self._undo_if_nothing_delivered(connector, delivery)
            raise
        self._started_once = True
        notify("on_snapshot", pipeline=name, event="completed", table="", rows=rows, total=None)

    def _undo_if_nothing_delivered(self, connector: Connector, delivery: Delivery) -> None:
        """A start that fails before anything was delivered leaves nothing behind."""
        if delivery.events or self._started_once or not delivery.offset.slot_created_lsn:
            return
        with suppress(WaltapError):
            connector.undo()
            delivery.forget()

    def _table_done(self, table: str, rows: int) -> None:
        if table:
            self.host.notify(
                "on_snapshot",
                pipeline=self.profile.name,
                event="table_completed",
                table=table,
                rows=rows,
                total=rows,
            )

    # --- stream -------------------------------------------------------------------------------

    def _stream(self, connector: Connector, parts: Parts, delivery: Delivery, start: Start) -> None:
        position = delivery.written
        try:
            stream = connector.stream(position)
        except WaltapError:
            self._undo_if_nothing_delivered(connector, delivery)
            raise
        self._enter("streaming", str(position))
        self._started_once = True
        self._ready()
        assembler = Assembler(
            resume=position,
            previous_end_lsn=delivery.previous_end_lsn,
            spill_dir=self._state_dir() / "spill",
            spill_memory_bytes=self.profile.engine.spill_memory_bytes,
            two_phase=getattr(self.profile.decoder.properties, "two_phase_policy", "commit"),
        )
        try:
            incremental = self._incremental(connector, parts, delivery)
            self._pull(connector, stream, assembler, incremental, delivery)
        finally:
            try:
                self._settle(stream, assembler, delivery)
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
        visibility = Visibility.parse(delivery.offset.visible)
        flush_s = engine.flush_interval_ms / 1000
        idle_s = min(engine.status_interval_ms / 1000, IDLE_PROGRESS_S)
        beat_s = engine.heartbeat_interval_ms / 1000
        ask = self.limits.until_lsn is not None
        now = self._idle_since = time.monotonic()
        next_beat, next_idle = now, now + idle_s
        while not self._stop.is_set():
            timeout = POLL_S if delivery.unflushed_since is None else min(POLL_S, flush_s)
            backlog = assembler.backlog
            messages = [] if backlog else stream.receive(ASK_S if ask else timeout)
            now = time.monotonic()
            if messages or backlog:
                parts = assembler.feed(messages)
                if parts and visibility is not None:
                    parts = visibility.filter(parts)
                if parts:
                    self._reconnects.succeeded()
                    self._idle_since = now
                    self._write(delivery, parts, incremental)
            elif ask:
                stream.ask()
            if self._due(delivery, flush_s):
                self._flush(stream, assembler, delivery)
            if beat_s and now >= next_beat and delivery.has_offset:
                next_beat = now + beat_s
                connector.heartbeat()
                delivery.write([Heartbeat(ts=time.time_ns() // 1_000_000)])
            if now >= next_idle:
                next_idle = now + idle_s
                self._idle_progress(stream, assembler, delivery)
            if (
                self._over(delivery)
                or self._idle(now)
                or self._reached(stream, assembler, delivery)
            ):
                return

    def _incremental(
        self, connector: Connector, parts: Parts, delivery: Delivery
    ) -> IncrementalSnapshots | None:
        """Return the watcher of the signal table, None when the profile names none."""
        table, engine = self.profile.capture.signal_data_collection, self.profile.engine
        if table is None:
            return None
        source = connector.chunk_source(table, engine.incremental_chunk_size)
        if source is None:
            return None
        watcher = IncrementalSnapshots(
            source,
            table,
            key=parts.capture.keys,
            report=lambda kind, identifier, data: self.host.notify(
                "on_signal",
                pipeline=self.profile.name,
                kind=kind,
                identifier=identifier,
                data=data,
            ),
            offset=lambda: str(delivery.written),
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
        most = self.limits.max_records
        if most is not None:
            counted = delivery.records if delivery.counts_records else delivery.events
            parts = cut(parts, most - counted)
        if incremental is None:
            delivery.write(list[Part](parts))
            return
        with_chunks = incremental.process(parts, _now_us())
        delivery.signals = msgspec.to_builtins(incremental.state)
        delivery.write(list[Part](with_chunks))

    def _due(self, delivery: Delivery, seconds: float) -> bool:
        since = delivery.unflushed_since
        return since is not None and time.monotonic() - since >= seconds

    def _flush(self, stream: ChangeStream, assembler: Assembler, delivery: Delivery) -> None:
        end_lsn = delivery.flush()
        if end_lsn is not None:
            stream.confirm(assembler.confirmable(end_lsn))

    def _idle_progress(
        self, stream: ChangeStream, assembler: Assembler, delivery: Delivery
    ) -> None:
        """When nothing captured is pending, what the server has read counts as delivered: a quiet
        table beside busy ones never holds WAL."""
        if delivery.unflushed_since is not None or not assembler.idle:
            return
        if delivery.written != delivery.offset.position:
            return
        lsn = assembler.confirmable(stream.idle_lsn())
        if lsn > delivery.offset.position.end_lsn:
            stream.confirm(delivery.advance(Position(lsn)))

    def _settle(self, stream: ChangeStream, assembler: Assembler, delivery: Delivery) -> None:
        """Make durable what was written, also when the link is gone: then nothing is confirmed."""
        end_lsn = delivery.flush()
        with suppress(WaltapError):
            if end_lsn is not None:
                stream.confirm(assembler.confirmable(end_lsn))
            self._idle_progress(stream, assembler, delivery)

    # --- ends ---------------------------------------------------------------------------------

    def _over(self, delivery: Delivery) -> bool:
        limits = self.limits
        counted = delivery.records if delivery.counts_records else delivery.events
        if limits.max_records is not None and counted >= limits.max_records:
            return True
        return (
            limits.max_seconds is not None and time.monotonic() - self._began >= limits.max_seconds
        )

    def _idle(self, now: float) -> bool:
        limit = self.limits.until_idle
        return limit is not None and now - self._idle_since >= limit

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
            self._ready_file.parent.mkdir(parents=True, exist_ok=True)
            self._ready_file.touch()

    def _state_dir(self) -> Path:
        return self.profile.engine.state_dir / self.profile.name

    def _wait(self, seconds: float) -> bool:
        """Wait; False when a stop came in the meantime."""
        return not self._stop.wait(seconds)


def _now_us() -> int:
    return time.time_ns() // 1000


def _newest(offset: Offset | None, held: Position | None) -> Offset | None:
    """A sink that keeps the position with its data may know more than the store."""
    if offset is None or held is None or held <= offset.position:
        return offset
    return msgspec.structs.replace(offset, position=held, previous_end_lsn=held.end_lsn)
