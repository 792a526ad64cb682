"""Define specs: a plugin's contributions, with configuration and factory.

A spec has a ``name`` (unique among its kind, over all plugins), ``aliases`` for profiles, a one-line
``summary``, the ``properties`` model of its configuration (None: no properties), and a ``factory``.

Every command reads the specs of all plugins and uses few of them. So a spec names its model and its
factory by `lazy`, and they are imported when the component is used. A spec equals only itself, and shows
the common fields alone: generated methods cost each command time.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from importlib import import_module
from typing import TYPE_CHECKING, Any, Protocol, TypeVar

from waltap.base.plugin_errors import ImportFailed, interrupts
from waltap.base.text import in_brief
from waltap.changes.mapping.type_registry import (
    TypeSpec as TypeSpec,  # noqa: PLC0414 - plugins take every spec from here
)
from waltap.errors import WaltapError

if TYPE_CHECKING:
    from waltap.base.property import Properties
    from waltap.changes.capture.capture import CaptureRules
    from waltap.changes.decode.decoder import Decoder, DecoderCapabilities, DecoderContext
    from waltap.changes.decode.relation import Relation
    from waltap.changes.decode.replica_identity import ReplicaIdentity
    from waltap.changes.decode.tuple_image import Tuple
    from waltap.changes.events import EventTransform
    from waltap.changes.events.plan import EventForm
    from waltap.changes.mapping.conversion import ColumnConverter
    from waltap.changes.transactions.transaction import Batch
    from waltap.encoders.format.converter import Converter, ConverterContext
    from waltap.encoders.format.format import Format, FormatContext
    from waltap.encoders.format.record_transform import (
        RecordPredicate,
        RecordTransform,
        RecordTransformContext,
    )
    from waltap.ports.notifications.channel import NotificationChannel
    from waltap.ports.offsets.offset import OffsetStore
    from waltap.ports.signals.signal import SignalCall, SignalChannel
    from waltap.ports.sink.sink import Sink, SinkContext
    from waltap.ports.sink.verification import VerificationSource
    from waltap.ports.snapshot.snapshotter import Snapshotter
    from waltap.ports.source.connector import Connector, PreflightCheck
    from waltap.ports.source.lease import LeaderLease, LeaseContext
    from waltap.ports.source.slot_status import SlotWatch, SlotWatchContext


def lazy(reference: str) -> Any:
    """Return a substitute for the class or function ``package.module:name``.

    It is imported when the spec's model is read, or its factory called.
    """
    return LazyReference(reference)


class LazyReference:
    """The name of a class or function of a plugin; `lazy` makes it."""

    __slots__ = ("reference",)

    def __init__(self, reference: str) -> None:
        """Take the name; nothing is imported."""
        self.reference = reference

    def __call__(self, *arguments: Any, **named: Any) -> Any:
        """Call the function or class. Raises: ImportFailed."""
        return self.imported()(*arguments, **named)

    def __repr__(self) -> str:
        return f"LazyReference({self.reference!r})"

    def imported(self) -> Any:
        """Import the name and return its object. Raises: ImportFailed."""
        module, _, name = self.reference.partition(":")
        try:
            return getattr(import_module(module), name)
        except WaltapError:
            raise
        except BaseException as cause:
            if interrupts(cause):
                raise
            raise ImportFailed(
                f"{self.reference} cannot be imported: {in_brief(cause)}",
                distribution=module.partition(".")[0],
            ) from cause


class ModelField:
    """A spec's field with a property model: a class, or `LazyReference` with its name."""

    def __set_name__(self, owner: type, name: str) -> None:
        self._name = name

    def __get__(self, spec: object | None, owner: type) -> "type[Properties] | None":
        """Return the model, None without one; of the class, the default.

        Raises: ImportFailed.
        """
        if spec is None:
            return None
        values = vars(spec)
        if isinstance(values[self._name], LazyReference):
            values[self._name] = values[self._name].imported()
        model: type[Properties] | None = values[self._name]
        return model

    def __set__(self, spec: object, value: "type[Properties] | LazyReference | None") -> None:
        vars(spec)[self._name] = value


