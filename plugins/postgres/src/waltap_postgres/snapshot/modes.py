"""Debezium's snapshot modes as predicates of a start's facts."""

from waltap.base.property import Properties, declare
from waltap.ports.snapshot.snapshotter import SnapshotFacts, Snapshotter
from waltap.ports.specs import SnapshotterSpec
from waltap_postgres.errors import SnapshotInterrupted


class AlwaysSnapshotter(Snapshotter):
    """Read the tables at every start, but not after a reconnect."""

    def takes_snapshot(self, known: SnapshotFacts) -> bool:
        return not known.reconnects or known.snapshot_incomplete

    def streams(self, known: SnapshotFacts) -> bool:
        return True

    def resumes(self, known: SnapshotFacts) -> bool:
        return known.reconnects  # a start reads everything


class InitialSnapshotter(Snapshotter):
    """Read the tables without an offset, or after an unfinished snapshot."""

    def takes_snapshot(self, known: SnapshotFacts) -> bool:
        return not known.offset or known.snapshot_incomplete

    def streams(self, known: SnapshotFacts) -> bool:
        return True


class InitialOnly(InitialSnapshotter):
    """Snapshot as initial does, then stop: no slot and no publication."""

    def streams(self, known: SnapshotFacts) -> bool:
        return False


class NoData(Snapshotter):
    """Stream from the slot's position and read no rows."""

    def takes_snapshot(self, known: SnapshotFacts) -> bool:
        # This mode takes no other snapshot, so the missing rows would never be read.
        if known.snapshot_incomplete:
            raise SnapshotInterrupted("the last run ended in its snapshot")
        return False

    def streams(self, known: SnapshotFacts) -> bool:
        return True


class WhenNeeded(InitialSnapshotter):
    """Snapshot as initial does, and also after a lost position."""

    def takes_snapshot(self, known: SnapshotFacts) -> bool:
        return super().takes_snapshot(known) or not known.position_available

    def recovers_lost_position(self) -> bool:
        return True


class ConfigurationBasedProperties(Properties):
    """The flags of ``snapshot.mode=configuration_based``."""

    data: bool = declare(
        "snapshot.mode.configuration.based.snapshot.data",
        default=False,
        advanced=True,
        summary="Read the tables at every start.",
    )
    stream: bool = declare(
        "snapshot.mode.configuration.based.start.stream",
        default=False,
        advanced=True,
        summary="Stream after it.",
    )
    on_data_error: bool = declare(
        "snapshot.mode.configuration.based.snapshot.on.data.error",
        default=False,
        advanced=True,
        summary="Read the tables when the stored position can no longer be streamed from.",
    )


class ConfigurationBased(Snapshotter):
    """Snapshot and stream as its flags say."""

    def __init__(self, flags: ConfigurationBasedProperties) -> None:
        self._flags = flags

    def takes_snapshot(self, known: SnapshotFacts) -> bool:
        if known.snapshot_incomplete and not self._flags.data:
            raise SnapshotInterrupted("the last run ended in its snapshot")
        if self._flags.data and (not known.reconnects or known.snapshot_incomplete):
            return True
        return not known.position_available and self._flags.on_data_error

    def streams(self, known: SnapshotFacts) -> bool:
        return self._flags.stream

    def resumes(self, known: SnapshotFacts) -> bool:
        return known.reconnects or not self._flags.data

    def recovers_lost_position(self) -> bool:
        return self._flags.on_data_error


SNAPSHOTTERS = (
    SnapshotterSpec(
        name="initial",
        summary="Snapshot when there is no offset, then stream (the default).",
        factory=lambda _: InitialSnapshotter(),
    ),
    SnapshotterSpec(
        name="always",
        summary="Snapshot at every start, then stream.",
        factory=lambda _: AlwaysSnapshotter(),
    ),
    SnapshotterSpec(
        name="initial_only", summary="Snapshot, then stop.", factory=lambda _: InitialOnly()
    ),
    SnapshotterSpec(
        name="no_data",
        aliases=("never", "schema_only"),
        summary="Stream only.",
        factory=lambda _: NoData(),
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
