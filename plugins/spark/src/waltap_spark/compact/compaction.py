"""Build Spark plans of changes, without starting jobs.

Rows are ordered by (`_epoch`, `_commit_lsn`, `_seq`, `_sub`). A value that the server did not
send (`_unchanged`) is the last value sent for that key, among the rows or else in the table.
"""

import functools
from collections.abc import Iterable, Mapping, Sequence
from typing import Final, Literal

from pyspark.sql import Column, DataFrame, Window
from pyspark.sql import functions as F  # noqa: N812 - as everybody calls it

from waltap_spark.planning.column_identity import file_column, first_type, older_value
from waltap_spark.planning.plan import LogFacts, unsent_columns
from waltap_spark.schema.expression import (
    EXACT,
    GONE,
    column_of,
    literal,
    order,
    sent,
    temp,
    unchanged_as,
)
from waltap_spark.schema.schema import (
    LOG_FIELDS,
    common_type,
    fitted,
    fitted_to,
    floating,
    sql_type,
    struct_of,
)
from waltap_spark.state.output import TableState

# Whether a key has a row after changes. `waltap_spark.compact.net_changes` has the same rule and its
# reasons. Spark needs it where rows are not compacted, but read: pending changes of Parquet tables, row
# versions, and views of histories.


TRANSACTION = ("_epoch", "_commit_lsn")
WITHIN = ("_seq", "_sub")


def alive_keys(key: Sequence[str], rows: DataFrame, base: DataFrame) -> DataFrame:
    """Return the keys that have a row after ``rows``."""
    names = [column_of(name) for name in key]
    steps = rows.groupBy(*names, *TRANSACTION).agg(verdict().alias(temp("verdict")))
    last = F.max_by(
        temp("verdict"), F.when(F.col(temp("verdict")).isNotNull(), F.struct(*TRANSACTION))
    )
    final = steps.groupBy(*names).agg(last.alias(temp("alive")))
    named = (name.alias(temp(f"at{n}")) for n, name in enumerate(names))
    here = base.select(*named, F.lit(True).alias(temp("was")))
    found = final.join(here, _match(key, temp("at")), "left")
    return found.where(F.coalesce(temp("alive"), temp("was"), F.lit(False))).select(*names)


def verdict() -> Column:
    """Return an aggregate: whether a key has a row afterwards.

    It aggregates the rows that a transaction has under one key. Null means as before the
    transaction.
    """
    more = F.count_if(F.col("_op") == "c") - F.count_if(F.col("_op") == "d")
    return (
        F.when(F.max_by("_op", F.struct(*WITHIN)) != "d", F.lit(True))
        .when(F.min_by("_op", F.struct(*WITHIN)) != "c", more >= 0)
        .when(more != 0, more > 0)
    )


def last_sent(names: Sequence[str]) -> list[Column]:
    """Return aggregates: each column's last sent value, as struct."""
    return [
        F.max_by(F.struct(column_of(name).alias("value")), F.when(sent(name), order())).alias(
            temp(f"sent{n}")
        )
        for n, name in enumerate(names)
    ]


def inserted() -> Column:
    """Return an aggregate: whether a transaction begins with an INSERT."""
    # The second half of a key change (`_sub` = 1) is an insert too, but no INSERT.
    return F.min_by((F.col("_op") == "c") & (F.col("_sub") == 0), F.struct(*WITHIN))


# Most changes whose keys Spark broadcasts instead of shuffling the base.
SMALL_ROWS: Final = 500_000


def widened(
    frame: DataFrame,
    table: TableState,
    has: Mapping[str, str],
    ids: Mapping[str, int],
    *,
    filled: bool,
    rest: Iterable[str] = LOG_FIELDS,
) -> DataFrame:
    """Return ``frame`` with the columns of ``table``, and the columns ``rest``.

    ``has`` are the types of the frame's columns, ``ids`` their numbers. The result has the
    table's names and types. A missing column is null, or (``filled``) the value of older rows.
    """
    kinds = {field.name: field.dataType for field in struct_of(table.columns).fields}
    columns = []
    called: dict[str, str] = {}
    for name, kind in table.columns.items():
        stored = file_column(table, has, ids, name)
        if stored is None:
            text = older_value(table, ids, name) if filled else None
            column = F.lit(None).cast(kinds[name])
            if text is not None:
                had = first_type(table, name)
                column = fitted(F.expr(literal(text, sql_type(had))), had, kind)
        elif has[stored] == kind:
            column = column_of(stored)
        elif common_type(has[stored], kind) is None and kind != '"string"':
            # the column changed to an unrelated type: values that do not fit become null
            column = fitted(column_of(stored), has[stored], kind, lenient=True)
        else:
            column = fitted(column_of(stored), has[stored], kind)
        columns.append(column.alias(name))
        if stored is not None and stored != name:
            # `_unchanged` has the file's names and needs the table's
            called[stored] = name
    columns += [
        F.expr(unchanged_as(called)).alias(name)
        if name == "_unchanged" and called
        else column_of(name)
        for name in rest
    ]
    return frame.select(*columns)


def with_source(frame: DataFrame, table: TableState, columns: Mapping[str, str]) -> DataFrame:
    """Return rows of ``table`` with their source column.

    Columns in ``columns`` get the types there. Columns that the server generates are left out.
    """
    assert table.place is not None
    own = {
        each.name: each.dataType.json() for each in frame.schema if each.name not in table.hidden
    }
    alike = fitted_to(frame, {name: columns.get(name, kind) for name, kind in own.items()})
    return alike.withColumn(table.place.column, F.lit(table.place.source))


