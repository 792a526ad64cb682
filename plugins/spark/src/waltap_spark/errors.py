"""What can go wrong with Spark tables.

SinkError
├── JavaMissing         WT-5201   no Java that Spark can run on
├── ApplierFailed       WT-5202   the Spark process ended with an error
├── JvmEnded            WT-5248   Spark's JVM ended while it worked, mostly for lack of memory
├── SparkRefused        WT-5268   Spark, or what it reaches, did not do what was asked
├── OutputInUse         WT-5203   another applier writes the same tables
├── OutputDamaged       WT-5204   the list of what was applied cannot be read
├── TypeChanged         WT-5205   a column got a type that does not fit what is stored
├── NamesClash          WT-5259   rules would call two columns alike
├── SourcesDiffer       WT-5261   a table cannot be one with the others of its target
├── OutputMismatch      WT-5206   the tables were made from another change log
├── TableUnknown        WT-5207   there is no such table
├── MomentUnread        WT-5264   a text is no position of the source
├── TablesStandStill    WT-5208   changes of some tables cannot be applied
├── PysparkUnfit        WT-5210   pyspark is not there, or too old
├── SegmentDamaged      WT-5211   a segment of the change log is missing or cannot be read
├── PipelinesUnfit      WT-5255   declarative pipelines of this pyspark lack what is wanted
├── ChangeUnfit         WT-5256   AUTO CDC would get a change wrong
├── ChunksUnread        WT-5257   executors could not reach what they were to read of a snapshot
├── ChunksRefused       WT-5260   rows of a snapshot cannot be read, or not kept, by executors
├── RowsAwaited         WT-5258   rows of a snapshot that nobody hands over
└── FormatError         WT-5229   a table format cannot do what it should
    ├── ModeUnfit           WT-5241   a table cannot be kept as the profile says
    ├── MadeOtherwise       WT-5265   a table was made in another mode
    ├── HistoryNotKept      WT-5262   changes are asked for, and the table keeps none
    ├── FormatUnknown       WT-5230   no plugin has it
    ├── FormatUnsupported   WT-5231   it does not run on this pyspark
    ├── FormatNotReady      WT-5232   its jars or settings are not in the session
    ├── SessionTaken        WT-5263   the session has another output's tables open
    ├── FormatDiffers       WT-5233   the tables are in another format
    ├── FormatLimit         WT-5234   it cannot hold such a table
    ├── TargetChanged       WT-5235   somebody else wrote the table
    ├── StepDiffers         WT-5267   a step of a table is another one than it was when it was taken
    ├── VersionGone         WT-5236   the tables as they were then cannot be read any more
    ├── CommitBegun         WT-5247   a commit that a driver had begun is to be finished first
    ├── NameTaken           WT-5246   another table is called so in the catalogue
    └── CatalogueUnreachable  WT-5245   the catalogue of the tables does not load, or does not answer
"""

import itertools
import re
from typing import Final

from waltap.errors import RetryVerdict, SinkError

__all__ = [
    "ApplierFailed",
    "CatalogueUnreachable",
    "ChangeUnfit",
    "ChunksRefused",
    "ChunksUnread",
    "CommitBegun",
    "FormatDiffers",
    "FormatError",
    "FormatLimit",
    "FormatNotReady",
    "FormatUnknown",
    "FormatUnsupported",
    "HistoryNotKept",
    "JavaMissing",
    "JvmEnded",
    "MomentUnread",
    "NameTaken",
    "NamesClash",
    "OutputDamaged",
    "OutputInUse",
    "OutputMismatch",
    "PipelinesUnfit",
    "PysparkUnfit",
    "RowsAwaited",
    "SegmentDamaged",
    "SessionTaken",
    "SourcesDiffer",
    "SparkRefused",
    "StepDiffers",
    "TableUnknown",
    "TablesStandStill",
    "TargetChanged",
    "TypeChanged",
    "VersionGone",
    "first_words",
]


class JavaMissing(SinkError):
    """Spark needs a Java runtime, version 17 or later, whole (with ``jdk.incubator.vector``)."""

    code = "WT-5201"
    remedy = (
        "Install one (Debian, Ubuntu: apt-get install openjdk-17-jre-headless or openjdk-21-jre-headless; "
        "macOS: brew install openjdk@17), or point JAVA_HOME to it. waltap run --sink changelog:PATH "
        "needs no Java."
    )


