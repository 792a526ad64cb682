"""Plan the publication that ``publication.autocreate.mode`` asks for."""

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from typing import Any

import psycopg
from psycopg import sql

from waltap.base.text import sql_name
from waltap.changes.capture.properties import CaptureProperties
from waltap.errors import SourceError
from waltap.ports.source.published import published_tables
from waltap_postgres.catalog.catalogue import CatalogTable, PostgresCatalogue, TableId
from waltap_postgres.connection import driver_error
from waltap_postgres.errors import (
    INSERTS_OPERATIONS,
    INSERTS_SUFFIX,
    IdentityMissing,
    PublicationLocked,
    PublicationMissing,
    PublicationNotPermitted,
    TableLocked,
)
from waltap_postgres.identity import identity_sql, usable_word
from waltap_postgres.replication.publication_completeness import (
    OPERATIONS,
    ROOTS,
    PublicationShortfall,
)

# From this version on a publication that does not exist publishes nothing, instead of an error.
SKIPS_MISSING = 180000
# From this version on a replica identity must have no column that the publication leaves out.
CHECKS_GENERATED = 180000


class PublicationPlan:
    """Plan the statements that publish the captured tables."""

    def __init__(self, names: tuple[str, ...]) -> None:
        # Publications that the stream asks for.
        self.names = names
        # SQL to run in this order.
        self.statements: list[str] = []
        # Publications that the statements create.
        self.created: list[str] = []
        # (schema, table) that the statements add by name.
        self.added: list[TableId] = []
        # (schema, table) that the existing publications did not publish completely.
        self.unsent: set[TableId] = set()
        # The publication has every table of the database.
        self.all_tables = False
        # Tables without a usable replica identity are published with their inserts only.
        self.inserts_only = False
        # Captured tables, columns or operations that a publication leaves out, by its name.
        self.shortfalls: list[tuple[str, PublicationShortfall]] = []
        # Publications whose shortfalls the statements fix; the others stay as they are.
        self.mended: set[str] = set()
        # Keyless tables that join the publication of inserts at a later start: the slot must
        # still decode changes that are older than that publication.
        self.waiting: list[str] = []
        # Tables, with their owners, that this role may not add to an existing publication. They
        # are left out, so that another role's CREATE TABLE does not stop the pipeline.
        self.denied: list[tuple[TableId, str]] = []

    def run(self, catalogue: PostgresCatalogue) -> None:
        """Run the statements in one transaction. Raises: SourceError."""
        run_statements(catalogue, self.statements, tables={*self.added, *self.unsent})

    @contextmanager
    def lock_explained(self, catalogue: PostgresCatalogue) -> Iterator[None]:
        """Name the publications of `run` that wait for a lock. Raises: PublicationLocked."""
        try:
            yield
        except TableLocked as error:
            raise PublicationLocked(
                f"publication {', '.join(self.names)}: {error.problem}",
                timeout_ms=catalogue.properties.snapshot_lock_timeout_ms,
                **error.fields,
            ) from error


TREE = """
WITH RECURSIVE tree AS (
  SELECT to_regclass(name)::oid AS relation FROM unnest(%s::text[]) AS name
  UNION SELECT i.inhrelid FROM pg_inherits i JOIN tree t ON t.relation = i.inhparent
)
"""
# Partitions that this role may publish.
PARTITIONS = f"""{TREE}
SELECT n.nspname::text, c.relname::text
  FROM tree t JOIN pg_class c ON c.oid = t.relation JOIN pg_namespace n ON n.oid = c.relnamespace
 WHERE c.relispartition AND c.relkind <> 'f' AND c.relpersistence = 'p'
   AND pg_has_role(c.relowner, 'USAGE')
"""
# Tables, or partitions of them, that another session locks in a mode.
LOCKED = f"""{TREE}
SELECT DISTINCT format('%%I.%%I', n.nspname, c.relname)
  FROM pg_locks l JOIN tree t ON t.relation = l.relation JOIN pg_class c ON c.oid = l.relation
  JOIN pg_namespace n ON n.oid = c.relnamespace
 WHERE l.granted AND l.pid <> pg_backend_pid() AND l.mode {{modes}}
"""
# All but those in which other sessions may read, and lock rows.
WRITERS_TOO = "NOT IN ('AccessShareLock', 'RowShareLock')"
ANY_LOCK = "<> ''"


