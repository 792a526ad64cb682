"""What can go wrong with Spark tables.

SinkError
├── JavaMissing         WT-5201   no Java that Spark can run on
├── ApplierFailed       WT-5202   the Spark process ended with an error
├── OutputInUse         WT-5203   another applier writes the same tables
├── OutputDamaged       WT-5204   the list of what was applied cannot be read
├── TypeChanged         WT-5205   a column got a type that does not fit what is stored
├── OutputMismatch      WT-5206   the tables were made from another change log
├── TableUnknown        WT-5207   there is no such table
├── TablesStandStill    WT-5208   changes of some tables cannot be applied
├── PysparkUnfit        WT-5210   pyspark is not there, or too old
├── SegmentDamaged      WT-5211   a segment of the change log is missing or cannot be read
├── PipelinesUnfit      WT-5255   declarative pipelines of this pyspark lack what is wanted
├── ChangeUnfit         WT-5256   AUTO CDC would get a change wrong
└── FormatError         WT-5229   a table format cannot do what it should
    ├── FormatUnknown       WT-5230   no plugin has it
    ├── FormatUnsupported   WT-5231   it does not run on this pyspark
    ├── FormatNotReady      WT-5232   its jars or settings are not in the session
    ├── FormatDiffers       WT-5233   the tables are in another format
    ├── FormatLimit         WT-5234   it cannot hold such a table
    ├── TargetChanged       WT-5235   somebody else wrote the table
    ├── VersionGone         WT-5236   the tables as they were then cannot be read any more
    ├── CommitBegun         WT-5247   a commit that a driver had begun is to be finished first
    ├── NameTaken           WT-5246   another table is called so in the catalogue
    └── CatalogueUnreachable  WT-5245   the catalogue of the tables does not load, or does not answer
"""

from waltap.errors import SinkError

__all__ = [
    "ApplierFailed",
    "CatalogueUnreachable",
    "ChangeUnfit",
    "CommitBegun",
    "FormatDiffers",
    "FormatError",
    "FormatLimit",
    "FormatNotReady",
    "FormatUnknown",
    "FormatUnsupported",
    "JavaMissing",
    "NameTaken",
    "OutputDamaged",
    "OutputInUse",
    "OutputMismatch",
    "PipelinesUnfit",
    "PysparkUnfit",
    "SegmentDamaged",
    "TableUnknown",
    "TablesStandStill",
    "TargetChanged",
    "TypeChanged",
    "VersionGone",
]


class JavaMissing(SinkError):
    """Spark needs a Java runtime, version 17 or later, whole (with ``jdk.incubator.vector``)."""

    code = "WT-5201"
    remedy = (
        "Install one (Debian, Ubuntu: apt-get install openjdk-17-jre-headless; macOS: brew install "
        "openjdk@17), or point JAVA_HOME to it. waltap run --sink changelog:PATH needs no Java."
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
        "ALTER TABLE … REPLICA IDENTITY FULL at the source makes it send all values. After a truncate, "
        "run the pipeline with a full refresh and startingPosition behind it. Or keep the history, and a "
        "materialized view of it, as docs/howto/spark-pipelines.md has it: that gets both right."
    )


class ApplierFailed(SinkError):
    """The Spark process that keeps the tables up to date ended with an error.

    The change log goes on from its last manifest, the tables from their last commit.
    """

    code = "WT-5202"
    remedy = (
        "Its log is {log}. Fix what it names and start again, or apply by hand with `waltap spark "
        "apply --changelog {changelog} --output {output}`; nothing is lost or doubled."
    )


class OutputInUse(SinkError):
    """Another process applies changes to the same tables."""

    code = "WT-5203"
    remedy = "Wait until process {holder} has ended, stop it, or choose another output folder."


class OutputDamaged(SinkError):
    """A commit file of the tables cannot be read."""

    code = "WT-5204"
    remedy = (
        "Remove {path} and the commits after it: the tables then stand where the commit before it left "
        "them, and go on from there."
    )


