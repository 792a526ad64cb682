"""What can go wrong with a change log.

SinkError
├── FilesUnavailable        WT-5101   its files cannot be read or written (`waltap.base.files.errors`)
├── ChangeLogDamaged        WT-5102   a manifest or segment is not what it should be
├── FilesInUse              WT-5103   another process writes it (`waltap.base.files.errors`)
├── ColumnNameTaken         WT-5104   a table has a column that is called like one of the log's
├── TransactionGap          WT-5105   a transaction arrived without its beginning
├── ChangeLogRetired        WT-5106   a reader asks for what was removed already
├── ChangeLogGone           WT-5107   its folder was moved, deleted or emptied under the pipeline
├── ChangeLogMissing        WT-5108   there is no change log where one is to be read
├── ChangeLogOlder          WT-5109   it is an older copy: manifests that were published are missing
├── ChangeLogOfAnother      WT-5110   another pipeline writes it
├── ReaderUnknown           WT-5111   it has no reader of that name
└── RowsElsewhere           WT-5112   rows of a snapshot went past it, right into tables
"""

from waltap.errors import RetryVerdict, SinkError
from waltap.ports.sink.held import DestinationBehind

__all__ = [
    "ChangeLogDamaged",
    "ChangeLogGone",
    "ChangeLogMissing",
    "ChangeLogOfAnother",
    "ChangeLogOlder",
    "ChangeLogRetired",
    "ColumnNameTaken",
    "ReaderUnknown",
    "RowsElsewhere",
    "TransactionGap",
]


class ChangeLogDamaged(SinkError):
    """A file of the change log is not what its name and manifest promise."""

    code = "WT-5102"
    remedy = (
        "Restore {path} from a copy, or move the whole log away and start again without a stored "
        "offset, which takes a new snapshot."
    )


class ColumnNameTaken(SinkError):
    """A captured table has a column with the name of one of the log's own columns."""

    code = "WT-5104"
    remedy = "Rename it, or leave it out with column.exclude.list = {column}."


class TransactionGap(SinkError):
    """The middle of a transaction arrived, but this log has not seen its beginning."""

    code = "WT-5105"
    retry = RetryVerdict.RECONNECT
    remedy = "Delivery starts again from the last manifest; if this lasts, report it as a bug."


class ChangeLogRetired(SinkError):
    """A reader wants to go on where the change log has been cleaned up already."""

    code = "WT-5106"
    remedy = (
        "Put the manifests before {path} back from a copy, with their segments. Without one, tables "
        "that lack them begin anew, and with them the log: give the pipeline another sink.path, and "
        "`waltap run PROFILE --set snapshot.mode=always`. A query starts over with a new checkpoint, from "
        "what is still there. Keep a log longer with a larger changelog.retention.hours, or for a reader: "
        "`waltap changelog readers LOG --register NAME`."
    )


class ChangeLogGone(DestinationBehind):
    """The folder that this pipeline wrote to is not there any more, or holds another log."""

    code = "WT-5107"
    remedy = (
        "Put {path} back as it was and start again: it goes on from its last manifest, nothing is lost. "
        "Else{repair} begin a new log there with a new snapshot: `waltap offsets clear FILE`."
    )


class ChangeLogOlder(DestinationBehind):
    """The log ends before what this pipeline has published: an older copy was put in its place."""

    code = "WT-5109"
    remedy = (
        "What lies between was confirmed to the server and does not come again. Put the newer copy of "
        "{path} back and start again. Else{repair} go on with this one and a new snapshot: `waltap slot "
        "drop FILE` and `waltap offsets clear FILE`."
    )


class ChangeLogOfAnother(SinkError):
    """Another pipeline wrote this log. Its mark is one position: of two pipelines that take turns, each
    would leave out what lies below the other's."""

    code = "WT-5110"
    remedy = (
        "Give this pipeline a change log of its own (sink.path); or, when pipeline {owner!r} is not to "
        "write {path} any more, move that folder away."
    )


class ChangeLogMissing(SinkError):
    """A folder that is to be read as a change log is none."""

    code = "WT-5108"
    remedy = (
        "Give the folder that the sink writes: `waltap explain FILE` shows sink.path; the spark sink "
        "keeps its log in the folder changelog below that."
    )


class ReaderUnknown(SinkError):
    """A reader is named that is not registered with the change log."""

    code = "WT-5111"
    remedy = (
        "Readers there are: {known}. `waltap changelog readers {path} --register NAME` makes one; what it "
        "has not read stays in the log from then on."
    )


class RowsElsewhere(SinkError):
    """A reader wants rows of a snapshot that executors of Spark wrote right into the tables."""

    code = "WT-5112"
    remedy = (
        "Read {table} in the tables (`waltap spark sql FILE`), and the log from behind its snapshot; or "
        'have snapshots come through the log: snapshot.readers = "engine" of the sink, and a new snapshot.'
    )
