"""Key columns of a table: its primary key, or a unique index instead.

``waltap.key.index`` chooses one of two rules for tables without a primary key:

- *sound*: the first unique index by name that holds for every row at every moment. Its columns are
  NOT NULL; it has no WHERE and no expressions, and is not deferrable. Columns of INCLUDE do not
  belong to the key;
- *debezium*: the first unique index without expressions in the order of PostgreSQL's JDBC driver:
  clustered ones first, then by name. It may be partial or nullable. Columns of INCLUDE belong to it.
"""

from collections.abc import Collection, Sequence
from typing import Literal, TypeVar

import msgspec

__all__ = ["KeyRule", "UniqueIndex", "covers", "key_index", "usable_index"]

_Name = TypeVar("_Name", int, str)

KeyRule = Literal["sound", "debezium"]


class UniqueIndex(msgspec.Struct, frozen=True, kw_only=True):
    """Describe one valid unique index."""

    name: str
    # Column numbers, 0 for an expression; the columns of INCLUDE are last.
    columns: tuple[int, ...]
    # The number of columns before those of INCLUDE.
    key_columns: int
    primary: bool = False
    identity: bool = False
    # Not deferrable.
    immediate: bool = True
    partial: bool = False
    clustered: bool = False
    # The transaction that last wrote its row in the catalogue.
    changed: int = 0

    def key(self, rule: KeyRule) -> tuple[int, ...]:
        """Return the key's column numbers if this index is the key."""
        return (
            self.columns
            if rule == "debezium" and not self.primary
            else self.columns[: self.key_columns]
        )


def key_index(
    indexes: Sequence[UniqueIndex], not_null: Collection[int], rule: KeyRule
) -> UniqueIndex | None:
    """Return the index whose columns are the key, None without any."""
    primary = next((index for index in indexes if index.primary), None)
    if rule == "debezium":
        return primary or _as_listed(indexes)
    chosen = primary or usable_index(indexes, not_null)
    identity = next((index for index in indexes if index.identity), None)
    # Old rows have only the columns of the replica identity. Without all key columns in it, deletes
    # would have a key that no row has; so the replica identity is the key then.
    if identity is None or (chosen and covers(identity.key(rule), chosen.key(rule))):
        return chosen
    return identity


def usable_index(indexes: Sequence[UniqueIndex], not_null: Collection[int]) -> UniqueIndex | None:
    """Return the first index that PostgreSQL accepts as a replica identity.

    It holds for every row at every moment.
    """
    usable = (
        index
        for index in indexes
        if index.immediate
        and not index.partial
        and all(number in not_null for number in index.columns[: index.key_columns])
    )
    return min(usable, key=lambda index: index.name, default=None)


def covers(identifying: Collection[_Name], key: Collection[_Name]) -> bool:
    """Return whether old rows with ``identifying`` have all of ``key``."""
    return set(key) <= set(identifying)


def _as_listed(indexes: Sequence[UniqueIndex]) -> UniqueIndex | None:
    """Return the first usable index in the JDBC driver's order."""
    listed = sorted(indexes, key=lambda index: (not index.clustered, index.name))
    # Debezium skips indexes with an expression, whose column number is 0.
    return next((index for index in listed if all(index.columns)), None)
