"""Read rows and columns of the change log's segments."""

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812 - as everybody calls it

from waltap.base.files.store import FileStore
from waltap_spark.compact.small_sets import stored_types
from waltap_spark.planning.plan import SegmentGroup
from waltap_spark.schema.expression import with_names
from waltap_spark.schema.schema import log_struct, types_of
from waltap_spark.session.addresses import address


def logged(
    spark: SparkSession,
    store: FileStore,
    group: SegmentGroup,
    types: dict[str, str] | None = None,
    *,
    first: bool = False,
) -> DataFrame:
    """Return the rows of ``group`` as a data frame.

    ``types`` are the columns; None lets Spark read them from the footer. ``first``: only the
    first segment's rows.
    """
    reader = spark.read.option("parquet.page.verify-checksum.enabled", "true")
    if types is not None:
        struct = log_struct(stored_as(group, types))
        reader = reader.schema(type(struct)([f for f in struct if f.name != "_epoch"]))
    paths = group.converted or [address(store, path) for path in group.segments]
    rows = reader.parquet(*(paths[:1] if first else paths))
    # `_epoch` is no column of the segments: `with_epoch` adds it.
    return with_names(rows, group.called) if group.called else rows


def stored_as(group: SegmentGroup, types: dict[str, str]) -> dict[str, str]:
    """Return ``types`` by the columns' names in the source."""
    stored = {new: name for name, new in group.called.items()}
    return {stored.get(name, name): kind for name, kind in types.items()}


def logged_types(spark: SparkSession, store: FileStore, group: SegmentGroup) -> dict[str, str]:
    """Return the columns of the group's segments.

    They come from a segment's footer, because Spark would start a job to read it. Spark reads
    the columns of a converted group, and of types that the footer does not name.
    """
    if not group.converted:
        found = stored_types(store, group.segments[0])
        if found is not None:
            return {group.called.get(name, name): kind for name, kind in found.items()}
    return types_of(logged(spark, store, group, first=True).schema)


def with_epoch(rows: DataFrame, epoch: int) -> DataFrame:
    """Return ``rows`` with the epoch of their change log."""
    return rows.withColumn("_epoch", F.lit(epoch).cast("int"))
