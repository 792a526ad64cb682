"""A change log in declarative pipelines (`pyspark.pipelines`).

>>> @dp.temporary_view
... def orders_changes():
...     return pipelines.changes("lake", "public.orders")
>>> dp.create_streaming_table("orders")
>>> dp.create_auto_cdc_flow(
...     target="orders", source="orders_changes", **pipelines.auto_cdc("lake", "public.orders")
... )

AUTO CDC knows only upserts and deletes. It would write null over a value that the server did
not send, and keep rows that a truncate removed: `changes` stops such a stream (WT-5256). When
rows exchange keys in one transaction, AUTO CDC takes the last operation of each key, which may
be the end of the row before. Where the target has no MERGE that Spark knows (Delta, on pyspark
4.2), a streaming table keeps the history and a view has `current`.
"""

import inspect
from typing import Any, Final

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812 - as everybody calls it

from waltap_spark.compact.compaction import TRANSACTION, verdict
from waltap_spark.errors import ChangeUnfit, PipelinesUnfit, TableUnknown
from waltap_spark.read.catalogue import OWN, logged_tables
from waltap_spark.read.options import parse_options
from waltap_spark.schema.expression import quoted, sent, temp

ORDER: Final = "struct(_epoch, _commit_lsn, _seq, _sub)"


def auto_cdc(path: str, table: str, *, history: bool = False) -> dict[str, Any]:
    """Return the arguments of ``create_auto_cdc_flow`` for ``table``.

    The table (``schema.table``) is in the change log at ``path``. The target and the source are
    the caller's. ``history``: SCD type 2, which needs pyspark 4.3. Raises: PipelinesUnfit,
    TableUnknown for a table without a key, SourceOption, TableNotLogged.
    """
    from pyspark import pipelines as dp  # its own requirements are optional

    known = getattr(dp, "create_auto_cdc_flow", None)
    if known is None:
        raise PipelinesUnfit("this pyspark has no create_auto_cdc_flow", wanted="4.2")
    if history and "track_history_column_list" not in inspect.signature(known).parameters:
        raise PipelinesUnfit("AUTO CDC of this pyspark keeps no history", wanted="4.3")
    options = parse_options({"path": path, "table": table})
    key = logged_tables(options.log(), options)[table].key
    if not key:
        raise TableUnknown(f"{table} has no key to go by", known="use history and current")
    return {
        "keys": list(key),
        "sequence_by": ORDER,
        "apply_as_deletes": "_op = 'd'",
        "except_column_list": list(OWN),
        "stored_as_scd_type": 2 if history else 1,
    }


def history(path: str, table: str, **options: str) -> DataFrame:
    """Return all changes of ``table`` as a stream, for a streaming table.

    ``options`` are options of ``format("waltap")``.
    """
    spark = SparkSession.active()
    return spark.readStream.format("waltap").options(path=path, table=table, **options).load()


def changes(path: str, table: str, **options: str) -> DataFrame:
    """Return the changes of ``table`` as a stream for AUTO CDC.

    The stream ends with WT-5256 at a change that AUTO CDC would apply wrongly.
    """
    emptied = F.raise_error(F.lit(str(ChangeUnfit(f"{table} was truncated"))))
    refused = F.raise_error(F.lit(str(ChangeUnfit(f"a change of {table} lacks values"))))
    op = (
        F.when(F.col("_op") == "t", emptied.cast("string"))
        .when(F.coalesce(F.size("_unchanged"), F.lit(0)) > 0, refused.cast("string"))
        .otherwise(F.col("_op"))
    )
    return history(path, table, **options).withColumn("_op", op)


def current(history: DataFrame, path: str, table: str) -> DataFrame:
    """Return the present rows of ``history``, for a view.

    Each key has one row; unsent values keep their earlier value. Columns and key are the last
    ones in the change log at ``path``: a pipeline's function may not ask the frame for columns,
    nor use an operation that does (``drop``), since only the pipeline knows the table. Raises:
    TableUnknown for a table without a key, SourceOption, TableNotLogged.
    """
    options = parse_options({"path": path, "table": table})
    entry = logged_tables(options.log(), options)[table]
    if not entry.key:
        raise TableUnknown(f"{table} has no key to go by", known="its history is all there is")
    own, keys = [each.name for each in entry.columns], entry.key
    order = F.expr(ORDER)
    # Rows up to the last truncate are gone.
    begins = temp("emptied")
    emptied = history.where("_op = 't'").agg(F.max(order).alias(begins))
    rows = history.where("_op <> 't'").crossJoin(F.broadcast(emptied))
    rows = rows.where(F.col(begins).isNull() | (order > F.col(begins)))
    wanted = [verdict().alias("__alive")]
    for number, name in enumerate(own):
        at = F.when(sent(name), order)
        # A struct, so that a null value that was sent counts as the latest value.
        value = F.max_by(F.struct(F.col(quoted(name)).alias("value")), at)
        wanted += [value.alias(f"__{number}"), F.max(at).alias(f"__at{number}")]
    by_key = [F.col(quoted(name)).alias(f"__key{n}") for n, name in enumerate(keys)]
    steps = rows.groupBy(*by_key, *TRANSACTION).agg(*wanted)
    latest = F.when(F.col("__alive").isNotNull(), F.struct(*TRANSACTION))
    last = steps.groupBy(*(f"__key{n}" for n in range(len(keys)))).agg(
        F.max_by("__alive", latest).alias("__alive"),
        *(F.max_by(f"__{n}", f"__at{n}").alias(f"__{n}") for n in range(len(own))),
    )
    return last.where("__alive").select(
        *(F.col(f"__{n}.value").alias(name) for n, name in enumerate(own))
    )
