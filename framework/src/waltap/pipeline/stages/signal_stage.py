"""Process signals: their rows are put into the stream."""

import json
import logging
import math
import re
from collections import Counter
from collections.abc import Callable, Collection, Mapping, Sequence
from functools import partial

import msgspec

from waltap.base.plugin_errors import interrupts
from waltap.base.text import cut, in_brief
from waltap.changes.decode.relation import Relation
from waltap.changes.transactions.transaction import Part, TransactionPart
from waltap.clock import new_identifier, processor_time
from waltap.errors import WaltapError
from waltap.pipeline.delivery.sink_writer import SinkWriter
from waltap.pipeline.runtime.channels import SIGNAL, PipelineChannels
from waltap.pipeline.runtime.run_state import RunState
from waltap.pipeline.stages.blocking_snapshot import BlockingSnapshot
from waltap.pipeline.stages.relations import DescribedRelations
from waltap.pipeline.stages.snapshot_phase import IncrementalReport
from waltap.ports.signals.signal import (
    SNAPSHOTS,
    Action,
    Signal,
    SignalCall,
    SignalIgnored,
    SignalUnusable,
)
from waltap.ports.snapshot.chunk_source import ChunkSize
from waltap.ports.snapshot.incremental import IncrementalSnapshots
from waltap.ports.snapshot.incremental_state import IncrementalState
from waltap.ports.source.connector import Connector
from waltap.ports.source.roles import ChunkedSource
from waltap.ports.specs import SignalActionSpec

log = logging.getLogger(__name__)

NOT_HERE = {
    "schema-changes": "is not for here: it repairs a schema history, and waltap keeps none: tables are "
    "described from the catalogue, as of each change",
    "set-offset": "is not for here: `waltap offsets set FILE LSN` does that, while the pipeline does not "
    "run",
}
"""Types of Debezium's signals without a meaning here, and the reason."""


def _unreadable(_signal: Signal, _arguments: dict[str, object]) -> Action:
    raise SignalUnusable("this source reads no tables on demand")


ADVANCE_AFTER_S = 0.2

SOURCE = "source"
"""The channel whose signals are rows of the signal table."""


