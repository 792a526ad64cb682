"""Hook implementations of waltap-spark.

Neither the module nor its hooks import pyspark.
"""

from collections.abc import Iterable
from typing import Any

from waltap.plugins.hookspecs import hookimpl
from waltap.ports.specs import CheckSpec, CommandSpec, SinkSpec, TableFormatSpec, lazy

SPARK = "spark"


def _describe_table(properties: Any, table: str) -> str:
    from waltap_spark.driver.settings import apply_options
    from waltap_spark.state.modes import describe_mode

    options = apply_options(properties)
    schema, _dot, name = table.partition(".")
    place = options.places.of(schema, name)
    return describe_mode(options.modes.of(table if place is None else place.name))


def _check_modes(context: Any) -> Any:
    properties = [sink.properties for sink in context.profile.sinks if sink.spec.name == SPARK]
    if not properties:
        # the check loads pyarrow and the applier, a third of the start of a run into other sinks
        return []
    from waltap_spark.driver.mode_check import check_modes

    return check_modes(context, properties)


def _parquet(_properties: Any, context: Any) -> Any:
    from waltap_spark.formats.parquet import ParquetFormat

    return ParquetFormat(context)


@hookimpl
def register_sinks() -> Iterable[SinkSpec]:
    """Contribute the Spark sink."""
    yield SinkSpec(
        name=SPARK,
        summary="Tables kept up to date by Spark: every change, and the rows as they are now.",
        properties=lazy("waltap_spark.config.properties:SparkProperties"),
        factory=lazy("waltap_spark.sink.sink:SparkSink"),
        exactly_once=True,
        verification_source=lazy("waltap_spark.read.verify:open_verification_source"),
        describe_table=_describe_table,
    )


@hookimpl
def register_checks() -> Iterable[CheckSpec]:
    """Contribute the check that tables fit the profile's modes."""
    yield CheckSpec(
        name="spark tables",
        summary="Tables that would be suspended: their mode, their key, what their files are divided by.",
        factory=_check_modes,
    )


@hookimpl
def register_table_formats() -> Iterable[TableFormatSpec]:
    """Contribute the formats of tables."""
    yield TableFormatSpec(
        name="parquet",
        summary="Folders of Parquet files, and commits that name them. Needs nothing but Spark.",
        factory=_parquet,
    )
    yield TableFormatSpec(
        name="delta",
        summary="Tables of Delta Lake, kept by MERGE, read as of any position within its retention.",
        properties=lazy("waltap_spark.config.properties:DeltaTableProperties"),
        factory=lazy("waltap_spark.formats.delta:DeltaFormat"),
        session=lazy("waltap_spark.formats.lake_sessions:delta_session"),
    )
    yield TableFormatSpec(
        name="iceberg",
        summary="Tables of Apache Iceberg in any catalogue, kept by MERGE, read as of a position.",
        properties=lazy("waltap_spark.config.properties:IcebergTableProperties"),
        factory=lazy("waltap_spark.formats.iceberg:IcebergFormat"),
        session=lazy("waltap_spark.formats.lake_sessions:iceberg_session"),
    )


@hookimpl
def register_commands() -> Iterable[CommandSpec]:
    """Contribute the command of Spark tables."""
    yield CommandSpec(
        name="spark",
        summary="Apply a change log to Spark's tables; show, query, compare and repair these tables.",
        factory=lazy("waltap_spark.cli.commands:application").imported,
    )
