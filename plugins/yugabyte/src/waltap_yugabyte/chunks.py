"""Chunks of incremental snapshots, placed in the stream by watermarks.

The stream delivers watermarks in the order of commits. A table with a hashed key is stored in the
order of the key's hash, and no index has the order of the key itself. A chunk in key order would
read and sort the whole table. So chunks of such a table ascend by hash code, and by key within a
code. Each chunk reads a range of codes that is wide enough for about one chunk of rows. An empty
range is followed by one twice as wide.

The offset stores the order with the progress (`ChunkState.order`): the numbers of the hashed
columns. Without an order, as for keys without a hash part, chunks follow the key.
"""

from collections.abc import Sequence
from itertools import pairwise
from typing import Any, Final

from psycopg import sql

from waltap.base.text import sql_name
from waltap.changes.decode.relation import Relation
from waltap.changes.decode.tuple_image import Tuple
from waltap.errors import SourceError
from waltap.ports.signals.signal import SnapshotRequest
from waltap.ports.snapshot.chunk_source import ReadChunk
from waltap_postgres.catalog.bounds import after_sql, bounded, up_to_sql
from waltap_postgres.catalog.catalogue import PostgresCatalogue
from waltap_postgres.snapshot.chunk_query import PostgresChunks, where_sql
from waltap_postgres.snapshot.plan import KeyRange, Range, SnapshotPlanner, TableSize
from waltap_postgres.snapshot.transaction import CatalogShape, ReadingTransaction, SnapshotTable
from waltap_yugabyte.properties import HASH_CODES, YugabyteProperties

# Ranges of a table by the hash of its key.
#
# YugabyteDB distributes rows over tablets by this hash. Source: YugabyteDB documentation,
# ``yb_hash_code``; yugabyte-db, ``pg_index.h`` (``INDOPTION_HASH``).

# Flag in ``pg_index.indoption``: the column belongs to the hash part of the key.
HASHED = 4

HASH_COLUMNS_SQL = """
SELECT a.attnum::int4
  FROM pg_index i
  CROSS JOIN LATERAL unnest(i.indkey::int2[], i.indoption::int2[])
    WITH ORDINALITY k(number, option, place)
  JOIN pg_attribute a ON a.attrelid = i.indrelid AND a.attnum = k.number
 WHERE i.indrelid = %s AND i.indisprimary AND k.option & %s <> 0 ORDER BY k.place
"""


class HashRange(KeyRange, frozen=True, tag="hash"):
    """Select rows with hash codes from ``low`` to below ``high``.

    ``columns`` are the numbers of the key's hashed columns.
    """

    low: int = 0
    high: int = HASH_CODES

    def where(self, shape: CatalogShape) -> str:
        names = ", ".join(sql_name(shape.columns[number][0]) for number in self.columns)
        return hash_condition(names, self.low, self.high)


def hash_condition(names: str, low: int, high: int) -> str:
    """Return the SQL condition of a range. ``names`` are the hashed columns."""
    return f"yb_hash_code({names}) >= {low} AND yb_hash_code({names}) < {high}"


