"""Stage 6: batches to a destination."""

from waltap.events.transaction import Batch
from waltap.sink.fail_stop import FailStop
from waltap.sink.sink import ReaderGone, Sink, SinkCapabilities, SinkContext

__all__ = ["Batch", "FailStop", "ReaderGone", "Sink", "SinkCapabilities", "SinkContext"]
