"""The tables for people and jobs that read them, in any Spark session.

>>> tables = waltap_spark.open_tables(spark, "out/tables")
>>> tables.register()          # temporary views: flights, flights_changes, …
>>> spark.sql("select count(*) from flights").show()
>>> tables.refresh()           # move all of them, together, to the newest commit
"""

from typing import TYPE_CHECKING

from waltap_spark.errors import TableUnknown
from waltap_spark.output import Output, OutputState, TableState
from waltap_spark.resolve import changes_frame, current_frame

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

__all__ = ["LiveTables", "open_tables"]


class LiveTables:
    """All tables as they stood at one commit, that is at one point of the source's history.

    ``spark`` must have the settings of `waltap_spark.session.REQUIRED` (`open_tables` sees to it).
    """

    def __init__(self, spark: "SparkSession", output: Output) -> None:
        self.spark, self.output = spark, output
        self._state: OutputState | None = None
        self.refresh()

    def refresh(self) -> "LiveTables":
        """Move to the newest commit; frames and views made before stay at theirs."""
        self._state = self.output.state()
        return self

    @property
    def state(self) -> OutputState | None:
        """Return what the commit says, None before the first."""
        return self._state

    @property
    def names(self) -> list[str]:
        """Return the tables (``schema.table``) that have rows or had them."""
        tables = self._state.tables if self._state is not None else {}
        return sorted(name for name, table in tables.items() if table.columns)

    def current(self, name: str) -> "DataFrame":
        """Return the rows that the table holds. Raises: TableUnknown.

        Columns that the server computes are not there, unless it sends them with every change.
        """
        table = self._table(name)
        frame = current_frame(self.spark, table, self.output.uri)
        return frame.drop(*table.hidden) if table.hidden else frame

    def changes(self, name: str) -> "DataFrame":
        """Return the table's whole history, one row per change. Raises: TableUnknown."""
        table = self._table(name)
        return changes_frame(self.spark, table, table.changes, self.output.uri)

    def register(self) -> list[str]:
        """Make temporary views of all tables and of their changes (``NAME_changes``).

        A table is called by its own name, with its schema in front (``schema_table``) where two
        schemas have one of that name. Returns the names of the tables' views.
        """
        tables = [self._table(name) for name in self.names]
        plain = [table.table for table in tables]
        views = []
        for table in tables:
            alone = plain.count(table.table) == 1
            view = table.table if alone else f"{table.schema}_{table.table}"
            self.current(table.name).createOrReplaceTempView(_identifier(view))
            self.changes(table.name).createOrReplaceTempView(_identifier(f"{view}_changes"))
            views.append(view)
        return views

    def _table(self, name: str) -> TableState:
        table = self.output.table(name, self._state)
        if not table.columns:
            raise TableUnknown(f"no row of {name} was seen yet", known=", ".join(self.names))
        return table


def open_tables(spark: "SparkSession", location: str) -> LiveTables:
    """Open the tables below ``location`` in ``spark``, whose settings are completed."""
    from waltap_spark.session import REQUIRED

    for key, value in REQUIRED.items():
        spark.conf.set(key, value)
    return LiveTables(spark, Output(location))


def _identifier(name: str) -> str:
    return name
