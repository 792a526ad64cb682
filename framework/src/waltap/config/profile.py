"""Compare two resolved profiles, for a reload."""

from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Generic, Literal, TypeVar

from waltap.base.property import Maybe, Properties, PropertyDeclaration, declarations, declare
from waltap.changes.capture.properties import CaptureProperties
from waltap.changes.events.plan import EventForm
from waltap.config.pipeline_properties import EngineProperties, SinkBranchProperties
from waltap.ports import specs

S = TypeVar("S", bound=specs.Spec)


@dataclass(frozen=True, slots=True)
class Component(Generic[S]):
    """A spec and validated properties for its factory."""

    spec: S
    properties: Properties | None = None
    # The owner's name of a transform, or of a converter of columns; a format's part of records.
    label: str = ""
    # The formats of record parts that a format consists of.
    parts: tuple["Component[Any]", ...] = ()


@dataclass(frozen=True, slots=True)
class TransformUse(Component[specs.TransformSpec]):
    """A transform in a profile, with its predicate."""

    # The records that a transform of records receives; with ``negate`` the other ones.
    predicate: Component[specs.PredicateSpec] | None = None
    negate: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class SinkBranchProfile:
    """One of several sinks of a pipeline."""

    name: str
    sink: Component[specs.SinkSpec]
    format: Component[specs.FormatSpec]
    # The sink's own transforms, after the pipeline's.
    transforms: tuple[TransformUse, ...]
    properties: SinkBranchProperties


@dataclass(frozen=True, slots=True, kw_only=True)
class Profile:
    """One pipeline: one database with one or several sinks."""

    # Also the name of the pipeline's state folder.
    name: str
    connector: Component[specs.ConnectorSpec]
    decoder: Component[specs.DecoderSpec]
    snapshotter: Component[specs.SnapshotterSpec]
    snapshot_query: Component[specs.SnapshotterSpec] | None = None
    """Decides about the SELECTs of a snapshot instead of ``snapshotter``."""
    snapshot_lock: Component[specs.SnapshotterSpec] | None = None
    """Decides about the locks of a snapshot instead of ``snapshotter``."""
    capture: CaptureProperties
    engine: EngineProperties
    format: Component[specs.FormatSpec]
    topic_naming: Component[specs.TopicNamingSpec]
    sink: Component[specs.SinkSpec]
    offset_store: Component[specs.OffsetStoreSpec]
    transforms: tuple[TransformUse, ...] = ()
    converters: tuple[Component[specs.ColumnConverterSpec], ...] = ()
    # Several sinks; ``sink`` then represents all of them.
    branches: tuple[SinkBranchProfile, ...] = ()
    dead_letters: Component[specs.SinkSpec] | None = None
    """Receives a copy of every dead letter."""
    signal_channels: tuple[Component[specs.SignalChannelSpec], ...] = ()
    """The polled channels: all except ``source``, whose signals are in the stream."""
    notification_channels: tuple[Component[specs.NotificationChannelSpec], ...] = ()
    labels: dict[str, str] = field(default_factory=dict)
    debezium: bool = False
    """Whether the profile is a Debezium file, with Debezium's defaults."""
    folder: Path = field(default_factory=Path.cwd)
    """Start of the profile's relative paths; the paths in its components are absolute."""

    @property
    def sinks(self) -> tuple[Component[specs.SinkSpec], ...]:
        return tuple(branch.sink for branch in self.branches) or (self.sink,)

    @property
    def state_dir(self) -> Path:
        """Return the pipeline's own folder below ``waltap.state.dir``."""
        return self.engine.state_dir / self.name

    @property
    def form(self) -> EventForm:
        spec = self.connector.spec
        if spec.form is None:
            return EventForm()
        return spec.form(self.connector.properties, self.decoder.spec.name)


# The properties that choose components, before any component can say what it declares.