def after_last_truncate(rows: DataFrame) -> DataFrame:
    """Return the ``rows`` after the last truncate."""
    truncated = temp("truncated")
    last = rows.where("_op = 't'").agg(F.max(order()).alias(truncated))
    return rows.crossJoin(F.broadcast(last)).where(order() > F.col(truncated)).drop(truncated)


def of_touched_keys(
    base: DataFrame,
    key: Sequence[str],
    rows: DataFrame,
    changes: Sequence[LogFacts],
    how: Literal["left_semi", "left_anti"],
) -> DataFrame:
    """Return the rows of ``base`` with keys of ``rows``."""
    own = temp("key")
    keys = rows.select(*map(column_of, key)).distinct()
    keys = keys.select(*(column_of(name).alias(f"{own}{n}") for n, name in enumerate(key)))
    small = sum(change.rows for change in changes) <= SMALL_ROWS
    return base.join(F.broadcast(keys) if small else keys, _match(key, own), how)


def compacted(
    table: TableState, changes: Sequence[LogFacts], rows: DataFrame, base: DataFrame
) -> DataFrame:
    """Compact pending changes to one row per key for readers.

    These have no changed keys and no truncates: `waltap_spark.compact.compact_changes` compacts a
    Parquet table after such changes. Each row has the final values of the table's columns and of
    its mode's columns, and `GONE`. ``changes`` describes the rows; ``base`` has the table before
    them.
    """
    key = list(table.key)
    partial = unsent_columns(table, changes)
    own = [*table.columns, *table.mode.extra]
    always = [name for name in own if name not in key and name not in partial]
    zeros = floating(table.columns, key)
    key_reused = any(change.key_reused for change in changes)
    # a delete may follow the insert of its key in one transaction, and the row still exists
    when = F.when(F.col("_op") != "d", order()) if key_reused else order()
    names_of_values = dict.fromkeys(["_op", *always, *zeros])  # rows may have the log's _op, too
    wanted = [F.max_by(F.struct(*map(column_of, names_of_values)), when).alias(temp("last"))]
    wanted += last_sent(partial)
    last = rows.groupBy(*map(column_of, key)).agg(*wanted)
    if key_reused:
        live = alive_keys(key, rows, base)
        named = [column_of(name).alias(temp(f"alive{n}")) for n, name in enumerate(key)]
        live = live.select(*named, F.lit(True).alias(temp("exists")))
        last = last.join(live, _match(key, temp("alive")), "left")
        gone = F.col(temp("exists")).isNull()
    else:
        gone = F.col(f"{temp('last')}._op") == "d"
    last = last.withColumn(GONE, gone)
    if partial:
        # only unsent values need the base
        before = of_touched_keys(base, key, rows, changes, "left_semi").select(
            *(column_of(name).alias(temp(f"was{n}")) for n, name in enumerate(key)),
            *(column_of(name).alias(temp(f"base{n}")) for n, name in enumerate(partial)),
        )
        last = last.join(before, _match(key, temp("was")), "left")
    values = []
    for name in own:
        if name in zeros:
            # 0 and -0 are one key: the row's own zero is stored, not the group's
            there = F.col(temp("last")).getField(name)
            values.append(F.coalesce(there, column_of(name)).alias(name))
        elif name in key:
            values.append(column_of(name))
        elif name in partial:
            number = partial.index(name)
            brought, base_value = F.col(temp(f"sent{number}")), F.col(temp(f"base{number}"))
            values.append(
                F.when(brought.isNotNull(), brought["value"]).otherwise(base_value).alias(name)
            )
        else:
            values.append(F.col(temp("last")).getField(name).alias(name))
    return last.select(*values, GONE)


def _match(key: Sequence[str], other: str) -> Column:
    """Return the condition that a key equals ``other`` 0, 1, …."""
    # a key value that the column cannot hold is stored as null
    same = [column_of(name).eqNullSafe(F.col(f"{other}{n}")) for n, name in enumerate(key)]
    return functools.reduce(lambda one, two: one & two, same)


def copies(
    table: TableState, changes: Sequence[LogFacts], base: DataFrame, rows: DataFrame
) -> DataFrame:
    """Return ``base`` with added ``rows``, and without deleted ones.

    Each delete removes one equal row. Rows are equal when the columns that changes report are
    equal (`TableState.comparable`).
    """
    names = list(table.columns)
    own = [column_of(name) for name in names]
    # inserts alone need no comparison of rows
    if all("d" not in change.operations for change in changes):
        return base.unionByName(rows.where("_op <> 't'").select(*own))
    called = temp("weight")
    weight = F.when(F.col("_op") == "d", F.lit(-1)).otherwise(F.lit(1)).alias(called)
    signed = base.select(*own, F.lit(1).alias(called)).unionByName(
        rows.where("_op <> 't'").select(*own, weight)
    )
    # Rows that are equal may differ in columns that changes no longer report: those with values there
    # are kept first.
    place, count, compared = temp("place"), temp("count"), table.comparable
    alike = Window.partitionBy(*(distinguishing(name, kind) for name, kind in compared.items()))
    others = {name: kind for name, kind in table.columns.items() if name not in compared}
    first = [distinguishing(name, kind).desc_nulls_last() for name, kind in others.items()]
    found = signed.select(
        "*",
        F.row_number().over(alike.orderBy(F.desc(called), *first)).alias(place),
        F.sum(called).over(alike).alias(count),
    )
    return found.where((F.col(called) > 0) & (F.col(place) <= F.col(count))).select(*own)


def distinguishing(name: str, kind: str) -> Column:
    """Return the expression that groups equal values.

    Floating point becomes text, in which 0 and -0 differ. Maps become JSON, because Spark does
    not compare maps.
    """
    column = column_of(name)
    if '"map"' in kind:
        return F.to_json(column, EXACT)
    return column.cast("string") if kind in ('"float"', '"double"') else column
