"""Spark's data source ``format("waltap")``, for batches and streams.

Spark finds it by itself where this distribution is installed (`pyspark_waltap`), also through Spark
Connect. This module plans a query; tasks read whole columns as Arrow from the log's segments.
"""

from typing import TYPE_CHECKING

from pyspark.sql.datasource import DataSource, DataSourceReader, InputPartition

from waltap_sinks.changelog import LogPosition
from waltap_spark.read.catalogue import source_struct
from waltap_spark.read.options import SourceOptions, parse_options, shows_text
from waltap_spark.read.stream import ChangeLogStream
from waltap_spark.read.tasks import TaskPlanner, TaskReading

if TYPE_CHECKING:
    from pyspark.sql.types import StructType

    from waltap_spark.read.profiles import ProfilesBatch, ProfilesStream


class ChangeLogSource(DataSource):  # type: ignore[misc]
    """Changes of tables in a change log, or captured by profiles.

    Options: see `waltap_spark.read.options`. Spark asks for the schema once, at ``load()``, and
    sends the instance to each reader. So the instance remembers the positions of the logs: later
    columns are not in the schema.
    """

    _known: LogPosition | None = None
    _private_logs: dict[str, LogPosition] | None = None

    @classmethod
    def name(cls) -> str:
        return "waltap"

    def _parsed(self) -> SourceOptions:
        return parse_options(dict(self.options))

    @shows_text
    def schema(self) -> "StructType":
        """Return the log's present columns without reading a row.

        Raises: SourceOption, TableNotLogged.
        """
        options = self._parsed()
        if options.profiles:  # an engine is imported where one is wanted
            from waltap_spark.read.profiles import private_log_positions, profiles_struct

            self._private_logs = private_log_positions(options)
            return profiles_struct(options)
        log = options.log()
        self._known = log.end
        return source_struct(log, options)

    @shows_text
    def reader(self, schema: "StructType") -> "ChangeLogBatch | ProfilesBatch":
        """Return the reader of a batch. Raises: WaltapError."""
        options = self._parsed()
        if options.profiles:
            from waltap_spark.read.profiles import ProfilesBatch

            return ProfilesBatch(options, schema, self._private_logs)
        return ChangeLogBatch(options, schema, self._known)

    @shows_text
    def streamReader(self, schema: "StructType") -> "ChangeLogStream | ProfilesStream":  # noqa: N802
        options = self._parsed()
        if options.profiles:
            from waltap_spark.read.profiles import ProfilesStream

            return ProfilesStream(options, schema, self._private_logs)
        return ChangeLogStream(options, schema, known=self._known)


class ChangeLogBatch(TaskReading, DataSourceReader):  # type: ignore[misc]
    """Reads a range of the log, without incomplete snapshots."""

    def __init__(
        self, options: SourceOptions, struct: "StructType", known: LogPosition | None = None
    ) -> None:
        """``known``: as in `TaskPlanner`."""
        self._options, self._struct, self._known = options, struct, known

    @shows_text
    def partitions(self) -> list[InputPartition]:
        log = self._options.log()
        return list(TaskPlanner(log, self._options, self._struct, self._known).of_range(log))
