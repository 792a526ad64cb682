"""What plugins contribute: one spec per capability, each naming its configuration and its factory.

A spec has a ``name`` (unique among its kind, over all plugins), ``aliases`` under which profiles may
name it too, a one-line ``summary``, the ``properties`` model that declares its configuration (None:
it has none), and a ``factory``.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from waltap.capture.capture import CaptureRules
    from waltap.config.property import Properties
    from waltap.decode.decoder import Decoder, DecoderCapabilities, DecoderContext
    from waltap.decode.relation import Column, DataType, Relation
    from waltap.decode.replica_identity import ReplicaIdentity
    from waltap.decode.tuple_image import Tuple
    from waltap.events import EventTransform
    from waltap.events.form import EventForm
    from waltap.format.converter import Converter, ConverterContext
    from waltap.format.format import Format, FormatContext
    from waltap.format.record_transform import (
        RecordPredicate,
        RecordTransform,
        RecordTransformContext,
    )
    from waltap.mapping.conversion import ColumnConverter
    from waltap.mapping.type_mapping import ColumnMapping, TypeMapper, TypeSample
    from waltap.notifications.channel import NotificationChannel
    from waltap.offsets.offset import OffsetStore
    from waltap.signals.actions import SignalCall
    from waltap.signals.channel import SignalChannel
    from waltap.sink.sink import Sink, SinkContext
    from waltap.sink.verification import VerificationSource
    from waltap.snapshot.snapshotter import Snapshotter
    from waltap.source.connector import Connector, PreflightCheck
    from waltap.source.lease import LeaderLease, LeaseContext
    from waltap.source.slot_watch import SlotWatch, SlotWatchContext
    from waltap.transactions.transaction import Batch

__all__ = [
    "KINDS",
    "KIND_OF",
    "CheckSpec",
    "ColumnConverterSpec",
    "CommandSpec",
    "ConnectorSpec",
    "DecoderSpec",
    "EventTransformSpec",
    "FormatSpec",
    "NotificationChannelSpec",
    "OffsetStoreSpec",
    "PredicateSpec",
    "RecordTransformSpec",
    "ReplicaIdentitySpec",
    "SignalActionSpec",
    "SignalChannelSpec",
    "SinkSpec",
    "SnapshotterSpec",
    "SourceTransformContext",
    "SourceTransformSpec",
    "Spec",
    "SpecKind",
    "TableFormatSpec",
    "TopicNamingSpec",
    "TransformSpec",
    "TypeSpec",
]


@dataclass(frozen=True, slots=True, kw_only=True)
class Spec:
    """What every spec has."""

    name: str
    summary: str
    aliases: tuple[str, ...] = field(default=())
    properties: "type[Properties] | None" = None
    since: str = "0.1"


@dataclass(frozen=True, slots=True, kw_only=True)
class ConnectorSpec(Spec):
    """A database. ``factory`` gets the validated properties and the host, which it asks for
    decoders, snapshotters and identities."""

    factory: "Callable[[Any, Any], Connector]"
    classes: tuple[str, ...] = ()
    """Values of Debezium's ``connector.class`` that mean this connector."""
    recognizes: "Callable[[str], bool] | None" = None
    """Tells from what a server says of its version that it is of this connector's kind, where servers of
    another kind speak the same protocol."""
    form: "Callable[[Any, str], EventForm] | None" = None
    """Gives, of the validated properties and the decoder's name, the form of events; None: Debezium's."""
    lease: "Callable[[Any, LeaseContext], LeaderLease] | None" = None
    """Makes this process's end of the pipeline's lease (``waltap.standby``) from the validated properties;
    None: the source keeps no lease."""
    slot_watch: "Callable[[Any, SlotWatchContext], SlotWatch] | None" = None
    """Connects, with the validated properties, to look at the pipeline's slot beside the engine; None: the
    source keeps nothing for a slot."""


