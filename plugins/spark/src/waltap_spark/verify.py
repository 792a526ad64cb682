"""Does Spark hold what the source holds? Row counts and a content hash of every table, on both sides.

The source is read in one snapshot, the tables at one commit. The hash is the sum of a hash of each
row, so that neither side has to sort; see `waltap_spark.canonical` for the text it is made of.
"""

import logging
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from waltap_spark.canonical import Expressions, expressions, source_row_hash, spark_row_hash
from waltap_spark.errors import TableUnknown
from waltap_spark.live import LiveTables

if TYPE_CHECKING:
    from psycopg import Connection
    from rich.table import Table

__all__ = ["Comparison", "compare", "comparison_table"]

log = logging.getLogger(__name__)

COLUMNS = """
    WITH RECURSIVE base AS (
        SELECT t.oid, t.oid AS root, t.typtype, t.typbasetype, t.typname FROM pg_type t
        UNION ALL
        SELECT b.oid, d.root, b.typtype, b.typbasetype, b.typname
        FROM base d JOIN pg_type b ON b.oid = d.typbasetype WHERE d.typtype = 'd'
    )
    SELECT a.attname::text, base.typname::text
    FROM pg_attribute a JOIN base ON base.root = a.atttypid AND base.typtype <> 'd'
    WHERE a.attrelid = %s::regclass AND a.attnum > 0 AND NOT a.attisdropped
    ORDER BY a.attnum
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Comparison:
    """One table on both sides. ``left_out``: columns that have no common text to compare by."""

    table: str
    source_rows: int
    spark_rows: int
    source_hash: str
    spark_hash: str
    left_out: tuple[str, ...] = ()

    @property
    def equal(self) -> bool:
        """Tell whether both sides hold the same rows."""
        return (self.source_rows, self.source_hash) == (self.spark_rows, self.spark_hash)


def compare(
    connection: "Connection[Any]", tables: LiveTables, names: Sequence[str] | None = None
) -> list[Comparison]:
    """Compare ``names`` (default: all tables that Spark has) in the source with Spark's.

    ``connection`` is idle and not in a transaction; all tables are read in one snapshot of it.
    """
    chosen = list(names) if names is not None else tables.names
    with connection.transaction():
        connection.execute("SET TRANSACTION ISOLATION LEVEL REPEATABLE READ, READ ONLY")
        connection.execute("SET LOCAL TIME ZONE 'UTC'")
        return [_compare(connection, tables, name) for name in chosen]


def _compare(connection: "Connection[Any]", tables: LiveTables, name: str) -> Comparison:
    from psycopg import sql

    schema, _, table = name.rpartition(".")
    identifier = sql.Identifier(schema, table)
    columns = connection.execute(COLUMNS, [identifier.as_string(connection)]).fetchall()
    try:
        frame = tables.current(name)
    except TableUnknown:
        frame = None
    kinds = {} if frame is None else {f.name: f.dataType.json() for f in frame.schema.fields}
    pairs: list[Expressions] = []
    left_out = []
    for column, pg_type in columns:
        if column not in kinds:  # Spark has not seen a row with it: all of its values are null
            pairs.append((f"{_quoted(column)}::text", "cast(null as string)"))
            continue
        pair = expressions(column, pg_type, kinds[column])
        if pair is None:
            left_out.append(column)
        else:
            pairs.append(pair)
    query = sql.SQL("SELECT count(*), {} FROM {}").format(
        sql.SQL(source_row_hash([source for source, _ in pairs])),
        identifier,
    )
    source = connection.execute(query).fetchone()
    assert source is not None
    if frame is None:
        spark: Any = (0, "0")
    else:
        # texts first: Spark wants no non-deterministic method, as it calls Java's, in a sum
        texts = frame.selectExpr(*(f"{text} AS t{n}" for n, (_, text) in enumerate(pairs)))
        hashed = spark_row_hash([f"t{n}" for n in range(len(pairs))])
        spark = texts.selectExpr("count(1)", hashed).first()
    return Comparison(
        table=name,
        source_rows=source[0],
        spark_rows=spark[0],
        source_hash=_short(source[1]),
        spark_hash=_short(spark[1]),
        left_out=tuple(left_out),
    )


def _quoted(name: str) -> str:
    return '"' + name.replace('"', '""') + '"'


def _short(total: str) -> str:
    return f"{int(total) % (1 << 64):016x}"


def comparison_table(found: Sequence[Comparison]) -> "Table":
    """Return the comparison for a terminal."""
    from rich.table import Table

    table = Table(title="source and Spark, row by row")
    table.add_column("table")
    for title in ("rows in PostgreSQL", "rows in Spark"):
        table.add_column(title, justify="right")
    for title in ("content hash in PostgreSQL", "content hash in Spark", ""):
        table.add_column(title)
    for each in found:
        verdict = "[green]equal[/]" if each.equal else "[bold red]DIFFERENT[/]"
        if each.left_out:
            verdict += f" [yellow](without {', '.join(each.left_out)})[/]"
        table.add_row(
            each.table,
            f"{each.source_rows:,}",
            f"{each.spark_rows:,}",
            each.source_hash,
            each.spark_hash,
            verdict,
        )
    return table
