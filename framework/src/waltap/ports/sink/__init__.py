"""Stage 7: write batches to a destination."""

from waltap.changes.transactions.transaction import Batch
from waltap.ports.sink.refusal import FailStop, RecordsRefused, RefusedEvent
from waltap.ports.sink.sink import OutputClosed, Sink, SinkCapabilities, SinkContext

__all__ = [
    "Batch",
    "FailStop",
    "OutputClosed",
    "RecordsRefused",
    "RefusedEvent",
    "Sink",
    "SinkCapabilities",
    "SinkContext",
]
