"""Reduce changes to last rows or versions. Sans-IO."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any, Final, NamedTuple

from waltap.base.import_rules import pa
from waltap.changes.decode.row_block import RowBlock, texts_of
from waltap.changes.decode.tuple_image import UNCHANGED, MissingValue, Tuple, Value
from waltap_sinks.sql.shape import HistoryShape, TargetShape
from waltap_sinks.sql.targets.typed import instant

# --- rows -----------------------------------------------------------------------------------------


def merged(row: Tuple, before: Tuple) -> Tuple:
    """Return ``row`` with its unsent values from ``before``."""
    return tuple(old if new is UNCHANGED else new for new, old in zip(row, before, strict=True))


def null_missing(row: Tuple) -> Tuple:
    """Return ``row`` with NULL for each missing value."""
    return tuple(None if isinstance(value, MissingValue) else value for value in row)


def filled(row: Tuple, before: Tuple) -> Tuple:
    """Return ``row`` with its missing values from ``before``, else NULL."""
    pairs = zip(row, before, strict=True)
    return null_missing(tuple(old if isinstance(new, MissingValue) else new for new, old in pairs))


# --- the last row of each key ---------------------------------------------------------------------

# Most bytes that are joined to columns: Arrow holds at most 2 GiB of text.
BLOCK_BYTES: Final = 64 * 1024 * 1024


class NetChanges:
    """Hold the last row of each changed key of one table.

    A reader cannot see between the changes of one transaction of the target. So each key needs one
    statement: write ``gone`` first, then ``puts``, then ``fresh``.
    """

    __slots__ = ("added", "brief", "fresh", "gone", "puts", "shape")

    def __init__(self, shape: TargetShape) -> None:
        self.shape = shape
        # Inserted rows as they came. They become `fresh` at the first change of another kind,
        # because the rows of a bulk load need no dictionary.
        self.added: list[Sequence[Tuple]] = []
        # Inserted rows. The target has no row of their key once `gone` is deleted.
        self.fresh: dict[Any, Tuple] = {}
        # Updated rows. The target keeps the values that are UNCHANGED.
        self.puts: dict[Any, Tuple] = {}
        # Deleted keys, with the commit time in µs since 1970 UTC.
        self.gone: dict[Any, int] = {}
        # Keys of `gone` whose row was inserted in the same batch: the target never had them.
        self.brief: set[Any] = set()

    def __bool__(self) -> bool:
        return bool(self.added or self.fresh or self.puts or self.gone)

    def clear(self) -> None:
        self.added = []
        self.fresh, self.puts, self.gone, self.brief = {}, {}, {}, set()

    def insert(self, rows: Sequence[Tuple]) -> None:
        if self.fresh or self.puts:
            self._insert(rows)
        else:
            self.added.append(rows)

    def inserted(self) -> Sequence[Tuple]:
        """Return the inserted rows, as columns if most came so."""
        block = self._block()
        if block is not None:
            return block
        self._key_added()
        return list(self.fresh.values())

    def _block(self) -> RowBlock | None:
        """Return `added` as columns.

        None if single rows are quicker, if a value is missing, or if a key is there twice: the
        change in between was left out, and only the last row of the key can be written.
        """
        count = sum(map(len, self.added))
        together = sum(len(rows) for rows in self.added if isinstance(rows, RowBlock))
        if not together or together * 2 < count:
            return None
        made = [RowBlock.of(rows) for rows in self.added]
        blocks = [block for block in made if block is not None]
        if len(blocks) < len(made) or sum(block.nbytes for block in blocks) > BLOCK_BYTES:
            return None
        block = RowBlock.joined(blocks)
        key = [texts_of(block.columns[column.index]) for column in self.shape.key]
        keys = key[0] if len(key) == 1 else zip(*key, strict=True)
        return block if len(set(keys)) == count else None

    def _key_added(self) -> None:
        """Make `fresh` of `added`."""
        if self.added:
            added, self.added = self.added, []
            for rows in added:
                self._insert(rows)

    def _insert(self, rows: Sequence[Tuple]) -> None:
        new = dict(zip(map(self.shape.key_of, rows), rows, strict=True))
        if self.puts:
            for key in self.puts.keys() & new.keys():
                del self.puts[key]
        self.fresh.update(new)

    def put(self, row: Tuple) -> None:
        self._key_added()
        key = self.shape.key_of(row)
        known = self.fresh if key in self.fresh else self.puts
        if UNCHANGED in row and key in known:
            row = merged(row, known[key])
        known[key] = row

    def delete(self, key: Any, ts: int) -> None:
        self._key_added()
        if key in self.fresh and key not in self.gone:
            self.brief.add(key)
        self.fresh.pop(key, None)
        self.puts.pop(key, None)
        self.gone[key] = ts

    def move(self, old: Any, row: Tuple, ts: int) -> bool:
        """Move the row of key ``old`` to the key of ``row``.

        Return false, without a change, if only the target has some of its values.
        """
        self._key_added()
        before = self.fresh.get(old, self.puts.get(old))
        if UNCHANGED in row:
            if before is None:
                return False
            row = merged(row, before)
            if UNCHANGED in row:
                return False
        self.delete(old, ts)
        key = self.shape.key_of(row)
        self.fresh.pop(key, None)
        self.puts[key] = row
        return True

    def resolve(self, owners: Mapping[Any, "KeyOwners"]) -> None:
        """Add each key's row, or its end, after a transaction."""
        self.insert(
            [rows[-1].row for first, rows in owners.values() if rows and first is not False]
        )
        for key, (first, rows) in owners.items():
            if first is False:
                self.put(rows[-1].row) if rows else self.delete(key, 0)