@dataclass(frozen=True, kw_only=True, eq=False)
class Spec:
    """The common fields of all specs."""

    name: str
    summary: str
    aliases: tuple[str, ...] = field(default=())
    # The model of its configuration; None: no properties.
    properties: "type[Properties] | None" = ModelField()  # type: ignore[assignment]
    # The version of waltap that introduced it.
    since: str = "0.1"


@dataclass(frozen=True, kw_only=True, eq=False, repr=False)
class ConnectorSpec(Spec):
    """A database. ``factory`` receives the validated properties and the context."""

    factory: "Callable[[Any, Any], Connector]"
    classes: tuple[str, ...] = ()
    """Values of Debezium's ``connector.class`` that mean this connector."""
    recognizes: "Callable[[str], bool] | None" = None
    """Returns whether a server's version text is of this connector's kind, where servers of another kind
    use the same protocol."""
    form: "Callable[[Any, str], EventForm] | None" = None
    """Returns the form of events for the validated properties and the decoder's name; None: Debezium's."""
    lease: "Callable[[Any, LeaseContext], LeaderLease] | None" = None
    """Returns this process's handle of the pipeline's lease (``waltap.standby``); None: the source has no
    lease."""
    slot_watch: "Callable[[Any, SlotWatchContext], SlotWatch] | None" = None
    """Connects to the pipeline's slot beside the engine; None: the source retains nothing for a slot."""


@dataclass(frozen=True, kw_only=True, eq=False, repr=False)
class DecoderSpec(Spec):
    """A decoder. ``output_plugin`` is the name the slot is created with."""

    factory: "Callable[[DecoderContext], Decoder]"
    output_plugin: str
    capabilities: "DecoderCapabilities"
    forced_options: dict[str, object] = field(default_factory=dict)
    """Property values that an alias spec implies."""
    remarks: tuple[str, ...] = field(default=())
    """Notes for its users, a sentence each, for the reference page."""


@dataclass(frozen=True, kw_only=True, eq=False, repr=False)
class ReplicaIdentitySpec(Spec):
    """A replica identity. ``letter`` is ``pg_class.relreplident``."""

    factory: "Callable[[Relation], ReplicaIdentity]"
    letter: str


@dataclass(frozen=True, kw_only=True, eq=False, repr=False)
class SnapshotterSpec(Spec):
    """A snapshot mode."""

    factory: "Callable[[Any], Snapshotter]"


@dataclass(frozen=True, kw_only=True, eq=False, repr=False)
class FormatSpec(Spec):
    """A record format (JSON, Avro, …).

    ``factory`` creates it for whole records, ``converter`` for keys or values alone. None: keys and values
    need the same format.
    """

    factory: "Callable[[Any, FormatContext], Format]"
    takes_events: bool = False
    """Calls `FormatContext.transforms`; a format that does not is refused where there are any."""
    takes_record_transforms: bool = False
    """Calls `FormatContext.record_steps`; a format that does not is refused where there are any. Formats
    of `waltap.encoders.format.conversion` do."""
    converter: "Callable[[Any, ConverterContext], Converter] | None" = None
    converter_properties: "type[Properties] | None" = ModelField()  # type: ignore[assignment]
    """Properties of keys or values alone, unless they are ``properties``; ``factory`` then uses this
    format
    for whole records. In a profile the names follow ``key.converter.`` and similar prefixes."""
    change_events_only: "Callable[[Any], bool] | None" = None
    """Returns whether values, with these properties, are change events only: then a profile whose
    `RecordTransformSpec` replaces all of them is refused."""
    scalar: bool = False
    """Writes no structs. Keys and values of change events are structs, so a `RecordTransformSpec` must
    replace the values."""


@dataclass(frozen=True, kw_only=True, eq=False, repr=False)
class TransformSpec(Spec):
    """A transform of whole batches, which returns the next batch.

    It is never called per row. ``preserves_changes``: it drops no change and keeps each change's
    table and key (`SinkContext.gets_every_change`).
    """

    factory: "Callable[[Any], Callable[[Batch], Batch]]"
    preserves_changes: bool = False


