"""Errors of Spark tables.

```
SinkError
├── JavaMissing         WT-5201   there is no Java that Spark can run on
├── ApplierFailed       WT-5202   the Spark process ended with an error
├── JvmEnded            WT-5248   Spark's JVM ended during its work, mostly for lack of memory
├── SparkRefused        WT-5268   Spark, or a service that it uses, refused a request
├── OutputInUse         WT-5203   another applier writes the same tables
├── OutputDamaged       WT-5204   a commit file cannot be read
├── TypeChanged         WT-5205   a column's new type does not fit the stored values
├── NamesClash          WT-5259   rules would give two columns one name
├── SourcesDiffer       WT-5261   a table does not fit the other tables of its target
├── OutputMismatch      WT-5206   the tables were made from another change log
├── TableUnknown        WT-5207   there is no such table
├── TableSuspended      WT-5270   a table that is read lacks changes that others have
├── SnapshotNeeded      WT-5271   rows of a table that is read may differ from the source's
├── TableSetAside       WT-5274   another table took the name of a table that is read
├── MomentUnreadable    WT-5264   a text is no position of the source
├── TablesSuspended    WT-5208   changes of some tables cannot be applied
├── PysparkUnfit        WT-5210   pyspark is missing or too old
├── SegmentDamaged      WT-5211   a segment of the change log is missing or damaged
├── PipelinesUnfit      WT-5255   this pyspark's declarative pipelines lack a feature
├── ChangeUnfit         WT-5256   AUTO CDC would apply a change wrongly
├── ChunkSourceUnreachable WT-5257   executors could not reach the source of a snapshot
├── ChunksRefused       WT-5260   executors cannot read or store rows of a snapshot
├── RowsAwaited         WT-5258   no process provides the rows of a snapshot
└── FormatError         WT-5229   a table format failed
    ├── ModeUnfit           WT-5241   a table does not support the profile's mode
    ├── MadeOtherwise       WT-5265   a table was made in another mode
    ├── HistoryNotKept      WT-5262   a table keeps no history
    ├── FormatUnknown       WT-5230   no plugin has the format
    ├── FormatUnsupported   WT-5231   the format does not run on this pyspark
    ├── FormatNotReady      WT-5232   its jars or settings are not in the session
    ├── SessionTaken        WT-5263   the session has another output's tables open
    ├── FormatDiffers       WT-5233   the tables are in another format
    ├── FormatLimit         WT-5234   the format cannot hold such a table
    ├── LayoutUnfit         WT-5273   rules for names or files do not fit a table
    ├── TargetChanged       WT-5235   another writer changed the table
    ├── StepDiffers         WT-5267   a repeated step differs from its first attempt
    ├── VersionGone         WT-5236   an old version of the tables is no longer readable
    ├── CommitBegun         WT-5247   an unfinished commit must be finished first
    ├── NameTaken           WT-5246   the catalogue has another table of that name
    └── CatalogueUnreachable  WT-5245   the catalogue does not load, or does not answer
```
"""

import itertools
import re
from typing import Final

from waltap.errors import RetryVerdict, SinkError

JavaMissing = SinkError.define(
    "JavaMissing",
    "WT-5201",
    "Spark needs Java 17 or later, with ``jdk.incubator.vector``.",
    "Install one (Debian, Ubuntu: apt-get install openjdk-17-jre-headless or "
    "openjdk-21-jre-headless; macOS: brew install openjdk@17), or point JAVA_HOME to it. waltap "
    "run --sink changelog:PATH needs no Java.",
)
PysparkUnfit = SinkError.define(
    "PysparkUnfit",
    "WT-5210",
    "Spark's Python package is missing, or has an unsupported version.",
    "Parquet runs on pyspark 4.1 to 4.3, Delta on 4.1 and 4.2, Iceberg on 4.1. Install one where "
    "waltap is: pip install 'pyspark>=4.1,<4.3'. waltap run --sink changelog:PATH needs no Spark.",
)
PipelinesUnfit = SinkError.define(
    "PipelinesUnfit",
    "WT-5255",
    "Declarative pipelines of this pyspark lack a required feature.",
    "AUTO CDC is in pyspark 4.2 and later, its history (SCD type 2) in 4.3: pip install "
    "'pyspark[pipelines]=={wanted}.*'.",
)
ChangeUnfit = SinkError.define(
    "ChangeUnfit",
    "WT-5256",
    "AUTO CDC would get a truncate or unsent values wrong.",
    "ALTER TABLE … REPLICA IDENTITY FULL at the source makes it send all values. After a "
    "truncate, run the pipeline with a full refresh and startingPosition after it. Or use a "
    "history with a materialized view, which handles both: docs/howto/spark-pipelines.md.",
)