@dataclass(frozen=True, slots=True, kw_only=True)
class DecoderSpec(Spec):
    """A decoder. ``output_plugin`` is the name the slot is created with."""

    factory: "Callable[[DecoderContext], Decoder]"
    output_plugin: str
    capabilities: "DecoderCapabilities"
    forced_options: dict[str, object] = field(default_factory=dict)
    """Property values that an alias spec implies."""
    remarks: tuple[str, ...] = field(default=())
    """What else its users should know, a sentence each, for the reference page."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ReplicaIdentitySpec(Spec):
    """A replica identity. ``letter`` is ``pg_class.relreplident``."""

    factory: "Callable[[Relation], ReplicaIdentity]"
    letter: str


@dataclass(frozen=True, slots=True, kw_only=True)
class SnapshotterSpec(Spec):
    """A snapshot mode."""

    factory: "Callable[[Any], Snapshotter]"


@dataclass(frozen=True, slots=True, kw_only=True)
class TypeSpec:
    """One family of types, as a plugin contributes it.

    ``claims`` is asked per data type (a domain after its base); ``build`` gives the mapping, or
    None to leave the column out. ``order``: lower is asked first; the built-in types use 100.
    ``samples`` fill the reference page.
    """

    name: str
    summary: str
    claims: "Callable[[DataType], bool]"
    build: "Callable[[Column, TypeMapper], ColumnMapping | None]"
    examples: tuple[str, ...] = field(default=())
    order: int = 50
    samples: "tuple[TypeSample, ...]" = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class FormatSpec(Spec):
    """A record format (JSON, Avro, …). ``factory`` makes it for whole records, ``converter`` for one side
    of them (None: keys and values cannot be written by different formats)."""

    factory: "Callable[[Any, FormatContext], Format]"
    takes_events: bool = False
    """Calls `FormatContext.transforms`; a format that does not is refused where there are any."""
    takes_record_transforms: bool = False
    """Calls `FormatContext.record_steps`; a format that does not is refused where there are any. What
    `waltap.format.conversion` makes does."""
    converter: "Callable[[Any, ConverterContext], Converter] | None" = None
    converter_properties: "type[Properties] | None" = None
    """What one side declares, where that is not ``properties``: then ``factory`` makes records that have
    this format on all sides. The names follow ``key.converter.`` and its like in a profile."""
    events_only: bool = False
    """Writes no other values than change events: a profile with a `RecordTransformSpec` that makes others
    of all of them is refused."""
    scalar: bool = False
    """Writes no structs, which keys and values of change events are: values need a `RecordTransformSpec`
    that makes others of them."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TransformSpec(Spec):
    """A transform of whole batches: returns the batch to go on with. Never called per row. ``keeps_all``:
    it leaves no change out, and each has the table and key that it had (`SinkContext.whole`)."""

    factory: "Callable[[Any], Callable[[Batch], Batch]]"
    keeps_all: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class EventTransformSpec(TransformSpec):
    """A transform of events: what its factory gives is called with those of each batch, after every
    transform of changes, before they are encoded. Sinks that take changes have no events to transform:
    a profile with both is refused (WT-3203)."""

    factory: "Callable[[Any], EventTransform]"  # type: ignore[assignment]


@dataclass(frozen=True, slots=True, kw_only=True)
class SourceTransformContext:
    """What a transform of batches may know of their source.

    ``rows_now`` is `Connector.rows_now`, ``describe`` completes a relation from the catalogue,
    ``identity`` gives the replica identity to read it with; both once per version. ``label`` is what the
    profile calls the transform.
    """

    label: str
    capture: "CaptureRules"
    describe: "Callable[[Relation], Relation]"
    identity: "Callable[[Relation], ReplicaIdentity]"
    rows_now: "Callable[[Relation, Sequence[str], Sequence[str], Sequence[Tuple]], list[Tuple]]"


@dataclass(frozen=True, slots=True, kw_only=True)
class SourceTransformSpec(TransformSpec):
    """A transform of whole batches that asks the source: a Debezium file has it in ``post.processors``."""

    factory: "Callable[[Any, SourceTransformContext], Callable[[Batch], Batch]]"  # type: ignore[assignment]


