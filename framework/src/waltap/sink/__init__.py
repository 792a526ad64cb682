"""Stage 6: write batches to a destination."""

from waltap.sink.fail_stop import FailStop
from waltap.sink.refusal import RecordsRefused, RefusedEvent
from waltap.sink.sink import ReaderGone, Sink, SinkCapabilities, SinkContext
from waltap.transactions.transaction import Batch

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
