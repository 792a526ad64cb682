"""A truncate that no server sent: rows whose past is kept end when a snapshot finds their table empty, or
when another table takes its name. And the rows that a part of a snapshot lacks, and does not end."""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from functools import reduce
from typing import TYPE_CHECKING, Literal

from waltap.files.store import Store
from waltap_spark.expression import column_of
from waltap_spark.formats import Brought, Step
from waltap_spark.log_rows import logged, logged_types
from waltap_spark.output import Output, TableState
from waltap_spark.plan import Group
from waltap_spark.schema import log_struct
from waltap_spark.settle import of_touched_keys
from waltap_spark.wide_decimals import make_readable

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

__all__ = ["Spared", "ending", "spared"]


@dataclass(frozen=True)
class Spared:
    """Keys that a snapshot has in ``groups`` behind the first, which ends what it lacks: not those."""

    keys: "DataFrame"
    groups: Sequence[Group]

    def of(
        self, base: "DataFrame", key: Sequence[str], how: Literal["left_semi", "left_anti"]
    ) -> "DataFrame":
        """Return the rows of ``base`` under these keys, or all others (``left_anti``)."""
        return of_touched_keys(base, key, self.keys, self.groups, how)


def spared(
    step: Step, table: TableState, group: Group, rows: "DataFrame", files: Store, output: Output
) -> Spared | None:
    """Return what ``group``, whose rows are ``rows``, is not to end of ``table``, None where all of its
    snapshot is in it."""
    others = [each for each in group.others if each.key == group.key]
    if not others or not table.key:
        return None
    frames = []
    for each in others:
        make_readable(files, output, each, lambda: step.path(table, "changes"))
        types = logged_types(step.spark, files, each)
        types = {name: types[name] for name in each.key}
        frames.append(logged(step.spark, files, each, types).select(*map(column_of, each.key)))
    keys = reduce(lambda one, other: one.unionByName(other), frames)
    return Spared(of_touched_keys(keys, table.key, rows, [group], "left_anti"), others)


def ending(
    step: Step,
    table: TableState,
    group: Group,
    rows: "DataFrame | None",
    at_us: int,
    files: Store,
) -> Brought:
    """Return a truncate that stands before ``rows``, those of ``group``; without any it stands where the
    snapshot does that found none. ``at_us``: a time (µs since 1970), where nobody knows that one."""
    from pyspark.sql import functions as F  # noqa: N812 - as everybody calls it

    position = None
    if rows is not None:
        position = rows.selectExpr(
            "min(struct(_commit_lsn, cast(unix_micros(_commit_ts) as bigint) as at)) as first"
        ).first()
    if position is not None and position["first"] is not None:
        lsn, at = position["first"]["_commit_lsn"], position["first"]["at"]
    else:
        lsn, ts = group.at or ((group.until or step.mark).end_lsn, None)
        at = at_us if ts is None else ts
    fingerprint = next(reversed(table.versions))
    names = [*table.versions[fingerprint]]
    frame = step.spark.range(1).selectExpr(
        "'t' as _op",
        f"{lsn}L as _commit_lsn",
        "-3 as _seq",
        "cast(0 as byte) as _sub",
        f"{lsn}L as _lsn",
        f"timestamp_micros({at}) as _commit_ts",
        "cast(null as long) as _xid",
        "cast(null as array<string>) as _unchanged",
        f"{group.epoch} as _epoch",
    )
    struct = log_struct(table.versions[fingerprint])
    kinds = {field.name: field.dataType for field in struct.fields}
    frame = frame.select(
        *(F.lit(None).cast(kinds[name]).alias(name) for name in names),
        *(column_of(field.name) for field in struct.fields if field.name not in names),
    )
    made = Group(
        fingerprint,
        group.epoch,
        table.key,
        group.columns,
        oid=group.oid,
        rows=1,
        operations=Counter(t=1),
        until=group.until,
    )
    return Brought(group=made, read=lambda: frame, files=files)
