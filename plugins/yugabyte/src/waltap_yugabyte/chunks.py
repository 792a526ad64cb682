"""Chunks of incremental snapshots: by watermarks, which the stream brings in the order of commits.

A table whose key is hashed lies in the order of the hash of its key, and by no index in the order of the
key itself: a chunk in that order would read and sort the whole table. So chunks of such a table go up
through the hash codes and, within one code, through the keys; each reads a range of codes, which is as
wide as it takes to hold about a chunk. A range without rows is followed by the next, twice as wide.

The order is kept with what was read (`ChunkState.order`): which columns are hashed. Where it says nothing,
the chunks go by the key, as earlier versions began them, and as keys without a hash part do.
"""

from collections.abc import Sequence
from typing import Any, Final

from psycopg import sql

from waltap.decode.relation import Relation
from waltap.decode.tuple_image import Tuple
from waltap.errors import SourceError
from waltap.signals.signal import SnapshotRequest
from waltap.snapshot.chunk_source import ReadChunk
from waltap_postgres.catalog.catalogue import PostgresCatalogue
from waltap_postgres.properties import PostgresProperties
from waltap_postgres.replication.publication import identifier
from waltap_postgres.snapshot.bounds import after_sql, bounded, up_to_sql
from waltap_postgres.snapshot.chunk_query import PostgresChunks, where_sql
from waltap_yugabyte.hash_ranges import hash_columns
from waltap_yugabyte.properties import HASH_CODES, YugabyteProperties

__all__ = ["HashedColumnGone", "WatermarksNeeded", "YugabyteChunks"]

FIRST_WIDTH: Final = 16
"""So many hash codes the first range has: of 100 million rows about 24,000."""


class WatermarksNeeded(SourceError):
    """A chunk can be put into the stream by watermarks alone, and none may be written."""

    code = "WT-2158"
    remedy = (
        "Name a table that the role may write (signal.data.collection), and leave read.only out."
    )


class HashedColumnGone(SourceError):
    """The key of a table was changed while it was read in the order of that key's hash."""

    code = "WT-2161"
    remedy = "Ask for the table again: `waltap snapshot FILE {table}`."


class YugabyteChunks(PostgresChunks):
    """Reads chunks between watermarks; a read sees exactly what had committed at its time."""

    def __init__(
        self,
        catalogue: PostgresCatalogue,
        properties: PostgresProperties,
        connection: Any,
        signal_table: tuple[str, str] | None,
        **options: Any,
    ) -> None:
        super().__init__(catalogue, properties, connection, signal_table, **options)
        assert isinstance(properties, YugabyteProperties)
        self._now, self._own = catalogue, properties
        self._marks = signal_table is not None
        self._width = FIRST_WIDTH

    def maximum(
        self, request: SnapshotRequest, relation: Relation, key: tuple[int, ...]
    ) -> ReadChunk:
        """Raises: WatermarksNeeded; as `PostgresChunks.maximum`."""
        if not self._marks:
            raise WatermarksNeeded("no watermark may be written, and no position says as of when")
        order = self._order(request, relation, key)
        if not order or not self.readable(request):
            return super().maximum(request, relation, key)
        code = _code_sql(relation, order)
        ordered = ", ".join(f"{identifier(relation.columns[index].name)} DESC" for index in key)
        high, width = HASH_CODES, FIRST_WIDTH
        while True:
            low = max(0, high - width)
            terms = _within(code, low, high)
            tail = f"{where_sql(terms, request)} ORDER BY {code} DESC, {ordered} LIMIT 1"
            chunk = self.read(request, relation, tail)
            if chunk.rows or chunk.locked or not low:
                chunk.order, self._width = order, FIRST_WIDTH
                return chunk
            high, width = low, 2 * width

    def chunk(
        self,
        request: SnapshotRequest,
        relation: Relation,
        key: tuple[int, ...],
        *,
        after: Tuple | None,
        maximum: Tuple,
        limit: int,
        order: Sequence[int] = (),
    ) -> ReadChunk:
        """Raises: HashedColumnGone; as `PostgresChunks.chunk`."""
        if not order:
            return super().chunk(request, relation, key, after=after, maximum=maximum, limit=limit)
        columns = [bounded(relation.columns[index]) for index in key]
        code, last = _code_sql(relation, order), self._code(relation, order, key, maximum)
        up_to = f"({code} < {last} OR {up_to_sql(columns, maximum)})"
        low, behind = 0, []
        if after is not None:
            low = self._code(relation, order, key, after)
            behind = [f"({code} > {low} OR {after_sql(columns, after)})"]
        ordered = ", ".join([code, *(column.quoted for column in columns)])
        chunk = ReadChunk([], None)
        while low <= last:
            high = min(low + self._width, last + 1)
            terms = [*_within(code, low, high), *behind, *([up_to] if high > last else [])]
            tail = f"{where_sql(terms, request)} ORDER BY {ordered} LIMIT {limit}"
            chunk = self.read(request, relation, tail)
            if chunk.locked:
                return chunk
            full = len(chunk.rows) >= limit
            self._width = max(1, self._width // 2) if full else min(HASH_CODES, 2 * self._width)
            if chunk.rows:
                return chunk
            low, behind = high, []
        return chunk

    def _order(
        self, request: SnapshotRequest, relation: Relation, key: tuple[int, ...]
    ) -> tuple[int, ...]:
        """Return the numbers of the columns whose hash the rows lie by, () where they are to be read in
        the order of ``key``."""
        chosen = [relation.columns[index] for index in key]
        if request.surrogate_key or tuple(c.name for c in chosen) != relation.primary_key:
            return ()
        hashed = hash_columns(self._now, self._own, relation)
        return hashed if {column.number for column in chosen}.issuperset(hashed) else ()

    def _code(
        self, relation: Relation, order: Sequence[int], key: tuple[int, ...], values: Tuple
    ) -> int:
        """Return the hash code of a row with these values of ``key``. The server computes it, of values of
        the columns' own types: a set operation gives literals the type of the other side."""
        names = [identifier(relation.columns[index].name) for index in key]
        table = identifier(relation.schema, relation.table)
        literals = ", ".join(sql.Literal(value).as_string(None) for value in values)
        ((code,),) = self._now.query(
            f"SELECT {_code_sql(relation, order)} FROM (SELECT {', '.join(names)} FROM {table} WHERE false"
            f" UNION ALL SELECT {literals}) of_key"
        )
        return int(code)


def _code_sql(relation: Relation, order: Sequence[int]) -> str:
    """Return the hash code of a row. Raises: HashedColumnGone."""
    names = {column.number: column.name for column in relation.columns}
    if not names.keys() >= set(order):
        problem = f"the key of {relation.name} has other columns than when its reading began"
        raise HashedColumnGone(problem, table=relation.name)
    return f"yb_hash_code({', '.join(identifier(names[number]) for number in order)})"


def _within(code: str, low: int, high: int) -> list[str]:
    return [f"{code} >= {low}", f"{code} < {high}"]
