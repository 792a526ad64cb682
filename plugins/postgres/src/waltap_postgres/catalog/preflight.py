"""Checks before a start: everything capture needs of the server, and what mends what is missing."""

from waltap.source.connector import Check
from waltap_postgres.catalog.catalogue import PostgresCatalogue, Table
from waltap_postgres.catalog.server_setting import (
    WAL_LEVEL_SQL,
    ServerSetting,
    server_settings,
    wal_level_remedy,
)
from waltap_postgres.errors import TableUnreadable
from waltap_postgres.properties import PostgresProperties
from waltap_postgres.replication.publication import identifier, published
from waltap_postgres.replication.slot import read_slot

__all__ = ["preflight", "tables_unreadable"]
SETTINGS = ("wal_level", "max_replication_slots", "max_wal_senders", "output_plugin_libraries")


def preflight(
    catalogue: PostgresCatalogue,
    properties: PostgresProperties,
    captured: list[Table],
    *,
    plugin: str,
    version_num: int,
) -> list[Check]:
    """Look at everything; changes nothing."""
    found = server_settings(catalogue, SETTINGS)
    settings = {name: setting.value for name, setting in found.items()}
    return [
        _version(version_num),
        _wal_level(found.get("wal_level")),
        _slots(catalogue, properties, settings, version_num),
        _senders(catalogue, settings),
        _privileges(catalogue, properties),
        _output_plugin(settings, plugin),
        _captured(captured),
        _publication(catalogue, properties, captured, plugin),
        *_identities(captured, properties),
        *_readable(catalogue, captured, properties),
    ]


def _version(version_num: int) -> Check:
    text = f"PostgreSQL {version_num // 10000}.{version_num % 10000}"
    if version_num < 100000:
        return Check(
            name="server version", verdict="error", found=text, remedy="Upgrade to 10 or later."
        )
    return Check(name="server version", verdict="ok", found=text)


def _wal_level(setting: ServerSetting | None) -> Check:
    level = setting.value if setting else "unknown"
    if level != "logical":
        waits = (
            f", {setting.written or 'another'} from the next restart on"
            if setting and setting.waiting
            else ""
        )
        return Check(
            name="wal_level",
            verdict="error",
            found=f"{level}{waits}",
            remedy=wal_level_remedy(setting),
        )
    if setting and setting.waiting and setting.written not in {None, "logical"}:
        return Check(
            name="wal_level",
            verdict="warning",
            found=f"logical, but {setting.written} from the next restart on",
            remedy=WAL_LEVEL_SQL,
        )
    return Check(name="wal_level", verdict="ok", found=level)


def _slots(
    catalogue: PostgresCatalogue,
    properties: PostgresProperties,
    settings: dict[str, str],
    version_num: int,
) -> Check:
    slot = read_slot(catalogue, properties.slot_name, version_num)
    if slot is not None:
        found = f"slot {slot.name!r} exists, plugin {slot.plugin}, database {slot.database}"
        if slot.active_pid:
            return Check(
                name="replication slot",
                verdict="warning",
                found=f"{found}, in use by pid {slot.active_pid}",
                remedy="Stop the other consumer, or choose another slot.name",
            )
        if slot.wal_status == "lost":
            return Check(
                name="replication slot",
                verdict="error",
                found=f"{found}, invalidated",
                remedy=f"SELECT pg_drop_replication_slot('{slot.name}') and start with a new snapshot",
            )
        return Check(name="replication slot", verdict="ok", found=found)
    used = catalogue.query("SELECT count(*) FROM pg_replication_slots")[0][0]
    limit = int(settings.get("max_replication_slots", "0"))
    found = f"{used} of {limit} slots in use"
    if used >= limit:
        return Check(
            name="replication slot",
            verdict="error",
            found=found,
            remedy="Raise max_replication_slots and restart, or drop a slot that nobody reads",
        )
    return Check(name="replication slot", verdict="ok", found=found)


def _senders(catalogue: PostgresCatalogue, settings: dict[str, str]) -> Check:
    used = catalogue.query("SELECT count(*) FROM pg_stat_replication")[0][0]
    limit = int(settings.get("max_wal_senders", "0"))
    found = f"{used} of {limit} in use"
    if used >= limit:
        return Check(
            name="walsenders",
            verdict="error",
            found=found,
            remedy="Raise max_wal_senders and restart the server",
        )
    return Check(name="walsenders", verdict="ok", found=found)


def _privileges(catalogue: PostgresCatalogue, properties: PostgresProperties) -> Check:
    row = catalogue.query(
        "SELECT rolsuper, rolreplication, has_database_privilege(current_database(), 'CREATE')"
        " FROM pg_roles WHERE rolname = current_user"
    )
    superuser, replication, create = row[0] if row else (False, False, False)
    user = identifier(properties.user)
    if not (superuser or replication):
        return Check(
            name="privileges",
            verdict="error",
            found=f"role {properties.user} has no REPLICATION",
            remedy=f"ALTER ROLE {user} WITH REPLICATION",
        )
    if properties.publication_autocreate_mode != "disabled" and not (superuser or create):
        return Check(
            name="privileges",
            verdict="warning",
            found=f"role {properties.user} may not create publications",
            remedy=f"GRANT CREATE ON DATABASE {identifier(properties.dbname)} TO {user}, or make the"
            " publication yourself and set publication.autocreate.mode=disabled",
        )
    return Check(name="privileges", verdict="ok", found="REPLICATION")


