"""The publication: made and adjusted as ``publication.autocreate.mode`` says, with the SQL shown."""

from collections.abc import Iterable

import psycopg
from psycopg import sql

from waltap.capture.properties import CaptureProperties
from waltap_postgres.catalog.catalogue import CatalogTable, PostgresCatalogue
from waltap_postgres.connection import driver_error
from waltap_postgres.errors import (
    INSERTS_OPERATIONS,
    INSERTS_SUFFIX,
    IdentityMissing,
    PublicationLocked,
    PublicationMissing,
    PublicationNotPermitted,
)
from waltap_postgres.identity.old_tuple import identity_sql, usable_word
from waltap_postgres.properties import PostgresProperties
from waltap_postgres.replication.shortfall import OPERATIONS, PublicationShortfall

__all__ = [
    "SKIPS_MISSING",
    "PublicationPlan",
    "identifier",
    "members",
    "plan_publication",
    "published",
    "published_by_any",
    "published_operations",
    "refuse_keyless",
    "streams_new",
]

SKIPS_MISSING = 180000
"""From this version on a publication that does not exist publishes nothing, instead of an error."""


class PublicationPlan:
    """What must be done so that the server publishes what is captured.

    ``statements`` are run in order; ``names`` are the publications to ask for; ``created`` those
    that the statements make; ``added`` the (schema, table) that they publish by name; ``unsent`` those
    of which the publications, as they are, did not publish everything; ``all_tables`` tells that one
    publishes every table, ``inserts_only`` that tables without a usable replica identity are
    published with their inserts only. ``shortfalls`` are what publications leave out of what is
    captured, by name: the statements fix those in ``mended``, the others are left as they are.
    ``waiting`` are tables without a key that the publication of inserts gets at a later start, as the
    slot has still to decode what is older than it. ``denied`` are tables, with their owners, that join a
    publication that is there already and may not be published by this role: they are left out, so that
    somebody else's CREATE TABLE does not stop the pipeline.
    """

    def __init__(self, names: tuple[str, ...]) -> None:
        self.names = names
        self.statements: list[str] = []
        self.created: list[str] = []
        self.added: list[tuple[str, str]] = []
        self.unsent: set[tuple[str, str]] = set()
        self.all_tables = False
        self.inserts_only = False
        self.shortfalls: list[tuple[str, PublicationShortfall]] = []
        self.mended: set[str] = set()
        self.waiting: list[str] = []
        self.denied: list[tuple[tuple[str, str], str]] = []

    def run(self, connection: "psycopg.Connection[object]", properties: PostgresProperties) -> None:
        """Run the statements in one transaction. Raises: SourceError."""
        timeout_ms = properties.snapshot_lock_timeout_ms
        try:
            with connection.transaction():
                # who waits for a lock makes all others wait that come for the table later
                connection.execute(f"SET LOCAL lock_timeout = {timeout_ms}".encode())
                for statement in self.statements:
                    connection.execute(statement.encode())
        except psycopg.errors.InsufficientPrivilege as error:
            raise PublicationNotPermitted(
                f"role {properties.user!r} may not publish: {error.diag.message_primary}",
                sql="; ".join(self.statements),
                database=identifier(properties.dbname),
                user=identifier(properties.user),
            ) from error
        except psycopg.errors.LockNotAvailable as error:
            raise PublicationLocked(
                f"publication {', '.join(self.names)}: {error.diag.message_primary}",
                timeout_ms=timeout_ms,
            ) from error
        except psycopg.Error as error:
            raise driver_error(error, properties) from error


def published_operations(capture: CaptureProperties) -> str | None:
    """Return what a publication publishes, None for everything: as Debezium, it is limited when
    ``skipped.operations`` is given and is not none."""
    skipped = set(capture.skipped_operations)
    if "skipped_operations" not in capture.model_fields_set or skipped == {"none"}:
        return None
    return ",".join(word for letter, word in OPERATIONS.items() if letter not in skipped)


def identifier(*parts: str) -> str:
    """Return a quoted, possibly qualified identifier."""
    return sql.Identifier(*parts).as_string(None)


def _for_all_tables(catalogue: PostgresCatalogue, name: str) -> bool:
    return bool(
        catalogue.query("SELECT 1 FROM pg_publication WHERE pubname = %s AND puballtables", (name,))
    )


def _members(catalogue: PostgresCatalogue, name: str) -> list[tuple[str, str]]:
    """Return the tables that the publication names; not partitioned ones, whose partitions it covers
    unless it publishes via the root."""
    return catalogue.query(
        "SELECT n.nspname::text, c.relname::text FROM pg_publication p"
        " JOIN pg_publication_rel r ON r.prpubid = p.oid JOIN pg_class c ON c.oid = r.prrelid"
        " JOIN pg_namespace n ON n.oid = c.relnamespace"
        " WHERE p.pubname = %s AND (c.relkind = 'r' OR coalesce("
        "   (to_jsonb(p) ->> 'pubviaroot')::bool, false)) ORDER BY 1, 2",
        (name,),
    )


