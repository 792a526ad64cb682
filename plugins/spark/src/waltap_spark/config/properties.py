"""Properties of the Spark sink."""

from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import ClassVar, Final, Literal, Self

from pydantic import ValidationInfo, field_validator, model_validator

from waltap.base.files.properties import StorageProperties
from waltap.base.files.store import FileStore
from waltap.base.property import MaybeList, Positive, Properties, Whole, declare, declare_family
from waltap.changes.capture.java_regex import java_pattern
from waltap.config import CommaList
from waltap_spark.config.column_names import STYLES, checked_renames
from waltap_spark.config.shared_targets import TargetMappings, checked_places
from waltap_spark.config.targets import OF_HISTORY, checked_divisions, checked_names
from waltap_spark.schema.schema import LOG_FIELDS
from waltap_spark.state.modes import (
    DELETED,
    DELETES,
    EXTRA,
    HISTORIES,
    NAMES,
    VERSION,
    checked_rules,
)
from waltap_spark.state.output import COLUMN, SparkOutput

# Properties with rules by table, TABLE-REGEX:…, and the separators of their rules.
RULES: Final = {"format.names": ",", "format.partition.by": ";", "format.cluster.by": ";"}


def _checked_extra(names: Sequence[str]) -> None:
    """Raises: ValueError, when one of ``names`` is no additional column."""
    for name in names:
        if name not in EXTRA:
            raise ValueError(f"{name!r} is none of {', '.join(EXTRA)}")


# Fields of lists, and their checks. Each rule is checked at the start: a wrong one would suspend
# tables hours later.
CHECKS: Final[dict[str, Callable[[Sequence[str]], None]]] = {
    "mode": partial(checked_rules, values=NAMES),
    "deletes": partial(checked_rules, values=DELETES),
    "history": partial(checked_rules, values=HISTORIES),
    "columns_dropped": partial(checked_rules, values=("keep", "drop")),
    "columns_names": partial(checked_rules, values=STYLES),
    "columns_renames": checked_renames,
    "source_into": checked_places,
    "extra_columns": _checked_extra,
}