def locked_tables(
    query: Callable[..., Iterable[Any]], tables: Iterable[TableId], modes: str = WRITERS_TOO
) -> str:
    """Return tables that other sessions lock, as SQL values.

    All of ``tables`` are returned if the locks have ended, any table without ``tables``.
    """
    names = [sql_name(*table_id) for table_id in sorted(tables)]
    with suppress(psycopg.Error, SourceError):
        found = query(LOCKED.format(modes=modes), (names,))
        names = sorted(str(name) for (name,) in found) or names
    return ", ".join(f"{sql.quote(name)}::regclass" for name in names) or "relation"


def run_statements(
    catalogue: PostgresCatalogue,
    statements: Sequence[str],
    *,
    lock: str | None = None,
    tables: Iterable[TableId],
    timeout_ms: int | None = None,
) -> None:
    """Run statements about publications in one transaction.

    ``lock`` is a statement that locks their ``tables`` first. None for ``timeout_ms`` is the profile's
    time for locks. Raises: SourceError.
    """
    if not statements:
        return
    connection, properties = catalogue.connection, catalogue.properties
    if timeout_ms is None:
        timeout_ms = properties.snapshot_lock_timeout_ms
    try:
        with connection.transaction():
            # A waiting lock request blocks every later request for the same table.
            connection.execute(f"SET LOCAL lock_timeout = {timeout_ms}".encode())
            for statement in (*([lock] if lock else ()), *statements):
                connection.execute(statement.encode())
    except psycopg.errors.InsufficientPrivilege as error:
        raise PublicationNotPermitted(
            f"role {properties.user!r} may not publish: {error.diag.message_primary}",
            sql="; ".join(statements),
            database=sql_name(properties.dbname),
            user=sql_name(properties.user),
        ) from error
    except psycopg.Error as error:
        meaning = driver_error(error, properties)
        if isinstance(meaning, TableLocked):
            meaning.fields["tables"] = locked_tables(connection.execute, tables)
        raise meaning from error


def published_operations(capture: CaptureProperties) -> str | None:
    """Return the operations to publish, None for all.

    As in Debezium, only an explicit ``skipped.operations`` other than none limits them.
    """
    skipped = set(capture.skipped_operations)
    if "skipped_operations" not in capture.model_fields_set or skipped == {"none"}:
        return None
    return ",".join(word for letter, word in OPERATIONS.items() if letter not in skipped)


def named_members(catalogue: PostgresCatalogue, name: str) -> dict[TableId, bool]:
    """Return the tables that the publication names.

    The value is whether the stream sends rows under the table's name. Without
    publish_via_partition_root it sends rows of a partitioned table under its partitions' names.
    """
    rows = catalogue.query(
        "SELECT n.nspname::text, c.relname::text,"
        " c.relkind = 'r' OR coalesce((to_jsonb(p) ->> 'pubviaroot')::bool, false)"
        " FROM pg_publication p"
        " JOIN pg_publication_rel r ON r.prpubid = p.oid JOIN pg_class c ON c.oid = r.prrelid"
        " JOIN pg_namespace n ON n.oid = c.relnamespace WHERE p.pubname = %s ORDER BY 1, 2",
        (name,),
    )
    return {(schema, table): sent for schema, table, sent in rows}


def published(catalogue: PostgresCatalogue, name: str) -> set[TableId] | None:
    """Return the publication's tables, None if it does not exist."""
    tables = published_tables(catalogue.version_num)
    rows = catalogue.query(
        "SELECT t.schemaname::text, t.tablename::text FROM pg_publication p"
        f" LEFT JOIN {tables} t ON t.pubname = p.pubname WHERE p.pubname = %s",
        (name,),
    )
    return {table_id for table_id in rows if table_id[0] is not None} if rows else None


