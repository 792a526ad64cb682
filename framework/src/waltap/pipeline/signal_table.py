"""The signals of a run: what they ask for is put into the stream."""

import json
import logging
import math
import re
from collections.abc import Callable
from functools import partial

from waltap.changes.transactions.transaction import TransactionPart
from waltap.clock import new_identifier, processor_time
from waltap.errors import WaltapError
from waltap.pipeline.blocking_snapshot import BlockingSnapshot
from waltap.pipeline.channels import SIGNAL
from waltap.pipeline.run import PipelineRun
from waltap.pipeline.sink_writer import Part, SinkWriter
from waltap.pipeline.snapshot_phase import IncrementalReport
from waltap.pipeline.stages import PipelineStages
from waltap.ports.signals.actions import SignalCall
from waltap.ports.signals.errors import SignalIgnored, SignalUnusable
from waltap.ports.signals.signal import SNAPSHOTS, Action, Signal
from waltap.ports.snapshot.chunk_size import ChunkSize
from waltap.ports.snapshot.incremental import IncrementalSnapshots, Read
from waltap.ports.snapshot.incremental_state import IncrementalState
from waltap.ports.snapshot.requests import cut
from waltap.ports.source.connector import Connector
from waltap.ports.specs import SignalActionSpec

__all__ = [
    "SignalReader",
    "SignalTable",
]

log = logging.getLogger(__name__)


# Reads signals, whichever way they came: each ends in an action or in the reason why it is left
# out.

NOT_HERE = {
    "schema-changes": "it repairs a schema history, and waltap keeps none: tables are described from the "
    "catalogue, as of each change",
    "set-offset": "`waltap offsets set FILE LSN` does that, while the pipeline does not run",
}
"""Types of Debezium's that mean nothing here, and why."""


class SignalReader:
    """Says what a signal asks to be done.

    Signals are data from outside: whatever is in one, it stops no pipeline. One that is left out is told
    in the log and by a notification.
    """

    def __init__(self, run: PipelineRun, delivery: SinkWriter) -> None:
        self._run, self._delivery = run, delivery
        self._max_bytes = run.profile.engine.signal_max_bytes

    def read(
        self, signal: Signal, snapshots: Callable[[Signal, dict[str, object]], Action] | None
    ) -> Action | str:
        """Return what to do, or why nothing is done. ``snapshots`` reads signals of the types in
        `SNAPSHOTS`; None where nothing can be read. Raises: WaltapError when the database did not answer;
        the signal is to be read again."""
        run = self._run
        try:
            arguments = signal.arguments(self._max_bytes)
            self._note_unknown(signal, arguments)
            others = signal.kind not in SNAPSHOTS
            action = (self._other if others else snapshots or _unreadable)(signal, arguments)
        except SignalUnusable as error:
            why = str(error)
        except WaltapError:
            raise
        except Exception as error:  # noqa: BLE001 - whatever a row holds, it stops no pipeline
            why = f"signal {signal.identifier!r} cannot be read: {type(error).__name__}: {error}"
        else:
            run.host.notify(
                "on_signal",
                pipeline=run.profile.name,
                kind=signal.kind,
                identifier=signal.identifier,
                data=signal.data,
            )
            return action
        return self._left_out(signal, cut(why))

    def _left_out(self, signal: Signal, why: str) -> str:
        log.warning("signal ignored: %s", why, extra={"error_code": SignalIgnored.code})
        kind = cut(signal.kind)
        self._run.channels.tell(
            SIGNAL, "IGNORED", cut(signal.identifier), signal_type=kind, reason=why
        )
        return why

    def _note_unknown(self, signal: Signal, arguments: dict[str, object]) -> None:
        unknown = signal.unknown(arguments)
        if unknown:
            log.warning(
                "signal %s: %s means nothing to %s",
                cut(signal.identifier),
                cut(", ".join(unknown)),
                signal.kind,
                extra={"error_code": SignalIgnored.code},
            )

    def _other(self, signal: Signal, arguments: dict[str, object]) -> Action:
        if signal.kind == "log":
            message = str(arguments.get("message", ""))
            return lambda _now: self._log(message)
        spec = self._run.host.signal_actions.get(signal.kind)
        if spec is None:
            why = NOT_HERE.get(signal.kind)
            known = (
                "is not known, nor does a plugin act on it"
                if why is None
                else f"is not for here: {why}"
            )
            raise SignalUnusable(f"type {cut(signal.kind)!r} {known}")
        return self._called(spec, signal, arguments)

    def _log(self, message: str) -> str:
        log.info("%s", cut(message).replace("{}", self._position))
        return ""

    def _called(
        self, spec: SignalActionSpec, signal: Signal, arguments: dict[str, object]
    ) -> Action:
        run = self._run
        call = SignalCall(
            pipeline=run.profile.name,
            signal=signal,
            arguments=arguments,
            position=self._position,
            notify=partial(self._notify, signal),
            stop=run.stop.set,
        )

        def act(_now: int) -> str:
            try:
                spec.factory(call)
            except SignalUnusable as error:
                return self._left_out(signal, cut(str(error)))
            except Exception as error:  # noqa: BLE001 - it is a stranger's, and stops no pipeline
                told = run.host.blamed(error)
                why = str(told) if told is not error else f"{type(error).__name__}: {error}"
                return self._left_out(signal, cut(f"the action {spec.name} failed: {why}"))
            return ""

        return act

    def _notify(self, signal: Signal, kind: str, **data: str) -> None:
        self._run.channels.tell(signal.kind, kind, signal.identifier, **data)

    @property
    def _position(self) -> str:
        return str(self._delivery.written[self._delivery.partition])


