"""Hook implementations of this distribution."""

from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

from waltap.plugins.hookspecs import hookimpl
from waltap.ports.specs import ConnectorSpec

if TYPE_CHECKING:
    from waltap.ports.source.connector import Connector
    from waltap.ports.source.lease import LeaderLease
    from waltap.ports.source.slot_watch import SlotWatch
    from waltap.ports.specs import ReplicaIdentitySpec, SnapshotterSpec, TypeSpec


def _connector(properties: Any, context: Any) -> "Connector":
    from waltap_postgres.connector import PostgresConnector

    return PostgresConnector(properties, context)


def _lease(properties: Any, context: Any) -> "LeaderLease":
    from waltap_postgres.lease import PostgresLease

    return PostgresLease(properties, context)


def _slot_watch(properties: Any, context: Any) -> "SlotWatch":
    from waltap_postgres.replication.slot import PostgresSlotWatch

    return PostgresSlotWatch(properties, context)


@hookimpl
def register_connectors() -> Iterable[ConnectorSpec]:
    """Contribute the connector for PostgreSQL."""
    from waltap_postgres.properties import PostgresProperties

    yield ConnectorSpec(
        name="postgres",
        aliases=("postgresql",),
        summary="PostgreSQL 10 and later, by logical replication.",
        properties=PostgresProperties,
        factory=_connector,
        lease=_lease,
        slot_watch=_slot_watch,
        classes=("io.debezium.connector.postgresql.PostgresConnector",),
    )


@hookimpl
def register_snapshotters() -> "Iterable[SnapshotterSpec]":
    """Contribute Debezium's snapshot modes."""
    from waltap_postgres.snapshot.modes import SNAPSHOTTERS

    return SNAPSHOTTERS


@hookimpl
def register_replica_identities() -> "Iterable[ReplicaIdentitySpec]":
    """Contribute DEFAULT, NOTHING, FULL and INDEX."""
    from waltap_postgres.identity import REPLICA_IDENTITIES

    return REPLICA_IDENTITIES


@hookimpl
def register_types() -> "Iterable[TypeSpec]":
    """Contribute all built-in types, and types of PostgreSQL's extensions."""
    from waltap_postgres.types import TYPE_SPECS

    return TYPE_SPECS
