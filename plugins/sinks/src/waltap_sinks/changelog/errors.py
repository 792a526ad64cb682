"""Define the errors of a change log."""

from waltap.errors import RetryVerdict, SinkError
from waltap.ports.sink.stored_position import DestinationBehind


class ChangeLogDamaged(SinkError):
    """A file of the change log contradicts its name or manifest."""

    code = "WT-5102"
    remedy = (
        "Restore {path} from a copy, or move the whole log away and start again without a stored "
        "offset, which takes a new snapshot."
    )


ColumnNameTaken = SinkError.define("ColumnNameTaken", "WT-5104")
TransactionGap = SinkError.define("TransactionGap", "WT-5105", retry=RetryVerdict.RECONNECT)
ChangeLogExpired = SinkError.define("ChangeLogExpired", "WT-5106")


class ChangeLogGone(DestinationBehind):
    """The folder of this pipeline is missing or holds another log."""

    code = "WT-5107"
    remedy = (
        "Put {path} back as it was and start again: it continues from its last manifest, and "
        "nothing is lost. Else{repair} begin a new log there with a new snapshot: `waltap "
        "offsets clear FILE`."
    )


# An older copy replaced it.
ChangeLogOlder = DestinationBehind.define("ChangeLogOlder", "WT-5109")
# The log has one position. Of two alternating pipelines each would skip the changes below the
# other's.
ChangeLogOfAnother = SinkError.define("ChangeLogOfAnother", "WT-5110")


class ChangeLogMissing(SinkError):
    """The folder has no change log."""

    code = "WT-5108"
    remedy = (
        "Give the folder of one log: `waltap explain FILE` shows sink.path, the folder that the "
        "sink writes; the spark sink keeps its log in the folder changelog below that."
    )


class ReaderUnknown(SinkError):
    """The change log has no reader with that name."""

    code = "WT-5111"
    remedy = (
        "The readers are: {known}. `waltap changelog readers {path} --register NAME` adds "
        "one; from then on the log keeps everything that it has not read."
    )


RowsInExternalSnapshot = SinkError.define("RowsInExternalSnapshot", "WT-5112")