def _unreadable(_signal: Signal, _arguments: dict[str, object]) -> Action:
    raise SignalUnusable("this source reads no tables on demand")


HASTEN_S = 0.2

SOURCE = "source"
"""The channel whose signals are rows of the signal table."""


class SignalTable:
    """Watches the signal table, where the profile names one, and acts on signals of other channels.

    Without a connector that reads tables on demand no signal about snapshots can be acted on, others can.
    """

    def __init__(
        self,
        run: PipelineRun,
        connector: Connector,
        stages: PipelineStages,
        delivery: SinkWriter,
        undecided: Callable[[], list[str]],
    ) -> None:
        self._chance = run.chance
        self._clock, self._delivery, self._stopping = run.clock, delivery, run.stop.is_set
        engine, table = run.profile.engine, stages.capture.signal_table
        self._obeyed = SOURCE in engine.signal_channels
        self._writes = table is not None and not run.profile.capture.read_only
        self._read = SignalReader(run, delivery).read
        self._watcher = _watcher(
            run,
            connector,
            stages,
            delivery,
            undecided,
            self._read,
            obeyed=self._obeyed,
            writes=self._writes,
        )
        self._awaited, self._hasten_at, self._unkept = 0, math.inf, False
        self._reader = BlockingSnapshot(run, connector, delivery)
        if self._watcher is not None:
            self._watcher.resume(self._now_us())

    @property
    def ask(self) -> Callable[[str], bool] | None:
        """Return what asks for the rows of a table (schema.table), None where tables cannot be read."""
        if self._watcher is None:
            return None
        return self._watcher.ask_for if self._obeyed and self._writes else self._ask

    def _ask(self, table: str) -> bool:
        """Ask for the rows of a table where no row of a signal table would be obeyed."""
        data = json.dumps({"type": "incremental", "data-collections": [re.escape(table)]})
        return not self.take(Signal(new_identifier(self._chance), "execute-snapshot", data))

    def kept(self) -> bool:
        """Tell whether what was asked for is stored."""
        return self._delivery.signals == self._delivery.offset.signals

    @property
    def waiting(self) -> bool:
        """Tell whether a chunk could not be read yet."""
        return self._watcher is not None and self._watcher.waiting

    @property
    def watching(self) -> bool:
        """Tell whether a chunk waits for the stream to come to a position, or one that did has to be
        stored."""
        return self._watcher is not None and (self._watcher.until is not None or self._unkept)

    def reached(self, lsn: int) -> None:
        """Everything that had committed before ``lsn`` has been written: deliver a chunk that waits for
        that. Raises: SinkError."""
        watcher, delivery = self._watcher, self._delivery
        if watcher is None:
            return
        if delivery.unflushed_since is None:
            delivery.keep_signals()
            self._unkept = False
        if watcher.until is None:
            return
        if lsn < watcher.until:
            self._hasten(watcher, watcher.until)
            return
        previous = delivery.previous_end_lsn[delivery.partition]
        rows = watcher.reached(lsn, previous, self._now_us())
        delivery.signals, self._unkept = watcher.stored, True
        if rows:
            delivery.write(list[Part](rows))

    def _hasten(self, watcher: IncrementalSnapshots, until: int) -> None:
        """Nothing streams, and the chunk waits: after a while see to it, once for each."""
        now = self._clock.monotonic()
        if self._awaited != until:
            self._awaited, self._hasten_at = until, now + HASTEN_S
        elif now >= self._hasten_at:
            self._hasten_at = math.inf
            watcher.hasten()

    @property
    def blocking(self) -> bool:
        """Tell whether a blocking snapshot is to be taken."""
        return self._watcher is not None and bool(self._watcher.state.blocking)

    def resume(self) -> None:
        """Try again to read the chunk that could not be read yet."""
        if self._watcher is not None and self._watcher.waiting:
            self._watcher.resume(self._now_us())

    def take(self, signal: Signal) -> str:
        """Act on a signal that came by another channel; what it asks for is stored with the offset.

        Returns why it was left out, "" where it was not.
        """
        if self._watcher is None:
            found = self._read(signal, None)
            return found if isinstance(found, str) else found(self._now_us())
        why = self._watcher.take(signal, self._now_us())
        self._delivery.signals = self._watcher.stored
        self._delivery.keep_signals()
        return why

    def write(self, parts: list[TransactionPart], partition: str) -> None:
        """Give ``parts`` of one partition to the sink, with what was asked for between them; where there
        are several nothing is. Raises: SinkError."""
        if self._watcher is None:
            self._delivery.write(list[Part](parts), partition=partition)
            return
        while parts:
            with_chunks, parts = self._watcher.process(parts, self._now_us())
            self._delivery.signals = self._watcher.stored
            self._delivery.write(list[Part](with_chunks))
            if self.blocking:
                self.read_at_once()

    def read_at_once(self) -> None:
        """Deliver the tables of blocking snapshots that were asked for."""
        watcher, delivery = self._watcher, self._delivery
        if watcher is None or self._stopping():
            return  # the next run takes it
        if self._reader.take(watcher.state.blocking, watcher.point):
            watcher.read_at_once(self._now_us())
            delivery.signals = watcher.stored
            delivery.keep_signals()

    def _now_us(self) -> int:
        return self._clock.time_ns() // 1000


def _watcher(
    run: PipelineRun,
    connector: Connector,
    stages: PipelineStages,
    delivery: SinkWriter,
    undecided: Callable[[], list[str]],
    read: Read,
    *,
    obeyed: bool,
    writes: bool,
) -> IncrementalSnapshots | None:
    table, engine = stages.capture.signal_table, run.profile.engine
    source = connector.chunk_source(table if writes else None)
    if source is None:
        return None
    return IncrementalSnapshots(
        source,
        table,
        writes=writes,
        read=read,
        keys=stages.capture.keys,
        identifying=lambda relation: stages.relations.identities.of(relation).identifying,
        clock=run.clock.monotonic,
        match_clock=processor_time,
        identifier=lambda: new_identifier(run.chance),
        match_s=engine.signal_match_timeout_ms / 1000,
        size=ChunkSize(engine.incremental_chunk_size, engine.incremental_chunk_target_ms / 1000),
        delete_closes=engine.watermarking == "insert_delete",
        notice=IncrementalReport(run.host, run.channels, run.counts, pipeline=run.profile.name),
        obeyed=obeyed,
        state=IncrementalState.restored(delivery.offset.signals),
        undecided=undecided,
    )
