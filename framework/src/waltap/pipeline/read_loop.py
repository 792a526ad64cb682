"""From the stream to the sink: receives, assembles, gathers, writes."""

from collections.abc import Callable

from waltap.decode.message import Message
from waltap.pipeline.part_batcher import PartBatcher
from waltap.pipeline.partition_reader import PartitionReader
from waltap.pipeline.run import PipelineRun
from waltap.pipeline.signal_table import SignalTable
from waltap.pipeline.stop_conditions import batches, cut
from waltap.source.connector import SnapshotOverlap
from waltap.transactions.transaction import TransactionPart

__all__ = ["ReadLoop"]

FEW_MESSAGES = 256
"""So few that came at once may be large rows: they are not kept while the next are received. Many are,
since memory that is given back as a whole is asked for again at once (10 % of processor time)."""


class ReadLoop:
    """Moves the changes of one stream. Back-pressure is the absence of a `pull`.

    ``overlap`` is what a snapshot has read already; ``slot_xmin`` is `Connector.slot_xmin`. ``gathered``
    waits for ``waltap.linger.ms``, or until a batch is full; transactions wait for their end where the
    sink wants them whole.
    """

    def __init__(
        self,
        run: PipelineRun,
        lane: PartitionReader,
        signals: SignalTable,
        overlap: SnapshotOverlap | None,
        slot_xmin: Callable[[], int | None],
        took: Callable[[list[TransactionPart]], None] | None = None,
    ) -> None:
        """``took`` is told of what has come, instead of its being gathered (`take`)."""
        engine = run.profile.engine
        self._run, self._stream, self._assembler = run, lane.stream, lane.assembler
        self._signals, self._partition = signals, lane.partition
        self._batch_events = engine.batch_events
        self._overlap, self._slot_xmin = overlap, slot_xmin
        whole = run.delivery is not None and run.delivery.whole_transactions
        self.gathered = PartBatcher(engine.linger_ms / 1000, engine.batch_events, whole=whole)
        self._took = took or self.take
        self._messages: list[Message] = []
        self._parts: list[TransactionPart] = []

    def pull(self, timeout: float) -> bool | None:
        """Take what has arrived, waiting at most ``timeout`` seconds; tell whether there were changes,
        None when nothing at all came."""
        backlog = self._assembler.backlog
        messages = self._messages = [] if backlog else self._stream.receive(timeout)
        if not messages and not backlog:
            return None
        self._run.tenure.check()  # before it is assembled: large transactions wait in shared files
        parts = self._parts = self._assembler.feed(messages)
        if parts and self._overlap is not None:
            parts = self._overlap.filter(parts)
        if parts:
            xmin = self._slot_xmin()
            if xmin is not None:
                for part in parts:
                    part.xmin = xmin
            self._run.received_lsn = parts[-1].end_lsn or parts[-1].commit_lsn
            self._took(parts)
        if len(messages) < FEW_MESSAGES:
            self._messages, self._parts = [], []
        return bool(parts)

    def take(self, parts: list[TransactionPart]) -> None:
        """Gather ``parts``."""
        self.gathered.add(parts, self._run.clock.monotonic())

    def write_if_due(self, now: float) -> None:
        """Write what was gathered, when it has waited long enough or is enough for a batch."""
        if self.gathered.due(now):
            self._write(self.gathered.take())

    def write_rest(self) -> None:
        """Write what was gathered."""
        if self.gathered:
            self._write(self.gathered.take_all())

    def _write(self, parts: list[TransactionPart]) -> None:
        run, left = self._run, self._run.left()
        if left is not None:
            whole = run.limits.whole_transactions
            parts, run.cut = cut(parts, left, whole=whole and (left > 0 or run.midway))
            if parts:
                run.midway = whole and not parts[-1].complete
        for batch in batches(parts, self._batch_events):
            self._signals.write(batch, self._partition)
