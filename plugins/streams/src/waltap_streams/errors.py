"""Errors of message streams."""

from waltap.errors import RetryVerdict, SinkError

# Records without an acknowledgement are sent again.
StreamUnavailable = SinkError.define("StreamUnavailable", "WT-5561", retry=RetryVerdict.RECONNECT)
StreamRefused = SinkError.define("StreamRefused", "WT-5562")
StreamMissing = SinkError.define("StreamMissing", "WT-5563")
StreamUnfit = SinkError.define("StreamUnfit", "WT-5564")
StreamFull = SinkError.define("StreamFull", "WT-5565", retry=RetryVerdict.RECONNECT)
StreamFenced = SinkError.define("StreamFenced", "WT-5566")
