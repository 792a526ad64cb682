"""Rows that one part of a snapshot lacks because another part has them."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import reduce
from typing import Literal

from pyspark.sql import DataFrame

from waltap.base.files.store import FileStore
from waltap_spark.compact.compaction import of_touched_keys
from waltap_spark.compact.log_rows import logged, logged_types
from waltap_spark.planning.plan import SegmentGroup
from waltap_spark.planning.wide_decimals import make_readable
from waltap_spark.schema.expression import column_of
from waltap_spark.state.output import SparkOutput, TableState


@dataclass(frozen=True)
class RetainedKeys:
    """Keys in later groups of a snapshot.

    The first group removes the table's rows that it lacks, except these.
    """

    keys: DataFrame
    groups: Sequence[SegmentGroup]

    def of(
        self, base: DataFrame, key: Sequence[str], how: Literal["left_semi", "left_anti"]
    ) -> DataFrame:
        """Return rows of ``base`` with these keys, or the others."""
        return of_touched_keys(base, key, self.keys, self.groups, how)


def spared(
    table: TableState,
    group: SegmentGroup,
    rows: DataFrame,
    files: FileStore,
    output: SparkOutput,
    path: Callable[[TableState, Literal["changes"]], str],
) -> RetainedKeys | None:
    """Return the keys that ``group`` must not remove from ``table``.

    ``rows`` are the group's rows. None means that the group is the whole snapshot. ``path``
    returns a folder of ``output`` for segments that Spark must have converted.
    """
    others = [each for each in group.others if each.key == group.key]
    if not others or not group.key:
        return None
    frames = []
    for each in others:
        make_readable(files, output, each, lambda: path(table, "changes"))
        types = logged_types(rows.sparkSession, files, each)
        types = {name: types[name] for name in each.key}
        frames.append(
            logged(rows.sparkSession, files, each, types).select(*map(column_of, each.key))
        )
    keys = reduce(lambda one, other: one.unionByName(other), frames)
    return RetainedKeys(of_touched_keys(keys, group.key, rows, [group], "left_anti"), others)
