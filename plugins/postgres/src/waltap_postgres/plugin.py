"""Hook implementations of this distribution."""

from collections.abc import Iterable

from waltap.plugins.hookspecs import hookimpl
from waltap.ports.specs import ConnectorSpec, ReplicaIdentitySpec, SnapshotterSpec, TypeSpec, lazy


@hookimpl
def register_connectors() -> Iterable[ConnectorSpec]:
    """Contribute the connector for PostgreSQL."""
    yield ConnectorSpec(
        name="postgres",
        aliases=("postgresql",),
        summary="PostgreSQL 12 to 18, by logical replication.",
        properties=lazy("waltap_postgres.properties:PostgresProperties"),
        factory=lazy("waltap_postgres.connector:PostgresConnector"),
        lease=lazy("waltap_postgres.lease:PostgresLease"),
        slot_watch=lazy("waltap_postgres.replication.slot:PostgresSlotWatch"),
        classes=("io.debezium.connector.postgresql.PostgresConnector",),
    )


@hookimpl
def register_snapshotters() -> Iterable[SnapshotterSpec]:
    """Contribute Debezium's snapshot modes."""
    from waltap_postgres.start.modes import SNAPSHOTTERS

    return SNAPSHOTTERS


@hookimpl
def register_replica_identities() -> Iterable[ReplicaIdentitySpec]:
    """Contribute DEFAULT, NOTHING, FULL and INDEX."""
    from waltap_postgres.identity import REPLICA_IDENTITIES

    return REPLICA_IDENTITIES


@hookimpl
def register_types() -> Iterable[TypeSpec]:
    """Contribute all built-in types, and types of PostgreSQL's extensions."""
    from waltap_postgres.types import TYPE_SPECS

    return TYPE_SPECS
