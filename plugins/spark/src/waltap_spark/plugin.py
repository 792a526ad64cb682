"""Hook implementations of waltap-spark.

Neither the module nor its hooks import pyspark.
"""

from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any

from waltap.plugins.hookspecs import hookimpl
from waltap.ports.specs import CheckSpec, CommandSpec, SinkSpec, TableFormatSpec

if TYPE_CHECKING:
    from waltap.ports.sink.sink import Sink, SinkContext
    from waltap.ports.sink.verification import VerificationSource


def _sink(properties: Any, context: "SinkContext") -> "Sink":
    from waltap_spark.sink.sink import SparkSink

    return SparkSink(properties, context)


def _readable(properties: Any, pipeline: str) -> "VerificationSource":
    from waltap_spark.read.verify import open_readable

    return open_readable(properties, pipeline)


def _keeps(properties: Any, table: str) -> str:
    from waltap_spark.driver.settings import apply_options
    from waltap_spark.state.modes import said

    options = apply_options(properties)
    schema, _dot, name = table.partition(".")
    place = options.places.of(schema, name)
    return said(options.modes.of(table if place is None else place.name))


def _kept_as_said(context: Any) -> Any:
    from waltap_spark.config.properties import SparkProperties

    profile = context.profile
    sinks = [branch.sink for branch in profile.outlets] or [profile.sink]
    properties = [sink.properties for sink in sinks if isinstance(sink.properties, SparkProperties)]
    if not properties:
        # the check loads pyarrow and the applier, a third of the start of a run into other sinks
        return []
    from waltap_spark.driver.mode_check import kept_as_said

    return kept_as_said(context, properties)


def _parquet(_properties: Any, context: Any) -> Any:
    from waltap_spark.formats.parquet import ParquetFormat

    return ParquetFormat(context)


def _delta(properties: Any, context: Any) -> Any:
    from waltap_spark.formats.delta import DeltaFormat

    return DeltaFormat(properties, context)


def _delta_session(pyspark: str, settings: Mapping[str, str]) -> Mapping[str, str]:
    from waltap_spark.formats.delta import session

    return session(pyspark, settings)


def _iceberg(properties: Any, context: Any) -> Any:
    from waltap_spark.formats.iceberg import IcebergFormat

    return IcebergFormat(properties, context)


def _iceberg_session(pyspark: str, settings: Mapping[str, str]) -> Mapping[str, str]:
    from waltap_spark.formats.iceberg import session

    return session(pyspark, settings)


def _spark_commands() -> Any:
    from waltap_spark.cli.commands import application

    return application


@hookimpl
def register_sinks() -> Iterable[SinkSpec]:
    """Contribute the Spark sink."""
    from waltap_spark.config.properties import SparkProperties

    yield SinkSpec(
        name="spark",
        summary="Tables kept up to date by Spark: every change, and the rows as they are now.",
        properties=SparkProperties,
        factory=_sink,
        exactly_once=True,
        readable=_readable,
        keeps=_keeps,
    )


@hookimpl
def register_checks() -> Iterable[CheckSpec]:
    """Contribute the check that tables fit the profile's modes."""
    yield CheckSpec(
        name="spark tables",
        summary="Tables that would stand still: their mode, their key, what their files are divided by.",
        factory=_kept_as_said,
    )


@hookimpl
def register_table_formats() -> Iterable[TableFormatSpec]:
    """Contribute the formats of tables."""
    from waltap_spark.config.properties import DeltaTableProperties, IcebergTableProperties

    yield TableFormatSpec(
        name="parquet",
        summary="Folders of Parquet files, and commits that name them. Needs nothing but Spark.",
        factory=_parquet,
    )
    yield TableFormatSpec(
        name="delta",
        summary="Tables of Delta Lake, kept by MERGE, read as of any position within its retention.",
        properties=DeltaTableProperties,
        factory=_delta,
        session=_delta_session,
    )
    yield TableFormatSpec(
        name="iceberg",
        summary="Tables of Apache Iceberg in any catalogue, kept by MERGE, read as of a position.",
        properties=IcebergTableProperties,
        factory=_iceberg,
        session=_iceberg_session,
    )


@hookimpl
def register_commands() -> Iterable[CommandSpec]:
    """Contribute the command of Spark tables."""
    yield CommandSpec(
        name="spark",
        summary="Apply a change log, query and describe the tables that Spark keeps.",
        factory=_spark_commands,
    )