def published_by_any(catalogue: PostgresCatalogue, names: Iterable[str]) -> set[TableId]:
    """Return the tables that at least one of the publications covers."""
    return {table_id for name in names for table_id in published(catalogue, name) or ()}


def plan_publication(
    catalogue: PostgresCatalogue,
    captured: list[CatalogTable],
    *,
    operations: str | None,
    inserts_known: bool = False,
) -> PublicationPlan:
    """Plan the publication without changing the server.

    ``operations`` are the published ones (``insert, update``), None for all. ``inserts_known``
    means that the stream may ask for the publication of inserts, whatever the slot must still
    decode: the slot is about to be created again, or was read with that publication before.
    Raises: PublicationMissing, IdentityMissing.
    """
    properties = catalogue.properties
    name, mode = properties.publication_name, properties.publication_autocreate_mode
    plan = PublicationPlan((name,))
    existing = published(catalogue, name)
    options = _options(catalogue, operations)
    if mode == "disabled":
        if existing is None:
            tables = _listed(t.relation.table_id for t in captured) or "…"
            statement = f"CREATE PUBLICATION {sql_name(name)} FOR TABLE {tables}"
            raise PublicationMissing(f"publication {name!r} does not exist", sql=statement)
        _warn_uncovered(existing, captured, catalogue)
        return plan
    if mode in {"all_tables", "no_tables"}:
        if existing is None:
            if mode == "all_tables" and properties.publication_keyless_tables == "refuse":
                refuse_keyless(without_updates(catalogue, name, catalogue.tables()))
            what = " FOR ALL TABLES" if mode == "all_tables" else ""
            plan.statements.append(f"CREATE PUBLICATION {sql_name(name)}{what}{options}")
            plan.created.append(name)
            plan.all_tables = mode == "all_tables"
        return plan
    if properties.publication_keyless_tables == "inserts":
        inserts_known = inserts_known or _inserts_usable(catalogue)
    _plan_filtered(plan, catalogue, captured, existing, options, inserts_known=inserts_known)
    return plan


def _inserts_usable(catalogue: PostgresCatalogue) -> bool:
    """Return whether the stream may ask for the publication of inserts.

    The server looks up a publication in the catalogue as it was at each change, and fails at a
    change from before its creation.
    """
    slot, name = catalogue.properties.slot_name, catalogue.properties.publication_name
    if not catalogue.query("SELECT 1 FROM pg_replication_slots WHERE slot_name = %s", (slot,)):
        return True
    # Safe are: creation in one transaction with the first publication, creation before the
    # slot's ``catalog_xmin``, or a publication with tables, which it gets only when it is safe.
    return bool(
        catalogue.query(
            "SELECT 1 FROM pg_publication i"
            " JOIN pg_replication_slots s ON s.slot_name = %s"
            " LEFT JOIN pg_publication p ON p.pubname = %s"
            " WHERE i.pubname = %s AND (i.xmin = p.xmin OR age(i.xmin) > age(s.catalog_xmin)"
            "  OR EXISTS (SELECT FROM pg_publication_rel r WHERE r.prpubid = i.oid))",
            (slot, name, name + INSERTS_SUFFIX),
        )
    )


