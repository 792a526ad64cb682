"""What a start would make on the server, told before it: the SQL, and each captured table."""

from collections.abc import Iterable, Iterator, Mapping, Sequence

from waltap.errors import WaltapError
from waltap.source.connector import Check
from waltap.source.setup_plan import PlannedTable
from waltap_postgres.catalog.catalogue import PostgresCatalogue, Table
from waltap_postgres.errors import (
    PrivilegeMissing,
    PublicationNotPermitted,
    RowsHidden,
    SignalTableMissing,
    TableUnreadable,
    WalLevelTooLow,
)
from waltap_postgres.replication.publication import identifier

__all__ = ["planned_tables", "statements_of_others", "with_member"]

SIZES_SQL = """
SELECT c.oid::int8,
       (SELECT sum(pg_table_size(t.relid))::int8 FROM pg_partition_tree(c.oid) t WHERE t.isleaf),
       pg_table_size(c.oid)::int8
  FROM pg_class c
 WHERE c.oid = ANY(%s) AND NOT EXISTS (
   SELECT FROM pg_locks l WHERE l.relation = c.oid AND l.mode = 'AccessExclusiveLock' AND l.granted)
"""
"""The size of a table waits for whoever has locked it: such a one is left out. A partitioned table is its
leaves; of no partition tree are the others."""


def planned_tables(
    catalogue: PostgresCatalogue,
    captured: Sequence[Table],
    read: Iterable[Table],
    before: Mapping[str, str],
) -> tuple[PlannedTable, ...]:
    """Return ``captured`` as a plan tells of them, by name. ``read`` are those that a snapshot reads,
    ``before`` what events tell of old rows, by the letter of a replica identity."""
    sizes = {
        oid: own if leaves is None else leaves
        for oid, leaves, own in catalogue.query(
            SIZES_SQL, ([table.relation.oid for table in captured],)
        )
    }
    reads = {table.relation.oid for table in read}
    found = [
        PlannedTable(
            relation=table.relation,
            before=before.get(table.relation.identity, table.relation.identity),
            rows=table.estimate or None,
            bytes=sizes.get(table.relation.oid),
            read=table.relation.oid in reads,
        )
        for table in captured
    ]
    return tuple(sorted(found, key=lambda each: each.relation.name))


def statements_of_others(checks: Iterable[Check]) -> tuple[str, ...]:
    """Return what somebody else has to run before a start is not refused, as far as SQL mends it."""
    return tuple(
        statement
        for check in checks
        if check.error is not None
        for statement in _mending(check.error)
    )


def with_member(
    others: tuple[str, ...], statements: Iterable[str], publication: str, table: tuple[str, str]
) -> tuple[str, ...]:
    """Return ``others`` with a table that they make as a member of the publication, where they make that
    too, by one of ``statements``: these name the tables that are there now."""
    if not set(statements) & set(others):
        return others
    return (*others, f"ALTER PUBLICATION {identifier(publication)} ADD TABLE {identifier(*table)}")


def _mending(error: WaltapError) -> Iterator[str]:
    facts = error.fields
    match error:
        case PrivilegeMissing():
            yield f"ALTER ROLE {facts['user']} WITH REPLICATION"
        case TableUnreadable():
            yield f"GRANT USAGE ON SCHEMA {facts['schemas']} TO {facts['user']}"
            yield f"GRANT SELECT ON {facts['tables']} TO {facts['user']}"
        case RowsHidden():
            yield f"ALTER ROLE {facts['user']} BYPASSRLS"
        case SignalTableMissing() | PublicationNotPermitted() | WalLevelTooLow():
            yield from str(facts["sql"]).split("; ")
        case _:
            return
