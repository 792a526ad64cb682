"""A table of a PostgreSQL server as a side: summed up there, in SQL."""

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Final

from waltap.session import beginning
from waltap.sink.verification import Row, Rows, by_key
from waltap_sinks.comparison.row_hash import line_of, row_text, source_bucket, source_row_hash

if TYPE_CHECKING:
    from psycopg import Connection

__all__ = ["PostgresSide", "quoted", "settle_session"]

SESSION: Final = {"extra_float_digits": "1"}

NOT_READ_BACK: Final = frozenset({"float4", "float8", "bytea", "interval"})
"""Types whose common text is not what the server reads as a value; nor are those of extensions, whose
operators our sessions do not look for."""


def settle_session(connection: "Connection[Any]") -> None:
    """Have values written as texts that compare."""
    connection.execute(beginning(connection.info.server_version, more=SESSION).encode())


class PostgresSide:
    """``texts`` are SQL of the texts of columns, ``key`` (name, type's name, text) of those of the key,
    all in SQL. ``table`` is what stands after FROM."""

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

    def whole(self) -> tuple[int, int]:
        """Return count and sum of all rows."""
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
        """Return the rows of ``buckets``."""
        return self._rows(
            f"WHERE {_percent(source_bucket(self._keys))} = ANY (%s)", [list(buckets)]
        )

    def of_keys(self, keys: set[Row]) -> Rows:
        """Return the rows of ``keys``, by the index of the key where their texts are values."""
        if self._indexed and not any(None in key for key in keys):
            names = [f"w{n}" for n in range(len(self._key))]
            arrays = ", ".join(["%s::text[]"] * len(names))
            same = " AND ".join(
                f"{_percent(column)} = w.{name}::{_percent(type_)}"
                for name, (column, type_, _) in zip(names, self._key, strict=True)
            )
            columns = [list(values) for values in zip(*keys, strict=True)]
            joined = f"JOIN unnest({arrays}) AS w({', '.join(names)}) ON {same}"
            return self._rows(joined, columns)
        name = f"md5(convert_to({_percent(row_text(self._keys))}, 'UTF8'))"
        wanted = "SELECT md5(convert_to(t, 'UTF8')) FROM unnest(%s::text[]) t"
        return self._rows(f"WHERE {name} IN ({wanted})", [[line_of(key) for key in keys]])

    def _rows(self, ending: str, parameters: Sequence[object]) -> Rows:
        names = _percent(", ".join([*self._keys, *self._texts]))
        query = f"SELECT {names} FROM {_percent(self._table)} {ending}"
        size = len(self._keys)
        return by_key(
            (tuple(row[:size]), tuple(row[size:])) for row in self._all(query, parameters)
        )


def quoted(name: str) -> str:
    """Return an identifier as SQL of PostgreSQL."""
    return '"' + name.replace('"', '""') + '"'


def _percent(text: str) -> str:
    """Return SQL that stands in a statement with %s for values."""
    return text.replace("%", "%%")