class SparkProperties(StorageProperties):
    """Location of the tables, and how Spark keeps them."""

    path: str = declare(
        "path",
        summary="Folder of the change log (changelog) and the tables (tables, the output): a path, "
        "or the URI of a filesystem.",
        examples=("./lake", "s3://lake/waltap/orders"),
        path=True,
    )
    applier: Literal["embedded", "none"] = declare(
        "applier",
        default="embedded",
        summary="embedded: waltap's own Spark process keeps the tables up to date; none: only the "
        "change log is written, and `waltap spark apply` runs elsewhere.",
    )
    format: str = declare(
        "format",
        common=True,
        default="parquet",
        summary="Format of the tables: parquet, delta, iceberg, or a plugin's format.",
    )
    format_properties: dict[str, str] = declare_family(
        "format.*",
        pattern=r"format\..+",
        summary="Properties of the format itself, such as format.catalog of delta.",
    )
    master: str = declare(
        "spark.master",
        default="local[*]",
        summary="Master of the Spark session: local[N], spark://…, yarn, k8s://….",
    )
    settings: dict[str, str] = declare_family(
        "spark.*",
        pattern=r"spark\.(?!master$).+",
        summary="Any other setting of the Spark session, such as spark.driver.memory.",
    )
    mode: CommaList = declare(
        "mode",
        common=True,
        default=("scd1",),
        summary="What a table keeps: append (its history), scd1 (its current rows), scd2 (every "
        "version of each row). TABLE-REGEX:MODE, first match wins; MODE alone is for all "
        "others.",
        examples=("scd2", r"public\.audit.*:append,public\.orders:scd2,scd1"),
        patterns="ruled",
    )
    deletes: CommaList = declare(
        "deletes",
        default=("hard",),
        summary="What a delete does to its row. hard: removes it (in scd2 its version ends); soft: "
        "marks it with _deleted and _deleted_at; kept: nothing. By table, as mode.",
        examples=("soft", r"public\.orders:soft,hard"),
        patterns="ruled",
    )
    history: CommaList = declare(
        "history",
        default=("keep",),
        summary="Whether SCHEMA.TABLE_changes keeps each table's changes: keep, or none, which "
        "saves Delta Lake and Iceberg one of two tables per commit. none needs scd1, hard "
        "deletes and a key. By table, as mode.",
        examples=("none", r"public\.audit.*:keep,none"),
        patterns="ruled",
    )
    extra_columns: MaybeList = declare(
        "extra.columns",
        summary="Columns of the change log to add to rows, from their last change: _op, "
        "_commit_lsn, _seq, _lsn, _commit_ts, _xid, _epoch.",
        examples=("_commit_ts,_xid",),
    )
    columns_dropped: CommaList = declare(
        "columns.dropped",
        default=("keep",),
        summary="A column that the source drops, or that is no longer captured: keep it with its "
        "old values, or drop it, from the history too. By table, as mode.",
        examples=(r"public\.orders:drop,keep",),
        patterns="ruled",
    )
    columns_names: CommaList = declare(
        "columns.names",
        default=("as-is",),
        summary="Names of columns: as-is, lower (case), or snake (OrderID is order_id). By table, as "
        "mode.",
        examples=("snake", r"crm\..*:snake,as-is"),
        patterns="ruled",
    )
    columns_renames: MaybeList = declare(
        "columns.renames",
        summary="Renamed columns: COLUMN-REGEX:NAME, of SCHEMA.TABLE.COLUMN, first match wins, with $1 "
        "for groups; before columns.names. Case counts.",
        examples=(r"crm\..*\.(.*)__c:$1",),
        patterns="renames",
    )
    source_into: MaybeList = declare(
        "source.into",
        summary="Merge tables of several schemas, shards or partitions: "
        "TABLE-REGEX:SCHEMA.TABLE@SOURCE, first match wins, with $1 for groups; without "
        "@SOURCE the schema names the source. Case matters. Rules by table (mode, …) use "
        "the target's name.",
        examples=(r"tenant_(\w+)\.(.*):all.$2@$1",),
        patterns="rules",
    )
    source_column: str = declare(
        "source.column",
        default=COLUMN,
        summary="The name of the column with the source of a row in such a table.",
    )
    type_change: Literal["fail", "string"] = declare(
        "type.change",
        default="fail",
        summary="What happens when a column gets a type that the old values do not fit into.",
    )
    snapshot_readers: Literal["engine", "executors"] = declare(
        "snapshot.readers",
        default="engine",
        summary="Which processes read the first snapshot: engine, through the change log; "
        "executors: Spark tasks, directly into the tables, in the snapshot that the "
        "engine keeps.",
    )
    trigger_ms: int = declare(
        "trigger.interval.ms",
        default=200,
        ge=10,
        summary="How often the applier looks for new changes.",
    )
    retention_hours: float = declare(
        "changelog.retention.hours",
        default=2.0,
        ge=0,
        summary="How long changes stay in the change log after Spark has applied them.",
        unit="h",
    )
    batch_rows: Positive = declare(
        "batch.max.rows",
        default=5_000_000,
        summary="Most changes of one commit of the tables, unless a single flush of the engine has more.",
    )
    batch_ms: int = declare(
        "batch.max.ms",
        default=5_000,
        ge=10,
        summary="Approximate time limit of a commit. A backlog is split into commits of whole "
        "transactions, sized by the duration of earlier ones. If even a small commit "
        "takes this long, the limit is twice its time.",
    )
    compact_rows: Whole = declare(
        "compaction.min.rows",
        default=100_000,
        summary="Compact pending changes into a table's base when they are more than this, and "
        "more than compaction.share of it.",
    )
    compact_share: float = declare(
        "compaction.share",
        default=0.25,
        ge=0,
        summary="The share of a table's base that pending changes must exceed before the applier "
        "compacts them.",
    )
    compact_sets: Whole = declare(
        "compaction.max.sets",
        default=0,
        summary="Also compact pending changes when they are in so many sets. 0: only their "
        "share of the base counts, and small sets are merged with each other.",
    )
    merge_sets: int = declare(
        "compaction.merge.sets",
        default=16,
        ge=2,
        summary="Number of change sets of one size that are merged into one.",
    )
    file_rows: Positive = declare(
        "file.max.rows",
        default=1_000_000,
        summary="Approximate rows of one Parquet file of the tables.",
    )
    retention_s: float = declare(
        "retention.seconds",
        default=600.0,
        ge=0,
        summary="How long files of earlier commits stay for readers.",
        unit="s",
    )
    parallel: Positive = declare(
        "apply.parallel", default=4, summary="Tables that the applier writes at the same time."
    )
    compression: Literal["zstd", "snappy", "lz4", "none"] = declare(
        "compression", default="zstd", summary="Compression of the change log's segments."
    )
    drain_ms: Whole = declare(
        "drain.timeout.ms",
        default=300_000,
        summary="How long a clean end waits until Spark has applied everything; after SIGTERM or "
        "SIGINT at most waltap.stop.timeout.ms. Then the Spark process applies the rest alone.",
    )

    @property
    def changelog(self) -> str:
        return f"{self.path.rstrip('/')}/changelog"

    @property
    def tables(self) -> str:
        return f"{self.path.rstrip('/')}/tables"

    def output(self) -> SparkOutput:
        """Open the tables' commits. Raises: SinkError."""
        return SparkOutput(FileStore(self.tables, self))

    @model_validator(mode="after")
    def _readers_want_an_applier(self) -> Self:
        # Chunks reach Spark by the standard input of the process that the engine starts.
        if self.snapshot_readers == "executors" and self.applier != "embedded":
            raise ValueError("snapshot.readers = executors wants applier = embedded")
        return self

    @field_validator(*CHECKS)
    @classmethod
    def _checked(cls, value: tuple[str, ...], info: ValidationInfo) -> tuple[str, ...]:
        CHECKS[info.field_name or ""](value)
        return value

    def ruled_name(self, table: str) -> str:
        """Return the target that ``source.into`` gives ``table``."""
        place = TargetMappings(self.source_into).of(*table.split(".", 1))
        return table if place is None else place.name

    def idle_names(self, names: Callable[[str], Sequence[str]]) -> Iterator[tuple[str, str]]:
        """Yield the format's rules that match no table and no history."""
        # `names` queries the database, so only profiles with rules pay for it.
        if not any(self.format_properties.get(name) for name in RULES):
            return
        table_names = list({self.ruled_name(each): None for each in names("tables")})
        divided = [*table_names, *(each + OF_HISTORY for each in table_names)]
        for name, separator in RULES.items():
            known = divided if separator == ";" else table_names
            rules = self.format_properties.get(name, "").split(separator)
            for rule in filter(None, map(str.strip, rules)):
                fits = java_pattern(rule.rpartition(":")[0], ignore_case=False).fullmatch
                if not any(map(fits, known)):
                    yield name, rule

    @field_validator("source_column")
    @classmethod
    def _column(cls, value: str) -> str:
        if not value.strip() or value.lower() in {*LOG_FIELDS, *VERSION, *DELETED}:
            raise ValueError(f"{value!r} is a name that tables have for something else")
        return value


