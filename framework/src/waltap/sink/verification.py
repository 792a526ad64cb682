"""What a destination shows of itself, so that it can be compared with its source (``waltap verify``)."""

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Protocol

__all__ = ["KeptTable", "Row", "Rows", "TableReader", "VerificationSource", "by_key"]

Row = tuple[str | None, ...]
"""Texts of some columns of a row; None is NULL."""

Rows = dict[Row, Row]
"""Keys → all compared columns; where several rows have one key, theirs behind one another."""

Removal = Callable[[Sequence[tuple[str, str]], Collection[Row]], Iterable[str]]


@dataclass(frozen=True, slots=True, kw_only=True)
class KeptTable:
    """A table that a destination keeps. ``name`` is SCHEMA.TABLE of the source ("": not known), ``oid``
    its number there; ``key`` are the columns that identify a row, as the destination calls them.

    ``columns``: the source's numbers of columns → what the destination calls them. A column that is not
    there goes by the source's name. ``apart``: why its rows are not to be those of the source, "" where
    they are. ``late``: why it stays behind the others, whose `VerificationSource.position` is not
    its own, "" where
    it does not. ``removal`` gives, of the columns of the key (name, ``pg_type.typname``) and keys, the
    statements that remove their rows, where the destination has such.
    """

    name: str
    oid: int = 0
    key: tuple[str, ...] = ()
    columns: Mapping[int, str] = field(default_factory=dict)
    apart: str = ""
    late: str = ""
    removal: Removal | None = field(default=None, compare=False, repr=False)


def by_key(rows: Iterable[tuple[Row, Row]]) -> Rows:
    """Return rows, of which key and columns are given, those of one key in one order on both sides."""
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
    """Chosen columns of one table, on one side. Each call reads one state of it, not that of another call.

    A bucket is the first three hexadecimal digits of the MD5 of a key's text (`row_text` of
    `waltap_sinks.comparison`); its sum is that of the hashes of its rows.
    """

    def whole(self) -> tuple[int, int]:
        """Return count and sum of all rows."""

    def sums(self) -> dict[str, tuple[int, int]]:
        """Return count and sum of each bucket that has rows."""

    def rows(self, buckets: Sequence[str]) -> Rows:
        """Return the rows of ``buckets``."""

    def of_keys(self, keys: set[Row]) -> Rows:
        """Return the rows of ``keys`` that there are."""


class VerificationSource(Protocol):
    """A destination, opened for reading. Nothing is written there."""

    def tables(self) -> Sequence[KeptTable]:
        """Return the tables that the pipeline has filled; a captured one with rows that is not among them
        is a difference."""

    def position(self) -> int | None:
        """Return the LSN up to which everything is there, but for tables that are `KeptTable.late`; None
        where the destination does not tell."""

    def common(self, table: KeptTable, column: str, called: str, type_: str) -> str | None:
        """Return SQL of the source for the text that `side` gives of a column.

        ``column`` is the source's name of it, in SQL, ``called`` the destination's, ``type_`` its
        ``pg_type.typname`` (of a domain's base). None: the destination has no such column, or nothing to
        compare it by.
        """

    def side(
        self, table: KeptTable, columns: Sequence[tuple[str, str]], key: Sequence[str]
    ) -> TableReader:
        """Return ``columns``, (the destination's name, ``type_``) each, by ``key``, names of some."""

    def close(self) -> None:
        """Let go."""