class TypeChanged(SinkError):
    """A column of the source got a type that the stored values cannot be widened to."""

    code = "WT-5205"
    remedy = (
        "Set type.change = string (both old and new values are kept as text), or move {path} away "
        "and take a new snapshot."
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


class TablesStandStill(SinkError):
    """Changes of some tables cannot be applied; all other tables are up to date.

    The tables stand where they were, their changes stay in the change log and are tried again.
    """

    code = "WT-5208"
    remedy = (
        "See `waltap spark status {output}`; what is named there stands still until it is fixed."
    )


class SegmentDamaged(SinkError):
    """A segment of the change log is missing, or is not what its manifest says.

    The one table that it belongs to stands still before it, the others go on. Nothing of the transactions
    in that segment and after it is applied to the table.
    """

    code = "WT-5211"
    remedy = (
        "Restore {path} from a copy: the table then goes on within a minute. Where there is none: "
        "`waltap spark resume OUTPUT TABLE --pass-over` goes on without these rows, and a new snapshot of "
        "the table brings what they left."
    )


class FormatError(SinkError):
    """A table format cannot do what it should."""

    code = "WT-5229"
    remedy = "See the text; `waltap plugins` shows what table formats there are."


class ModeUnfit(FormatError):
    """A table cannot be kept as the profile says; it stands still, the others go on."""

    code = "WT-5241"
    remedy = (
        "Name a mode for this table that fits, such as mode = {table}:scd1; a table that was made in one "
        "mode keeps it, another one is another output and a new snapshot."
    )


class FormatUnknown(FormatError):
    """No plugin contributes a table format of that name."""

    code = "WT-5230"
    remedy = "Known are: {known}. `waltap plugins` shows what is installed and what failed to load."


class FormatUnsupported(FormatError):
    """The table format has no release that runs on this version of pyspark."""

    code = "WT-5231"
    remedy = (
        "Parquet runs on pyspark 4.1 to 4.3, Delta on 4.1 and 4.2, Iceberg on 4.1 (with Delta beside it): "
        "pip install 'pyspark=={wanted}.*', or choose another format."
    )


class FormatNotReady(FormatError):
    """The Spark session lacks the jars or the settings of a table format."""

    code = "WT-5232"
    remedy = (
        'In the profile: "spark.jars.packages" = "{packages}", or "spark.jars" with the files; commands '
        "take --set spark.jars.packages={packages}. A session of your own needs {settings} besides."
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
        "Leave one of the columns out (column.exclude.list), rename it, or choose parquet. What "
        "format.partition.by and format.cluster.by name must be columns of the table."
    )


class CommitBegun(FormatError):
    """A driver died within a commit; the next one finds what it wrote and finishes it, upkeep does not."""

    code = "WT-5247"
    remedy = (
        "Let the pipeline run, or `waltap spark apply --once --changelog {changelog} --output {output}` "
        "with the sink's properties as --set: it finishes the commit. Then try again."
    )


class NameTaken(FormatError):
    """What a table would be called in the catalogue is another's there; nothing of it was written.

    The table stands still, the others go on.
    """

    code = "WT-5246"
    remedy = (
        "Call it otherwise: format.names = TABLE-REGEX:NAME, for example "
        "format.names = {pattern}:NAME. It then goes on from its first change."
    )

    def __init__(self, problem: str, *, table: str, **fields: object) -> None:
        pattern = table.replace(".", "\\.")
        super().__init__(problem, table=table, pattern=pattern, **fields)


class TargetChanged(FormatError):
    """A table was written by somebody else since our last commit, or is gone, or was there before us."""

    code = "WT-5235"
    remedy = (
        "Stop who writes {table}. Then bring it back to the version of the last commit, {version} "
        "(Delta: RESTORE TABLE … TO VERSION AS OF; Iceberg: CALL … rollback_to_snapshot), or move the "
        "output away and take a new snapshot."
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
        "See the text. What the catalogue is, and where, say the profile's settings "
        "spark.sql.catalog.{catalog} and spark.sql.catalog.{catalog}.*; its driver must be among the jars."
    )
