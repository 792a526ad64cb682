"""Errors of Spark tables."""

import itertools
import re
from typing import Final

from waltap.errors import RetryVerdict, SinkError

JavaMissing = SinkError.define("JavaMissing", "WT-5201")
PysparkUnfit = SinkError.define("PysparkUnfit", "WT-5210")
PipelinesUnfit = SinkError.define("PipelinesUnfit", "WT-5255")
ChangeUnfit = SinkError.define("ChangeUnfit", "WT-5256")
# The change log continues from its last manifest, the tables from their last commit.
ApplierFailed = SinkError.define("ApplierFailed", "WT-5202")
# The next driver applies uncommitted changes; no table is half written.
JvmEnded = SinkError.define("JvmEnded", "WT-5248")
# In a commit the table is suspended and retried, and the others continue. No table is half
# written.
SparkRefused = SinkError.define("SparkRefused", "WT-5268")
OutputInUse = SinkError.define("OutputInUse", "WT-5203")
OutputDamaged = SinkError.define("OutputDamaged", "WT-5204")
TypeChanged = SinkError.define("TypeChanged", "WT-5205")
# Nothing was written. The table is suspended, the others continue.
NamesClash = SinkError.define("NamesClash", "WT-5259")
# A column's type may not fit theirs, or a column may have the name of the source column. Its
# source may belong to another table already, or its rule may give it an empty name. The table is
# suspended; the other sources continue.
SourcesDiffer = SinkError.define("SourcesDiffer", "WT-5261")
OutputMismatch = SinkError.define("OutputMismatch", "WT-5206")
TableUnknown = SinkError.define("TableUnknown", "WT-5207")
# Its rows are as of an earlier position. Its changes wait in the change log.
TableSuspended = SinkError.define("TableSuspended", "WT-5270")
SnapshotNeeded = SinkError.define("SnapshotNeeded", "WT-5271")
# Only a change shows the new name of a renamed table, and nothing shows that a table was dropped.
TableDisplaced = SinkError.define("TableDisplaced", "WT-5274")
MomentUnreadable = SinkError.define("MomentUnreadable", "WT-5264")
# The tables stay at their position. Their changes stay in the change log and are retried.
TablesSuspended = SinkError.define("TablesSuspended", "WT-5208")
# Its table is suspended before the segment, and the others continue. No transaction in or after the
# segment is applied to the table.
SegmentDamaged = SinkError.define("SegmentDamaged", "WT-5211")


class FormatError(SinkError):
    """A table format failed."""

    code = "WT-5229"
    remedy = "See the text; `waltap plugins` lists the table formats."


ModeUnfit = FormatError.define("ModeUnfit", "WT-5241")
MadeOtherwise = FormatError.define("MadeOtherwise", "WT-5265")
HistoryMissing = FormatError.define("HistoryMissing", "WT-5262")
FormatUnknown = FormatError.define("FormatUnknown", "WT-5230")
FormatUnsupported = FormatError.define("FormatUnsupported", "WT-5231")
FormatNotReady = FormatError.define("FormatNotReady", "WT-5232")
# Its catalogue of the same name reads them.
SessionTaken = FormatError.define("SessionTaken", "WT-5263")
FormatDiffers = FormatError.define("FormatDiffers", "WT-5233")
FormatLimit = FormatError.define("FormatLimit", "WT-5234")
LayoutUnfit = FormatError.define("LayoutUnfit", "WT-5273")
# The next driver finishes the commit; compaction does not.
CommitBegun = FormatError.define("CommitBegun", "WT-5247")


class NameTaken(FormatError):
    """The catalogue refuses a table's name.

    Nothing of the table was written. It is suspended, the others continue.
    """

    code = "WT-5246"
    remedy = (
        "Give it another name: format.names = TABLE-REGEX:NAME, for example format.names = "
        "{pattern}:NAME. It then continues from its first change."
    )

    def __init__(self, problem: str, *, table: str, **fields: object) -> None:
        pattern = table.replace(".", "\\.")
        super().__init__(problem, table=table, pattern=pattern, **fields)


class TargetChanged(FormatError):
    """Another writer changed, removed or created the table."""

    code = "WT-5235"
    remedy = (
        "Stop the other writer of {table}. Then restore version {version}, the last one without "
        "its writes (Delta: RESTORE TABLE … TO VERSION AS OF; Iceberg: CALL … "
        "rollback_to_snapshot), or give another sink.path, and take a new snapshot."
    )


# Rules for its columns changed, or another release of waltap runs. The table is suspended, the
# others continue; nothing is lost or doubled.
StepDiffers = FormatError.define("StepDiffers", "WT-5267")
VersionGone = FormatError.define("VersionGone", "WT-5236")
ClockBehind = FormatError.define("ClockBehind", "WT-5275")
CatalogueUnreachable = FormatError.define("CatalogueUnreachable", "WT-5245")
ChunkSourceUnreachable = SinkError.define(
    "ChunkSourceUnreachable", "WT-5257", retry=RetryVerdict.RECONNECT
)
ChunksRefused = SinkError.define("ChunksRefused", "WT-5260")
RowsAwaited = SinkError.define("RowsAwaited", "WT-5258")
# Errors of change events from Kafka topics.

TopicsUnreadable = SinkError.define("TopicsUnreadable", "WT-5250")
# Retention removed them, or the topic was created again. Tables would silently lack changes.
OffsetsLost = SinkError.define("OffsetsLost", "WT-5251")
EventUnreadable = SinkError.define("EventUnreadable", "WT-5252")
ColumnsUnknown = SinkError.define("ColumnsUnknown", "WT-5253")
# Errors of ``format("waltap")``.

SourceOption = SinkError.define("SourceOption", "WT-5221")
# This query would miss them without an error.
CapturedByAnotherProcess = SinkError.define("CapturedByAnotherProcess", "WT-5266")
OffsetOfAnother = SinkError.define("OffsetOfAnother", "WT-5222")
TableNotLogged = SinkError.define("TableNotLogged", "WT-5223")
# A query has one schema.
ColumnsGrew = SinkError.define("ColumnsGrew", "WT-5224")
# The table was not captured for a while.
ChangesMissing = SinkError.define("ChangesMissing", "WT-5272")
# A query reads all rows with the newest type.
ValuesUnfit = SinkError.define("ValuesUnfit", "WT-5269")


# A line of a Java stack trace.
_FRAME: Final = re.compile(r"at [\w.$/]+\(.*\)$|\.\.\. \d+ more$|Suppressed: ")


def first_words(error: BaseException) -> str:
    """Return an error's text and its causes on one line.

    The stack traces of a JVM are left out.
    """
    lines = [line.strip() for line in str(error).splitlines()]
    own = itertools.takewhile(lambda line: line not in {"", "JVM stacktrace:"}, lines)
    words = dict.fromkeys(line for line in own if not _FRAME.match(line))
    return " ".join(words) or type(error).__name__
