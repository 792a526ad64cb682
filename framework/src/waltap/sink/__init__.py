"""Stage 6: batches to a destination."""

from waltap.events.transaction import Batch
from waltap.sink.sink import Sink, SinkCapabilities, SinkContext

__all__ = ["Batch", "Sink", "SinkCapabilities", "SinkContext"]
