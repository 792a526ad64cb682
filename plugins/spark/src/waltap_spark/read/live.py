"""Read the tables in any Spark session.

>>> tables = waltap_spark.open_tables(spark, "out/tables")
>>> tables.register()          # temporary views: flights, flights_changes, …
>>> spark.sql("select count(*) from flights").show()
>>> tables.refresh()           # move all tables together to the newest commit
>>> tables.at("1A/2B3C").current("public.flights")   # the rows at that source position
"""

import contextlib
import datetime as dt
import logging
from collections.abc import Mapping, Sequence

from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812 - as everybody calls it

from waltap.base.files.store import FileStore
from waltap.errors import WaltapError
from waltap_sinks.changelog.manifest import NOTHING, LogPosition
from waltap_spark.compact.timeline import live_rows
from waltap_spark.config.options import ApplyOptions
from waltap_spark.config.shared_targets import sharers
from waltap_spark.errors import (
    HistoryMissing,
    MomentUnreadable,
    SnapshotNeeded,
    TableDisplaced,
    TableSuspended,
    TableUnknown,
    first_words,
)
from waltap_spark.formats.choice import FormatChoice, choice_of
from waltap_spark.formats.table_format import TableFormat, TableFormatContext, What
from waltap_spark.planning.table_renames import DISPLACED
from waltap_spark.schema.expression import quoted
from waltap_spark.session.session import REQUIRED, make_active
from waltap_spark.state.output import OutputState, SparkOutput, TableState
from waltap_spark.state.version_maps import parse_position, state_at

log = logging.getLogger(__name__)