def streams_new(
    catalogue: PostgresCatalogue, names: Iterable[str], schema: str, version_num: int
) -> bool:
    """Tell whether tables made in ``schema`` join one of the publications by themselves."""
    names = list(names)
    sql = "SELECT 1 FROM pg_publication p WHERE pubname = ANY(%s) AND (puballtables"
    if version_num >= 150000:
        sql += (
            " OR EXISTS (SELECT FROM pg_publication_namespace s JOIN pg_namespace n ON n.oid = s.pnnspid"
            " WHERE s.pnpubid = p.oid AND n.nspname = %s)"
        )
        return bool(catalogue.query(sql + ")", (names, schema)))
    return bool(catalogue.query(sql + ")", (names,)))


def published(catalogue: PostgresCatalogue, name: str) -> set[tuple[str, str]] | None:
    """Return (schema, table) of what the publication covers; None when it does not exist."""
    if not catalogue.query("SELECT 1 FROM pg_publication WHERE pubname = %s", (name,)):
        return None
    rows = catalogue.query(
        "SELECT schemaname::text, tablename::text FROM pg_publication_tables WHERE pubname = %s",
        (name,),
    )
    return set(rows)


def published_by_any(catalogue: PostgresCatalogue, names: Iterable[str]) -> set[tuple[str, str]]:
    """Return (schema, table) of what these publications cover together."""
    return {place for name in names for place in published(catalogue, name) or ()}


def plan_publication(
    catalogue: PostgresCatalogue,
    properties: PostgresProperties,
    captured: list[CatalogTable],
    *,
    operations: str | None,
    version_num: int,
    inserts_known: bool = False,
) -> PublicationPlan:
    """Decide what to do; changes nothing.

    ``operations`` is what the publication publishes (``insert, update``), None for all.
    ``inserts_known`` tells that the publication of inserts may be asked for whatever the slot that
    is there now has still to decode: it is about to be made anew, or was read with it before.
    Raises: PublicationMissing, IdentityMissing.
    """
    name, mode = properties.publication_name, properties.publication_autocreate_mode
    plan = PublicationPlan((name,))
    existing = published(catalogue, name)
    options = _options(properties, operations, version_num)
    if mode == "disabled":
        if existing is None:
            tables = ", ".join(identifier(t.relation.schema, t.relation.table) for t in captured)
            statement = f"CREATE PUBLICATION {identifier(name)} FOR TABLE {tables or '…'}"
            raise PublicationMissing(f"publication {name!r} does not exist", sql=statement)
        _warn_uncovered(existing, captured, name, properties)
        return plan
    if mode in {"all_tables", "no_tables"}:
        if existing is None:
            if mode == "all_tables" and properties.publication_keyless_tables == "refuse":
                refuse_keyless([t for t in catalogue.tables() if not t.supports_updates])
            what = " FOR ALL TABLES" if mode == "all_tables" else ""
            plan.statements.append(f"CREATE PUBLICATION {identifier(name)}{what}{options}")
            plan.created.append(name)
            plan.all_tables = mode == "all_tables"
        return plan
    if properties.publication_keyless_tables == "inserts":
        inserts_known = inserts_known or _inserts_usable(catalogue, properties)
    _plan_filtered(
        plan, catalogue, properties, captured, existing, options, version_num,
        inserts_known=inserts_known,
    )  # fmt: skip
    return plan


def _inserts_usable(catalogue: PostgresCatalogue, properties: PostgresProperties) -> bool:
    """Tell whether the slot may be asked for the publication of inserts.

    The server looks for a publication in the catalogue as it was at each change, and refuses those
    from before it was made. So it must be older than all that the slot can still decode (its
    ``catalog_xmin``), or made in one transaction with the first publication, or have tables, which
    it gets only when it may be asked for.
    """
    if not catalogue.query(
        "SELECT 1 FROM pg_replication_slots WHERE slot_name = %s", (properties.slot_name,)
    ):
        return True
    name = properties.publication_name
    return bool(
        catalogue.query(
            "SELECT 1 FROM pg_publication i"
            " JOIN pg_replication_slots s ON s.slot_name = %s"
            " LEFT JOIN pg_publication p ON p.pubname = %s"
            " WHERE i.pubname = %s AND (i.xmin = p.xmin OR age(i.xmin) > age(s.catalog_xmin)"
            "  OR EXISTS (SELECT FROM pg_publication_rel r WHERE r.prpubid = i.oid))",
            (properties.slot_name, name, name + INSERTS_SUFFIX),
        )
    )


