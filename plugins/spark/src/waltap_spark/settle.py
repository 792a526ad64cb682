"""What changes come to: the last row of every key, with the values that the server did not send.

Rows are put in order by (`_epoch`, `_commit_lsn`, `_seq`, `_sub`). A value that the server did not
send (`_unchanged`) is the last one sent for that key, among the rows or else in what the table held.
This comes before every table format, so that all of them store the same rows. But for rows that moved
(`waltap_spark.moves`), nothing here starts a Spark job.
"""

import functools
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Final

import msgspec

from waltap_spark.column_identity import file_column, older_value
from waltap_spark.expression import EXACT, column_of, order, sent, the_same
from waltap_spark.moves import alive_keys, settle_moves
from waltap_spark.nested import fitted
from waltap_spark.schema import LOG_FIELDS, common_type, struct_of

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame

    from waltap_spark.output import Facts, TableState

__all__ = [
    "GONE",
    "after_last_truncate",
    "copies",
    "distinguishing",
    "match",
    "settled",
    "touched_keys",
    "widened",
    "with_moves",
    "with_names",
    "with_source",
]

GONE: Final = "__waltap_gone"
"""Column of settled rows: whether there is no row under the key after the changes."""

ERA: Final = "__waltap_era"
"""How many truncates were before a row."""

SMALL_ROWS: Final = 500_000


# --- columns ------------------------------------------------------------------------------------------


def widened(
    frame: "DataFrame",
    table: "TableState",
    has: Mapping[str, str],
    ids: Mapping[str, int],
    *,
    log: bool = True,
    filled: bool,
    more: Sequence[str] = (),
) -> "DataFrame":
    """Return ``frame``, whose columns are ``has`` by the numbers ``ids``, with those of ``table``: by
    their present names, cast where it has a narrower one, and where it has none null, or what older
    rows have (``filled``). ``log``: the change log's own columns follow; ``more``: these do."""
    from pyspark.sql import functions as F  # noqa: N812 - as everybody calls it

    kinds = {field.name: field.dataType for field in struct_of(table.columns).fields}
    columns = []
    called: dict[str, str] = {}
    for name, kind in table.columns.items():
        stored = file_column(table, has, ids, name)
        if stored is None:
            text = older_value(table, ids, name) if filled else None
            column = F.unhex(F.lit(text)) if kind == '"binary"' else F.lit(text).cast(kinds[name])
        elif has[stored] == kind:
            column = column_of(stored)
        elif common_type(has[stored], kind) is None and kind != '"string"':
            column = fitted(column_of(stored), has[stored], kind, lenient=True)
        else:
            column = fitted(column_of(stored), has[stored], kind)
        columns.append(column.alias(name))
        if stored is not None and stored != name:
            called[stored] = name
    if log:
        columns += [
            _unchanged_as(called) if name == "_unchanged" and called else column_of(name)
            for name in LOG_FIELDS
        ]
    return frame.select(*columns, *map(column_of, more))


def with_names(rows: "DataFrame", names: Mapping[str, str]) -> "DataFrame":
    """Return ``rows`` of the change log with other ``names`` (old → new) of columns."""
    return rows.select(
        *(
            _unchanged_as(names)
            if name == "_unchanged"
            else column_of(name).alias(names.get(name, name))
            for name in rows.columns
        )
    )


def _unchanged_as(names: Mapping[str, str]) -> "Column":
    """Return `_unchanged` with ``names`` (old → new) of columns."""
    from pyspark.sql import functions as F  # noqa: N812

    def present(name: "Column") -> "Column":
        found = name
        for old, new in names.items():
            found = F.when(name == F.lit(old), F.lit(new)).otherwise(found)
        return found

    return F.transform("_unchanged", present).alias("_unchanged")


