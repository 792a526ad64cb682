"""Continue an interrupted snapshot in another snapshot of the server.

The rule: delivered rows of a table are as in the table's *basis*, the snapshot in which it was read
first. The stream sends every change after the basis. So of the missing chunks waltap reads only rows
that no transaction has written since: they are unchanged. The stream sends the others. A row of
unknown age is read too, and the stream updates it.

Every piece has the basis: the offset may lack it for tables that were begun together with another.

There are two exceptions. A table without any delivered row has no basis yet. It is read whole, and
the stream leaves out the changes that this read sees. A table whose rows are in other files than
before (TRUNCATE, a rewrite) is read whole, and its stream leaves out no change after the basis.

The stream does not send unchanged out-of-line values. So a snapshot that broke off in a table with
such values starts again (`long_values`).

Proof: docs/decisions/0016-resumed-snapshots.md.
"""

from collections.abc import Collection, Mapping, Sequence

import msgspec

from waltap.changes.transactions.position import TableChunks
from waltap.errors import RetryVerdict, SourceError
from waltap_postgres.catalog.catalogue import PostgresCatalogue
from waltap_postgres.snapshot.plan import LOCK_WAIT_MS, KeyRange, ReadTask, TableSplit, TableSplits
from waltap_postgres.snapshot.transaction import ReadingTransaction, SnapshotTable
from waltap_postgres.visibility import SnapshotVisibility, changed_since

# The index of a part that is no chunk of the plan.
NO_CHUNK = -1

# ``pg_relation_size`` waits for a session that rewrites the table, hence the lock timeout.
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
    """Return the OIDs of unfinished tables with out-of-line values."""
    oids = [int(oid) for oid, table in tables.items() if not table.complete]
    try:
        return {oid for (oid,) in now.query(LONG_VALUES_SQL, (oids, str(LOCK_WAIT_MS)))}
    except SourceError as error:
        if error.retry is not RetryVerdict.NEVER:
            raise
        # A refusal proves nothing, so every table may have such values.
        return set(oids)


def resume(
    transaction: ReadingTransaction,
    now: PostgresCatalogue,
    targets: Sequence[SnapshotTable],
    tables: Mapping[str, TableChunks],
    *,
    seen: str,
    chosen: Collection[str],
    restarts: bool,
) -> tuple[list[ReadTask], list[SnapshotTable]]:
    """Return remaining tasks, and the tables to restart.

    ``seen`` is the visibility of ``transaction``; ``chosen`` are the tables with their own SELECT.
    With ``restarts``, a table whose chunks cannot be continued exactly starts again, and the sink
    must discard its delivered rows.
    """
    visible = SnapshotVisibility.parse(seen)
    assert visible is not None, (
        "only a server that shows which transactions are visible lets a snapshot continue"
    )
    long = long_values(now, tables) if restarts else set()
    works: list[ReadTask] = []
    again: list[SnapshotTable] = []
    for target in targets:
        known = tables.get(str(target.oid))
        if known is None or known.complete:
            continue
        plan = msgspec.json.decode(known.plan, type=TableSplits)
        basis = SnapshotVisibility.parse(plan.basis)
        # The chunks of the plan fit neither other files nor a SELECT.
        unfit = _files_changed(transaction, target, plan) or target.table.relation.name in chosen
        # In this order: nothing is durable; out-of-line values; rows of unknown age.
        if restarts and (
            unfit
            or not known.done
            or target.oid in long
            or basis is None
            or not changed_since(basis, visible)[1]
            or (basis.in_progress and not target.table.relation.primary_key)
        ):
            again.append(target)
            continue
        begins = {}
        if unfit:
            # The table is read whole.
            files = transaction.files(target.oid)
            restarted = TableSplits(basis=plan.basis, files=files, all_rows=True)
            begins = {str(target.oid): restarted.chunks()}
        task = ReadTask(
            [target],
            () if unfit else _missing(known, plan, visible),
            begins=begins,
            visible=plan.basis,
            begun=True,
            resumed=bool(known.done) and not unfit,
            resumable=True,
        )
        works.append(task)
    return works, again


def _files_changed(
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
    # A part without rows still completes the table.
    return parts or [TableSplit(NO_CHUNK, None, "false")]
