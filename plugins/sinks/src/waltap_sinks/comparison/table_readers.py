"""Read and hash a table's rows in SQL or in Python.

The hash of a table is the sum of its rows' hashes, so neither side must sort. Values are written
with their length, so NULL differs from every text.
"""

from collections.abc import Callable, Iterable, Iterator, Sequence
from hashlib import md5
from typing import TYPE_CHECKING, Any, Final

from waltap.base.text import escaped
from waltap.ports.sink.verification import Row, Rows, by_key
from waltap.ports.source.session import beginning
from waltap_sinks.comparison.common_text import reader_of

if TYPE_CHECKING:
    from psycopg import Connection


# Hexadecimal digits of each row's MD5 that are summed: 60 bits, positive in every database.
HASH_DIGITS: Final = 15

# A function of PostgreSQL takes at most 100 arguments.
MOST_PARTS: Final = 90


def row_text(columns: Sequence[str]) -> str:
    """Return SQL for a row's text from ``columns``."""
    parts = [
        f"CASE WHEN ({text}) IS NULL THEN '-' ELSE concat(length({text}), ':', {text}) END"
        for text in columns
    ]
    while len(parts) > 1:
        groups = [parts[at : at + MOST_PARTS] for at in range(0, len(parts), MOST_PARTS)]
        parts = [f"concat_ws(',', {', '.join(group)})" for group in groups]
    return parts[0] if parts else "''"


def source_row_hash(columns: Sequence[str]) -> str:
    """Return PostgreSQL's SQL for the sum of row hashes."""
    text = f"convert_to({row_text(columns)}, 'UTF8')"
    one = f"('x' || substr(md5({text}), 1, {HASH_DIGITS}))::bit({4 * HASH_DIGITS})::bigint"
    return f"coalesce(sum({one}), 0)::text"


def source_bucket(key: Sequence[str]) -> str:
    """Return PostgreSQL's SQL for the bucket of a row."""
    return f"substr(md5(convert_to({row_text(key)}, 'UTF8')), 1, 3)"


def line_of(row: Sequence[str | None]) -> str:
    """Return the text of `row_text` for a row."""
    return ",".join(["-" if text is None else f"{len(text)}:{text}" for text in row])


def hash_of(row: Sequence[str | None]) -> int:
    """Return the hash of a row; `source_row_hash` is the sum."""
    digest = md5(line_of(row).encode(), usedforsecurity=False).hexdigest()
    return int(digest[:HASH_DIGITS], 16)


def bucket_of(key: Sequence[str | None]) -> str:
    """Return the bucket of `source_bucket` for a key."""
    return md5(line_of(key).encode(), usedforsecurity=False).hexdigest()[:3]


def short_hash(total: str) -> str:
    """Return a sum of hashes as 16 hexadecimal digits."""
    return f"{int(total) % (1 << 64):016x}"


# Errors of a conversion for a value of another type, which a dropped table of the name may have left.
OF_ANOTHER_TYPE: Final = (ArithmeticError, AttributeError, TypeError, ValueError)


def row_texts(readers: Sequence[Callable[[Any], str]], row: Sequence[Any]) -> Row:
    """Return a row's texts, also of values of another type."""
    pairs = zip(readers, row, strict=True)
    try:
        return tuple([None if value is None else text(value) for text, value in pairs])
    except OF_ANOTHER_TYPE:
        pairs = zip(readers, row, strict=True)
        return tuple([None if value is None else _text(text, value) for text, value in pairs])


def _text(text: Callable[[Any], str], value: Any) -> str:
    try:
        return text(value)
    except OF_ANOTHER_TYPE:
        return str(value)