def with_source(frame: "DataFrame", table: "TableState", columns: Mapping[str, str]) -> "DataFrame":
    """Return ``frame``, rows of ``table``, with the source that they are of, and with ``columns`` by their
    types there, as far as it has them. Those that the server computes are left out."""
    from pyspark.sql import functions as F  # noqa: N812

    assert table.place is not None
    return frame.select(
        *(
            fitted(column_of(name), table.columns[name], columns[name]).alias(name)
            if columns.get(name, "") != table.columns.get(name, "")
            else column_of(name)
            for name in frame.columns
            if name not in table.hidden
        ),
        F.lit(table.place.source).alias(table.place.column),
    )


# --- rows with a key ----------------------------------------------------------------------------------


def after_last_truncate(rows: "DataFrame") -> "DataFrame":
    """Return those of ``rows`` that came after the last truncate among them."""
    from pyspark.sql import functions as F  # noqa: N812

    last = rows.where("_op = 't'").agg(F.max(order()).alias("__waltap_truncated"))
    return (
        rows.crossJoin(F.broadcast(last))
        .where(order() > F.col("__waltap_truncated"))
        .drop("__waltap_truncated")
    )


def touched_keys(key: Sequence[str], rows: "DataFrame", changes: "Sequence[Facts]") -> "DataFrame":
    """Return the keys of ``rows``, each once, as the columns ``__key`` 0, 1, …"""
    from pyspark.sql import functions as F  # noqa: N812

    keys = rows.select(*map(column_of, key)).distinct()
    keys = keys.select(*(column_of(name).alias(f"__key{n}") for n, name in enumerate(key)))
    small = sum(change.rows for change in changes) <= SMALL_ROWS
    return F.broadcast(keys) if small else keys


def settled(
    table: "TableState", changes: "Sequence[Facts]", rows: "DataFrame", base: "DataFrame"
) -> "DataFrame":
    """Return one row for each key of ``rows``: the table's columns as they are after all of them (and
    those that its mode adds), and `GONE`. ``changes`` is what is known of the rows, ``base`` what the
    table held before them."""
    from pyspark.sql import functions as F  # noqa: N812

    key = list(table.key)
    partial = [name for change in changes for name in change.unchanged]
    partial = [name for name in dict.fromkeys(partial) if name not in key]
    own = [*table.columns, *table.mode.extra]
    whole = [name for name in own if name not in key and name not in partial]
    crossed = any(change.crossed for change in changes)
    when = F.when(F.col("_op") != "d", order()) if crossed else order()
    wanted = [F.max_by(F.struct("_op", *map(column_of, whole)), when).alias("__last")]
    wanted += [
        F.max_by(F.struct(column_of(name).alias("value")), F.when(sent(name), order())).alias(
            f"__sent{n}"
        )
        for n, name in enumerate(partial)
    ]
    last = rows.groupBy(*map(column_of, key)).agg(*wanted)
    if crossed:
        standing = alive_keys(key, rows, base)
        named = [column_of(name).alias(f"__alive{n}") for n, name in enumerate(key)]
        standing = standing.select(*named, F.lit(True).alias("__stands"))
        last = last.join(standing, match(key, "__alive"), "left")
        gone = F.col("__stands").isNull()
    else:
        gone = F.col("__last._op") == "d"
    last = last.withColumn(GONE, gone)
    if partial:
        before = base.join(
            touched_keys(key, rows, changes), match(key, "__key"), "left_semi"
        ).select(
            *(column_of(name).alias(f"__was{n}") for n, name in enumerate(key)),
            *(column_of(name).alias(f"__base{n}") for n, name in enumerate(partial)),
        )
        last = last.join(before, match(key, "__was"), "left")
    values = []
    for name in own:
        if name in key:
            values.append(column_of(name))
        elif name in partial:
            number = partial.index(name)
            brought, held = F.col(f"__sent{number}"), F.col(f"__base{number}")
            values.append(F.when(brought.isNotNull(), brought["value"]).otherwise(held).alias(name))
        else:
            values.append(F.col("__last").getField(name).alias(name))
    return last.select(*values, GONE)


