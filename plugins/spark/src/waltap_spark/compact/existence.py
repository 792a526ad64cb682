"""Whether a key has a row after changes, as Spark expressions.

`waltap_spark.compact.net_changes` has the same rule and its reasons. Spark needs it where rows are not
compacted, but read: pending changes of Parquet tables, row versions, and views of histories.
"""

import functools
from collections.abc import Sequence

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F  # noqa: N812 - as everybody calls it

from waltap_spark.schema.expression import column_of, temp, the_same

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
    at = [temp(f"at{n}") for n in range(len(key))]
    named = (name.alias(own) for name, own in zip(names, at, strict=True))
    here = base.select(*named, F.lit(True).alias(temp("was")))
    same = (the_same(name, column_of(own)) for name, own in zip(names, at, strict=True))
    found = final.join(here, functools.reduce(lambda one, other: one & other, same), "left")
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


def inserted() -> Column:
    """Return an aggregate: whether a transaction begins with an INSERT."""
    # The second half of a key change (`_sub` = 1) is an insert too, but no INSERT.
    return F.min_by((F.col("_op") == "c") & (F.col("_sub") == 0), F.struct(*WITHIN))
