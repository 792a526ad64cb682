"""The signals of a run: what they ask for is put into the stream."""

import json
import math
import re
from collections.abc import Callable

from waltap.clock import new_identifier, processor_time
from waltap.pipeline.blocking_snapshot import BlockingSnapshot
from waltap.pipeline.run import PipelineRun
from waltap.pipeline.signal_reader import SignalReader
from waltap.pipeline.sink_writer import Part, SinkWriter
from waltap.pipeline.snapshot_report import IncrementalReport
from waltap.pipeline.stages import PipelineStages
from waltap.signals.signal import Signal
from waltap.snapshot.chunk_size import ChunkSize
from waltap.snapshot.incremental import IncrementalSnapshots, Read
from waltap.snapshot.incremental_state import IncrementalState
from waltap.source.connector import Connector
from waltap.transactions.transaction import TransactionPart

__all__ = ["SignalTable"]

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
