"""Errors of a change log."""

from waltap.errors import RetryVerdict, SinkError
from waltap.ports.sink.stored_position import DestinationBehind

ChangeLogDamaged = SinkError.define("ChangeLogDamaged", "WT-5102")
ColumnNameTaken = SinkError.define("ColumnNameTaken", "WT-5104")
TransactionGap = SinkError.define("TransactionGap", "WT-5105", retry=RetryVerdict.RECONNECT)
ChangeLogExpired = SinkError.define("ChangeLogExpired", "WT-5106")
ChangeLogGone = DestinationBehind.define("ChangeLogGone", "WT-5107")
# An older copy replaced it.
ChangeLogOlder = DestinationBehind.define("ChangeLogOlder", "WT-5109")
# The log has one position. Of two alternating pipelines each would skip the changes below the
# other's.
ChangeLogOfAnother = SinkError.define("ChangeLogOfAnother", "WT-5110")
ChangeLogMissing = SinkError.define("ChangeLogMissing", "WT-5108")
ReaderUnknown = SinkError.define("ReaderUnknown", "WT-5111")
RowsInExternalSnapshot = SinkError.define("RowsInExternalSnapshot", "WT-5112")
