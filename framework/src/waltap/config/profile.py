"""A resolved profile: every component of one pipeline with its validated properties."""

from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Generic, TypeVar

from waltap.config.property import Properties
from waltap.specs import (
    ConnectorSpec,
    DecoderSpec,
    FormatSpec,
    NotificationChannelSpec,
    OffsetStoreSpec,
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

__all__ = ["Component", "Profile"]

S = TypeVar("S", bound=Spec)


@dataclass(frozen=True, slots=True)
class Component(Generic[S]):
    """A spec and the properties to call its factory with (None where it declares none)."""

    spec: S
    properties: Properties | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Profile:
    """One pipeline: one database, one sink. ``name`` is also the folder of its state."""

    name: str
    connector: Component[ConnectorSpec]
    decoder: Component[DecoderSpec]
    snapshotter: Component[SnapshotterSpec]
    capture: "CaptureProperties"
    engine: "EngineProperties"
    format: Component[FormatSpec]
    topic_naming: Component[TopicNamingSpec]
    sink: Component[SinkSpec]
    offset_store: Component[OffsetStoreSpec]
    transforms: tuple[Component[TransformSpec], ...] = ()
    signal_channels: tuple[Component[SignalChannelSpec], ...] = ()
    """Those that are polled: all but ``source``, whose signals come in the stream."""
    notification_channels: tuple[Component[NotificationChannelSpec], ...] = ()
    labels: dict[str, str] = field(default_factory=dict)
    debezium: bool = False
    """Whether it came from a Debezium file (defaults that differ then are Debezium's)."""
    folder: Path = field(default_factory=Path.cwd)
    """Where its relative paths start; the paths in its components are absolute."""