# --- keys that rows share -------------------------------------------------------------------------


class ArrivedRow(NamedTuple):
    """Hold a row whose key the open transaction gave it."""

    row: Tuple
    # In a history.
    version: "RowVersion | None"


class KeyOwners(NamedTuple):
    """Hold the rows of one key."""

    # Whether the target's row has the key; None while unknown.
    first: bool | None = None
    rows: tuple[ArrivedRow, ...] = ()


class WaitingRows(dict[TargetShape, dict[Any, KeyOwners]]):
    """Hold changed rows of deferrable keys until one row has the key, or none.

    Such a key is checked at the commit. Until then several rows can have it, and full old tuples
    show which of them changes.
    """

    def arrive(self, shape: TargetShape, row: Tuple, version: "RowVersion | None" = None) -> None:
        keys, key = self.setdefault(shape, {}), shape.key_of(row)
        first, rows = keys.get(key, KeyOwners())
        keys[key] = KeyOwners(first, (*rows, ArrivedRow(row, version)))

    def leave(self, shape: TargetShape, key: Any, before: Tuple | None) -> ArrivedRow | None:
        """Remove the row ``before``; return None if it was there first."""
        keys = self.setdefault(shape, {})
        first, rows = keys.get(key, KeyOwners())
        for at in reversed(range(len(rows))):
            if before is None or all(map(_alike, rows[at].row, before)):
                keys[key] = KeyOwners(first, rows[:at] + rows[at + 1 :])
                return rows[at]
        keys[key] = KeyOwners(False, rows)
        return None

    def resolved(
        self, shape: TargetShape, held: Callable[[list[Any]], Sequence[Any]] | None = None
    ) -> dict[Any, KeyOwners]:
        """Remove the keys of ``shape``, all at the transaction's end.

        Before it ``held`` returns which keys the target has, and keys of several rows stay.
        """
        keys = self.pop(shape, {})
        if held is None:
            return keys
        unknown = [key for key, (first, rows) in keys.items() if first is None and len(rows) == 1]
        for key in held(unknown):
            keys[key] = KeyOwners(True, keys[key].rows)
        shared = {key: each for key, each in keys.items() if len(each.rows) + (each.first or 0) > 1}
        if shared:
            self[shape] = shared
        return {key: each for key, each in keys.items() if key not in shared}

    def follow(self, shape: TargetShape) -> list[TargetShape]:
        """Return the relation's other versions and its target's other shapes.

        ``shape`` gets the rows of a version that differs by names alone: while rows share a
        key, the source alters nothing else.
        """
        oid, name = shape.relation.oid, shape.name
        others = [s for s in self if s is not shape and (s.relation.oid == oid or s.name == name)]
        alike = [s for s in others if s.relation.oid == oid and s.layout == shape.layout]
        for other in alike:
            self.setdefault(shape, {}).update(self.pop(other))
        return [other for other in others if other not in alike]

    def copied(self) -> "WaitingRows":
        return WaitingRows({shape: dict(keys) for shape, keys in self.items()})


