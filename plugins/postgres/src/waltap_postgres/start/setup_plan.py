"""Plan a start's changes on the server, and list the captured tables."""

import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import suppress

import psycopg

from waltap.base.text import sql_name
from waltap.changes.capture.java_regex import java_pattern
from waltap.changes.decode.relation import Relation
from waltap.errors import WaltapError
from waltap.ports.source.connector import ConnectorContext, PlannedTable, PreflightCheck, SetupPlan
from waltap_postgres.catalog.catalogue import CatalogTable, PostgresCatalogue
from waltap_postgres.connection import driver_error
from waltap_postgres.errors import (
    IdentityLocked,
    IdentityMissing,
    PrivilegeMissing,
    PublicationMissing,
    PublicationNotPermitted,
    RowsHidden,
    SignalTableMissing,
    TableLocked,
    TableUnreadable,
    WalLevelTooLow,
)
from waltap_postgres.replication.publication import ANY_LOCK, locked_tables
from waltap_postgres.replication.publications import PublicationSet
from waltap_postgres.replication.slot import SlotAdmin
from waltap_postgres.start.startup_plan import StartupPlan

# Replica identities that a start sets on captured tables.
#
# Source: the property ``replica.identity.autoset.values``.


IDENTITY_INDEX_SQL = """
SELECT c.relname::text FROM pg_index i JOIN pg_class c ON c.oid = i.indexrelid
 WHERE i.indisreplident AND i.indrelid::int8 = %s
"""


def identity_statements(
    catalogue: PostgresCatalogue, captured: Iterable[CatalogTable]
) -> Iterator[tuple[Relation, str]]:
    """Yield ALTER TABLE for the tables that differ from the property."""
    for entry in catalogue.properties.replica_identity_autoset_values:
        pattern, _, value = entry.rpartition(":")
        word, _, index = value.strip().partition(" ")
        for table in captured:
            relation = table.relation
            if not java_pattern(pattern).fullmatch(relation.name):
                continue
            index = index.strip()
            if relation.identity == word[:1].lower() and (
                not index or (index,) in catalogue.query(IDENTITY_INDEX_SQL, (relation.oid,))
            ):
                continue
            clause = f"USING INDEX {sql_name(index)}" if index else word.upper()
            name = sql_name(relation.schema, relation.table)
            yield relation, f"ALTER TABLE {name} REPLICA IDENTITY {clause}"


def set_identities(catalogue: PostgresCatalogue, captured: Iterable[CatalogTable]) -> None:
    """Run `identity_statements`. Raises: SourceError."""
    connection, timeout_ms = catalogue.connection, catalogue.properties.snapshot_lock_timeout_ms
    for relation, statement in identity_statements(catalogue, captured):
        try:
            with connection.transaction():
                # A waiting ALTER TABLE blocks everyone who comes to the table after it.
                connection.execute(f"SET LOCAL lock_timeout = {timeout_ms}".encode())
                connection.execute(statement.encode())
        except psycopg.Error as error:
            meaning = driver_error(error, catalogue.properties)
            if isinstance(meaning, TableLocked):
                tables = locked_tables(connection.execute, [relation.table_id], ANY_LOCK)
                raise IdentityLocked(
                    f"replica identity of {relation.name}: {meaning.problem}",
                    tables=tables,
                    timeout_ms=timeout_ms,
                    sql=statement,
                ) from error
            raise meaning from error


# The size of a locked table waits for the lock, so such tables are left out. The size of a partitioned
# table is the one of its leaves; other tables are in no partition tree.
SIZES_SQL = """
SELECT c.oid::int8,
       (SELECT sum(pg_table_size(t.relid))::int8 FROM pg_partition_tree(c.oid) t WHERE t.isleaf),
       pg_table_size(c.oid)::int8
  FROM pg_class c
 WHERE c.oid = ANY(%s) AND NOT EXISTS (
   SELECT FROM pg_locks l WHERE l.relation = c.oid AND l.mode = 'AccessExclusiveLock' AND l.granted)
"""

SQL = re.compile(r"(?:ALTER|CREATE|DROP|GRANT|REVOKE|SELECT) ")


def setup_plan(
    decision: StartupPlan,
    captured: Sequence[CatalogTable],
    snapshot_tables: Callable[[], Iterable[CatalogTable]],
    checks: Iterable[PreflightCheck],
    *,
    context: ConnectorContext,
    catalogue: PostgresCatalogue,
    publications: PublicationSet,
    slots: SlotAdmin,
) -> SetupPlan:
    """Return the changes of a start by ``decision``.

    ``snapshot_tables`` returns the tables that its snapshot reads; ``checks`` report obstacles.
    Raises: SourceError, OffsetError.
    """
    properties, read = catalogue.properties, snapshot_tables() if decision.snapshot else ()
    statements = [each for _, each in identity_statements(catalogue, captured)]
    if decision.stream:
        with suppress(PublicationMissing, IdentityMissing):  # the checks report them
            statements += publications.statements(new_slot=decision.exports)
    slot = None
    if decision.exports:
        decoder = context.decoder
        slot = slots.create_sql(
            properties.slot_name, decoder.output_plugin, two_phase=decoder.two_phase
        )
    refusals = [check.error for check in checks if check.verdict == "error" and check.error]
    others = [each for error in refusals for each in _mending(error)]
    signal = context.capture.signal_table
    if signal and set(statements) & set(others) and catalogue.relation(*signal) is None:
        # Another role creates the signal table and the publication, whose statement names only
        # the present tables.
        member = sql_name(*signal)
        others.append(
            f"ALTER PUBLICATION {sql_name(properties.publication_name)} ADD TABLE {member}"
        )
    return SetupPlan(
        statements=tuple(each for each in statements if each not in others),
        by_others=tuple(others),
        slot=slot,
        tables=_tables(catalogue, captured, {table.relation.oid for table in read}),
    )


def _tables(
    catalogue: PostgresCatalogue, captured: Sequence[CatalogTable], read: set[int]
) -> tuple[PlannedTable, ...]:
    oids = [table.relation.oid for table in captured]
    sizes = {
        oid: own if leaves is None else leaves
        for oid, leaves, own in catalogue.query(SIZES_SQL, (oids,))
    }
    found = [
        PlannedTable(
            relation=table.relation,
            rows=table.estimate or None,
            bytes=sizes.get(table.relation.oid),
            read=table.relation.oid in read,
        )
        for table in captured
    ]
    return tuple(sorted(found, key=lambda each: each.relation.name))


def _mending(error: WaltapError) -> Iterator[str]:
    facts = error.fields
    match error:
        case TableUnreadable():
            yield f"GRANT USAGE ON SCHEMA {facts['schemas']} TO {facts['user']}"
            yield f"GRANT SELECT ON {facts['tables']} TO {facts['user']}"
        case RowsHidden():
            yield f"ALTER ROLE {facts['user']} BYPASSRLS"
        case (
            PublicationMissing()
            | PublicationNotPermitted()
            | SignalTableMissing()
            | PrivilegeMissing()
        ):
            for step in str(facts["sql"]).split("; "):
                # A step of a service's console is a comment.
                yield step if SQL.match(step) and "…" not in step else f"-- {step}"
        case WalLevelTooLow():  # a restart, or a service's switch, is no SQL
            for step in str(facts["sql"]).split("; "):
                yield step.partition(" (")[0] if step.startswith("ALTER SYSTEM") else f"-- {step}"
        case _:
            return