def _plan_filtered(
    plan: PublicationPlan,
    catalogue: PostgresCatalogue,
    captured: list[CatalogTable],
    existing: set[TableId] | None,
    options: str,
    *,
    inserts_known: bool,
) -> None:
    properties, version_num = catalogue.properties, catalogue.version_num
    name, keyless_policy = properties.publication_name, properties.publication_keyless_tables
    via_root = properties.publish_via_partition_root
    wanted = members(captured, via_root=via_root)
    parts = {t.relation.table_id for t in captured if t.partition and via_root}
    new = [t for t in wanted if t.relation.table_id not in (existing or set())]
    keyless = without_updates(catalogue, name, new if keyless_policy == "refuse" else wanted)
    if keyless_policy == "refuse":
        refuse_keyless(keyless)
    empties = False
    if keyless_policy == "inserts":
        apart = {t.relation.oid for t in keyless}
        wanted = [
            t for t in wanted if t.relation.oid not in apart or not (inserts_known or t in new)
        ]
        if inserts_known:
            plan.names = (*plan.names, name + INSERTS_SUFFIX)
            plan.inserts_only = True
        else:
            plan.waiting = [t.relation.name for t in keyless]
            keyless = []
        empties = plan.inserts_only and bool(captured)
        # Create it even without tables, so that it is older than the slot when it gets some.
        only = _options(catalogue, INSERTS_OPERATIONS)
        _cover(plan, catalogue, name + INSERTS_SUFFIX, keyless, parts, only, empties=empties)
    # Debezium names the roots, too: the server streams rows of later partitions at once.
    roots = set() if via_root or version_num < ROOTS else _whole_trees(catalogue, captured)
    _cover(plan, catalogue, name, wanted, parts, options, roots, empties=empties)
    # Older servers refuse to decode for a publication that did not exist, and lose nothing.
    if existing is not None or version_num >= SKIPS_MISSING:
        plan.unsent = set(plan.added) - published_by_any(catalogue, plan.names)


def without_updates(
    catalogue: PostgresCatalogue, name: str, tables: Iterable[CatalogTable]
) -> list[CatalogTable]:
    """Return the tables that allow no UPDATE and DELETE in publication ``name``."""
    leaves_out = catalogue.version_num >= CHECKS_GENERATED and not catalogue.query(
        "SELECT 1 FROM pg_publication WHERE pubname = %s AND pubgencols = 's'", (name,)
    )
    return [t for t in tables if not t.supports_updates or (leaves_out and t.generated_identity)]


def refuse_keyless(keyless: list[CatalogTable]) -> None:
    """Raise IdentityMissing if there is a keyless table."""
    if not keyless:
        return
    note = " (generated columns in its replica identity need publish_generated_columns = stored)"
    names = ", ".join(t.relation.name + note * t.generated_identity for t in keyless)
    statement = " ".join(identity_sql(t.relation, usable_word(t.relation)) for t in keyless)
    raise IdentityMissing(
        f"published as they are, these tables would refuse UPDATE and DELETE: {names}",
        sql=statement.rstrip(";"),
    )


def _cover(
    plan: PublicationPlan,
    catalogue: PostgresCatalogue,
    name: str,
    tables: list[CatalogTable],
    parts: set[TableId],
    options: str,
    roots: Iterable[TableId] = (),
    *,
    empties: bool,
) -> None:
    """Create the publication, or add and drop tables in it.

    With ``empties`` tables are also dropped where none stays. It also names ``roots``, and captured
    partitions ``parts``, which stream on if detached.
    """
    existing = published(catalogue, name)
    wanted = {t.relation.table_id: None for t in tables}
    below = sorted(parts.intersection(partitions(catalogue, wanted))) if parts else []
    below += sorted(roots)
    if existing is None:
        what = f" FOR TABLE {_listed([*wanted, *below])}" if wanted else ""
        plan.statements.append(f"CREATE PUBLICATION {sql_name(name)}{what}{options}")
        plan.created.append(name)
        plan.added += wanted
    elif (wanted or empties) and (
        owner := catalogue.query(
            "SELECT pg_has_role(pubowner, 'USAGE') FROM pg_publication"
            " WHERE pubname = %s AND NOT puballtables",
            (name,),
        )
    ):
        named = named_members(catalogue, name)
        new = [pair for pair in wanted if pair not in existing and pair not in named]
        denied = foreign_tables(catalogue, new) if existing else {}
        plan.denied += denied.items()
        new = [pair for pair in new if pair not in denied]
        plan.added += new
        new += [pair for pair in below if (new or owner[0][0]) and pair not in named]
        surplus = [p for p, sent in named.items() if sent and p not in wanted and p not in below]
        # Not SET TABLE: it would drop the row filters and column lists of tables that stay.
        for verb, pairs in (("ADD", new), ("DROP", surplus)):
            if pairs:
                alter = f"ALTER PUBLICATION {sql_name(name)} {verb} TABLE {_listed(pairs)}"
                plan.statements.append(alter)