class TargetProperties(Properties):
    """Names, layout and retention of tables that are written in place."""

    partitions_by_transform: ClassVar[bool] = False

    names: MaybeList = declare(
        "names",
        summary="Names of tables in the catalogue: TABLE-REGEX:NAME, first match wins; NAME is "
        "TABLE or SCHEMA.TABLE, with $1 for groups. Case matters. The history is "
        "NAME_changes.",
        examples=(r"public\.orders_changes:orders_audit,crm\.(.*):raw.crm_$1",),
    )
    partition_by: str = declare(
        "partition.by",
        default="",
        summary="Partitions of new tables: TABLE-REGEX:COLUMN,COLUMN;…, first match wins; a history "
        "is SCHEMA.TABLE/changes. Case matters. Iceberg has transforms too: days(COLUMN), "
        "bucket(16, COLUMN).",
        examples=(r"public\.orders:region;.*/changes:_op",),
    )
    cluster_by: str = declare(
        "cluster.by",
        default="",
        summary="How rows of new tables are clustered, written as format.partition.by: CLUSTER BY "
        "of Delta Lake, the sort order of Iceberg and its compaction.",
        examples=(r"public\.orders:customer_id,placed_at",),
    )
    retention_hours: Whole = declare(
        "retention.hours",
        default=168,
        summary="How long older versions stay, and with them the past that can be read.",
        unit="h",
    )
    # Declared by each format.
    catalog: str

    @field_validator("names")
    @classmethod
    def _names(cls, value: tuple[str, ...]) -> tuple[str, ...]:
        checked_names(value)
        return value

    @field_validator("partition_by", "cluster_by")
    @classmethod
    def _divisions(cls, value: str, info: ValidationInfo) -> str:
        by_transform = cls.partitions_by_transform and info.field_name == "partition_by"
        checked_divisions(value, transforms=by_transform)
        return value

    @model_validator(mode="after")
    def _names_want_a_catalogue(self) -> Self:
        if self.names and not self.catalog:
            raise ValueError(
                "format.names says what tables are called in format.catalog, which is not given"
            )
        return self


class DeltaTableProperties(TargetProperties):
    """Location and retention of Delta tables."""

    catalog: str = declare(
        "catalog",
        default="",
        summary="Spark's name of the catalogue (spark_catalog, or unity.lake with a schema) for the "
        "tables SCHEMA.TABLE and SCHEMA.TABLE_changes. Default: tables are known by their "
        "path below the output.",
        examples=("spark_catalog", "unity"),
    )


class IcebergTableProperties(TargetProperties):
    """Location and retention of Iceberg tables."""

    partitions_by_transform: ClassVar[bool] = True

    catalog: str = declare(
        "catalog",
        default="",
        summary="Spark's name of the catalogue (lake, or lake.raw with a namespace) for the tables "
        "SCHEMA.TABLE and SCHEMA.TABLE_changes; Spark's settings define it. Default: a "
        "Hadoop catalogue in the folder iceberg below the output.",
        examples=("lake", "lake.raw"),
    )
    retention_snapshots: int = declare(
        "retention.snapshots",
        default=500,
        ge=100,
        summary="Most versions of a table that stay: each commit writes the list of all of them.",
    )
