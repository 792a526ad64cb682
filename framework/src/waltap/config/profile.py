"""A resolved profile: every component of one pipeline with its validated properties."""

from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Generic, TypeVar

from waltap.config.property import Properties
from waltap.events.form import EventForm
from waltap.specs import (
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
    from waltap.capture.capture import CaptureProperties
    from waltap.pipeline.properties import EngineProperties
    from waltap.pipeline.sink_branch_properties import OutletProperties

__all__ = ["Component", "ConverterUse", "OutletProfile", "Profile", "TransformUse"]

S = TypeVar("S", bound=Spec)


@dataclass(frozen=True, slots=True)
class Component(Generic[S]):
    """A spec and the properties to call its factory with (None where it declares none)."""

    spec: S
    properties: Properties | None = None


@dataclass(frozen=True, slots=True)
class TransformUse(Component[TransformSpec]):
    """A transform of a profile. ``label`` is what its owner calls it; ``predicate`` says which records a
    transform of records concerns, with ``negate`` which it does not."""

    label: str = ""
    predicate: Component[PredicateSpec] | None = None
    negate: bool = False


@dataclass(frozen=True, slots=True)
class ConverterUse(Component[ColumnConverterSpec]):
    """A converter of columns of a profile. ``label`` is what its owner calls it."""

    label: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class OutletProfile:
    """One of several sinks of a pipeline; ``transforms`` are its own, behind the pipeline's."""

    name: str
    sink: Component[SinkSpec]
    format: Component[FormatSpec]
    transforms: tuple[TransformUse, ...]
    properties: "OutletProperties"


@dataclass(frozen=True, slots=True, kw_only=True)
class Profile:
    """One pipeline: one database, and one sink, or several (``outlets``; ``sink`` then stands for all).
    ``name`` is also the folder of its state."""

    name: str
    connector: Component[ConnectorSpec]
    decoder: Component[DecoderSpec]
    snapshotter: Component[SnapshotterSpec]
    snapshot_query: Component[SnapshotterSpec] | None = None
    """Gives the SELECTs of a snapshot instead of ``snapshotter``."""
    snapshot_lock: Component[SnapshotterSpec] | None = None
    """Gives the locks of a snapshot instead of ``snapshotter``."""
    capture: "CaptureProperties"
    engine: "EngineProperties"
    format: Component[FormatSpec]
    topic_naming: Component[TopicNamingSpec]
    sink: Component[SinkSpec]
    offset_store: Component[OffsetStoreSpec]
    transforms: tuple[TransformUse, ...] = ()
    converters: tuple[ConverterUse, ...] = ()
    outlets: tuple[OutletProfile, ...] = ()
    dead_letters: Component[SinkSpec] | None = None
    """Gets a copy of every dead letter."""
    signal_channels: tuple[Component[SignalChannelSpec], ...] = ()
    """Those that are polled: all but ``source``, whose signals come in the stream."""
    notification_channels: tuple[Component[NotificationChannelSpec], ...] = ()
    labels: dict[str, str] = field(default_factory=dict)
    debezium: bool = False
    """Whether it came from a Debezium file (defaults that differ then are Debezium's)."""
    folder: Path = field(default_factory=Path.cwd)
    """Where its relative paths start; the paths in its components are absolute."""

    @property
    def form(self) -> EventForm:
        """Return the form of its events, as its connector has them."""
        spec = self.connector.spec
        if spec.form is None:
            return EventForm()
        return spec.form(self.connector.properties, self.decoder.spec.name)