def _whole_trees(catalogue: PostgresCatalogue, captured: list[CatalogTable]) -> set[TableId]:
    """Return partitioned tables with a key whose partitions are all captured."""
    names = {t.relation.table_id for t in captured}
    # Their later partitions have the key, too, and so allow UPDATE and DELETE.
    keyed = [t for t in captured if t.partitioned and t.primary_key and not t.relation.deferrable]
    roots = {t.relation.table_id for t in keyed}
    roots -= foreign_tables(catalogue, sorted(roots)).keys()
    if names.issuperset(partitions(catalogue, roots)):  # mostly: one query for all
        return roots
    return {root for root in roots if names.issuperset(partitions(catalogue, [root]))}


def partitions(catalogue: PostgresCatalogue, roots: Iterable[TableId]) -> list[tuple[Any, ...]]:
    """Return the partitions below ``roots`` that this role may publish."""
    return catalogue.query(PARTITIONS, ([sql_name(*table_id) for table_id in roots],))


def foreign_tables(catalogue: PostgresCatalogue, pairs: list[TableId]) -> dict[TableId, str]:
    """Return the tables that this role does not own, with their owners.

    Only an owner may add a table to a publication.
    """
    if not pairs:
        return {}
    rows = catalogue.query(
        "SELECT n.nspname::text, c.relname::text, pg_get_userbyid(c.relowner)::text"
        " FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace"
        " WHERE (n.nspname::text, c.relname::text) IN"
        "   (SELECT * FROM unnest(%s::text[], %s::text[]))"
        " AND NOT pg_has_role(c.relowner, 'USAGE')",
        ([schema for schema, _ in pairs], [table for _, table in pairs]),
    )
    return {(schema, table): owner for schema, table, owner in rows}


def _listed(pairs: Iterable[TableId]) -> str:
    return ", ".join(sql_name(*pair) for pair in pairs)


def _options(catalogue: PostgresCatalogue, operations: str | None) -> str:
    options = []
    if operations is not None:
        options.append(f"publish = '{operations}'")
    if catalogue.properties.publish_via_partition_root and catalogue.version_num >= ROOTS:
        options.append("publish_via_partition_root = true")
    return f" WITH ({', '.join(options)})" if options else ""


def _warn_uncovered(
    existing: set[TableId], captured: list[CatalogTable], catalogue: PostgresCatalogue
) -> None:
    """Raise PublicationMissing if no captured table is published."""
    name = catalogue.properties.publication_name
    root = catalogue.properties.publish_via_partition_root
    wanted = {t.relation.table_id for t in members(captured, via_root=root)}
    if not wanted or not existing or wanted & existing:
        return
    # Only the choice between root and partitions differs, and ADD TABLE cannot change that.
    if {t.relation.table_id for t in captured} & existing:
        value = str(not root).lower()
        raise PublicationMissing(
            f"publication {name!r} has publish_via_partition_root = {value}: it sends no captured table "
            "under the name that the profile has it by",
            sql=f"publish.via.partition.root={value} in the profile, as the publication has it",
        )
    statement = f"ALTER PUBLICATION {sql_name(name)} ADD TABLE {_listed(sorted(wanted))}"
    raise PublicationMissing(f"publication {name!r} covers no captured table", sql=statement)


def members(captured: list[CatalogTable], *, via_root: bool) -> list[CatalogTable]:
    """Return the tables under whose names the server sends rows.

    ``via_root`` selects partitioned tables instead of their partitions.
    """
    return [t for t in captured if not (t.partition if via_root else t.partitioned)]