class ApplierFailed(SinkError):
    """The Spark process that applies changes ended with an error.

    The change log continues from its last manifest, the tables from their last commit.
    """

    code = "WT-5202"
    remedy = (
        "Its log is {log}. Fix what it names and start again, or apply by hand with `waltap spark "
        "apply --changelog {changelog} --output {output}`, with the sink's properties as --set; "
        "nothing is lost or doubled."
    )


class JvmEnded(SinkError):
    """Spark's JVM ran out of memory or was killed.

    The next driver applies uncommitted changes; no table is half written.
    """

    code = "WT-5248"
    remedy = (
        "Its output is in {log}. If it has OutOfMemoryError: give it more memory "
        "(spark.driver.memory, now {memory}), or smaller commits (apply.parallel, "
        "batch.max.rows; for large single values spark.sql.parquet.columnarReaderBatchSize). "
        "Then start again: nothing is lost or doubled."
    )


# In a commit the table is suspended and retried, and the others continue. No table is half
# written.
SparkRefused = SinkError.define(
    "SparkRefused",
    "WT-5268",
    "Spark, its catalogue, file system or disk failed.",
    "See Spark's text. For a catalogue or file system, check the profile's settings spark.… (of a "
    "command: --set); it must be up and accept this program's user. A table continues by itself "
    "within minutes.",
)
OutputInUse = SinkError.define(
    "OutputInUse",
    "WT-5203",
    "Another process applies changes to the same tables.",
    "Wait until process {holder} has ended, stop it, or choose another output folder.",
)


class OutputDamaged(SinkError):
    """A commit file of the tables cannot be read."""

    code = "WT-5204"
    remedy = (
        "Remove {path} and the commits after it: the tables then return to the commit before it "
        "and continue from there."
    )


TypeChanged = SinkError.define(
    "TypeChanged",
    "WT-5205",
    "Stored values do not fit a column's new type.",
    "`waltap spark resume {output} {table} --cast-to-text` continues with old and new values as "
    "text; type.change = string does so for all tables. For the new type: in Parquet `waltap "
    "spark resume {output} {table} --full-refresh` and `waltap snapshot PROFILE {table} "
    "--blocking`, in other formats another sink.path and a new snapshot.",
)
# Nothing was written. The table is suspended, the others continue.
NamesClash = SinkError.define(
    "NamesClash",
    "WT-5259",
    "A rule gives a column a name in use.",
    "Rename one of them: columns.renames = SCHEMA\\.TABLE\\.COLUMN:NAME.",
)
# A column's type may not fit theirs, or a column may have the name of the source column. Its
# source may belong to another table already, or its rule may give it an empty name. The table is
# suspended; the other sources continue.
SourcesDiffer = SinkError.define(
    "SourcesDiffer",
    "WT-5261",
    "A table does not fit the other tables of its target.",
    "If only a rule changed, restore the rule that made the target (source.into, source.column): "
    "the table continues, and nothing is lost. Otherwise give the column one type in all sources, "
    "each table its own source (@SOURCE), all tables of a target one mode, and source.column a "
    "free name; or take the table out of source.into and use a new output. If a group may match "
    "nothing, such as (x)?, write two rules.",
)
OutputMismatch = SinkError.define(
    "OutputMismatch",
    "WT-5206",
    "The tables do not belong to this change log.",
    "Give the output folder that belongs to this change log, or an empty one. If an earlier "
    "version made the tables, and both were moved later: `waltap spark relink {output} "
    "--changelog {changelog}`.",
)
TableUnknown = SinkError.define(
    "TableUnknown",
    "WT-5207",
    "The output has no table of that name.",
    "The tables are: {known}.",
)
# Its rows are those of an earlier position. Its changes wait in the change log.
TableSuspended = SinkError.define(
    "TableSuspended",
    "WT-5270",
    "A query reads a suspended table, which lacks changes.",
    "`waltap spark status {output}` has the cause; the table continues when it is corrected. "
    'Until then, at("{mark}") reads all tables at its position, and allow_stale=True (`waltap '
    "spark sql --allow-stale`) reads the table as it is.",
)
SnapshotNeeded = SinkError.define(
    "SnapshotNeeded",
    "WT-5271",
    "A query reads a table that may differ from the source.",
    "`waltap snapshot PROFILE {table} --blocking` reads it again while the pipeline runs, and "
    "replaces its rows. A table without a key: stop the pipeline, and run `waltap run PROFILE "
    "--set snapshot.mode=always` once. allow_stale=True (`waltap spark sql --allow-stale`) reads "
    "the table as it is.",
)
# Only a change shows the new name of a renamed table, and nothing shows that a table was dropped.
TableSetAside = SinkError.define(
    "TableSetAside",
    "WT-5274",
    "A query reads a table whose name another table took at the source.",
    "If the source renamed it, change a row there, as by UPDATE … SET id = id: the table then gets "
    "its name, and is complete. If the source dropped it, these are its last rows, which "
    "allow_stale=True (`waltap spark sql --allow-stale`) reads.",
)
MomentUnreadable = SinkError.define(
    "MomentUnreadable",
    "WT-5264",
    "The requested time or position is not readable.",
    "Give `at` an LSN as PostgreSQL prints it (16/B374D848), a position as `waltap spark status` "
    "shows it, or a time as a datetime.",
)
# The tables stay at their position. Their changes stay in the change log and are retried.
TablesSuspended = SinkError.define(
    "TablesSuspended",
    "WT-5208",
    "Some tables are suspended; all others are up to date.",
    "See `waltap spark status {output}`; tables named there are suspended until their cause is "
    "corrected.",
)