def with_moves(
    table: "TableState", changes: "Sequence[Facts]", rows: "DataFrame", base: "DataFrame"
) -> "DataFrame":
    """Return ``rows`` in which those that got a new key have what they kept from under their old one."""
    told = [name for change in changes if change.moved for name in change.unchanged]
    names = [name for name in dict.fromkeys(told) if name not in table.key]
    if not names:
        return rows
    crossed = any(change.crossed for change in changes)
    # names of the source that might be those of columns that are made on the way
    aside = {name: f"__waltap {n}" for n, name in enumerate(table.columns) if name.startswith("_")}
    called = [aside.get(name, name) for name in names]
    columns = {aside.get(name, name): kind for name, kind in table.columns.items()}
    key = tuple(aside.get(name, name) for name in table.key)
    asked = [*table.key, *names]
    here = base.select(*(column_of(name).alias(aside.get(name, name)) for name in asked))
    found = with_names(rows, aside) if aside else rows
    if any("t" in change.operations for change in changes):
        found, here, key = *_parted(found, here), (ERA, *key)
        columns = {ERA: '"integer"', **columns}
    like = msgspec.structs.replace(table, columns=columns, key=key)
    found = settle_moves(like, found, here, called, crossed=crossed)
    found = with_names(found, {new: name for name, new in aside.items()}) if aside else found
    return found.select(*map(column_of, [*table.columns, *LOG_FIELDS]))


def _parted(rows: "DataFrame", base: "DataFrame") -> "tuple[DataFrame, DataFrame]":
    """Return both with `ERA`, a part of the key: a row that is put under a key behind a truncate is not
    the one that was there before."""
    from pyspark.sql import functions as F  # noqa: N812

    truncates = rows.where("_op = 't'").agg(F.array_agg(order()).alias("__truncates"))
    era = F.size(F.filter("__truncates", lambda at: at < order()))
    parted = rows.crossJoin(F.broadcast(truncates)).withColumn(ERA, era).drop("__truncates")
    return parted, base.withColumn(ERA, F.lit(0))


def match(key: Sequence[str], other: str) -> "Column":
    """Return the condition that the key is that of the columns ``other`` 0, 1, …"""
    from pyspark.sql import functions as F  # noqa: N812

    same = [the_same(column_of(name), F.col(f"{other}{n}")) for n, name in enumerate(key)]
    return functools.reduce(lambda one, two: one & two, same)


# --- rows without a key -------------------------------------------------------------------------------


def copies(
    table: "TableState", changes: "Sequence[Facts]", base: "DataFrame", rows: "DataFrame"
) -> "DataFrame":
    """Return ``base`` with ``rows`` added, and one equal row less for every deleted one."""
    from pyspark.sql import functions as F  # noqa: N812

    names = list(table.columns)
    own = [column_of(name) for name in names]
    if all("d" not in change.operations for change in changes):
        return base.unionByName(rows.where("_op <> 't'").select(*own))
    weight = F.when(F.col("_op") == "d", F.lit(-1)).otherwise(F.lit(1)).alias("__waltap_weight")
    signed = base.select(*own, F.lit(1).alias("__waltap_weight")).unionByName(
        rows.where("_op <> 't'").select(*own, weight)
    )
    alike = [
        distinguishing(name, kind).alias(f"_group {n}")
        for n, (name, kind) in enumerate(table.columns.items())
    ]
    groups = signed.groupBy(*alike).agg(
        F.first(F.struct(*own)).alias("_row"), F.sum("__waltap_weight").alias("_count")
    )
    found = groups.where("_count > 0").select(
        "_row", F.explode(F.sequence(F.lit(1), F.col("_count").cast("int")))
    )
    return found.select(*(F.col("_row").getField(name).alias(name) for name in names))


def distinguishing(name: str, kind: str) -> "Column":
    """Return what to group equal values by: floating point as text, for which 0 and -0 differ; what has
    maps in it, which Spark does not compare, as JSON."""
    from pyspark.sql import functions as F  # noqa: N812

    column = column_of(name)
    if '"map"' in kind:
        return F.to_json(column, EXACT)
    return column.cast("string") if kind in ('"float"', '"double"') else column
