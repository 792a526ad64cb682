"""Stage 7: write batches to a destination."""

from waltap.changes.transactions.transaction import Batch
from waltap.ports.sink.refusal import FailStop, RecordsRefused, RefusedEvent
from waltap.ports.sink.sink import ReaderGone, Sink, SinkCapabilities, SinkContext

__all__ = [
    "Batch",
    "FailStop",
    "ReaderGone",
    "RecordsRefused",
    "RefusedEvent",
    "Sink",
    "SinkCapabilities",
    "SinkContext",
]
