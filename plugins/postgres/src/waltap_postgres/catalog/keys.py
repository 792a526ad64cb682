"""Which columns identify a row of a table: its primary key, or the unique index that stands in for it.

Two rules, chosen by ``waltap.key.index``:

- *sound*: without primary key the first unique index, by name, that holds for every row at every moment:
  its columns are NOT NULL, it has no WHERE, no expressions, and is not deferrable. Columns of INCLUDE are
  no part of it. Where the replica identity is an index that lacks some of the key, that index is the key:
  old rows have no other columns, so that deletes would have a key that no row has;
- *debezium*: the first unique index as PostgreSQL's JDBC driver lists them, clustered ones first, then by
  name, whatever it promises; without expressions, with the columns of INCLUDE.
"""

from collections.abc import Collection, Sequence
from typing import Literal, TypeVar

import msgspec

__all__ = ["KeyRule", "UniqueIndex", "covers", "key_index", "usable_index"]

_Name = TypeVar("_Name", int, str)

KeyRule = Literal["sound", "debezium"]


class UniqueIndex(msgspec.Struct, frozen=True, kw_only=True):
    """One valid unique index. ``columns`` are column numbers, 0 for an expression, those of INCLUDE from
    ``key_columns`` on. ``changed`` is the transaction that last changed its row in the catalogue."""

    name: str
    columns: tuple[int, ...]
    key_columns: int
    primary: bool = False
    identity: bool = False
    immediate: bool = True
    partial: bool = False
    clustered: bool = False
    changed: int = 0

    def key(self, rule: KeyRule) -> tuple[int, ...]:
        """Return the numbers of the columns that are the key when this index is it."""
        return (
            self.columns
            if rule == "debezium" and not self.primary
            else self.columns[: self.key_columns]
        )


def key_index(
    indexes: Sequence[UniqueIndex], not_null: Collection[int], rule: KeyRule
) -> UniqueIndex | None:
    """Return the index whose columns are the key, None when the table has none. Under *sound* one of
    ``indexes`` that is the replica identity has a say."""
    primary = next((index for index in indexes if index.primary), None)
    if rule == "debezium":
        return primary or _as_listed(indexes)
    chosen = primary or usable_index(indexes, not_null)
    identity = next((index for index in indexes if index.identity), None)
    if identity is None or (chosen and covers(identity.key(rule), chosen.key(rule))):
        return chosen
    return identity


def usable_index(indexes: Sequence[UniqueIndex], not_null: Collection[int]) -> UniqueIndex | None:
    """Return the first index by name that holds for every row at every moment: PostgreSQL takes such a one
    for a replica identity."""
    usable = (
        index
        for index in indexes
        if index.immediate
        and not index.partial
        and all(number in not_null for number in index.columns[: index.key_columns])
    )
    return min(usable, key=lambda index: index.name, default=None)


def covers(identifying: Collection[_Name], key: Collection[_Name]) -> bool:
    """Tell whether old rows, which have the columns ``identifying``, have all of ``key``."""
    return set(key) <= set(identifying)


def _as_listed(indexes: Sequence[UniqueIndex]) -> UniqueIndex | None:
    """Return the first index that the driver lists; Debezium passes over those with an expression."""
    listed = sorted(indexes, key=lambda index: (not index.clustered, index.name))
    return next((index for index in listed if all(index.columns)), None)