class SelectionProperties(Properties):
    """Choose the components of a pipeline, such as connector and format.

    A connector may declare ``plugin.name`` or ``snapshot.mode`` itself; its default then holds.
    """

    name: Maybe[str] = declare(
        "name",
        summary="Name of the pipeline and its state folder, and by default of slot and "
        "publication. Default: the name of the profile's file; in a Debezium file "
        "topic.prefix and slot.name.",
    )
    connector: Maybe[str] = declare(
        "connector.class",
        summary="Connector, by name or Debezium class; a waltap profile says `type` in [source].",
    )
    decoder: str = declare(
        "plugin.name",
        default="decoderbufs",
        profile_default="pgoutput",
        summary="Decoder: the logical decoding output plugin on the server.",
    )
    snapshot_mode: str = declare(
        "snapshot.mode",
        common=True,
        default="initial",
        summary="When a start reads the tables before it streams. initial: at the first start, until one "
        "has read all; always: at every start; initial_only: as initial, then the run ends; no_data: "
        "never; when_needed: as initial, and when the stored position is lost; configuration_based: as "
        "its flags say; custom: as snapshot.mode.custom.name does. For one new snapshot give --set "
        "snapshot.mode=always, end the run when it streams, and start without the option.",
    )
    snapshot_mode_custom_name: Maybe[str] = declare(
        "snapshot.mode.custom.name",
        summary="Snapshot mode of a plugin, with snapshot.mode=custom.",
    )
    snapshot_query_mode: Literal["select_all", "custom"] = declare(
        "snapshot.query.mode",
        default="select_all",
        summary="What gives the SELECT of a table without snapshot.select.statement.overrides: "
        "the snapshot mode, by default all rows (select_all), or a plugin (custom).",
    )
    snapshot_query_mode_custom_name: Maybe[str] = declare(
        "snapshot.query.mode.custom.name",
        summary="Snapshot mode of a plugin that gives the SELECTs, with snapshot.query.mode=custom.",
    )
    snapshot_locking_mode_custom_name: Maybe[str] = declare(
        "snapshot.locking.mode.custom.name",
        summary="Snapshot mode of a plugin that gives the locks, with snapshot.locking.mode=custom.",
    )
    topic_naming: str = declare(
        "topic.naming.strategy",
        default="io.debezium.schema.SchemaTopicNamingStrategy",
        summary="How topics are named: strategy by name or Debezium class.",
    )
    key_converter: Maybe[str] = declare(
        "key.converter",
        aliases=("format.key",),
        summary="Format of keys, by name or Kafka Connect class, where it is not the format of values.",
    )
    value_converter: Maybe[str] = declare(
        "value.converter",
        aliases=("format.value",),
        summary="Format of values, by name or Kafka Connect class; `type` in [format] is for keys and "
        "values.",
    )
    offset_store: Maybe[str] = declare(
        "waltap.offset.store",
        summary="Name of the offset store; in a waltap profile `type` in [offsets], by default "
        "file.",
    )
    sanitize_pattern: Maybe[str] = declare(
        "custom.sanitize.pattern",
        summary="Regular expression of property names, in full, whose values are never shown, beside all "
        "whose names look like secrets.",
    )
    header_converter: Maybe[str] = declare(
        "header.converter",
        aliases=("format.header",),
        summary="Format of header values, by name or Kafka Connect class. Default: JSON; "
        "simple-header for a file of Kafka Connect with the Kafka sink.",
    )


Setting = tuple[Any, PropertyDeclaration | None]
"""A value and its declaration, which a setting such as a type does not have."""


def changes(before: Profile, after: Profile) -> dict[str, PropertyDeclaration | None]:
    """Return the changed properties by name, in the order of ``after``.

    Names are as in a waltap profile, with a prefix outside the common namespace. Values are compared,
    including secrets, and not shown.
    """
    old, new = dict(_settings(before)), dict(_settings(after))
    return {
        name: (new.get(name) or old[name])[1]
        for name in new | old
        if name not in old or old[name][0] != new.get(name, (None, None))[0]
    }


def _settings(profile: Profile) -> Iterator[tuple[str, Setting]]:
    yield "name", (profile.name, None)
    yield "labels", (profile.labels, None)
    for model in (profile.engine, profile.capture):
        yield from _values("", model)
    for prefix, component in _components(profile):
        yield f"{prefix}type", (component.spec.name, None)
        yield from _values("" if prefix in COMMON else prefix, component.properties)
    for branch in profile.branches:
        yield from _values(f"sinks.{branch.name}.", branch.properties)


COMMON = {
    "source.", "decoder.", "snapshot.", "snapshot.query.", "snapshot.lock.", "topic.naming.", "format.",
    "offsets.",
}  # fmt: skip
"""Components whose properties share one namespace."""


def _components(profile: Profile) -> Iterator[tuple[str, Component[Any]]]:
    single: dict[str, Component[Any] | None] = {
        "source.": profile.connector,
        "decoder.": profile.decoder,
        "snapshot.": profile.snapshotter,
        "snapshot.query.": profile.snapshot_query,
        "snapshot.lock.": profile.snapshot_lock,
        "dead_letters.": profile.dead_letters,
        "topic.naming.": profile.topic_naming,
        "format.": profile.format,
        "offsets.": profile.offset_store,
        "sink.": None if profile.branches else profile.sink,
    }
    yield from ((prefix, part) for prefix, part in single.items() if part is not None)
    yield from ((f"{part.label}.converter.", part) for part in profile.format.parts)
    for branch in profile.branches:
        prefix = f"sinks.{branch.name}."
        yield prefix, branch.sink
        yield f"{prefix}format.", branch.format
        yield from ((f"{prefix}{part.label}.converter.", part) for part in branch.format.parts)
        yield from _transforms(prefix, branch.transforms)
    yield from _transforms("", profile.transforms)
    for number, converter in enumerate(profile.converters, 1):
        yield f"converters[{number}].", converter
    for kind, channels in (
        ("signal", profile.signal_channels),
        ("notification", profile.notification_channels),
    ):
        for channel in channels:
            yield f"{kind}.{channel.spec.name}.", channel


def _transforms(
    prefix: str, transforms: tuple[TransformUse, ...]
) -> Iterator[tuple[str, Component[Any]]]:
    for number, use in enumerate(transforms, 1):
        own = f"{prefix}transforms[{number}]."  # two may have one label, and their order counts
        yield own, use
        if use.predicate is not None:
            yield f"{own}predicate.{'not.' if use.negate else ''}", use.predicate


def _values(prefix: str, model: Properties | None) -> Iterator[tuple[str, Setting]]:
    if model is None:
        return
    for declaration in declarations(type(model)):
        value = getattr(model, declaration.field)
        if declaration.family is None:
            yield f"{prefix}{declaration.name}", (value, declaration)
        else:
            for name, each in value.items():
                yield f"{prefix}{name}", (each, declaration)
