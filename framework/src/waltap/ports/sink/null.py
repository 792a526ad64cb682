"""Discard records and count them, for benchmarks and dry runs."""

from waltap.changes.transactions.position import Positions
from waltap.changes.transactions.transaction import Batch
from waltap.encoders.format.record_block import RecordBlock
from waltap.ports.sink.sink import Sink, SinkCapabilities, SinkContext


class NullSink(Sink):
    """Counts records and bytes; rendered records are measured too."""

    capabilities = SinkCapabilities(records=True, partitions=True, resumes_snapshots=True)

    def __init__(self, properties: None, context: SinkContext) -> None:
        self.records = 0
        self.bytes = 0
        self._accepted = Positions()

    def open(self) -> None:
        """Return no position: the sink stores none."""

    def write(self, batch: Batch) -> None:
        """Count the batch's records."""
        records = batch.records or []
        self.records += len(records)
        if isinstance(records, RecordBlock):
            self.bytes += sum(records.value_bytes())
        else:
            self.bytes += sum([len(r.value) for r in records if r.value is not None])
        self._accepted = self._accepted.moved(batch.partition, batch.position)

    def flush(self) -> Positions | None:
        """Return the last position of each partition."""
        return self._accepted or None

    def close(self) -> None:
        """Do nothing: the sink holds no resource."""