class PysparkUnfit(SinkError):
    """The Python package of Spark is not installed, or is of another generation."""

    code = "WT-5210"
    remedy = (
        "Parquet runs on pyspark 4.1 to 4.3, Delta on 4.1 and 4.2, Iceberg on 4.1. Install one where "
        "waltap is: pip install 'pyspark>=4.1,<4.3'. waltap run --sink changelog:PATH needs no Spark."
    )


class PipelinesUnfit(SinkError):
    """Declarative pipelines of this pyspark do not have what is wanted."""

    code = "WT-5255"
    remedy = (
        "AUTO CDC is in pyspark 4.2 and later, its history (SCD type 2) in 4.3: pip install "
        "'pyspark[pipelines]=={wanted}.*'."
    )


class ChangeUnfit(SinkError):
    """AUTO CDC would get a change wrong: a truncate, or values that the server did not send."""

    code = "WT-5256"
    remedy = (
        "ALTER TABLE … REPLICA IDENTITY FULL at the source makes it send all values. After a "
        "truncate, run the pipeline with a full refresh and startingPosition after it. Or use a "
        "history with a materialized view, which handles both: docs/howto/spark-pipelines.md."
    )


class ApplierFailed(SinkError):
    """The Spark process that keeps the tables up to date ended with an error.

    The change log goes on from its last manifest, the tables from their last commit.
    """

    code = "WT-5202"
    remedy = (
        "Its log is {log}. Fix what it names and start again, or apply by hand with `waltap spark "
        "apply --changelog {changelog} --output {output}`, with the sink's properties as --set; "
        "nothing is lost or doubled."
    )


class JvmEnded(SinkError):
    """Spark's JVM ended while it worked: its memory was not enough, or somebody killed it.

    What was not committed is applied by the next driver; no table is half written.
    """

    code = "WT-5248"
    remedy = (
        "Its output is in {log}. If it has OutOfMemoryError: give it more memory "
        "(spark.driver.memory, now {memory}), or smaller commits (apply.parallel, "
        "batch.max.rows; for large single values spark.sql.parquet.columnarReaderBatchSize). "
        "Then start again: nothing is lost or doubled."
    )


class SparkRefused(SinkError):
    """Spark, or what it reaches for it (a catalogue, a file system, a disk), did not do what was asked.

    In a commit: the table stands still, the others go on, and it is tried again; no table is half written.
    """

    code = "WT-5268"
    remedy = (
        "See Spark's text. For a catalogue or file system, check the profile's settings spark.… "
        "(of a command: --set); it must be up and accept this program's user. A table continues "
        "by itself within minutes."
    )


class OutputInUse(SinkError):
    """Another process applies changes to the same tables."""

    code = "WT-5203"
    remedy = "Wait until process {holder} has ended, stop it, or choose another output folder."


class OutputDamaged(SinkError):
    """A commit file of the tables cannot be read."""

    code = "WT-5204"
    remedy = (
        "Remove {path} and the commits after it: the tables then return to the commit before it "
        "and continue from there."
    )


class TypeChanged(SinkError):
    """A column of the source got a type that the stored values cannot be widened to."""

    code = "WT-5205"
    remedy = (
        "Set type.change = string (old and new values become text), or move {path} away and "
        "take a new snapshot."
    )


class NamesClash(SinkError):
    """Rules would call two columns of a table alike, or one as tables call something else; nothing was
    written.

    The table stands still, the others go on.
    """

    code = "WT-5259"
    remedy = "Rename one of them: columns.renames = SCHEMA\\.TABLE\\.COLUMN:NAME."


class SourcesDiffer(SinkError):
    """A table cannot be one with the others of its target: a column has a type that theirs do not fit
    with, is called as the column of sources is, its source is another table's already, or its rule gives
    it an empty name.

    The table stands still, the other sources go on.
    """

    code = "WT-5261"
    remedy = (
        "Where only rules were changed, put back the rule under which it was made (source.into, "
        "source.column), or none where there was none: it goes on, nothing is lost. Else "
        "give the column the same type in all sources, or source.column another name, or each table a "
        "source of its own (@SOURCE), and all of a target one mode, which those that are there have; or "
        "leave the table out of source.into in an output that begins anew. "
        "Where a group may match nothing, as (x)? does, write a rule for each of the two cases."
    )


