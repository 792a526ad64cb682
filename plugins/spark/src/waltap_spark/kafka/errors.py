"""Errors of change events from Kafka topics."""

from waltap.errors import SinkError

TopicsUnreadable = SinkError.define("TopicsUnreadable", "WT-5250")
# Retention removed them, or the topic was created again. Tables would silently lack changes.
OffsetsLost = SinkError.define("OffsetsLost", "WT-5251")
EventUnreadable = SinkError.define("EventUnreadable", "WT-5252")
ColumnsUnknown = SinkError.define("ColumnsUnknown", "WT-5253")