class LiveTables:
    """All tables at one commit, a point in the source's history."""

    def __init__(
        self,
        spark: SparkSession,
        output: SparkOutput,
        choice: FormatChoice | None = None,
        *,
        allow_stale: bool = False,
    ) -> None:
        self.spark, self.output, self._choice = spark, output, choice
        self._allow_stale = allow_stale
        # Problems that were reported; a caller that prints one adds its text.
        self.reported = set[str]()
        # The commit's content, None before the first commit.
        self.state: OutputState | None = None
        # The commit whose names the tables have.
        self._number = 0
        self._format: TableFormat
        self._format_name = ""
        self.refresh()

    def refresh(self) -> "LiveTables":
        """Move to the newest commit.

        Frames and views that were made before stay at their commit.
        """
        self.state = self.output.state()
        self._number = 0 if self.state is None else self.state.number
        choice = self._choice or choice_of(self.state)
        if self._format_name != choice.name:
            context = TableFormatContext(output=self.output, options=ApplyOptions(), identity=str)
            self._format, self._format_name = choice.factory(context), choice.name
        return self

    def at(self, moment: LogPosition | int | str | dt.datetime) -> "LiveTables":
        """Return all tables at a moment in the past.

        The moment is a position of the source (an LSN as a number or as text like 1A/2B3C, or a
        position as `waltap spark status` shows it), or a time of its commits. Formats in place read
        as far back as they keep versions, Parquet the last few commits. Raises: MomentUnreadable,
        VersionGone, TableUnknown before the first commit.
        """
        if self.state is None:
            raise TableUnknown(
                f"nothing was applied to {self.output.location} yet", known="none yet"
            )
        if isinstance(moment, str):
            try:
                moment = parse_position(moment)
            except ValueError as cause:
                raise MomentUnreadable(f"{moment!r} is neither an LSN nor a position") from cause
        then = LiveTables(self.spark, self.output, self._choice, allow_stale=self._allow_stale)
        then.state = state_at(self.output, self.state, moment)
        then._number = self._number
        return then

    @property
    def states(self) -> Mapping[str, TableState]:
        """Return the tables' states by name."""
        return {} if self.state is None else self.state.tables

    @property
    def names(self) -> list[str]:
        """Return the tables (``schema.table``) that have or had rows."""
        return sorted(name for name, table in self.states.items() if table.columns)

    @property
    def positions(self) -> dict[str, LogPosition]:
        """Return each table's position in the source's history.

        Suspended tables are at an earlier position than the commit; all others are at its position.
        """
        return {name: self._position(each) for name, each in sorted(self.states.items())}

    @property
    def problems(self) -> dict[str, WaltapError]:
        """Return errors by name of the tables that raise."""
        found = {name: self._problem(each) for name, each in sorted(self.states.items())}
        return {name: problem for name, problem in found.items() if problem is not None}

    def _sharers(self) -> dict[str, list[TableState]]:
        return sharers(self.states.values())

    def current(self, name: str, *, allow_stale: bool | None = None) -> DataFrame:
        """Return a table's rows as its mode keeps them.

        In ``append`` mode this is the history. Columns that the server computes are left out,
        unless the server sends them with every change. A target of several tables has the rows
        of all, with their source. ``allow_stale``: by default as in `open_tables`.

        Raises: TableUnknown, TableSuspended, SnapshotNeeded, TableDisplaced.
        """
        self._require_fresh(name, allow_stale)
        return self._rows(name, "current")

    def live_rows(self, name: str, *, allow_stale: bool | None = None) -> DataFrame:
        """Return the rows of `current` that exist in the source.

        These are the open versions, without deleted rows. Raises: as `current`.
        """
        return live_rows(self._members(name)[0], self.current(name, allow_stale=allow_stale))

    def changes(self, name: str, *, allow_stale: bool | None = None) -> DataFrame:
        """Return the table's whole history, one row per change.

        Raises: HistoryMissing, and as `current`.
        """
        self._require_fresh(name, allow_stale)
        return self._rows(name, "changes")

    def _rows(self, name: str, what: What) -> DataFrame:
        make_active(self.spark)
        tables = self._members(name)
        if what == "changes" and not all(table.mode.history for table in tables):
            raise HistoryMissing(f"{name} was made without a history", table=name)
        if name in self._sharers():
            return self._format.read_together(self.spark, tables, what)
        table = self._table(name)
        frame = self._read(self._format, table, what)
        return frame.drop(*table.hidden) if what == "current" and table.hidden else frame

    def _read(self, kind: TableFormat, table: TableState, what: What) -> DataFrame:
        """Read ``table``, also while a driver renames it in a catalogue."""
        at = kind.located(self.spark, table, self._number)
        while True:
            failed: Exception | None = None
            try:
                frame = kind.read(self.spark, at, what)
            except (PySparkException, WaltapError) as error:
                failed = error
            had, at = at, kind.located(self.spark, table, self._number)
            if at != had:
                continue
            if failed is not None:
                raise failed
            return frame

    def register(self) -> list[str]:
        """Make temporary views of all tables and histories.

        A history is the view ``NAME_changes``. Tables of one target share the target's view.
        `view_names` gives the names; SQL must quote an unusual name in back-ticks. A view of one
        of `problems` raises its error when it is queried. A table that cannot be read, as without
        its files, has no view, and a warning. Returns the names of the tables' views.

        Raises: the error of the first table, if none can be read.
        """
        tables = dict.fromkeys(self._table(name).target for name in self.names)
        views, failed = list[str](), list[Exception]()
        for target, view in zip(tables, view_names(list(tables)), strict=True):
            name = ".".join(target)
            try:
                self._make_views(name, view)
            except (PySparkException, WaltapError) as error:
                failed.append(error)
                self._warn(f"{name} has no view: {first_words(error)}")
                for called in (view, f"{view}_changes"):  # of an earlier commit
                    self.spark.catalog.dropTempView(called)
            else:
                views.append(view)
        if failed and not views:
            raise failed[0]
        return views

    def _make_views(self, name: str, view: str) -> None:
        problem = self._problem(*self._members(name))
        if self._allow_stale:
            self._require_fresh(name, allow_stale=True)
            problem = None
        names: dict[What, str] = {"current": view, "changes": f"{view}_changes"}
        for what, called in names.items():
            with contextlib.suppress(HistoryMissing):
                frame = self._rows(name, what)
                made = frame if problem is None else _refusing(frame, problem)
                made.createOrReplaceTempView(quoted(called))

    def _members(self, name: str) -> list[TableState]:
        """Return the tables that have the rows of ``name``."""
        several = self._sharers().get(name)
        return [self.output.table(name, self.state)] if several is None else several

    def _problem(self, *tables: TableState) -> WaltapError | None:
        """Return the reason why a table lacks the source's rows."""
        for table in tables:
            at, newest = self._position(table), self._newest
            if table.failed and (at < newest or not table.columns):
                text = f"{table.name} is suspended at {at}, and others are at {newest}"
                output = self.output.location
                return TableSuspended(
                    f"{text}: {table.failed.rstrip('.')}", output=output, position=str(at)
                )
            if DISPLACED in table.stale:
                return TableDisplaced(f"{table.name} was displaced: {DISPLACED}")
            if table.stale:
                text = f"{table.name} needs a new snapshot: {'; '.join(table.stale)}"
                return SnapshotNeeded(text, table=table.name)
        return None

    @property
    def _newest(self) -> LogPosition:
        return NOTHING if self.state is None else self.state.log_position

    def _position(self, table: TableState) -> LogPosition:
        """Return the position of a table's rows in the commit."""
        own = table.log_position
        return min(own, self._newest) if table.failed and own else self._newest

    def _require_fresh(self, name: str, allow_stale: bool | None) -> None:
        """Raise the problem of ``name``, or warn of it once.

        Raises: as `current`.
        """
        problem = self._problem(*self._members(name))
        if problem is None:
            return
        if not (self._allow_stale if allow_stale is None else allow_stale):
            raise problem
        self._warn(problem.problem, "; it is read as it is")

    def _warn(self, text: str, more: str = "") -> None:
        """Log a text once."""
        if text not in self.reported:
            self.reported.add(text)
            log.warning("%s%s", text, more)

    def _table(self, name: str) -> TableState:
        table = self.output.table(name, self.state)
        if not table.columns:
            raise TableUnknown(f"no row of {name} was seen yet", known=", ".join(self.names))
        return table