class OutputMismatch(SinkError):
    """The tables do not belong to the change log that is to be applied."""

    code = "WT-5206"
    remedy = (
        "Give the output folder that belongs to this change log, or an empty one. Where an earlier "
        "version made the tables, and both were moved since: `waltap spark adopt {output} --changelog "
        "{changelog}`."
    )


class TableUnknown(SinkError):
    """The output has no table of that name."""

    code = "WT-5207"
    remedy = "Tables there are: {known}."


class MomentUnread(SinkError):
    """Tables are asked for as they stood at something that is no position of the source."""

    code = "WT-5264"
    remedy = (
        "Give `at` an LSN as PostgreSQL prints it (16/B374D848), a mark as `waltap spark status` shows "
        "it, or a time as a datetime."
    )


class TablesStandStill(SinkError):
    """Changes of some tables cannot be applied; all other tables are up to date.

    The tables stand where they were, their changes stay in the change log and are tried again.
    """

    code = "WT-5208"
    remedy = (
        "See `waltap spark status {output}`; tables named there are suspended until their cause "
        "is corrected."
    )


class SegmentDamaged(SinkError):
    """A segment of the change log is missing, or is not what its manifest says.

    The one table that it belongs to stands still before it, the others go on. Nothing of the transactions
    in that segment and after it is applied to the table.
    """

    code = "WT-5211"
    remedy = (
        "Restore {path} from a copy: the table then continues within minutes. Without a copy: "
        "`waltap spark resume OUTPUT TABLE --skip-damaged` continues without these rows, and a "
        "new snapshot (`waltap run PROFILE --set snapshot.mode=always`) replaces the table's "
        "rows."
    )


class FormatError(SinkError):
    """A table format cannot do what it should."""

    code = "WT-5229"
    remedy = "See the text; `waltap plugins` lists the table formats."


class ModeUnfit(FormatError):
    """A table cannot be kept as the profile says; it stands still, the others go on."""

    code = "WT-5241"
    remedy = (
        "Rules for {table} that fit: mode append or scd1, deletes hard, history keep. A table "
        "without a key supports only these, without extra.columns. Or give it a key in the "
        "source (ALTER TABLE … ADD PRIMARY KEY …): it continues with its next change, or with a "
        "snapshot of it (`waltap signal PROFILE execute-snapshot …`)."
    )


class MadeOtherwise(FormatError):
    """A table was made in one mode, and the profile has another; it stands still, the others go on."""

    code = "WT-5265"
    remedy = (
        "Put back the rules for {table} under which it was made (mode, deletes, history, extra.columns), "
        "or give the pipeline another sink.path and take a new snapshot."
    )


class HistoryNotKept(FormatError):
    """The changes of a table are asked for, and its mode keeps none."""

    code = "WT-5262"
    remedy = (
        "Read its rows; changes that are still in the change log can be read by the data source `waltap`. "
        "A table has a history where it is made with history = keep: another output, a new snapshot."
    )


class FormatUnknown(FormatError):
    """No plugin contributes a table format of that name."""

    code = "WT-5230"
    remedy = (
        "Table formats: {known}. `waltap plugins` lists installed plugins and those that failed "
        "to load."
    )


class FormatUnsupported(FormatError):
    """The table format has no release that runs on this version of pyspark."""

    code = "WT-5231"
    remedy = (
        "Parquet runs on pyspark 4.1 to 4.3, Delta on 4.1 and 4.2, Iceberg on 4.1 (with Delta "
        "too): pip install 'pyspark=={wanted}.*', or choose another format."
    )


class FormatNotReady(FormatError):
    """The Spark session lacks the jars or the settings of a table format."""

    code = "WT-5232"
    remedy = (
        'In the profile: "spark.jars.packages" = "{packages}", or "spark.jars" with the files; commands '
        "take --set spark.jars.packages={packages}. A session of your own needs {settings} besides."
    )


class SessionTaken(FormatError):
    """The Spark session reads the tables of another output, by a catalogue of the same name."""

    code = "WT-5263"
    remedy = (
        "Open these tables in a session of their own, such as spark.newSession(); or give outputs a "
        "catalogue of yours (format.catalog) instead of {catalog}."
    )


