"""Names of temporary columns that no column of a table has.

Columns of a source may have any name, and Spark ignores case. A few temporary columns get a prefix that
no column has (`unlike`). For plans with many, which all begin with an underscore, the table's own such
columns are renamed (`with_temp_names`), so that other tables pay nothing.
"""

import functools
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

import msgspec
from pyspark.sql import DataFrame

from waltap_spark.schema.expression import column_of, with_names
from waltap_spark.state.output import LogFacts, TableState

# The column of `gone`, while columns of the table with underscores are renamed.
GONE: Final = "__waltap_gone"

Compaction = Callable[["TableState", "Sequence[LogFacts]", "DataFrame", "DataFrame"], "DataFrame"]


def unlike(names: Iterable[str], start: str = "__") -> str:
    """Return ``start``, extended until no name begins with it."""
    lower = tuple(name.lower() for name in names)
    while any(name.startswith(start) for name in lower):
        start += "_"
    return start


def gone(table: TableState) -> str:
    """Return the name of the column that flags deleted rows."""
    return unlike(table.columns, GONE)


@dataclass(frozen=True, slots=True)
class _RenamedFacts:
    """`LogFacts` of rows with renamed columns."""

    rows: int
    operations: Mapping[str, int]
    unchanged: Sequence[str]
    key_changes: int
    key_reused: bool
    replaces: bool
    unpacked: int


def with_temp_names(compaction: Compaction) -> Compaction:
    """Rename the table's columns with underscores while ``compaction`` runs.

    It may then create any such column. The result has the original names, and `gone` for `GONE`.
    """

    @functools.wraps(compaction)
    def called_otherwise(
        table: TableState, changes: Sequence[LogFacts], rows: DataFrame, base: DataFrame
    ) -> DataFrame:
        # Most tables have no such column, and need no renaming in each plan.
        own = [name for name in table.columns if name.startswith("_")]
        if not own:
            return compaction(table, changes, rows, base)
        temp_names = {name: f"__waltap {n}" for n, name in enumerate(own)}
        known = {*table.columns, *table.mode.columns}
        before = base.select(*(column_of(name) for name in base.columns if name in known))
        found = compaction(
            _renamed(table, temp_names),
            [_facts(change, temp_names) for change in changes],
            with_names(rows, temp_names),
            with_names(before, temp_names),
        )
        back = {new: name for name, new in temp_names.items()}
        return with_names(found, {**back, GONE: gone(table)})

    return called_otherwise


def _renamed(table: TableState, names: Mapping[str, str]) -> TableState:
    """Return the facts of ``table`` with other column names.

    ``names``: old → new.
    """

    def each(those: Iterable[str]) -> tuple[str, ...]:
        return tuple(names.get(name, name) for name in those)

    return msgspec.structs.replace(
        table,
        key=each(table.key),
        columns=dict(zip(each(table.columns), table.columns.values(), strict=True)),
        source=dict(zip(each(table.source), table.source.values(), strict=True)),
        source_columns=each(table.source_columns),
        streamed=None if table.streamed is None else each(table.streamed),
    )


def _facts(change: LogFacts, names: Mapping[str, str]) -> LogFacts:
    return _RenamedFacts(
        rows=change.rows,
        operations=change.operations,
        unchanged=[names.get(name, name) for name in change.unchanged],
        key_changes=change.key_changes,
        key_reused=change.key_reused,
        replaces=change.replaces,
        unpacked=change.unpacked,
    )
