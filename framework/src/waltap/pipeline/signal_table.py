"""The signals of a run: what they ask for is put into the stream."""

import logging
from collections.abc import Callable

from waltap.clock import new_identifier
from waltap.pipeline.blocking_snapshot import BlockingSnapshot
from waltap.pipeline.delivery import Delivery, Part
from waltap.pipeline.run import Run
from waltap.pipeline.setup import Stages
from waltap.pipeline.snapshot_report import IncrementalReport
from waltap.signals.errors import SignalIgnored
from waltap.signals.signal import Signal
from waltap.snapshot.incremental import IncrementalSnapshots
from waltap.snapshot.incremental_state import State
from waltap.source.connector import Connector
from waltap.transactions.transaction import TransactionPart

__all__ = ["SignalTable"]

log = logging.getLogger(__name__)

SOURCE = "source"
"""The channel whose signals are rows of the signal table."""


class SignalTable:
    """Watches the signal table, where the profile names one, and acts on signals of other channels.

    Without a table it does nothing, and no signal but ``log`` can be acted on.
    """

    def __init__(
        self,
        run: Run,
        connector: Connector,
        stages: Stages,
        delivery: Delivery,
        undecided: Callable[[], list[str]],
    ) -> None:
        self._clock, self._delivery, self._stopping = run.clock, delivery, run.stop.is_set
        self._obeyed = SOURCE in run.profile.engine.signal_channels
        self._watcher = _watcher(run, connector, stages, delivery, undecided, obeyed=self._obeyed)
        self._reader = BlockingSnapshot(run, connector, delivery)
        if self._watcher is not None:
            self._watcher.resume(self._now_us())

    @property
    def ask(self) -> Callable[[str], bool] | None:
        """Return what asks for the rows of a table, None where no row of a signal table is obeyed."""
        return None if self._watcher is None or not self._obeyed else self._watcher.ask_for

    @property
    def waiting(self) -> bool:
        """Tell whether a chunk could not be read yet."""
        return self._watcher is not None and self._watcher.waiting

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
            why = "without signal.data.collection nothing can be read incrementally"
            log.warning("signal ignored: %s", why, extra={"error_code": SignalIgnored.code})
            return why
        why = self._watcher.take(signal, self._now_us())
        self._delivery.signals = self._watcher.stored
        self._delivery.keep_signals()
        return why

    def write(self, parts: list[TransactionPart]) -> None:
        """Give ``parts`` to the sink, with what was asked for between them. Raises: SinkError."""
        if self._watcher is None:
            self._delivery.write(list[Part](parts))
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
    run: Run,
    connector: Connector,
    stages: Stages,
    delivery: Delivery,
    undecided: Callable[[], list[str]],
    *,
    obeyed: bool,
) -> IncrementalSnapshots | None:
    table, engine = stages.capture.signal_table, run.profile.engine
    source = connector.chunk_source(table, engine.incremental_chunk_size) if table else None
    if table is None or source is None:
        return None
    return IncrementalSnapshots(
        source,
        table,
        report=lambda kind, identifier, data: run.host.notify(
            "on_signal",
            pipeline=run.profile.name,
            kind=kind,
            identifier=identifier,
            data=data,
        ),
        offset=lambda: str(delivery.written[delivery.partition]),
        text_of=stages.text_of,
        keys=stages.capture.keys,
        identifying=lambda relation: stages.identities.of(relation).identifying,
        clock=run.clock.monotonic,
        identifier=lambda: new_identifier(run.chance),
        max_bytes=engine.signal_max_bytes,
        match_s=engine.signal_match_timeout_ms / 1000,
        delete_closes=engine.watermarking == "insert_delete",
        notice=IncrementalReport(run.host, run.channels, run.counts, pipeline=run.profile.name),
        obeyed=obeyed,
        state=State.restored(delivery.offset.signals),
        undecided=undecided,
    )
