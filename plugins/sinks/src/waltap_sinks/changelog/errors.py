"""Define the errors of a change log.

```
SinkError
├── FilesUnavailable        WT-5101   its files cannot be read or written (`waltap.base.files.errors`)
├── ChangeLogDamaged        WT-5102   a manifest or segment is damaged
├── FilesInUse              WT-5103   another process writes it (`waltap.base.files.errors`)
├── ColumnNameTaken         WT-5104   a table has a column with the name of a log's own
├── TransactionGap          WT-5105   a transaction arrived without its beginning
├── ChangeLogRetired        WT-5106   a reader needs removed manifests
├── ChangeLogGone           WT-5107   its folder was moved, deleted or emptied
├── ChangeLogMissing        WT-5108   the folder has no change log
├── ChangeLogOlder          WT-5109   it is an older copy without published manifests
├── ChangeLogOfAnother      WT-5110   another pipeline writes it
├── ReaderUnknown           WT-5111   it has no reader with that name
└── RowsElsewhere           WT-5112   rows of a snapshot went directly into tables
```
"""

from waltap.errors import RetryVerdict, SinkError
from waltap.ports.sink.held import DestinationBehind


class ChangeLogDamaged(SinkError):
    """A file of the change log contradicts its name or manifest."""

    code = "WT-5102"
    remedy = (
        "Restore {path} from a copy, or move the whole log away and start again without a stored "
        "offset, which takes a new snapshot."
    )


ColumnNameTaken = SinkError.define(
    "ColumnNameTaken",
    "WT-5104",
    "A captured table has a column with the name of the log's own column.",
    "Rename it, or leave it out with column.exclude.list = {column}.",
)
TransactionGap = SinkError.define(
    "TransactionGap",
    "WT-5105",
    "The log got the middle of a transaction without its beginning.",
    "Delivery starts again from the last manifest; if this lasts, report it as a bug.",
    retry=RetryVerdict.RECONNECT,
)
ChangeLogRetired = SinkError.define(
    "ChangeLogRetired",
    "WT-5106",
    "A reader wants to resume at manifests that were removed.",
    "Put the manifests before {path} back from a copy, with their segments. Without one, tables "
    "that need them must start again, with a new log: give the pipeline another sink.path, and "
    "`waltap run PROFILE --set snapshot.mode=always`. A query starts over with a new checkpoint, "
    "from the remaining manifests. Keep a log longer with a larger changelog.retention.hours, or "
    "for a reader: `waltap changelog readers LOG --register NAME`.",
)


class ChangeLogGone(DestinationBehind):
    """The folder of this pipeline is missing or holds another log."""

    code = "WT-5107"
    remedy = (
        "Put {path} back as it was and start again: it continues from its last manifest, and "
        "nothing is lost. Else{repair} begin a new log there with a new snapshot: `waltap "
        "offsets clear FILE`."
    )


# An older copy replaced it.
ChangeLogOlder = DestinationBehind.define(
    "ChangeLogOlder",
    "WT-5109",
    "The log lacks manifests that this pipeline has published.",
    "The changes between were confirmed to the server and will not come again. Put the newer copy "
    "of {path} back and start again. Else{repair} continue with this one and a new snapshot: "
    "`waltap slot drop FILE` and `waltap offsets clear FILE`.",
)
# The log has one position. Of two pipelines in turn each would skip the changes below the
# other's.
ChangeLogOfAnother = SinkError.define(
    "ChangeLogOfAnother",
    "WT-5110",
    "Another pipeline wrote this log.",
    "Give this pipeline its own change log (sink.path); or, if pipeline {owner!r} no longer "
    "writes to {path}, move that folder away.",
)


class ChangeLogMissing(SinkError):
    """The folder has no change log."""

    code = "WT-5108"
    remedy = (
        "Give the folder that the sink writes: `waltap explain FILE` shows sink.path; the spark sink "
        "keeps its log in the folder changelog below that."
    )


class ReaderUnknown(SinkError):
    """The change log has no reader with that name."""

    code = "WT-5111"
    remedy = (
        "The readers are: {known}. `waltap changelog readers {path} --register NAME` adds "
        "one; from then on the log keeps everything that it has not read."
    )


RowsElsewhere = SinkError.define(
    "RowsElsewhere",
    "WT-5112",
    "A reader wants rows that Spark wrote directly into the tables.",
    "Read {table} in the tables (`waltap spark sql FILE`), and the log from a position after its "
    'snapshot. To have snapshots in the log: snapshot.readers = "engine" of the sink, and a new '
    "snapshot.",
)