class SegmentDamaged(SinkError):
    """A segment of the change log is missing or damaged.

    Its table is suspended before the segment, and the others continue. No transaction in or after
    the segment is applied to the table.
    """

    code = "WT-5211"
    remedy = (
        "Restore {path} from a copy: the table then continues within minutes. Without a copy: "
        "`waltap spark resume OUTPUT TABLE --skip-damaged` continues without these rows, and a "
        "new snapshot (`waltap run PROFILE --set snapshot.mode=always`) replaces the table's "
        "rows."
    )


class FormatError(SinkError):
    """A table format failed."""

    code = "WT-5229"
    remedy = "See the text; `waltap plugins` lists the table formats."


ModeUnfit = FormatError.define(
    "ModeUnfit",
    "WT-5241",
    "A table is suspended: it does not support its mode.",
    "Rules for {table} that fit: mode append or scd1, deletes hard, history keep. A table without "
    "a key supports only these, without extra.columns. Or give it a key in the source (ALTER "
    "TABLE … ADD PRIMARY KEY …): it continues with its next change, or with a snapshot of it "
    "(`waltap signal PROFILE execute-snapshot …`).",
)
MadeOtherwise = FormatError.define(
    "MadeOtherwise",
    "WT-5265",
    "A table was made in another mode, and is suspended.",
    "Put back the rules for {table} under which it was made (mode, deletes, history, "
    "extra.columns), or give the pipeline another sink.path and take a new snapshot.",
)
HistoryNotKept = FormatError.define(
    "HistoryNotKept",
    "WT-5262",
    "The table's mode keeps no history of changes.",
    "Read the table's rows; the data source `waltap` reads changes that are still in the change "
    "log. For a history, set history = keep, and give a new output with a new snapshot.",
)
FormatUnknown = FormatError.define(
    "FormatUnknown",
    "WT-5230",
    "No plugin contributes a table format of that name.",
    "Table formats: {known}. `waltap plugins` lists installed plugins and those that failed to "
    "load.",
)
FormatUnsupported = FormatError.define(
    "FormatUnsupported",
    "WT-5231",
    "The table format does not support this pyspark version.",
    "Parquet runs on pyspark 4.1 to 4.3, Delta on 4.1 and 4.2, Iceberg on 4.1 (with Delta too): "
    "pip install 'pyspark=={wanted}.*', or choose another format.",
)


class FormatNotReady(FormatError):
    """The Spark session lacks a table format's jars or settings."""

    code = "WT-5232"
    remedy = (
        'In the profile: "spark.jars.packages" = "{packages}", or "spark.jars" with the files; commands '
        "take --set spark.jars.packages={packages}. A session of your own needs {settings} besides."
    )