class RowTableReader:
    """Read a table completely at each call; hash rows here.

    ``read`` yields rows with values in the order of ``columns``, which are (name, ``pg_type.typname``).
    """

    def __init__(
        self,
        read: Callable[[], Iterable[Sequence[Any]]],
        columns: Sequence[tuple[str, str]],
        key: Sequence[str],
    ) -> None:
        self._read = read
        self._readers = [reader_of(type_) for _, type_ in columns]
        names = [name for name, _ in columns]
        self._key = [names.index(name) for name in key]

    def _texts(self) -> Iterator[Row]:
        for row in self._read():
            yield row_texts(self._readers, row)

    def _keyed(self) -> Iterator[tuple[Row, Row]]:
        for row in self._texts():
            yield tuple([row[n] for n in self._key]), row

    def total(self) -> tuple[int, int]:
        """Return count and sum of all rows."""
        count = total = 0
        for row in self._texts():
            count, total = count + 1, total + hash_of(row)
        return count, total

    def sums(self) -> dict[str, tuple[int, int]]:
        """Return count and sum of each bucket."""
        found: dict[str, tuple[int, int]] = {}
        for key, row in self._keyed():
            bucket = bucket_of(key)
            count, total = found.get(bucket, (0, 0))
            found[bucket] = count + 1, total + hash_of(row)
        return found

    def rows(self, buckets: Sequence[str]) -> Rows:
        wanted = set(buckets)
        return by_key((key, row) for key, row in self._keyed() if bucket_of(key) in wanted)

    def of_keys(self, keys: set[Row]) -> Rows:
        return by_key((key, row) for key, row in self._keyed() if key in keys)


SESSION: Final = {"extra_float_digits": "1"}

# Types whose common text the server does not read as a value. Nor does it read types of extensions,
# whose operators our sessions do not find.
NOT_READ_BACK: Final = frozenset({"float4", "float8", "bytea", "interval"})


def configure_session(connection: "Connection[Any]") -> None:
    """Configure texts that can be compared."""
    connection.execute(beginning(connection.info.server_version, more=SESSION).encode())


class PostgresTableReader:
    """Read a PostgreSQL table and hash its rows there.

    ``table`` follows FROM. ``texts`` are SQL for the texts of columns; ``key`` has (name, type's
    name, text) in SQL.
    """

    def __init__(
        self,
        connection: "Connection[Any]",
        table: str,
        texts: Sequence[str],
        key: Sequence[tuple[str, str, str]],
    ) -> None:
        self._connection, self._table, self._texts = connection, table, texts
        self._keys = [text for _, _, text in key]
        self._key = key
        self._hash = source_row_hash(texts)
        self._indexed = not any(type_ in NOT_READ_BACK or "." in type_ for _, type_, _ in key)

    def _all(self, query: str, parameters: Sequence[object] = ()) -> list[Any]:
        return self._connection.execute(query.encode(), parameters or None).fetchall()

    def total(self) -> tuple[int, int]:
        ((count, total),) = self._all(f"SELECT count(*), {self._hash} FROM {self._table}")
        return int(count), int(total)

    def sums(self) -> dict[str, tuple[int, int]]:
        """Return count and sum of each bucket."""
        query = (
            f"SELECT {source_bucket(self._keys)}, count(*), {self._hash}"
            f" FROM {self._table} GROUP BY 1"
        )
        return {bucket: (int(count), int(total)) for bucket, count, total in self._all(query)}

    def rows(self, buckets: Sequence[str]) -> Rows:
        return self._rows(f"WHERE {escaped(source_bucket(self._keys))} = ANY (%s)", [list(buckets)])

    def of_keys(self, keys: set[Row]) -> Rows:
        """Return the rows of ``keys``, by the key's index if possible."""
        if self._indexed and not any(None in key for key in keys):
            names = [f"w{n}" for n in range(len(self._key))]
            arrays = ", ".join(["%s::text[]"] * len(names))
            same = " AND ".join(
                f"{escaped(column)} = w.{name}::{escaped(type_)}"
                for name, (column, type_, _) in zip(names, self._key, strict=True)
            )
            columns = [list(values) for values in zip(*keys, strict=True)]
            joined = f"JOIN unnest({arrays}) AS w({', '.join(names)}) ON {same}"
            return self._rows(joined, columns)
        name = f"md5(convert_to({escaped(row_text(self._keys))}, 'UTF8'))"
        wanted = "SELECT md5(convert_to(t, 'UTF8')) FROM unnest(%s::text[]) t"
        return self._rows(f"WHERE {name} IN ({wanted})", [[line_of(key) for key in keys]])

    def _rows(self, ending: str, parameters: Sequence[object]) -> Rows:
        names = escaped(", ".join([*self._keys, *self._texts]))
        query = f"SELECT {names} FROM {escaped(self._table)} {ending}"
        size = len(self._keys)
        return by_key(
            (tuple(row[:size]), tuple(row[size:])) for row in self._all(query, parameters)
        )