def _plan_filtered(
    plan: PublicationPlan,
    catalogue: PostgresCatalogue,
    properties: PostgresProperties,
    captured: list[CatalogTable],
    existing: set[tuple[str, str]] | None,
    options: str,
    version_num: int,
    *,
    inserts_known: bool,
) -> None:
    name, keyless_policy = properties.publication_name, properties.publication_keyless_tables
    wanted = members(captured, via_root=properties.publish_via_partition_root)
    new = [t for t in wanted if (t.relation.schema, t.relation.table) not in (existing or set())]
    keyless = [t for t in (new if keyless_policy == "refuse" else wanted) if not t.supports_updates]
    if keyless_policy == "refuse":
        refuse_keyless(keyless)
    if keyless_policy == "inserts":
        wanted = [t for t in wanted if t.supports_updates or not (inserts_known or t in new)]
        if inserts_known:
            plan.names = (*plan.names, name + INSERTS_SUFFIX)
            plan.inserts_only = True
        else:
            plan.waiting = [t.relation.name for t in keyless]
            keyless = []
        # made even if it has no tables yet, so that it is older than the slot when it gets some
        only = f" WITH (publish = '{INSERTS_OPERATIONS}')"
        _cover(plan, catalogue, name + INSERTS_SUFFIX, keyless, only)
    _cover(plan, catalogue, name, wanted, options)
    # Older servers refuse to decode for a publication that did not exist, and lose nothing.
    if existing is not None or version_num >= SKIPS_MISSING:
        plan.unsent = set(plan.added) - published_by_any(catalogue, plan.names)


def refuse_keyless(keyless: list[CatalogTable]) -> None:
    """Raises: IdentityMissing, where there is such a table."""
    if not keyless:
        return
    names = ", ".join(t.relation.name for t in keyless)
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
    options: str,
) -> None:
    """Create the publication for ``tables``, or add and drop tables where it differs.

    Tables that stay are not touched: SET TABLE would drop their row filters and column lists.
    """
    existing = published(catalogue, name)
    wanted = {(t.relation.schema, t.relation.table): None for t in tables}
    if existing is None:
        what = f" FOR TABLE {_listed(wanted)}" if wanted else ""
        plan.statements.append(f"CREATE PUBLICATION {identifier(name)}{what}{options}")
        plan.created.append(name)
        plan.added += wanted
    elif wanted and not _for_all_tables(catalogue, name):
        new = [pair for pair in wanted if pair not in existing]
        denied = _denied(catalogue, new) if existing else {}
        plan.denied += denied.items()
        new = [pair for pair in new if pair not in denied]
        plan.added += new
        surplus = [pair for pair in _members(catalogue, name) if pair not in wanted]
        for verb, pairs in (("ADD", new), ("DROP", surplus)):
            if pairs:
                alter = f"ALTER PUBLICATION {identifier(name)} {verb} TABLE {_listed(pairs)}"
                plan.statements.append(alter)


def _denied(
    catalogue: PostgresCatalogue, pairs: list[tuple[str, str]]
) -> dict[tuple[str, str], str]:
    """Return those of ``pairs`` that this role may not publish, with their owners."""
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


def _listed(pairs: Iterable[tuple[str, str]]) -> str:
    return ", ".join(identifier(*pair) for pair in pairs)


def _options(properties: PostgresProperties, operations: str | None, version_num: int) -> str:
    options = []
    if operations is not None:
        options.append(f"publish = '{operations}'")
    if properties.publish_via_partition_root and version_num >= 130000:
        options.append("publish_via_partition_root = true")
    return f" WITH ({', '.join(options)})" if options else ""


def _warn_uncovered(
    existing: set[tuple[str, str]],
    captured: list[CatalogTable],
    name: str,
    properties: PostgresProperties,
) -> None:
    """Refuse when the publication covers none of what is captured."""
    root = properties.publish_via_partition_root
    wanted = {_place(t) for t in members(captured, via_root=root)}
    if not wanted or not existing or wanted & existing:
        return
    if {_place(t) for t in captured} & existing:  # no ADD TABLE makes it name the others
        value = str(not root).lower()
        raise PublicationMissing(
            f"publication {name!r} has publish_via_partition_root = {value}: it sends no captured table "
            "under the name that the profile has it by",
            sql=f"publish.via.partition.root={value} in the profile, as the publication has it",
        )
    tables = ", ".join(identifier(*pair) for pair in sorted(wanted))
    statement = f"ALTER PUBLICATION {identifier(name)} ADD TABLE {tables}"
    raise PublicationMissing(f"publication {name!r} covers no captured table", sql=statement)


def members(captured: list[CatalogTable], *, via_root: bool) -> list[CatalogTable]:
    """Return the tables by whose names rows are sent: partitioned tables, or their partitions."""
    return [t for t in captured if not (t.partition if via_root else t.partitioned)]


def _place(table: CatalogTable) -> tuple[str, str]:
    return table.relation.schema, table.relation.table
