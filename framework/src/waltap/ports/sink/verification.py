"""Read a destination for a comparison with its source."""

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Protocol, runtime_checkable


@dataclass(frozen=True, slots=True, kw_only=True)
class TableComparison:
    """The comparison of one destination table with the source's table.

    The hook ``choose_comparison`` provides it.
    """

    equal: bool
    # Keys, as text, of some rows that exist only at the destination.
    surplus: tuple[str, ...] = ()
    # A file that names all those rows, "" without one.
    location: str = ""


Row = tuple[str | None, ...]
"""Column values of a row as text; None is NULL."""

Rows = dict[Row, Row]
"""Key → all compared columns. Several rows with one key are concatenated."""

Removal = Callable[[Sequence[tuple[str, str]], Collection[Row]], Iterable[str]]


@dataclass(frozen=True, slots=True, kw_only=True)
class ComparedTable:
    """A table that a destination has."""

    # SCHEMA.TABLE at the source, "" if unknown, and its OID there.
    name: str
    oid: int = 0
    # The destination's names of the columns that identify a row.
    key: tuple[str, ...] = ()
    # The source's column number → the destination's name. Other columns have the source's name.
    columns: Mapping[int, str] = field(default_factory=dict)
    # Why the rows differ from the source's on purpose, "" if they must be equal.
    not_compared: str = ""
    # Why the table lags behind `VerificationSource.position`, "" if it does not.
    lag_reason: str = ""
    # Returns the statements that delete rows by their keys, for columns (name,
    # ``pg_type.typname``) of the key; None where the destination has no such statement.
    removal: Removal | None = field(default=None, compare=False, repr=False)


def by_key(rows: Iterable[tuple[Row, Row]]) -> Rows:
    """Return the compared columns by key.

    Rows with the same key are sorted, so both sides list them in one order.
    """
    found: Rows = {}
    again: dict[Row, list[Row]] = {}
    for key, row in rows:
        if key in found:
            again.setdefault(key, [found[key]]).append(row)
        found[key] = row
    for key, several in again.items():
        several.sort(key=lambda row: [(value is None, value or "") for value in row])
        found[key] = tuple(value for row in several for value in row)
    return found


class TableReader(Protocol):
    """Reads chosen columns of one table, of the source or the destination.

    Each call reads a state of its own. A bucket is the first three hexadecimal digits of the MD5 of a
    key's text (`row_text` of `waltap_sinks.comparison`). Its sum adds up the hashes of its rows.
    """

    def total(self) -> tuple[int, int]:
        """Return count and sum of all rows."""

    def sums(self) -> dict[str, tuple[int, int]]:
        """Return count and sum of each non-empty bucket."""

    def rows(self, buckets: Sequence[str]) -> Rows:
        """Return the rows of ``buckets``."""

    def of_keys(self, keys: set[Row]) -> Rows:
        """Return the existing rows of ``keys``, and maybe others."""


class VerificationSource(Protocol):
    """A destination, opened for reading only."""

    def tables(self) -> Sequence[ComparedTable]:
        """Return the tables that the pipeline has filled.

        A captured table with rows that is missing here counts as a difference.
        """

    def position(self) -> int | None:
        """Return the LSN up to which the destination is complete.

        The LSN does not cover tables that are `ComparedTable.lag_reason`. None: unknown.
        """

    def common(self, table: ComparedTable, column: str, called: str, type_: str) -> str | None:
        """Return the source's SQL for `reader`'s text of a column.

        ``column`` is the source's name in SQL, ``called`` the destination's name, ``type_`` its
        ``pg_type.typname`` (the base type of a domain). None: the destination does not have the column, or
        cannot compare it.
        """

    def reader(
        self, table: ComparedTable, columns: Sequence[tuple[str, str]], key: Sequence[str]
    ) -> TableReader:
        """Return a reader of ``columns``, identified by the columns ``key``.

        Each column is the destination's name and ``type_``.
        """

    def close(self) -> None:
        """Release every connection."""


@runtime_checkable
class OffsetAwareSource(Protocol):
    """A destination whose own position stays where transactions leave no rows."""

    # Returns the stored offset, which `VerificationSource.position` may use; None: unknown.
    stored_offset: Callable[[], int | None]
