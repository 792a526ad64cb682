"""The rows that a table holds, of its changes: what a change log comes to. Sans-IO.

A transaction may put a row under a key before it deletes the one that is there (rows that change places),
and may put a row under a key and move it on: of two rows under one key, a delete is of the one that has
been there longer.
"""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

__all__ = ["StandingRows"]

Key = tuple[Any, ...]


class StandingRows:
    """The rows of one table, fed with changes in order. With a ``key`` they are kept by it, else as a
    multiset."""

    def __init__(self, columns: Sequence[str], key: Sequence[str]) -> None:
        self._columns = tuple(columns)
        self._places = {name: n for n, name in enumerate(columns)}
        self._key = [self._places[name] for name in key]
        self._keyed: dict[Key, list[Any]] = {}
        self._bag: dict[str, tuple[list[Any], int]] = {}
        self._transaction: object = None
        self._older: dict[Key, list[Any] | None] = {}
        """Keys that the transaction has put a new row under, or deleted → the row of before that it has
        still to delete."""
        self._moved: list[Any] | None = None

    def rows(self) -> Iterable[Sequence[Any]]:
        """Return the rows as they are now."""
        if self._key:
            yield from self._keyed.values()
        else:
            for row, count in self._bag.values():
                for _ in range(count):
                    yield row

    def apply(
        self, operation: str, row: Mapping[str, Any], *, transaction: object, second: bool
    ) -> None:
        """Take one change; ``row`` is one of a segment, by the present names of columns. ``second``: of
        two that one change became."""
        if transaction != self._transaction:
            self._transaction, self._older = transaction, {}
        values = [row.get(name) for name in self._columns]
        if operation == "t":
            self._keyed.clear()
            self._bag.clear()
            self._older.clear()
        elif not self._key:
            self._count(values, -1 if operation == "d" else 1)
        elif operation == "d":
            self._delete(self._key_of(values))
        else:
            self._put(values, row.get("_unchanged") or (), new=operation == "c", second=second)

    def _key_of(self, values: Sequence[Any]) -> Key:
        parts = (values[n] for n in self._key)
        return tuple([tuple(part) if isinstance(part, list) else part for part in parts])

    def _count(self, row: list[Any], by: int) -> None:
        written = repr(row)  # lists do not hash, and NaN equals nothing
        left = self._bag.get(written, (row, 0))[1] + by
        if left > 0:
            self._bag[written] = row, left
        else:
            self._bag.pop(written, None)

    def _delete(self, key: Key) -> None:
        older = self._older.get(key)
        self._older[key] = None
        self._moved = older if older is not None else self._keyed.pop(key, None)

    def _put(self, values: list[Any], unsent: Sequence[str], *, new: bool, second: bool) -> None:
        key = self._key_of(values)
        before = self._moved if second else self._keyed.get(key)
        if unsent and before is not None:
            for name in unsent:
                if name in self._places:
                    values[self._places[name]] = before[self._places[name]]
        if new and key not in self._older:
            self._older[key] = self._keyed.get(key)
        self._keyed[key] = values