@dataclass(frozen=True, kw_only=True, eq=False, repr=False)
class EventTransformSpec(TransformSpec):
    """A transform of events.

    Its factory's result is called with the events of each batch, after every transform of changes and
    before the encoding. Sinks that take changes have no events: a profile with both is refused (WT-3203).
    """

    factory: "Callable[[Any], EventTransform]"  # type: ignore[assignment]


@dataclass(frozen=True, slots=True, kw_only=True)
class SourceTransformContext:
    """The source's functions for a transform of batches."""

    # The profile's name of the transform.
    label: str
    capture: "CaptureRules"
    # Completes a relation from the catalogue; call it once per version.
    describe: "Callable[[Relation], Relation]"
    # Returns the replica identity of a relation; call it once per version.
    identity: "Callable[[Relation], ReplicaIdentity]"
    # `RowReadingSource.rows_now`.
    rows_now: "Callable[[Relation, Sequence[str], Sequence[str], Sequence[Tuple]], list[Tuple]]"


@dataclass(frozen=True, kw_only=True, eq=False, repr=False)
class SourceTransformSpec(TransformSpec):
    """A transform of whole batches that reads from the source.

    A Debezium file has it in ``post.processors``.
    """

    factory: "Callable[[Any, SourceTransformContext], Callable[[Batch], Batch]]"  # type: ignore[assignment]


@dataclass(frozen=True, kw_only=True, eq=False, repr=False)
class RecordTransformSpec(TransformSpec):
    """A transform of records, like Kafka Connect's.

    Its factory's result is called with the records of each batch, after every transform of changes and of
    events, and before they become bytes. The contract is
    `waltap.encoders.format.record_transform`. Sinks that take
    changes have no records: a profile with both is refused (WT-3205). A profile may name a predicate
    beside it (``predicate``, ``negate``).
    """

    factory: "Callable[[Any, RecordTransformContext], RecordTransform]"  # type: ignore[assignment]
    replaces_events: bool = False
    """Replaces the change events by other values."""


@dataclass(frozen=True, kw_only=True, eq=False, repr=False)
class PredicateSpec(Spec):
    """A predicate, which selects the records for a transform of records."""

    factory: "Callable[[Any], RecordPredicate]"


@dataclass(frozen=True, kw_only=True, eq=False, repr=False)
class ColumnConverterSpec(Spec):
    """A converter of columns (Debezium's ``converters``).

    The factory's result is called for each column of a relation version; the contract is
    `waltap.changes.mapping.conversion`. ``aliases`` may have the Java class that it replaces.
    Sinks that take changes write columns in their own way: a profile with both is refused (WT-3208).
    """

    factory: "Callable[[Any], ColumnConverter]"


@dataclass(frozen=True, kw_only=True, eq=False, repr=False)
class TopicNamingSpec(Spec):
    """A ``topic.naming.strategy``: the factory returns (schema, table) → topic."""

    factory: Callable[[Any], Callable[[str, str], str]]


@dataclass(frozen=True, kw_only=True, eq=False, repr=False)
class SinkSpec(Spec):
    """A sink.

    ``shorthand`` is the property that the part after the colon of ``--sink NAME:X`` sets.

    ``exactly_once``: whether data and position always become durable together. As (property, value): only
    if that property of the sink has this value. Kafka Connect's ``exactly.once.support=required`` maps to
    it.

    ``verification_source`` opens the written data for a pipeline, so that ``waltap verify`` can
    compare them with the source. None: the data cannot be read by rows.

    ``describe_table`` describes in a few words the sink's result for a table (``schema.table``),
    for ``waltap plan``. None: all tables have the same.
    """

    factory: "Callable[[Any, SinkContext], Sink]"
    shorthand: str = "path"
    exactly_once: bool | tuple[str, str] = False
    verification_source: "Callable[[Any, str], VerificationSource] | None" = None
    describe_table: "Callable[[Any, str], str] | None" = None


@dataclass(frozen=True, kw_only=True, eq=False, repr=False)
class TableFormatSpec(Spec):
    """A format of Spark's tables, for ``format`` of the Spark sink.

    The contract is `TableFormat` in `waltap_spark.formats.table_format`; this module does not depend on
    Spark.

    ``factory`` receives the validated properties (the sink's properties after ``format.``) and a
    `TableFormatContext` of that module. ``session`` receives pyspark's version and the settings of the
    planned session, and returns the format's additional settings. It raises an error with a remedy if a
    package is missing. None: any session is suitable.
    """

    factory: "Callable[[Any, Any], Any]"
    session: "Callable[[str, Mapping[str, str]], Mapping[str, str]] | None" = None


