"""Ranges of a table by the hash of its key.

YugabyteDB distributes rows over tablets by this hash. Source: YugabyteDB documentation,
``yb_hash_code``; yugabyte-db, ``pg_index.h`` (``INDOPTION_HASH``).
"""

from itertools import pairwise

from waltap.decode.relation import Relation
from waltap_postgres.catalog.catalogue import PostgresCatalogue
from waltap_postgres.replication.publication import identifier
from waltap_postgres.snapshot.plan import KeyRange, Range, SnapshotPlanner, TableSize
from waltap_postgres.snapshot.transaction import CatalogShape, ReadingTransaction, SnapshotTable
from waltap_yugabyte.properties import HASH_CODES, YugabyteProperties

__all__ = ["HashPlanner", "HashRange", "hash_columns", "hash_condition"]

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
        names = ", ".join(identifier(shape.columns[number][0]) for number in self.columns)
        return hash_condition(names, self.low, self.high)


def hash_condition(names: str, low: int, high: int) -> str:
    """Return the SQL condition of a range.

    ``names`` are the hashed columns.
    """
    return f"yb_hash_code({names}) >= {low} AND yb_hash_code({names}) < {high}"


class HashPlanner(SnapshotPlanner):
    """Split tables whose primary key is hashed.

    Other tables are read in one piece, since rows have no ``ctid``.
    """

    def ranges(
        self, transaction: ReadingTransaction, target: SnapshotTable, size: TableSize, count: int
    ) -> tuple[Range, ...]:
        assert isinstance(self.properties, YugabyteProperties)
        columns = hash_columns(self.now, self.properties, target.table.relation)
        # One fetch reads such a table.
        small = 0 < target.table.estimate <= self.properties.snapshot_fetch_size
        if count < 2 or small or not columns:
            return ()
        bounds = [HASH_CODES * number // count for number in range(count + 1)]
        return tuple(
            HashRange(columns=columns, after=None, up_to=None, low=low, high=high)
            for low, high in pairwise(bounds)
        )


def hash_columns(
    catalogue: PostgresCatalogue, properties: YugabyteProperties, relation: Relation
) -> tuple[int, ...]:
    """Return the numbers of the key's hashed columns.

    () means that the key has none.
    """
    if properties.hash_columns:
        numbers = {column.name: column.number for column in relation.columns}
        found = [numbers.get(name) for name in properties.hash_columns]
        return tuple(n for n in found if n is not None) if None not in found else ()
    rows = catalogue.query(HASH_COLUMNS_SQL, (relation.oid, HASHED))
    return tuple(number for (number,) in rows)
