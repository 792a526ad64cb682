"""What is left to read of a snapshot that broke off, in another snapshot of the server.

The rule: whatever is delivered of a table is as the table's *basis* has it, the snapshot that it was read
in first; the stream brings everything behind the basis, and nothing of it is left out. So of the chunks
that are missing only those rows are read that no transaction wrote since: they are as they were. The
others come with the stream. A row whose age is in doubt is read: the stream brings it up to date.

Every piece tells the basis: of tables that were begun together with another the offset may lack it.

Two things are different. A table of which nothing can have been delivered has no basis yet: it is read
whole, and what is visible to that reading is left out of the stream. A table whose rows lie in other
files than then (TRUNCATE, a rewrite) is read whole as it is now, and nothing behind its basis is left
out of its stream.

The stream does not bring values that lie out of line and were not touched. A snapshot that broke off in a
table with such values is taken anew (`long_values`).

Why it is right: docs/decisions/0016-snapshots-that-go-on.md.
"""

from collections.abc import Collection, Mapping, Sequence

import msgspec

from waltap.errors import RetryVerdict, SourceError
from waltap.snapshot.progress import TableChunks
from waltap_postgres.catalog.catalogue import PostgresCatalogue
from waltap_postgres.snapshot.plan import LOCK_WAIT_MS, KeyRange, ReadTask, TableSplit, TableSplits
from waltap_postgres.snapshot.transaction import ReadingTransaction, SnapshotTable
from waltap_postgres.visibility import SnapshotVisibility, changed_since

__all__ = ["left_to_read", "long_values", "to_restart"]

NO_CHUNK = -1
"""The index of a part that is no chunk of the plan."""

LONG_VALUES_SQL = """
WITH RECURSIVE family(root, oid) AS (
  SELECT o.oid, o.oid FROM unnest(%s::oid[]) o(oid)
  UNION
  SELECT f.root, i.inhrelid FROM family f JOIN pg_inherits i ON i.inhparent = f.oid
)
SELECT DISTINCT f.root::int8
  FROM (SELECT set_config('lock_timeout', %s, true) AS done OFFSET 0) s, family f
  JOIN pg_class c ON c.oid = f.oid
 WHERE s.done IS NOT NULL AND c.reltoastrelid <> 0 AND pg_relation_size(c.reltoastrelid) > 0
"""


def long_values(now: PostgresCatalogue, tables: Mapping[str, TableChunks]) -> set[int]:
    """Return the OIDs of tables that have begun, are not complete and have values out of line; all of them
    where that cannot be had."""
    oids = [int(oid) for oid, table in tables.items() if not table.complete]
    try:
        return {oid for (oid,) in now.query(LONG_VALUES_SQL, (oids, str(LOCK_WAIT_MS)))}
    except SourceError as error:
        if error.retry is not RetryVerdict.NEVER:
            raise
        return set(oids)


def to_restart(
    transaction: ReadingTransaction,
    now: PostgresCatalogue,
    targets: Sequence[SnapshotTable],
    tables: Mapping[str, TableChunks],
    *,
    seen: str,
    chosen: Collection[str],
) -> list[SnapshotTable]:
    """Return those of the tables that have begun whose chunks cannot go on exactly, for a sink to which
    what came of them counts for nothing then: nothing of them is durable, or their rows lie elsewhere, or
    some rows' age is in doubt, or values lie out of line. Arguments as of `left_to_read`."""
    then, long = SnapshotVisibility.parse(seen), long_values(now, tables)
    assert then is not None, "only a server that tells what is visible lets a snapshot go on"
    found = []
    for target in targets:
        known = tables.get(str(target.oid))
        if known is None or known.complete:
            continue
        plan = msgspec.json.decode(known.plan, type=TableSplits)
        basis = SnapshotVisibility.parse(plan.basis)
        if (
            not known.done
            or target.oid in long
            or target.table.relation.name in chosen
            or _lies_elsewhere(transaction, target, plan)
            or basis is None
            or not changed_since(basis, then)[1]
            or (basis.in_progress and not target.table.relation.primary_key)
        ):
            found.append(target)
    return found


def left_to_read(
    transaction: ReadingTransaction,
    targets: Sequence[SnapshotTable],
    tables: Mapping[str, TableChunks],
    *,
    seen: str,
    chosen: Collection[str],
) -> list[ReadTask]:
    """Return the work that is left of tables that have begun. ``seen`` is what ``transaction`` sees,
    ``chosen`` names tables that a SELECT of the profile's reads."""
    now = SnapshotVisibility.parse(seen)
    assert now is not None, "only a server that tells what is visible lets a snapshot go on"
    works = []
    for target in targets:
        known = tables.get(str(target.oid))
        if known is None or known.complete:
            continue
        plan = msgspec.json.decode(known.plan, type=TableSplits)
        if _lies_elsewhere(transaction, target, plan) or target.table.relation.name in chosen:
            files = transaction.files(target.oid)
            anew = TableSplits(basis=plan.basis, files=files, all_rows=True)
            begins = {str(target.oid): anew.chunks()}
            works.append(_goes_on(target, plan, begins=begins))
            continue
        missing = _missing(known, plan, now)
        works.append(_goes_on(target, plan, missing, goes_on=bool(known.done)))
    return works


def _goes_on(
    target: SnapshotTable,
    plan: TableSplits,
    parts: Sequence[TableSplit] = (),
    begins: Mapping[str, TableChunks] | None = None,
    *,
    goes_on: bool = False,
) -> ReadTask:
    return ReadTask(
        [target],
        parts,
        begins=begins,
        visible=plan.basis,
        begun=True,
        goes_on=goes_on,
        resumable=True,
    )


def _lies_elsewhere(
    transaction: ReadingTransaction, target: SnapshotTable, plan: TableSplits
) -> bool:
    shape = transaction.then.get(target.oid)
    if shape is None or plan.all_rows or shape.files != plan.files:
        return True
    keys = {number for each in plan.ranges if isinstance(each, KeyRange) for number in each.columns}
    return not keys <= shape.columns.keys()


def _missing(known: TableChunks, plan: TableSplits, now: SnapshotVisibility) -> list[TableSplit]:
    basis = SnapshotVisibility.parse(plan.basis)
    assert basis is not None
    changed, certain = changed_since(basis, now)
    unchanged = f"NOT {changed}" if certain else ""
    parts = [
        TableSplit(index, each, unchanged)
        for index, each in enumerate(plan.ranges or (None,))
        if index not in known.done
    ]
    return parts or [TableSplit(NO_CHUNK, None, "false")]