class HashPlanner(SnapshotPlanner):
    """Split tables whose primary key is hashed.

    Other tables are read in one piece, since rows have no ``ctid``.
    """

    def ranges(
        self, transaction: ReadingTransaction, target: SnapshotTable, size: TableSize, count: int
    ) -> tuple[Range, ...]:
        columns = hash_columns(self.now, target.table.relation)
        # One fetch reads such a table.
        small = 0 < target.table.estimate <= self.now.properties.snapshot_fetch_size
        if count < 2 or small or not columns:
            return ()
        bounds = [HASH_CODES * number // count for number in range(count + 1)]
        return tuple(
            HashRange(columns=columns, after=None, up_to=None, low=low, high=high)
            for low, high in pairwise(bounds)
        )


def hash_columns(catalogue: PostgresCatalogue, relation: Relation) -> tuple[int, ...]:
    """Return the key's hashed columns, () for none."""
    properties = catalogue.properties
    assert isinstance(properties, YugabyteProperties)
    if properties.hash_columns:
        numbers = {column.name: column.number for column in relation.columns}
        found = [numbers.get(name) for name in properties.hash_columns]
        return tuple(n for n in found if n is not None) if None not in found else ()
    rows = catalogue.query(HASH_COLUMNS_SQL, (relation.oid, HASHED))
    return tuple(number for (number,) in rows)


# Hash codes of the first range: about 24,000 rows of a table of 100 million.
FIRST_WIDTH: Final = 16


WatermarksNeeded = SourceError.define("WatermarksNeeded", "WT-2158")
HashedColumnGone = SourceError.define("HashedColumnGone", "WT-2161")


class YugabyteChunks(PostgresChunks):
    """Read chunks between watermarks.

    A read sees exactly the rows that had committed at its time.
    """

    def __init__(self, *arguments: Any) -> None:
        super().__init__(*arguments)
        self._width = FIRST_WIDTH

    def maximum(
        self, request: SnapshotRequest, relation: Relation, key: tuple[int, ...]
    ) -> ReadChunk:
        """Return the last row in the order of the chunks.

        Raises: WatermarksNeeded; as `PostgresChunks.maximum`.
        """
        if self._signal is None:
            raise WatermarksNeeded("no watermark may be written, and no position says as of when")
        order = self._order(request, relation, key)
        if not order or not self.readable(request):
            return super().maximum(request, relation, key)
        code = _code_sql(relation, order)
        ordered = ", ".join(f"{sql_name(relation.columns[index].name)} DESC" for index in key)
        high, width = HASH_CODES, FIRST_WIDTH
        while True:
            # Search ranges from the end, so that the server sorts few rows.
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
        """Read the next chunk in the order of the hash.

        Raises: HashedColumnGone; as `PostgresChunks.chunk`.
        """
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
            # A full chunk shows that the range had too many rows to sort.
            self._width = max(1, self._width // 2) if full else min(HASH_CODES, 2 * self._width)
            if chunk.rows:
                return chunk
            low, behind = high, []
        return chunk

    def _order(
        self, request: SnapshotRequest, relation: Relation, key: tuple[int, ...]
    ) -> tuple[int, ...]:
        """Return the hashed columns, () for chunks by ``key``."""
        chosen = [relation.columns[index] for index in key]
        # The hash is the primary key's; chunks by another key follow that key.
        if request.surrogate_key or tuple(c.name for c in chosen) != relation.primary_key:
            return ()
        hashed = hash_columns(self._catalogue, relation)
        return hashed if {column.number for column in chosen}.issuperset(hashed) else ()

    def _code(
        self, relation: Relation, order: Sequence[int], key: tuple[int, ...], values: Tuple
    ) -> int:
        """Return the hash code of a row with these key values."""
        names = [sql_name(relation.columns[index].name) for index in key]
        table = sql_name(relation.schema, relation.table)
        literals = ", ".join(sql.Literal(value).as_string(None) for value in values)
        # The server computes the code. The UNION gives the literals
        # the columns' own types.
        ((code,),) = self._catalogue.query(
            f"SELECT {_code_sql(relation, order)} FROM (SELECT {', '.join(names)} FROM {table} WHERE false"
            f" UNION ALL SELECT {literals}) of_key"
        )
        return int(code)


def _code_sql(relation: Relation, order: Sequence[int]) -> str:
    """Return the SQL of a row's hash code. Raises: HashedColumnGone."""
    names = {column.number: column.name for column in relation.columns}
    if not names.keys() >= set(order):
        raise HashedColumnGone(
            f"the key of {relation.name} has other columns than when its reading began",
            table=relation.name,
        )
    return f"yb_hash_code({', '.join(sql_name(names[number]) for number in order)})"


def _within(code: str, low: int, high: int) -> list[str]:
    return [f"{code} >= {low}", f"{code} < {high}"]
