"""Truncates that no server sent, and columns of a table whose name another took.

Rows of a table with history end when a snapshot finds the table empty, or when another table takes its
name.
"""

from collections import Counter
from collections.abc import Mapping
from typing import Final

from pyspark.sql import DataFrame
from pyspark.sql import functions as F  # noqa: N812 - as everybody calls it

from waltap.base.files.store import FileStore
from waltap_spark.formats.table_format import CommitContext, GroupRows, TableChange, TableFormat
from waltap_spark.planning.column_identity import former_columns_renamed, spare_names
from waltap_spark.planning.plan import SegmentGroup
from waltap_spark.schema.expression import column_of
from waltap_spark.schema.schema import log_struct
from waltap_spark.state.output import TableState

# A sequence number before all changes and rows of a snapshot (-1).
BEHIND_NOTHING: Final = -3


def ending(
    commit: CommitContext,
    table: TableState,
    group: SegmentGroup,
    rows: DataFrame | None,
    at_us: int,
    files: FileStore,
) -> GroupRows:
    """Return a truncate before the ``rows`` of ``group``.

    Without rows it is at the position of the empty snapshot. ``at_us`` is its time (µs since 1970) if
    the snapshot has none.
    """
    position, seq = None, BEHIND_NOTHING
    if rows is not None:
        position = rows.selectExpr(
            "min(struct(_commit_lsn, _seq, cast(unix_micros(_commit_ts) as bigint) as at)) as first"
        ).first()
    if position is not None and position["first"] is not None:
        lsn, first, at = position["first"]
        if first > 0:  # the transaction changed the earlier table too: these changes end as well
            seq = first - 1
    else:
        lsn, ts = group.at or ((group.until or commit.log_position).end_lsn, None)
        at = at_us if ts is None else ts
    fingerprint = next(reversed(table.file_schemas))
    names = [*table.file_schemas[fingerprint]]
    frame = commit.spark.range(1).selectExpr(
        "'t' as _op",
        f"{lsn}L as _commit_lsn",
        f"{seq} as _seq",
        "cast(0 as byte) as _sub",
        f"{lsn}L as _lsn",
        f"timestamp_micros({at}) as _commit_ts",
        "cast(null as long) as _xid",
        "cast(null as array<string>) as _unchanged",
        f"{group.epoch} as _epoch",
    )
    struct = log_struct(table.file_schemas[fingerprint])
    kinds = {field.name: field.dataType for field in struct.fields}
    frame = frame.select(
        *(F.lit(None).cast(kinds[name]).alias(name) for name in names),
        *(column_of(field.name) for field in struct.fields if field.name not in names),
    )
    made = SegmentGroup(
        fingerprint,
        group.epoch,
        table.key,
        group.columns,
        oid=group.oid,
        rows=1,
        operations=Counter(t=1),
        until=group.until,
        continuity_id=group.continuity_id,
    )
    return GroupRows(group=made, read=lambda: frame, files=files)


# A table that took the name of a dropped one: columns whose type changed.
# The history of the dropped table stays. Where one type holds the values of both, the column gets
# that type. Otherwise the old column gets another name, as a dropped column does whose name a new
# one takes.


def with_spare_names(
    tables: TableFormat,
    commit: CommitContext,
    gone: TableState,
    table: TableState,
    group: SegmentGroup,
    types: Mapping[str, str],
) -> TableState:
    """Return ``table`` with conflicting columns of ``gone`` renamed.

    ``table`` took the place of ``gone`` and gets ``types``, columns of ``group``. Columns that
    divide files, and columns of a shared target, keep their names.
    """
    # without a history no value of the dropped table remains
    if table.place is not None or not (table.mode.history or table.mode.name == "append"):
        return table
    spares = spare_names(gone, types, by_number=not tables.writes_in_place)
    spares = {name: new for name, new in spares.items() if name not in tables.needed(table)}

    def learn(before: TableState) -> TableState:
        return former_columns_renamed(before, gone, group, types, spares)

    if not spares:
        return learn(table)
    change = TableChange(key=table.key, renames=spares, replaces=False, learn=learn)
    return tables.evolve(commit, table, change)
