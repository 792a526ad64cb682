"""Define a resolved profile: a pipeline's components and properties."""

from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Generic, TypeVar

from waltap.base.property import Properties
from waltap.changes.events.cell import EventForm
from waltap.ports.specs import (
    ColumnConverterSpec,
    ConnectorSpec,
    DecoderSpec,
    FormatSpec,
    NotificationChannelSpec,
    OffsetStoreSpec,
    PredicateSpec,
    SignalChannelSpec,
    SinkSpec,
    SnapshotterSpec,
    Spec,
    TopicNamingSpec,
    TransformSpec,
)

if TYPE_CHECKING:
    from waltap.changes.capture.capture import CaptureProperties
    from waltap.config.pipeline_properties import EngineProperties
    from waltap.config.sink_branch_properties import OutletProperties

__all__ = ["Component", "ConverterUse", "OutletProfile", "Profile", "TransformUse"]

S = TypeVar("S", bound=Spec)


@dataclass(frozen=True, slots=True)
class Component(Generic[S]):
    """A spec and the validated properties for its factory, if it has any."""

    spec: S
    properties: Properties | None = None


@dataclass(frozen=True, slots=True)
class TransformUse(Component[TransformSpec]):
    """A transform in a profile, with its predicate."""

    # The owner's name of the transform.
    label: str = ""
    # The records that a transform of records receives; with ``negate`` the other ones.
    predicate: Component[PredicateSpec] | None = None
    negate: bool = False


@dataclass(frozen=True, slots=True)
class ConverterUse(Component[ColumnConverterSpec]):
    """A converter of columns in a profile."""

    # The owner's name of the converter.
    label: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class OutletProfile:
    """One of several sinks of a pipeline."""

    name: str
    sink: Component[SinkSpec]
    format: Component[FormatSpec]
    # The sink's own transforms, after the pipeline's.
    transforms: tuple[TransformUse, ...]
    properties: "OutletProperties"


@dataclass(frozen=True, slots=True, kw_only=True)
class Profile:
    """One pipeline: one database with one or several sinks."""

    # Also the name of the pipeline's state folder.
    name: str
    connector: Component[ConnectorSpec]
    decoder: Component[DecoderSpec]
    snapshotter: Component[SnapshotterSpec]
    snapshot_query: Component[SnapshotterSpec] | None = None
    """Decides about the SELECTs of a snapshot in place of ``snapshotter``."""
    snapshot_lock: Component[SnapshotterSpec] | None = None
    """Decides about the locks of a snapshot in place of ``snapshotter``."""
    capture: "CaptureProperties"
    engine: "EngineProperties"
    format: Component[FormatSpec]
    topic_naming: Component[TopicNamingSpec]
    sink: Component[SinkSpec]
    offset_store: Component[OffsetStoreSpec]
    transforms: tuple[TransformUse, ...] = ()
    converters: tuple[ConverterUse, ...] = ()
    # Several sinks; ``sink`` then represents all of them.
    outlets: tuple[OutletProfile, ...] = ()
    dead_letters: Component[SinkSpec] | None = None
    """Receives a copy of every dead letter."""
    signal_channels: tuple[Component[SignalChannelSpec], ...] = ()
    """The polled channels: all except ``source``, whose signals are in the stream."""
    notification_channels: tuple[Component[NotificationChannelSpec], ...] = ()
    labels: dict[str, str] = field(default_factory=dict)
    debezium: bool = False
    """Whether the profile is a Debezium file, with Debezium's defaults."""
    folder: Path = field(default_factory=Path.cwd)
    """Start of the profile's relative paths; the paths in its components are absolute."""

    @property
    def form(self) -> EventForm:
        """Return the connector's form of events."""
        spec = self.connector.spec
        if spec.form is None:
            return EventForm()
        return spec.form(self.connector.properties, self.decoder.spec.name)