# Its catalogue of the same name reads them.
SessionTaken = FormatError.define(
    "SessionTaken",
    "WT-5263",
    "The Spark session has another output's tables open.",
    "Open these tables in a session of their own, such as spark.newSession(); or give outputs a "
    "catalogue of yours (format.catalog) instead of {catalog}.",
)
FormatDiffers = FormatError.define(
    "FormatDiffers",
    "WT-5233",
    "The output was made in another table format.",
    "Keep format = {format} for this output, or give an empty folder and take a new snapshot.",
)
FormatLimit = FormatError.define(
    "FormatLimit",
    "WT-5234",
    "The table format cannot hold a table, which is suspended.",
    "Rename the column or table in the text for the tables (columns.renames, format.names), leave "
    "it out (column.exclude.list, table.exclude.list), or choose parquet.",
)
LayoutUnfit = FormatError.define(
    "LayoutUnfit",
    "WT-5273",
    "A table is suspended: rules do not fit its name or files.",
    "Correct the rule: format.partition.by and format.cluster.by name columns of the table (Delta "
    "Lake takes one of both), format.names gives a name. The table then continues with the next "
    "start.",
)
# The next driver finishes the commit; compaction does not.
CommitBegun = FormatError.define(
    "CommitBegun",
    "WT-5247",
    "A driver died within a commit, which must be finished first.",
    "Let the pipeline run, or `waltap spark apply --once --changelog {changelog} --output "
    "{output}` with the sink's properties as --set: it finishes the commit. Then try again.",
)


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
        "rollback_to_snapshot), or move the output away and take a new snapshot."
    )


# Rules for its columns changed, or another release of waltap runs. The table is suspended, the
# others continue; nothing is lost or doubled.
StepDiffers = FormatError.define(
    "StepDiffers",
    "WT-5267",
    "A repeated step of a table differs from its first attempt.",
    "Restore the former settings (columns.dropped, columns.names, columns.renames; the release) "
    "until the table has continued. Or, where it shares {table} with no other, restore version "
    "{version} (Delta: RESTORE TABLE … TO VERSION AS OF; Iceberg: CALL … rollback_to_snapshot): "
    "later changes are then written again.",
)


class VersionGone(FormatError):
    """The tables are no longer readable at that position or time."""

    code = "WT-5236"
    remedy = (
        "Readable are positions from {oldest} to {newest}, as far as the format keeps old versions."
    )


CatalogueUnreachable = FormatError.define(
    "CatalogueUnreachable",
    "WT-5245",
    "Spark cannot load the catalogue of the tables.",
    "See the text. The profile's settings spark.sql.catalog.{catalog} and "
    "spark.sql.catalog.{catalog}.* define the catalogue; its driver must be among the jars.",
)
ChunkSourceUnreachable = SinkError.define(
    "ChunkSourceUnreachable",
    "WT-5257",
    "Spark tasks could not read the snapshot, now discarded.",
    "The next try takes another snapshot. Executors must reach the database by the address and "
    "with the files that the profile names; a command that gives the password runs there. Or have "
    'the engine read: snapshot.readers = "engine" of the sink.',
    retry=RetryVerdict.RECONNECT,
)
ChunksRefused = SinkError.define(
    "ChunksRefused",
    "WT-5260",
    "Spark tasks cannot read or store some snapshot rows.",
    "See the text. The snapshot is discarded; the next start takes another. To have the engine "
    'read it: snapshot.readers = "engine" of the sink.',
)
RowsAwaited = SinkError.define(
    "RowsAwaited",
    "WT-5258",
    "Snapshot rows are in other tables, not in the log.",
    "Run the pipeline that writes {changelog}: only its own Spark process gets these rows. Tables "
    'of another output need a log with the rows: snapshot.readers = "engine" of the sink, and a '
    "new snapshot.",
)


# A line of a Java stack trace.
_FRAME: Final = re.compile(r"at [\w.$/]+\(.*\)$|\.\.\. \d+ more$|Suppressed: ")


def first_words(error: BaseException) -> str:
    """Return an error's text and its causes on one line.

    The stack traces of a JVM are left out.
    """
    lines = [line.strip() for line in str(error).splitlines()]
    lines_before = list(
        itertools.takewhile(lambda line: line not in {"", "JVM stacktrace:"}, lines)
    )
    own = [line for line in lines_before if not _FRAME.match(line)]
    return " ".join(dict.fromkeys(own)) or type(error).__name__