def _refusing(frame: DataFrame, problem: WaltapError) -> DataFrame:
    """Return an equal frame that raises ``problem`` when read."""
    nulls = (F.lit(None).cast(each.dataType).alias(each.name) for each in frame.schema.fields)
    # values are known to the optimizer, which raises before any task starts
    one = frame.sparkSession.sql("SELECT * FROM VALUES (1)")
    return one.where(F.raise_error(F.lit(str(problem))).isNotNull()).select(*nulls)


def view_names(tables: Sequence[tuple[str, str]]) -> list[str]:
    """Return the names of the tables' views.

    A view has its table's name; ``schema_table`` when another table or history has that name;
    ``schema.table`` when that is taken, too.
    """
    taken = [name for _, table in tables for name in (table, f"{table}_changes")]
    found = [table if taken.count(table) == 1 else f"{schema}_{table}" for schema, table in tables]
    taken = [name for view in found for name in (view, f"{view}_changes")]
    return [
        view if taken.count(view) == 1 else f"{schema}.{table}"
        for view, (schema, table) in zip(found, tables, strict=True)
    ]


def open_tables(
    spark: SparkSession, location: FileStore | str, *, allow_stale: bool = False
) -> LiveTables:
    """Open the tables below ``location`` in ``spark``.

    The session's settings are completed by the required ones. ``allow_stale`` reads suspended
    tables, and tables that need a new snapshot, as they are.
    """
    for key, value in REQUIRED.items():
        spark.conf.set(key, value)
    return LiveTables(spark, SparkOutput(location), allow_stale=allow_stale)