def _alike(one: Value, other: Value) -> bool:
    return one == other or isinstance(one, MissingValue) or isinstance(other, MissingValue)


# --- versions of rows -----------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class VersionCause:
    """Describe the commit or snapshot that made a version."""

    lsn: int
    # When the version begins, in µs since 1970 UTC.
    ts: int
    # None for rows that a snapshot read.
    xid: int | None = None
    committed: bool = True

    def values(
        self, op: str, seq: int, sub: int = 0, ends: int | None = None, *, current: bool
    ) -> Tuple:
        """Return a history's own columns as PostgreSQL prints them."""
        begins = moment_text(self.ts)
        return (
            op,
            str(self.lsn),
            str(seq),
            str(sub),
            begins if self.committed else None,
            None if self.xid is None else str(self.xid),
            begins,
            None if ends is None else moment_text(ends),
            "t" if current else "f",
        )


@dataclass(slots=True)
class RowVersion:
    """Hold a row from its cause until it ends."""

    row: Tuple
    op: str
    cause: VersionCause
    seq: int
    sub: int = 0
    # None while the version is open.
    ends: int | None = None
    # The key whose open version in the target has the unsent values.
    lender: Any = None

    def values(self, *, current: bool) -> Tuple:
        """Return the row with the history's own columns behind it."""
        own = self.cause.values(self.op, self.seq, self.sub, self.ends, current=current)
        return self.row + own

    def all_values(self) -> Tuple:
        """Return the values of a version without a lender."""
        if UNCHANGED in self.row:
            self.row = null_missing(self.row)
        return self.values(current=self.ends is None)


@dataclass(slots=True)
class HistoryChanges:
    """Collect the versions that a batch adds to one history."""

    shape: HistoryShape
    versions: list[RowVersion] = field(default_factory=list)
    # Each changed key with its open version; None if it is closed.
    open: dict[Any, RowVersion | None] = field(default_factory=dict)
    # Keys whose open version is in the target, with the time that closes it.
    closes: dict[Any, int] = field(default_factory=dict)

    def clear(self) -> None:
        self.versions, self.open, self.closes = [], {}, {}

    def begin(self, key: Any, version: RowVersion) -> None:
        self.versions.append(version)
        self.open[key] = version

    def close(self, row: Tuple, op: str, cause: VersionCause, seq: int) -> None:
        """Add a version that ends where it begins."""
        self.versions.append(RowVersion(row, op, cause, seq, ends=cause.ts))

    def end(self, key: Any, ts: int) -> RowVersion | None:
        """Close the open version of ``key`` and return it.

        The result is None if only the target has it.
        """
        if key not in self.open:
            self.closes[key], self.open[key] = ts, None
            return None
        before = self.open[key]
        if before is not None:
            before.ends = ts
        self.open[key] = None
        return before

    def replace(self, old: Any, row: Tuple, ts: int) -> tuple[Tuple, Any]:
        """Close the open version of ``old``, whose row becomes ``row``.

        Return the row with the values of that version, and the key that lends the rest.
        """
        known = old in self.open
        before = self.end(old, ts)
        if UNCHANGED not in row:
            return row, None
        if not known:
            return row, old
        if before is None:
            return row, None
        return merged(row, before.row), before.lender


@lru_cache(maxsize=256)
def moment_text(ts: int) -> str:
    """Return an instant (µs since 1970 UTC) as PostgreSQL prints it."""
    return f"{instant(ts):%Y-%m-%d %H:%M:%S.%f}".rstrip("0").rstrip(".") + "+00"


def with_values(rows: Sequence[Tuple], values: Tuple) -> Sequence[Tuple]:
    """Return ``rows`` with the same values behind each."""
    if not isinstance(rows, RowBlock):
        return [row + values for row in rows]
    count = len(rows)
    more = [pa.repeat(pa.scalar(value, pa.string()), count) for value in values]
    return RowBlock([*rows.columns, *more], count)
