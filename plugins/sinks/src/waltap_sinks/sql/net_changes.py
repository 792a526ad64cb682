"""The net effect of changes on one table: what a reader sees who cannot see between them. Sans-IO."""

from collections.abc import Sequence
from typing import Any

from waltap.decode.tuple_image import UNCHANGED, Tuple
from waltap_sinks.sql.shape import TargetShape

__all__ = ["NetChanges"]


class NetChanges:
    """Changes of one table with a key, folded: one entry for each key, the last state of its row.

    ``fresh`` are rows that were inserted, so the target has none of their key (once ``gone`` is gone),
    ``puts`` rows that are there and change, ``gone`` keys whose rows go (with the commit time of that,
    µs since 1970 UTC). They are applied in the order gone, puts, fresh. A row of ``puts`` may lack values
    (UNCHANGED): the target's stay. ``brief`` are those of ``gone`` whose row came and went since: the
    target has none of them.
    """

    __slots__ = ("brief", "fresh", "gone", "puts", "shape")

    def __init__(self, shape: TargetShape) -> None:
        self.shape = shape
        self.fresh: dict[Any, Tuple] = {}
        self.puts: dict[Any, Tuple] = {}
        self.gone: dict[Any, int] = {}
        self.brief: set[Any] = set()

    def __bool__(self) -> bool:
        return bool(self.fresh or self.puts or self.gone)

    def __len__(self) -> int:
        return len(self.fresh) + len(self.puts) + len(self.gone)

    def clear(self) -> None:
        """Begin anew: all was written."""
        self.fresh, self.puts, self.gone, self.brief = {}, {}, {}, set()

    def insert(self, rows: Sequence[Tuple]) -> None:
        """Take new rows."""
        assert self.shape.key_of is not None
        new = dict(zip(map(self.shape.key_of, rows), rows, strict=True))
        if self.puts:
            for key in self.puts.keys() & new.keys():
                del self.puts[key]
        self.fresh.update(new)

    def upsert(self, rows: Sequence[Tuple]) -> None:
        """Take rows that may be there or not."""
        for row in rows:
            self.put(row)

    def put(self, row: Tuple) -> None:
        """Take the new state of a row that is there."""
        assert self.shape.key_of is not None
        key = self.shape.key_of(row)
        known = self.fresh if key in self.fresh else self.puts
        if UNCHANGED in row and key in known:
            row = merged(row, known[key])
        known[key] = row

    def delete(self, key: Any, ts: int) -> None:
        """Let the row of ``key`` go, at ``ts``."""
        if key in self.fresh and key not in self.gone:
            self.brief.add(key)
        self.fresh.pop(key, None)
        self.puts.pop(key, None)
        self.gone[key] = ts

    def move(self, old: Any, row: Tuple, ts: int) -> bool:
        """Take the new state of a row that had the key ``old``. False, and nothing taken: it lacks values
        that only the target has."""
        before = self.fresh.get(old, self.puts.get(old))
        if UNCHANGED in row:
            if before is None:
                return False
            row = merged(row, before)
            if UNCHANGED in row:
                return False
        assert self.shape.key_of is not None
        self.delete(old, ts)
        key = self.shape.key_of(row)
        self.fresh.pop(key, None)
        self.puts[key] = row
        return True


def merged(row: Tuple, before: Tuple) -> Tuple:
    """Return ``row`` with the values of ``before`` where it lacks them."""
    return tuple(old if new is UNCHANGED else new for new, old in zip(row, before, strict=True))
