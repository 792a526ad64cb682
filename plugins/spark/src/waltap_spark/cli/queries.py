"""Answer the queries of ``waltap spark sql``."""

import logging
import re
from functools import cache
from typing import Any

import typer
from py4j.protocol import Py4JJavaError
from pyspark.errors import AnalysisException, ParseException, PySparkException
from pyspark.sql import functions as F  # noqa: N812 - as everybody calls it

from waltap.base.files.store import FileStore
from waltap.cli.terminal import answers, echo, notices
from waltap.errors import WaltapError
from waltap_spark.cli.prompt import SqlPrompt, history_file, sql_words
from waltap_spark.errors import first_words
from waltap_spark.read.live import LiveTables, open_tables
from waltap_spark.schema.expression import EXACT, quoted


class SqlQueries:
    """Views of all tables, and answers to queries.

    ``rows`` is the most rows that an answer shows. ``allow_stale`` has the meaning that
    `open_tables` gives it.
    """

    def __init__(
        self,
        spark: Any,
        files: FileStore,
        rows: int,
        *,
        allow_stale: bool = False,
        as_json: bool = False,
    ) -> None:
        self._spark, self._files, self._rows = spark, files, rows
        self._allow_stale, self._as_json = allow_stale, as_json
        # Texts of the problems that were printed or logged.
        self._reported = set[str]()
        self._views = set[str]()
        self._tables: LiveTables

    def begin(self) -> None:
        """Make the views, and print their names."""
        views = self._register()
        notices().print(f"views: {', '.join(map(_in_sql, views))}", style="dim", markup=False)

    def answer(self, query: str) -> None:
        """Print the rows of one query, and the tables' problems.

        Raises: as `show`.
        """
        # problems come last, because the error of a refused query has the text of one
        try:
            self.show(query)
        finally:
            self._report_problems()

    def show(self, query: str) -> None:
        """Run ``query`` over the views, and print its rows.

        Raises: TableSuspended, SnapshotNeeded, TableDisplaced, typer.BadParameter for a syntax error.
        """
        try:
            self._print(_run(self._spark, query))
        except PySparkException as error:
            for problem in self._tables.problems.values():
                if problem.problem in str(error):  # the view of this table raised it
                    self._reported.add(problem.problem)
                    raise problem from error
            raise

    def prompt(self) -> None:
        """Answer queries from a terminal or pipe until its end."""
        self._report_problems()

        def answer(statement: str) -> None:
            self._register()  # of the newest commit
            self.show(statement)

        def say(line: str) -> None:
            notices().print(line, markup=False)

        words = cache(lambda: sql_words(self._spark))
        SqlPrompt(answer, self._columns, words, say, _refused).loop(history_file())

    def _register(self) -> list[str]:
        self._tables = open_tables(self._spark, self._files, allow_stale=self._allow_stale)
        # with --allow-stale the views warn of problems: once, not again at every query
        self._tables.reported = self._reported
        views = self._tables.register()
        present = {name for view in views for name in (view, f"{view}_changes")}
        # The rows of a former name would stay as they were.
        for gone in self._views - present:
            self._spark.catalog.dropTempView(gone)
        self._views = present
        return views

    def _report_problems(self) -> None:
        for problem in self._tables.problems.values():
            if problem.problem not in self._reported:
                self._reported.add(problem.problem)
                notices().print(problem.problem, style="yellow", markup=False, highlight=False)

    def _columns(self) -> dict[str, list[str]]:
        names = [each.name for each in self._spark.catalog.listTables() if each.isTemporary]
        fields = {name: self._spark.table(quoted(name)).schema.names for name in names}
        return {_in_sql(name): list(map(_in_sql, found)) for name, found in fields.items()}

    def _print(self, frame: Any) -> None:
        from rich.table import Table
        from rich.text import Text

        if self._as_json:
            frame = frame.select(F.to_json(F.struct("*"), EXACT))
        # one row more shows whether there are more
        found = frame.take(self._rows + 1)
        if self._as_json:
            echo("[" + ",\n ".join(row[0] for row in found[: self._rows]) + "]")
        else:
            table, numbers = Table(), ("integer", "long", "double", "float", "decimal")
            for field in frame.schema.fields:
                numeric = field.dataType.typeName() in numbers
                table.add_column(Text(field.name), justify="right" if numeric else "left")
            for row in found[: self._rows]:
                table.add_row(*(Text("" if value is None else str(value)) for value in row))
            answers().print(table)
        if len(found) > self._rows:
            console = notices() if self._as_json else answers()
            console.print(f"more than {self._rows} rows; --rows shows more", style="dim")


def _refused(error: Exception) -> bool:
    known = isinstance(error, (typer.BadParameter, WaltapError, PySparkException, Py4JJavaError))
    if known:
        text = error.message if isinstance(error, typer.BadParameter) else first_words(error)
        notices().print(text, style="red", markup=False)
    return known


def _in_sql(view: str) -> str:
    """Return a view's name as a query must write it."""
    return view if re.fullmatch(r"[A-Za-z_]\w*", view, re.ASCII) else quoted(view)


def _run(spark: Any, query: str) -> Any:
    """Run a query; a syntax error becomes one line."""
    # it would print the plan and Java frames
    logging.getLogger("SQLQueryContextLogger").disabled = True
    try:
        return spark.sql(query)
    except (AnalysisException, ParseException) as error:
        lines = [line.strip() for line in str(error).splitlines() if line.strip()]
        raise typer.BadParameter(lines[0] if lines else "not SQL", param_hint="QUERY") from error