@dataclass(frozen=True, kw_only=True, eq=False, repr=False)
class OffsetStoreSpec(Spec):
    """An offset store.

    The factory receives its properties and the pipeline's state folder.
    """

    factory: "Callable[[Any, str], OffsetStore]"


@dataclass(frozen=True, kw_only=True, eq=False, repr=False)
class SignalActionSpec(Spec):
    """The action for signals of the type ``name``.

    No profile names it: every sender of signals may use it. ``factory`` is the action itself. It receives
    a `waltap.ports.signals.SignalCall`, in the engine's thread between two batches, so it must not
    wait. It raises `waltap.ports.signals.SignalUnusable` for unsuitable arguments. Its other errors are
    logged too: a signal stops no pipeline.
    """

    factory: "Callable[[SignalCall], None]"


@dataclass(frozen=True, kw_only=True, eq=False, repr=False)
class SignalChannelSpec(Spec):
    """A source of signals.

    A profile names it in ``signal.enabled.channels``.
    """

    factory: "Callable[[Any], SignalChannel]"


@dataclass(frozen=True, kw_only=True, eq=False, repr=False)
class NotificationChannelSpec(Spec):
    """A destination of notifications.

    A profile names it in ``notification.enabled.channels``.
    """

    factory: "Callable[[Any], NotificationChannel]"


@dataclass(frozen=True, kw_only=True, eq=False, repr=False)
class CheckSpec(Spec):
    """A check before a start, which changes nothing.

    `waltap doctor` prints its result, and a run with errors is refused. ``factory`` is the check itself.
    It receives a `waltap.plugins.check_context.CheckContext`: the profile, the connected
    connector, and the stored offset.
    """

    factory: "Callable[[Any], list[PreflightCheck]]"


@dataclass(frozen=True, kw_only=True, eq=False, repr=False)
class CommandSpec(Spec):
    """A sub-command of the CLI.

    The factory returns a typer application or a callable.
    """

    factory: Callable[[], Any]


@dataclass(frozen=True, slots=True)
class SpecKind:
    """One kind of contribution: the host's attribute, its hook, its spec."""

    attribute: str
    noun: str
    hook: str
    spec: type[Spec] | type[TypeSpec]


S = TypeVar("S", bound=Spec | TypeSpec)


class SpecRegistry(Protocol):
    """Read registered specs, as resolving a profile does; `Host` implements it."""

    def specs(self, kind: type[S]) -> list[S]: ...

    def find(self, kind: type[S], name: str) -> S:
        """Return the spec of a name. Raises: SpecMissing."""

    def implements(self, hook: str) -> bool: ...


KINDS: tuple[SpecKind, ...] = tuple(
    SpecKind(attribute, noun, f"register_{attribute}", spec)
    for attribute, noun, spec in (
        ("connectors", "connector", ConnectorSpec),
        ("decoders", "decoder", DecoderSpec),
        ("replica_identities", "replica identity", ReplicaIdentitySpec),
        ("snapshotters", "snapshot mode", SnapshotterSpec),
        ("types", "type mapping", TypeSpec),
        ("formats", "format", FormatSpec),
        ("transforms", "transform", TransformSpec),
        ("predicates", "predicate", PredicateSpec),
        ("converters", "converter of columns", ColumnConverterSpec),
        ("topic_naming", "topic naming strategy", TopicNamingSpec),
        ("sinks", "sink", SinkSpec),
        ("table_formats", "table format", TableFormatSpec),
        ("offset_stores", "offset store", OffsetStoreSpec),
        ("signal_actions", "signal action", SignalActionSpec),
        ("signal_channels", "signal channel", SignalChannelSpec),
        ("notification_channels", "notification channel", NotificationChannelSpec),
        ("checks", "check", CheckSpec),
        ("commands", "command", CommandSpec),
    )
)
KIND_OF: dict[object, SpecKind] = {kind.spec: kind for kind in KINDS}