@dataclass(frozen=True, slots=True, kw_only=True)
class RecordTransformSpec(TransformSpec):
    """A transform of records, as Kafka Connect's are: what its factory gives is called with those of each
    batch, after every transform of changes and of events, before they are bytes; the contract:
    `waltap.format.record_transform`. Sinks that take changes have no records: a profile with both is
    refused (WT-3205). A profile may name a predicate beside it (``predicate``, ``negate``)."""

    factory: "Callable[[Any, RecordTransformContext], RecordTransform]"  # type: ignore[assignment]
    ends_events: bool = False
    """Makes other values of the change events that it is given."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PredicateSpec(Spec):
    """A predicate of records: it tells which of them a transform of records concerns."""

    factory: "Callable[[Any], RecordPredicate]"


@dataclass(frozen=True, slots=True, kw_only=True)
class ColumnConverterSpec(Spec):
    """A converter of columns (Debezium's ``converters``): the factory gives what is asked for each column
    of a relation version; the contract: `waltap.mapping.conversion`. ``aliases`` may have the Java class
    that it takes the place of. Sinks that take changes write columns in their own way: a profile with both
    is refused (WT-3208)."""

    factory: "Callable[[Any], ColumnConverter]"


@dataclass(frozen=True, slots=True, kw_only=True)
class TopicNamingSpec(Spec):
    """A ``topic.naming.strategy``: the factory gives (schema, table) → topic name."""

    factory: Callable[[Any], Callable[[str, str], str]]


@dataclass(frozen=True, slots=True, kw_only=True)
class SinkSpec(Spec):
    """A sink. ``shorthand``: the property that the part after the colon of ``--sink NAME:X`` sets.

    ``exactly_once``: whether data and position become durable together always, or, as (property, value),
    where that property of the sink's asks for it; that is what Kafka Connect's
    ``exactly.once.support=required`` is mapped to.

    ``readable`` opens what a sink of these properties wrote, for the pipeline of that name, so that
    ``waltap verify`` can compare it with the source; None: nobody can read it by rows.

    ``keeps`` says in a few words what a sink of these properties makes of a table (``schema.table``), for
    ``waltap plan``; None: the same of all.
    """

    factory: "Callable[[Any, SinkContext], Sink]"
    shorthand: str = "path"
    exactly_once: bool | tuple[str, str] = False
    readable: "Callable[[Any, str], VerificationSource] | None" = None
    keeps: "Callable[[Any, str], str] | None" = None


@dataclass(frozen=True, slots=True, kw_only=True)
class TableFormatSpec(Spec):
    """A format of Spark's tables: ``format`` of the Spark sink names it. The contract is
    `waltap_spark.formats.TableFormat`; this module knows nothing of Spark.

    ``factory`` gets the validated properties (those of the sink that begin with ``format.``, without
    that) and a `waltap_spark.formats.FormatContext`. ``session`` gets the version of pyspark and the
    settings of the session that is to be, and returns those that the format needs besides; it raises
    what tells how to get what is missing. None: any session will do.
    """

    factory: "Callable[[Any, Any], Any]"
    session: "Callable[[str, Mapping[str, str]], Mapping[str, str]] | None" = None


@dataclass(frozen=True, slots=True, kw_only=True)
class OffsetStoreSpec(Spec):
    """A place to keep offsets. The factory gets its properties and the pipeline's state folder."""

    factory: "Callable[[Any, str], OffsetStore]"


@dataclass(frozen=True, slots=True, kw_only=True)
class SignalActionSpec(Spec):
    """What signals of the type ``name`` ask for. No profile names it: whoever may signal may use it.

    ``factory`` is the action itself. It gets a `waltap.signals.SignalCall`, in the engine's thread
    between two batches, so it must not wait; it raises `waltap.signals.SignalUnusable` where the
    arguments will not do. Whatever else it raises is told in the log too: a signal stops no pipeline.
    """

    factory: "Callable[[SignalCall], None]"


@dataclass(frozen=True, slots=True, kw_only=True)
class SignalChannelSpec(Spec):
    """Where signals come from. A profile names it in ``signal.enabled.channels``."""

    factory: "Callable[[Any], SignalChannel]"


@dataclass(frozen=True, slots=True, kw_only=True)
class NotificationChannelSpec(Spec):
    """Where notifications go. A profile names it in ``notification.enabled.channels``."""

    factory: "Callable[[Any], NotificationChannel]"


@dataclass(frozen=True, slots=True, kw_only=True)
class CheckSpec(Spec):
    """A check before a start: `waltap doctor` prints it, a run obeys it. It changes nothing.

    ``factory`` is the check itself. It gets a `waltap.source.CheckContext`: the profile, the connector,
    which is connected, and the stored offset.
    """

    factory: "Callable[[Any], list[PreflightCheck]]"


@dataclass(frozen=True, slots=True, kw_only=True)
class CommandSpec(Spec):
    """A sub-command of the CLI: the factory gives a typer application or a callable."""

    factory: Callable[[], Any]


@dataclass(frozen=True, slots=True)
class SpecKind:
    """One kind of capability: the host's attribute, the hook that contributes it, its spec."""

    attribute: str
    noun: str
    hook: str
    spec: type[Spec] | type[TypeSpec]


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
