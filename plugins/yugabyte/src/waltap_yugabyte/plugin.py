"""Hook implementations of this distribution."""

from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

from waltap.plugins.hookspecs import hookimpl
from waltap.ports.specs import ConnectorSpec, SnapshotterSpec, lazy

if TYPE_CHECKING:
    from waltap.ports.source.connector import Connector
    from waltap.ports.specs import ReplicaIdentitySpec, TransformSpec


def _connector(properties: Any, context: Any) -> "Connector":
    from waltap_postgres.connector import PostgresConnector
    from waltap_yugabyte.dialect import YUGABYTEDB
    from waltap_yugabyte.parallel import RangedConnector

    # tasks.max counts as threads with snapshot.mode=parallel.
    properties = properties.model_copy(update={"snapshot_max_threads": properties.readers})
    if properties.streaming_mode == "parallel":
        return RangedConnector(properties, context)
    return PostgresConnector(properties, context, YUGABYTEDB)


def _recognizes(version: str) -> bool:
    from waltap_yugabyte.server import release

    return release(version) is not None


@hookimpl
def register_connectors() -> Iterable[ConnectorSpec]:
    """Contribute the connector for YugabyteDB."""
    yield ConnectorSpec(
        name="yugabyte",
        aliases=("yugabytedb",),
        summary="YugabyteDB 2024.1 and later, by logical replication.",
        properties=lazy("waltap_yugabyte.properties:YugabyteProperties"),
        factory=_connector,
        classes=("io.debezium.connector.postgresql.YugabyteDBConnector",),
        recognizes=_recognizes,
        form=lazy("waltap_yugabyte.dialect:event_form"),
    )


@hookimpl
def register_snapshotters() -> Iterable[SnapshotterSpec]:
    """Contribute the snapshot mode that only YugabyteDB has."""
    from waltap_postgres.start.modes import InitialOnly
    from waltap_yugabyte.properties import PARALLEL

    yield SnapshotterSpec(
        name=PARALLEL,
        summary="YugabyteDB: like initial_only, ranges of a table by several connections.",
        factory=lambda _: InitialOnly(),
    )


@hookimpl
def register_transforms() -> "Iterable[TransformSpec]":
    """Contribute the transforms that unwrap cells."""
    from waltap_yugabyte.transforms import TRANSFORMS

    return TRANSFORMS


@hookimpl
def register_replica_identities() -> "Iterable[ReplicaIdentitySpec]":
    """Contribute CHANGE: an update sends only its written columns."""
    from waltap_yugabyte.identity import REPLICA_IDENTITIES

    return REPLICA_IDENTITIES
