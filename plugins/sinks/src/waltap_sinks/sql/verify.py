"""Does a PostgreSQL target hold what the source holds? Both are read while writers run.

Each table is read in one snapshot of the source and one of the target, as counts and hashes of 4,096
buckets of keys. Rows of buckets that differ are compared by key. What differs then may be on its way, so
these keys are read again, until the target has a state of the row that the source had since the
beginning, or patience ends.
"""

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from waltap_sinks.comparison import (
    Comparison,
    keys_shown,
    row_text,
    short_hash,
    source_row_hash,
)
from waltap_sinks.sql.books import KnownTable

if TYPE_CHECKING:
    from psycopg import Connection

__all__ = ["Pair", "compare", "pairs"]

AGAIN_S: Final = 0.2
"""Between two readings of what differs; twice as long each time."""

LONGEST_S: Final = 3.0

Row = tuple[str | None, ...]
Rows = dict[Row, Row]

COLUMNS: Final = """
    SELECT a.attnum, a.attname::text, a.attgenerated <> '' FROM pg_attribute a
    WHERE a.attrelid = %s AND a.attnum > 0 AND NOT a.attisdropped ORDER BY a.attnum
"""
KEY: Final = """
    SELECT a.attname::text FROM pg_index i JOIN pg_attribute a
      ON a.attrelid = i.indrelid AND a.attnum = ANY (i.indkey)
    WHERE i.indrelid = to_regclass(%s) AND i.indisprimary ORDER BY array_position(i.indkey, a.attnum)
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Pair:
    """A table on both sides: names in SQL, columns as (name in the source, name in the target), the key by
    names in the target. ``left_out`` are columns of the source that the target has not."""

    name: str
    source: str
    target: str
    columns: tuple[tuple[str, str], ...]
    key: tuple[str, ...]
    left_out: tuple[str, ...] = ()


def pairs(
    source: "Connection[Any]",
    target: "Connection[Any]",
    known: Mapping[int, KnownTable],
    *,
    tables: Sequence[str] = (),
    without: Sequence[str] = (),
) -> list[Pair]:
    """Return what is to be compared: tables that the pipeline has bound; where given, of ``tables``.

    ``without`` are columns that are not compared: ``column``, or ``schema.table.column``.
    """
    found = []
    for oid, table in sorted(known.items()):
        named = source.execute(
            "SELECT n.nspname || '.' || c.relname, c.oid::regclass::text, c.relkind"
            " FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace WHERE c.oid = %s",
            [oid],
        ).fetchone()
        if named is None or (tables and named[0] not in tables):
            continue
        name, written, kind = named
        place = ".".join(map(_quoted, filter(None, table.name)))
        there = target.execute(
            "SELECT attname::text FROM pg_attribute WHERE attrelid = to_regclass(%s) AND attnum > 0"
            " AND NOT attisdropped",
            [place],
        )
        names = {row[0] for row in there}
        columns, left_out = [], []
        for number, column, _generated in source.execute(COLUMNS, [oid]):
            called = table.columns.get(number, column)
            if column in without or f"{name}.{column}" in without:
                continue
            if called in names:
                columns.append((column, called))
            else:
                left_out.append(column)
        key = tuple(row[0] for row in target.execute(KEY, [place]))
        compared = {called for _, called in columns}
        found.append(
            Pair(
                name=name,
                source=written if kind == "p" else f"ONLY {written}",
                target=place,
                columns=tuple(columns),
                key=key if set(key) <= compared else (),
                left_out=tuple(left_out),
            )
        )
    return found


def compare(
    source: "Connection[Any]",
    target: "Connection[Any]",
    found: Sequence[Pair],
    *,
    patience_s: float,
) -> list[Comparison]:
    """Compare tables; connections are in autocommit. What differs is read again for ``patience_s``."""
    for connection in (source, target):
        connection.execute("SET TimeZone = 'UTC'")
        connection.execute("SET DateStyle = 'ISO, MDY'")
        connection.execute("SET IntervalStyle = 'postgres'")
        connection.execute("SET lc_monetary = 'C'")
        connection.execute("SET extra_float_digits = 1")
    return [_compare(source, target, pair, patience_s) for pair in found]


def _compare(
    source: "Connection[Any]", target: "Connection[Any]", pair: Pair, patience_s: float
) -> Comparison:
    deadline = time.monotonic() + patience_s
    ours, theirs = _Side(source, pair, of_source=True), _Side(target, pair, of_source=False)
    if not pair.key:
        return _whole(ours, theirs, pair, deadline)
    sums, other = ours.buckets(), theirs.buckets()
    differing = sorted(b for b in sums.keys() | other.keys() if sums.get(b) != other.get(b))
    comparison = _comparison(pair, _total(sums), _total(other))
    if not differing:
        return comparison
    here, there = ours.rows(differing), theirs.rows(differing)
    open_keys = {key for key in here.keys() | there.keys() if here.get(key) != there.get(key)}
    states: dict[Row, set[Row | None]] = {key: {here.get(key)} for key in open_keys}
    pause_s = AGAIN_S
    while open_keys and time.monotonic() < deadline:
        time.sleep(pause_s)
        pause_s = min(2 * pause_s, LONGEST_S)
        there, here = theirs.of_keys(open_keys), ours.of_keys(open_keys)
        for key in list(open_keys):
            states[key].add(here.get(key))
            if there.get(key) in states[key]:
                open_keys.discard(key)
    if not open_keys:
        rows, total = _total(sums)
        return _comparison(pair, (rows, total), (rows, total))
    return _told(pair, comparison, open_keys, here, there)


def _whole(ours: "_Side", theirs: "_Side", pair: Pair, deadline: float) -> Comparison:
    """Compare a table without a key: all of it, until it is equal or patience ends."""
    while True:
        there, here = theirs.whole(), ours.whole()
        if here == there or time.monotonic() > deadline:
            return _comparison(pair, here, there)
        time.sleep(AGAIN_S)


def _told(pair: Pair, found: Comparison, keys: set[Row], here: Rows, there: Rows) -> Comparison:
    """Return ``found`` with the keys that differ, and the columns."""
    names = [called for _, called in pair.columns]
    changed = [key for key in keys if key in here and key in there]
    columns = [
        name for n, name in enumerate(names) if any(here[k][n] != there[k][n] for k in changed)
    ]
    fields = {name: getattr(found, name) for name in ("table", "source_rows", "target_rows")}
    same = found.source_hash == found.target_hash
    return Comparison(
        **fields,
        source_hash=found.source_hash,
        target_hash=f"{found.target_hash}*" if same else found.target_hash,
        left_out=found.left_out,
        columns=tuple(columns),
        missing=keys_shown(pair.key, (key for key in keys if key not in there)),
        surplus=keys_shown(pair.key, (key for key in keys if key not in here)),
        changed=keys_shown(pair.key, changed),
    )


def _comparison(pair: Pair, here: tuple[int, int], there: tuple[int, int]) -> Comparison:
    return Comparison(
        table=pair.name,
        source_rows=here[0],
        target_rows=there[0],
        source_hash=short_hash(str(here[1])),
        target_hash=short_hash(str(there[1])),
        left_out=pair.left_out,
    )


def _total(sums: Mapping[str, tuple[int, int]]) -> tuple[int, int]:
    return sum(count for count, _ in sums.values()), sum(total for _, total in sums.values())


class _Side:
    """One side's table, in SQL."""

    def __init__(self, connection: "Connection[Any]", pair: Pair, *, of_source: bool) -> None:
        place = 0 if of_source else 1
        by_target = {names[1]: names[place] for names in pair.columns}
        self._connection = connection
        self._table = pair.source if of_source else pair.target
        self._texts = [f"{_quoted(names[place])}::text" for names in pair.columns]
        self._keys = [f"{_quoted(by_target[name])}::text" for name in pair.key]
        self._bucket = f"substr(md5(convert_to({row_text(self._keys)}, 'UTF8')), 1, 3)"
        self._hash = source_row_hash(self._texts)

    def _all(self, query: str, parameters: Sequence[object] = ()) -> list[Any]:
        return self._connection.execute(query.encode(), parameters or None).fetchall()

    def whole(self) -> tuple[int, int]:
        """Return count and hash of all rows."""
        ((count, total),) = self._all(f"SELECT count(*), {self._hash} FROM {self._table}")
        return int(count), int(total)

    def buckets(self) -> dict[str, tuple[int, int]]:
        """Return count and hash of each bucket of keys."""
        query = f"SELECT {self._bucket}, count(*), {self._hash} FROM {self._table} GROUP BY 1"
        return {bucket: (int(count), int(total)) for bucket, count, total in self._all(query)}

    def rows(self, buckets: Sequence[str]) -> Rows:
        """Return the rows of ``buckets`` by their keys."""
        return self._rows(f"{_percent(self._bucket)} = ANY (%s)", list(buckets))

    def of_keys(self, keys: set[Row]) -> Rows:
        """Return the rows of ``keys``."""
        name = f"md5(convert_to({_percent(row_text(self._keys))}, 'UTF8'))"
        texts = ["".join("-," if p is None else f"{len(p)}:{p}," for p in key)[:-1] for key in keys]
        return self._rows(
            f"{name} = ANY (SELECT md5(convert_to(t, 'UTF8')) FROM unnest(%s::text[]) t)", texts
        )

    def _rows(self, condition: str, parameter: list[str]) -> Rows:
        names = _percent(", ".join([*self._keys, *self._texts]))
        query = f"SELECT {names} FROM {_percent(self._table)} WHERE {condition}"
        size = len(self._keys)
        return {tuple(row[:size]): tuple(row[size:]) for row in self._all(query, [parameter])}


def _percent(text: str) -> str:
    """Return SQL that stands in a statement with %s for values."""
    return text.replace("%", "%%")


def _quoted(name: str) -> str:
    return '"' + name.replace('"', '""') + '"'