class FormatDiffers(FormatError):
    """The output was made in another table format."""

    code = "WT-5233"
    remedy = (
        "Keep format = {format} for this output, or give an empty folder and take a new snapshot."
    )


class FormatLimit(FormatError):
    """The table format cannot hold what a table has; the table stands still, the others go on."""

    code = "WT-5234"
    remedy = (
        "format.partition.by and format.cluster.by must name columns of the table. If the "
        "format does not support a column: leave it out (column.exclude.list), rename it, or "
        "choose parquet."
    )


class CommitBegun(FormatError):
    """A driver died within a commit; the next one finds what it wrote and finishes it, upkeep does not."""

    code = "WT-5247"
    remedy = (
        "Let the pipeline run, or `waltap spark apply --once --changelog {changelog} --output {output}` "
        "with the sink's properties as --set: it finishes the commit. Then try again."
    )


class NameTaken(FormatError):
    """What a table would be called in the catalogue is another's there, or no name that the catalogue
    takes; nothing of it was written.

    The table stands still, the others go on.
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
    """A table was written by somebody else since our last commit, or is gone, or was there before us."""

    code = "WT-5235"
    remedy = (
        "Stop the other writer of {table}. Then restore version {version}, the last one without "
        "its writes (Delta: RESTORE TABLE … TO VERSION AS OF; Iceberg: CALL … "
        "rollback_to_snapshot), or move the output away and take a new snapshot."
    )


class StepDiffers(FormatError):
    """A commit to a table was half done, and what is left of it would not be the same now: rules for its
    columns are others, or another release of waltap runs.

    The table stands still, the others go on; nothing of it is lost or doubled.
    """

    code = "WT-5267"
    remedy = (
        "Restore the former settings (columns.dropped, columns.names, columns.renames; the "
        "release) until the table has continued. Or, where it shares {table} with no other, "
        "restore version {version} (Delta: RESTORE TABLE … TO VERSION AS OF; Iceberg: CALL … "
        "rollback_to_snapshot): later changes are then written again."
    )


class VersionGone(FormatError):
    """The tables cannot be read as of that position or time."""

    code = "WT-5236"
    remedy = (
        "Readable are positions from {oldest} to {newest}, as far as the format keeps old versions."
    )


class CatalogueUnreachable(FormatError):
    """Spark cannot load the catalogue that the tables are in."""

    code = "WT-5245"
    remedy = (
        "See the text. The profile's settings spark.sql.catalog.{catalog} and "
        "spark.sql.catalog.{catalog}.* define the catalogue; its driver must be among the jars."
    )


class ChunksUnread(SinkError):
    """Tasks of Spark could not reach the source, or its snapshot was gone. Nothing of it counts."""

    code = "WT-5257"
    retry = RetryVerdict.RECONNECT
    remedy = (
        "The next try takes another snapshot. Executors must reach the database by the address and with "
        "the files that the profile names; a command that gives the password runs there. Or have the "
        'engine read: snapshot.readers = "engine" of the sink.'
    )


class ChunksRefused(SinkError):
    """Tasks of Spark found rows of a snapshot that cannot be read, or not be kept as they are."""

    code = "WT-5260"
    remedy = (
        "See the text. The snapshot is discarded; the next start takes another. To have the "
        'engine read it: snapshot.readers = "engine" of the sink.'
    )


class RowsAwaited(SinkError):
    """A change log says that a snapshot's rows went right into tables, and these tables lack them."""

    code = "WT-5258"
    remedy = (
        "The pipeline that writes {changelog} hands them to the Spark process that it starts: run it. "
        "Tables of another output need a log that has the rows: snapshot.readers = "
        '"engine" of the sink, and a new snapshot.'
    )


_FRAME: Final = re.compile(r"at [\w.$/]+\(.*\)$|\.\.\. \d+ more$|Suppressed: ")
"""A line of a trace in Java, which is no words."""


def first_words(error: BaseException) -> str:
    """Return what ``error`` says, and what caused it, without the traces that a JVM adds, on one line."""
    lines = [line.strip() for line in str(error).splitlines()]
    told = list(itertools.takewhile(lambda line: line not in {"", "JVM stacktrace:"}, lines))
    own = [line for line in told if not _FRAME.match(line)]
    return " ".join(dict.fromkeys(own)) or type(error).__name__
