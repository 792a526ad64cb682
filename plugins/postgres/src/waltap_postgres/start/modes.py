"""Debezium's snapshot modes as predicates of a start's facts."""

from waltap.base.property import Properties, Switch, declare
from waltap.ports.snapshot.snapshotter import SnapshotFacts, Snapshotter
from waltap.ports.specs import SnapshotterSpec
from waltap_postgres.errors import SnapshotInterrupted


class InitialOnly(Snapshotter):
    """Snapshot as initial does, then stop: no slot and no publication."""

    def streams(self, known: SnapshotFacts) -> bool:
        return False


class WhenNeeded(Snapshotter):
    """Snapshot as initial does, and also after a lost position."""

    def takes_snapshot(self, known: SnapshotFacts) -> bool:
        return super().takes_snapshot(known) or not known.position_available

    def recovers_lost_position(self) -> bool:
        return True


class ConfigurationBasedProperties(Properties):
    """The flags of ``snapshot.mode=configuration_based``."""

    data: Switch = declare(
        "snapshot.mode.configuration.based.snapshot.data", summary="Read the tables at every start."
    )
    stream: Switch = declare(
        "snapshot.mode.configuration.based.start.stream", summary="Stream after it."
    )
    on_data_error: Switch = declare(
        "snapshot.mode.configuration.based.snapshot.on.data.error",
        summary="Read the tables when the stored position can no longer be streamed from.",
    )


class ConfigurationBased(Snapshotter):
    """Snapshot and stream as its flags say."""

    def __init__(self, flags: ConfigurationBasedProperties) -> None:
        self._flags = flags

    def takes_snapshot(self, known: SnapshotFacts) -> bool:
        # Such a mode takes no other snapshot, so the missing rows would never be read.
        if known.snapshot_incomplete and not self._flags.data:
            raise SnapshotInterrupted("the last run ended in its snapshot")
        if self._flags.data and (not known.reconnects or known.snapshot_incomplete):
            return True
        return not known.position_available and self._flags.on_data_error

    def streams(self, known: SnapshotFacts) -> bool:
        return self._flags.stream

    def resumes(self, known: SnapshotFacts) -> bool:
        return known.reconnects or not self._flags.data  # a start with data reads everything

    def recovers_lost_position(self) -> bool:
        return self._flags.on_data_error


SNAPSHOTTERS = (
    SnapshotterSpec(
        name="initial",
        summary="Snapshot when there is no offset, then stream (the default).",
        factory=lambda _: Snapshotter(),
    ),
    SnapshotterSpec(
        name="always",
        summary="Snapshot at every start, then stream.",
        factory=lambda _: ConfigurationBased(ConfigurationBasedProperties(data=True, stream=True)),
    ),
    SnapshotterSpec(
        name="initial_only", summary="Snapshot, then stop.", factory=lambda _: InitialOnly()
    ),
    SnapshotterSpec(
        name="no_data",
        aliases=("never", "schema_only"),
        summary="Stream only.",
        factory=lambda _: ConfigurationBased(ConfigurationBasedProperties(stream=True)),
    ),
    SnapshotterSpec(
        name="when_needed",
        summary="Snapshot when there is no offset or its position is lost, then stream.",
        factory=lambda _: WhenNeeded(),
    ),
    SnapshotterSpec(
        name="configuration_based",
        summary="Snapshot and stream as snapshot.mode.configuration.based.* say.",
        properties=ConfigurationBasedProperties,
        factory=ConfigurationBased,
    ),
)