class SignalStage:
    """Put the rows that signals request into the stream.

    The stage watches the signal table, if the profile names one, and acts on signals of other channels.
    Without a connector that reads tables on demand it passes everything on, and signals about snapshots
    are ignored. A signal is data from outside, so it never stops a pipeline: an ignored one is logged,
    with a notification.
    """

    def __init__(
        self,
        state: RunState,
        channels: PipelineChannels,
        connector: Connector,
        delivery: SinkWriter,
        relations: DescribedRelations,
        undecided: Callable[[], list[str]],
        suspended: Callable[[], bool],
    ) -> None:
        self._state, self._channels, self._delivery = state, channels, delivery
        self._connector = connector
        capture, engine = relations.capture, state.profile.engine
        self._obeyed = SOURCE in engine.signal_channels
        self._writes = capture.signal_table is not None and not state.profile.capture.read_only
        self._max_bytes = engine.signal_max_bytes
        self._watcher: IncrementalSnapshots | None = None
        self._awaited, self._advance_at, self._unsaved = 0, math.inf, False
        self._waits = False

        def identifying(relation: Relation) -> tuple[int, ...]:
            return relations.identities.of(relation).identifying

        self._blocking = BlockingSnapshot(state, channels, connector, delivery, identifying)
        if not isinstance(connector, ChunkedSource):
            channels.resume(self, ())
            return
        self._watcher = IncrementalSnapshots(
            connector.chunk_source(capture.signal_table if self._writes else None),
            capture.signal_table,
            writes=self._writes,
            read=self._read,
            keys=capture.keys,
            identifying=identifying,
            clock=state.clock.monotonic,
            match_clock=processor_time,
            identifier=lambda: new_identifier(state.chance),
            match_s=engine.signal_match_timeout_ms / 1000,
            size=ChunkSize(
                engine.incremental_chunk_size, engine.incremental_chunk_target_ms / 1000
            ),
            delete_closes=engine.watermarking == "insert_delete",
            notice=IncrementalReport("incremental", state, channels),
            obeyed=self._obeyed,
            state=IncrementalState.restored(delivery.offset.signals),
            undecided=undecided,
            suspended=lambda: suspended() or not delivery.takes_rows,
        )
        channels.resume(self, self._watcher.state.acted)
        self._watcher.resume(self._now_us())

    @property
    def ask(self) -> Callable[[Sequence[str]], Collection[str]] | None:
        """Return the function that requests the rows of tables (schema.table).

        None: tables cannot be read. It returns the requested ones: not those without a key.
        """
        return None if self._watcher is None else self._ask

    def _ask(self, tables: Sequence[str]) -> Collection[str]:
        assert self._watcher is not None
        with self._connector.once():
            tables = [table for table in tables if self._watcher.reads(table)]
        return self._asked(tables) if tables else ()

    def _asked(self, tables: list[str]) -> Collection[str]:
        named = list(map(re.escape, tables))
        data = json.dumps({"type": "incremental", "data-collections": named})
        half = len(tables) // 2
        if half and len(data) > self._max_bytes:
            return {*self._asked(tables[:half]), *self._asked(tables[half:])}
        why = self.take(Signal(new_identifier(self._state.chance), "execute-snapshot", data))
        return () if why else tables

    def is_stored(self) -> bool:
        """Return whether the offset has the requests."""
        return self._delivery.signals == self._delivery.offset.signals

    def has_stored(self, signals: Sequence[Signal]) -> bool:
        """Return whether a later run knows these signals and their requests."""
        if self._watcher is None or not self._delivery.promises:
            return True
        acted = msgspec.convert(self._delivery.offset.signals.get("acted", ()), list[str])
        return Counter(signal.fingerprint for signal in signals) <= Counter(acted)

    def forget_signals(self, repeated: Collection[str]) -> None:
        """Forget all signals but these fingerprints: a channel may repeat them."""
        watcher = self._watcher
        if watcher is not None and not set(watcher.state.acted) <= set(repeated):
            watcher.forget_signals(repeated)
            # Of the watcher nothing else: after a failure its progress has rows that were not written.
            self._delivery.note_signals({**self._delivery.signals, "acted": watcher.state.acted})
            self._delivery.keep_signals()

    @property
    def waiting(self) -> bool:
        """Return whether something could not be read yet."""
        return self._watcher is not None and (self._watcher.waiting or self.blocking)

    @property
    def awaited(self) -> int | None:
        """Return the LSN that read rows wait for, 0 for a watermark, None without rows."""
        watcher = self._watcher
        if watcher is None:
            return None
        until = self._blocking.until if watcher.until is None else watcher.until
        return 0 if until is None and watcher.holds_chunk else until

    @property
    def watching(self) -> bool:
        """Return whether read rows wait for a position or store."""
        return bool(self.awaited) or self._unsaved

    @property
    def blocking(self) -> bool:
        """Return whether `read_at_once` has something to do."""
        watcher = self._watcher
        return watcher is not None and bool(watcher.state.blocking) and not self._blocking.waits

    def process(
        self, parts: Sequence[TransactionPart]
    ) -> tuple[Sequence[Part], Sequence[TransactionPart], Mapping[str, object] | None]:
        """Return ``parts`` with the rows of chunks between them.

        The first list ends where the rows of a blocking snapshot belong; the second has the parts behind
        them: call `read_at_once` before. The third value is the state of signals that belongs to the first
        list.
        """
        if self._watcher is None:
            return parts, [], None
        rest: Sequence[TransactionPart] = []
        if self._blocking.later is not None:
            parts, rest = self._blocking.split(parts)
        if self._watcher.state.queue:
            self._put_off(self._watcher)
        now_us = self._state.clock.time_ns() // 1000
        return self._watcher.process(parts, now_us), rest, self._watcher.stored

    def advance_to(self, lsn: int) -> None:
        """Deliver a chunk that waits for ``lsn``.

        Everything that committed before has been written. Raises: SinkError.
        """
        watcher, delivery = self._watcher, self._delivery
        if watcher is None:
            return
        self._put_off(watcher)
        if delivery.unflushed_since is None:
            delivery.keep_signals()
            self._unsaved = False
        later = self._blocking.later
        if later is not None and later.reading.until is not None:
            if lsn >= later.reading.until:
                later.due = True
                self.read_at_once()
            else:
                self._advance_wal(watcher, later.reading.until)
            return
        if watcher.until is None:
            return
        if lsn < watcher.until:
            self._advance_wal(watcher, watcher.until)
            return
        previous = delivery.previous_end_lsn[delivery.partition]
        rows = watcher.advance_to(lsn, previous, self._now_us())
        self._unsaved = True
        if rows:
            delivery.write(rows, signals=watcher.stored)
        else:
            delivery.note_signals(watcher.stored)

    def _advance_wal(self, watcher: IncrementalSnapshots, until: int) -> None:
        """Make an idle stream reach waiting rows soon."""
        now = self._state.clock.monotonic()
        if self._awaited != until:
            self._awaited, self._advance_at = until, now + ADVANCE_AFTER_S
        elif now >= self._advance_at:
            self._advance_at = math.inf
            watcher.advance_wal()

    def resume(self) -> None:
        """Try again to read a chunk that could not be read."""
        self._blocking.close_if_late()
        watcher = self._watcher
        if watcher is not None and (watcher.waiting or watcher.suspended):
            before = len(watcher.state.queue)
            watcher.resume(self._now_us())
            self._put_off(watcher)
            # A wait may last long, and a queue of many tables takes time to store.
            if len(watcher.state.queue) != before:
                self._delivery.note_signals(watcher.stored)

    def take(self, signal: Signal, *, explain: bool = False) -> str:
        """Process a signal of another channel, and store its requests.

        Return the reason for ignoring it, or "". With ``explain`` also that for ignoring a part of it
        (`PartlyIgnored`).
        """
        if self._watcher is None:
            found = self._read(signal, None)
            return found if isinstance(found, str) else found(self._now_us()) or ""
        why = self._watcher.take(signal, self._now_us(), explain=explain, reads=False)
        self._keep(self._watcher)
        return why

    def read_at_once(self) -> None:
        """Take a requested blocking snapshot as far as the stream allows.

        If the run ends before the last row, the stream continues without, and the next run takes the
        snapshot again.
        """
        watcher, blocking = self._watcher, self._blocking
        if watcher is None or not watcher.state.blocking:
            return
        self._put_off(watcher)
        if self._state.stop.is_set() or not self._delivery.takes_rows or watcher.held():
            blocking.close()
            return
        requests = watcher.state.blocking_next
        if blocking.take(requests, watcher.point, watcher.recent):
            watcher.end_blocking(requests)
            self._keep(watcher)

    def _put_off(self, watcher: IncrementalSnapshots) -> None:
        """Read rows later that a paused sink could not get."""
        waits = not self._delivery.takes_rows and bool(
            watcher.state.queue or watcher.state.blocking
        )
        if waits:
            watcher.drop_chunk()
        if waits and not self._waits:
            log.warning("a requested snapshot waits for the sink that is paused")
        self._waits = waits

    def _keep(self, watcher: IncrementalSnapshots) -> None:
        self._delivery.note_signals(watcher.stored)
        self._delivery.keep_signals()

    def _now_us(self) -> int:
        return self._state.clock.time_ns() // 1000

    # --- the action of a signal -------------------------------------------------------------------

    def _read(
        self, signal: Signal, snapshots: Callable[[Signal, dict[str, object]], Action] | None
    ) -> Action | str:
        """Return the action of a signal, or the reason for ignoring it.

        ``snapshots`` reads signals of the types in `SNAPSHOTS`; None if no table can be read. Raises:
        WaltapError if the database did not answer; the signal must be read again.
        """
        try:
            arguments = signal.arguments(self._max_bytes)
            if unknown := signal.unknown(arguments):
                log.warning(
                    "signal %s: %s means nothing to %s",
                    cut(signal.identifier),
                    cut(", ".join(unknown)),
                    signal.kind,
                    extra={"error_code": SignalIgnored.code},
                )
            others = signal.kind not in SNAPSHOTS
            action = (self._other if others else snapshots or _unreadable)(signal, arguments)
        except SignalUnusable as error:
            why = str(error)
        except WaltapError:
            raise
        except Exception as error:  # noqa: BLE001 - whatever a row holds, it stops no pipeline
            why = f"signal {signal.identifier!r} cannot be read: {in_brief(error)}"
        else:
            self._state.host.notify(
                "on_signal",
                pipeline=self._state.profile.name,
                kind=signal.kind,
                identifier=signal.identifier,
                data=signal.data,
            )
            return action
        return self._left_out(signal, cut(why))

    def _left_out(self, signal: Signal, why: str) -> str:
        log.warning("signal ignored: %s", why, extra={"error_code": SignalIgnored.code})
        kind = cut(signal.kind)
        self._channels.notify(
            SIGNAL, "IGNORED", cut(signal.identifier), signal_type=kind, reason=why
        )
        return why

    def _other(self, signal: Signal, arguments: dict[str, object]) -> Action:
        if signal.kind == "log":
            message = arguments.get("message")
            return lambda _now: self._log("" if message is None else str(message))
        spec = self._state.host.signal_actions.get(signal.kind)
        if spec is None:
            unknown = "is not known, nor does a plugin act on it"
            raise SignalUnusable(f"type {cut(signal.kind)!r} {NOT_HERE.get(signal.kind, unknown)}")
        return self._called(spec, signal, arguments)

    def _log(self, message: str) -> str:
        text = cut(message) if message.strip() else "a log signal without a message, at {}"
        log.info("%s", text.replace("{}", str(self._delivery.position)))
        return ""

    def _called(
        self, spec: SignalActionSpec, signal: Signal, arguments: dict[str, object]
    ) -> Action:
        state = self._state
        call = SignalCall(
            pipeline=state.profile.name,
            signal=signal,
            arguments=arguments,
            position=str(self._delivery.position),
            notify=partial(self._notify, signal),
            stop=state.stop.set,
        )

        def act(_now: int) -> str:
            try:
                spec.factory(call)
            except SignalUnusable as error:
                return self._left_out(signal, cut(str(error)))
            except BaseException as error:  # it is a stranger's, and stops no pipeline
                if interrupts(error):
                    raise
                blamed = state.host.blamed(error)
                why = str(blamed) if isinstance(blamed, WaltapError) else in_brief(error)
                return self._left_out(signal, cut(f"the action {spec.name} failed: {why}"))
            return ""

        return act

    def _notify(self, signal: Signal, kind: str, **data: str) -> None:
        self._channels.notify(signal.kind, kind, signal.identifier, **data)