def _output_plugin(settings: dict[str, str], plugin: str) -> Check:
    listed = settings.get("output_plugin_libraries")
    if listed is None:
        return Check(name="output plugin", verdict="ok", found=plugin)
    names = [name.strip() for name in listed.split(",")]
    if plugin in names:
        return Check(name="output plugin", verdict="ok", found=f"{plugin} is allowed")
    return Check(
        name="output plugin",
        verdict="error",
        found=f"output_plugin_libraries is {listed!r}",
        remedy=f"ALTER SYSTEM SET output_plugin_libraries = '{listed}, {plugin}';"
        " SELECT pg_reload_conf();",
    )


def _captured(captured: list[Table]) -> Check:
    if captured:
        return Check(name="captured tables", verdict="ok", found=f"{len(captured)} tables")
    return Check(
        name="captured tables",
        verdict="warning",
        found="no table fits the include and exclude lists",
        remedy="Check schema.include.list and table.include.list (regular expressions, schema.table)",
    )


def _publication(
    catalogue: PostgresCatalogue,
    properties: PostgresProperties,
    captured: list[Table],
    plugin: str,
) -> Check:
    name = properties.publication_name
    if plugin not in {"pgoutput", "yboutput"}:
        return Check(name="publication", verdict="ok", found=f"not used by {plugin}")
    existing = published(catalogue, name)
    if existing is None:
        if properties.publication_autocreate_mode == "disabled":
            return Check(
                name="publication",
                verdict="error",
                found=f"{name!r} does not exist",
                remedy=f"CREATE PUBLICATION {identifier(name)} FOR TABLE …",
            )
        mode = properties.publication_autocreate_mode
        return Check(name="publication", verdict="ok", found=f"{name!r} will be made ({mode})")
    missing = [
        t.relation
        for t in captured
        if (t.relation.schema, t.relation.table) not in existing and not t.partitioned
    ]
    if missing and properties.publication_autocreate_mode != "filtered":
        tables = ", ".join(identifier(r.schema, r.table) for r in missing[:20])
        return Check(
            name="publication",
            verdict="warning",
            found=f"{name!r} does not cover {', '.join(r.name for r in missing[:20])}",
            remedy=f"ALTER PUBLICATION {identifier(name)} ADD TABLE {tables}",
        )
    return Check(name="publication", verdict="ok", found=f"{name!r} covers what is captured")


def _identities(captured: list[Table], properties: PostgresProperties) -> list[Check]:
    checks = []
    refuse = properties.publication_keyless_tables == "refuse"
    for table in captured:
        if table.supports_updates:
            continue
        relation = table.relation
        checks.append(
            Check(
                name="replica identity",
                verdict="error" if refuse else "warning",
                found=f"{relation.name} has no usable replica identity: once it is published, its"
                " UPDATE and DELETE fail",
                remedy=f"ALTER TABLE {identifier(relation.schema, relation.table)}"
                " REPLICA IDENTITY FULL, or add a primary key",
            )
        )
    if not checks and captured:
        checks.append(Check(name="replica identity", verdict="ok", found="every table has one"))
    return checks


def tables_unreadable(
    catalogue: PostgresCatalogue, tables: list[Table], properties: PostgresProperties
) -> TableUnreadable | None:
    """Return the error of tables that a snapshot could not read, None when it can read them all."""
    relations = catalogue.unreadable([table.relation for table in tables])
    if not relations:
        return None
    names = ", ".join(relation.name for relation in relations)
    return TableUnreadable(
        f"role {properties.user!r} may not read {names}",
        tables=", ".join(identifier(r.schema, r.table) for r in relations),
        schemas=", ".join(sorted({identifier(r.schema) for r in relations})),
        user=identifier(properties.user),
    )


def _readable(
    catalogue: PostgresCatalogue, captured: list[Table], properties: PostgresProperties
) -> list[Check]:
    relations = catalogue.unreadable([t.relation for t in captured])
    if not relations:
        return []
    tables = ", ".join(identifier(r.schema, r.table) for r in relations)
    schemas = ", ".join(sorted({identifier(r.schema) for r in relations}))
    user = identifier(properties.user)
    return [
        Check(
            name="privileges",
            verdict="error",
            found=f"may not read {', '.join(r.name for r in relations)}",
            remedy=f"GRANT USAGE ON SCHEMA {schemas} TO {user}; GRANT SELECT ON {tables} TO {user}",
        )
    ]
