"""Does Spark hold what the source holds? Row counts and a content hash of every table, on both sides.

The source is read in one snapshot, the tables at one commit. The hash is the sum of a hash of each
row, so that neither side has to sort; see `waltap_spark.canonical` for the text it is made of.
"""

import logging
from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from waltap_sinks.comparison import (
    Comparison,
    keys_shown,
    row_text,
    short_hash,
    source_row_hash,
)
from waltap_spark.canonical import Expressions, expressions, spark_row_hash
from waltap_spark.errors import TableUnknown
from waltap_spark.live import LiveTables

if TYPE_CHECKING:
    from psycopg import Connection

__all__ = ["compare"]

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
    identifier: Any = sql.Identifier(schema, table)
    written = identifier.as_string(connection)
    columns = connection.execute(COLUMNS, [written]).fetchall()
    partitioned = "SELECT FROM pg_class WHERE oid = %s::regclass AND relkind = 'p'"
    if connection.execute(partitioned, [written]).fetchone() is None:
        identifier = sql.SQL("ONLY {}").format(identifier)  # heirs' rows are events of the heirs
    try:
        frame = tables.current(name)
    except TableUnknown:
        frame = None
    kinds = {} if frame is None else {f.name: f.dataType.json() for f in frame.schema.fields}
    pairs: dict[str, Expressions] = {}
    left_out = []
    state = tables.state
    known = None if state is None else state.tables.get(name)
    hidden = () if known is None else known.hidden
    for column, pg_type in columns:
        if column in hidden:
            left_out.append(column)
            continue
        if column not in kinds:  # Spark has not seen a row with it: all of its values are null
            pairs[column] = (f"{_quoted(column)}::text", "cast(null as string)")
            continue
        pair = expressions(column, pg_type, kinds[column])
        if pair is None:
            left_out.append(column)
        else:
            pairs[column] = pair
    query = sql.SQL("SELECT count(*), {} FROM {}").format(
        sql.SQL(source_row_hash([source for source, _ in pairs.values()])),
        identifier,
    )
    source = connection.execute(query).fetchone()
    assert source is not None
    if frame is None:
        spark: Any = (0, "0")
    else:
        # texts first: Spark wants no non-deterministic method, as it calls Java's, in a sum
        texts = frame.selectExpr(*(f"{text} AS t{n}" for n, (_, text) in enumerate(pairs.values())))
        hashed = spark_row_hash([f"t{n}" for n in range(len(pairs))])
        spark = texts.selectExpr("count(1)", hashed).first()
    found = Comparison(
        table=name,
        source_rows=source[0],
        target_rows=spark[0],
        source_hash=short_hash(source[1]),
        target_hash=short_hash(spark[1]),
        left_out=tuple(left_out),
    )
    key = () if known is None else known.key
    if found.equal or frame is None or not key or not all(part in pairs for part in key):
        return found
    return examples(connection, identifier, frame, pairs, key, found)


BUCKETS_SHOWN = 8
Row = tuple[str | None, ...]


def examples(
    connection: "Connection[Any]",
    identifier: Any,
    frame: Any,
    pairs: dict[str, Expressions],
    key: Sequence[str],
    found: Comparison,
) -> Comparison:
    """Return ``found`` with columns and keys that differ.

    Rows are counted by 4,096 buckets of their key on both sides; only buckets that differ are
    fetched, some of them, and compared row by row.
    """
    from psycopg import sql

    names = [*key, *(name for name in pairs if name not in key)]
    ours = frame.selectExpr(*(f"{pairs[name][1]} AS t{n}" for n, name in enumerate(names)))
    spark_key = row_text([f"t{n}" for n in range(len(key))])
    ours = ours.selectExpr("*", f"substr(md5(encode({spark_key}, 'UTF-8')), 1, 3) AS bucket")
    source_key = row_text([pairs[name][0] for name in key])
    bucket = f"substr(md5(convert_to({source_key}, 'UTF8')), 1, 3)"
    texts = [pairs[name][0] for name in names]
    query = sql.SQL("SELECT {}, count(*), {} FROM {} GROUP BY 1").format(
        sql.SQL(bucket), sql.SQL(source_row_hash(texts)), identifier
    )
    source_sums = {row[0]: tuple(row[1:]) for row in connection.execute(query)}
    hashed = spark_row_hash([f"t{n}" for n in range(len(names))])
    grouped = ours.groupBy("bucket").agg(*_aggregates(hashed))
    spark_sums = {row[0]: (row[1], row[2]) for row in grouped.collect()}
    differing = sorted(
        each
        for each in source_sums.keys() | spark_sums.keys()
        if source_sums.get(each) != spark_sums.get(each)
    )[:BUCKETS_SHOWN]
    query = sql.SQL("SELECT {} FROM {} WHERE {} = ANY(%s)").format(
        sql.SQL(", ".join(texts)), identifier, sql.SQL(bucket)
    )
    there = {row[: len(key)]: row for row in connection.execute(query, [differing])}
    here_rows = ours.where(ours["bucket"].isin(differing)).drop("bucket").collect()
    here = {tuple(row)[: len(key)]: tuple(row) for row in here_rows}
    both = sorted((k for k in there.keys() & here.keys() if there[k] != here[k]), key=str)
    columns = [name for n, name in enumerate(names) if any(there[k][n] != here[k][n] for k in both)]

    return replace(
        found,
        columns=tuple(columns),
        missing=keys_shown(key, there.keys() - here.keys()),
        surplus=keys_shown(key, here.keys() - there.keys()),
        changed=keys_shown(key, both),
    )


def _aggregates(hashed: str) -> "list[Any]":
    from pyspark.sql import functions as F  # noqa: N812 - as everybody calls it

    return [F.count(F.lit(1)).alias("rows"), F.expr(hashed).alias("hash")]


def _quoted(name: str) -> str:
    return '"' + name.replace('"', '""') + '"'
