"""Register the framework's own connectors, formats, sinks and channels.

A command loads every plugin, calls few hooks and uses few of the specs, so classes are named by `lazy`.
"""

from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

from waltap.plugins.hookspecs import hookimpl
from waltap.ports.specs import (
    ConnectorSpec,
    EventTransformSpec,
    FormatSpec,
    NotificationChannelSpec,
    OffsetStoreSpec,
    PredicateSpec,
    SignalChannelSpec,
    SinkSpec,
    SourceTransformSpec,
    TopicNamingSpec,
    TransformSpec,
    lazy,
)

if TYPE_CHECKING:
    from waltap.encoders.format.converter import Converter
    from waltap.encoders.format.format import Format


@hookimpl
def register_connectors() -> Iterable[ConnectorSpec]:
    """Contribute recordings."""
    return [
        ConnectorSpec(
            name="recording",
            summary="A stream that `waltap record` stored, instead of a server.",
            properties=lazy("waltap.services.recording.file:RecordingProperties"),
            factory=lazy("waltap.services.recording.connector:RecordingConnector"),
        )
    ]


@hookimpl
def register_formats() -> Iterable[FormatSpec]:
    """Contribute JSON."""
    from waltap.encoders.format.conversion import with_one_converter

    return [
        FormatSpec(
            name="json",
            aliases=("org.apache.kafka.connect.json.JsonConverter",),
            summary="Debezium's records as Kafka Connect's JsonConverter writes them.",
            properties=lazy("waltap.encoders.json.properties:JsonProperties"),
            factory=_json_format,
            takes_events=True,
            takes_record_transforms=True,
            converter=lazy("waltap.encoders.json.converter:JsonConverter"),
            converter_properties=lazy("waltap.encoders.json.converter:JsonConverterProperties"),
        ),
        FormatSpec(
            name="simple-header",
            aliases=("org.apache.kafka.connect.storage.SimpleHeaderConverter",),
            summary="Header values as Kafka Connect writes them by default: texts as they are, structs, "
            "lists and maps near to JSON, no schema.",
            properties=None,
            factory=with_one_converter(_simple_header),
            takes_events=True,
            takes_record_transforms=True,
            converter=_simple_header,
        ),
    ]


@hookimpl
def register_topic_naming() -> Iterable[TopicNamingSpec]:
    """Contribute Debezium's naming strategies."""
    from waltap.changes.capture import topic_naming as naming

    def spec(name: str, cls: str, summary: str, factory: Any) -> TopicNamingSpec:
        # Profiles of Debezium name the Java class.
        cls += "TopicNamingStrategy"
        aliases = (f"io.debezium.schema.{cls}", cls)
        return TopicNamingSpec(name=name, summary=summary, aliases=aliases, factory=factory)

    with_schema, without_schema = naming.with_schema, naming.without_schema
    plain, unicode = naming.sanitised_topic, naming.unicode_topic
    # The first is the default.
    return [
        spec("schema", "Schema", "prefix.schema.table", naming.sanitising(with_schema, plain)),
        spec(
            "table",
            "Default",
            "prefix.table; tables of one name in several schemas share a topic",
            naming.sanitising(without_schema, plain),
        ),
        spec(
            "schema_unicode",
            "SchemaUnicode",
            "prefix.schema.table; characters that topics cannot have become _uXXXX",
            naming.sanitising(with_schema, unicode),
        ),
        spec(
            "table_unicode",
            "DefaultUnicode",
            "prefix.table; characters that topics cannot have become _uXXXX",
            naming.sanitising(without_schema, unicode),
        ),
        spec(
            "schema_regex",
            "SchemaRegex",
            "prefix.schema.table, renamed by topic.regex and topic.replacement",
            naming.regex(with_schema),
        ),
        spec(
            "table_regex",
            "DefaultRegex",
            "prefix.table, renamed by topic.regex and topic.replacement",
            naming.regex(without_schema),
        ),
    ]


@hookimpl
def register_transforms() -> Iterable[TransformSpec]:
    """Contribute filter, route, reselect-columns and fields."""
    return [
        TransformSpec(
            name="filter",
            summary="Leaves changes out, by table, operation, or a function of one's own.",
            properties=lazy("waltap.ports.transforms.filter:FilterProperties"),
            factory=lazy("waltap.ports.transforms.filter:TableFilter"),
        ),
        TransformSpec(
            name="route",
            summary="Sends the records of some tables to another topic.",
            properties=lazy("waltap.ports.transforms.rewrite:RouteProperties"),
            factory=lazy("waltap.ports.transforms.rewrite:table_router"),
        ),
        SourceTransformSpec(
            name="reselect-columns",
            aliases=(
                "io.debezium.processors.reselect.ReselectColumnsPostProcessor",
                "ReselectColumnsPostProcessor",
            ),
            summary="Reads values back that the server did not send.",
            properties=lazy("waltap.ports.transforms.reselect:ReselectProperties"),
            preserves_changes=True,
            factory=lazy("waltap.ports.transforms.reselect:ColumnReselector"),
        ),
        EventTransformSpec(
            name="fields",
            summary="Leaves fields of records out, or calls them otherwise.",
            properties=lazy("waltap.ports.transforms.filter:FieldsProperties"),
            factory=lazy("waltap.ports.transforms.filter:fields_changer"),
        ),
    ]


@hookimpl
def register_predicates() -> Iterable[PredicateSpec]:
    """Contribute Kafka Connect's predicates."""
    from waltap.ports.transforms.predicates import PREDICATES

    return PREDICATES


@hookimpl
def register_sinks() -> Iterable[SinkSpec]:
    """Contribute JSON lines, the terminal, and the null sink."""
    return [
        SinkSpec(
            name="jsonl",
            summary="One JSON object per record, to a file or standard output.",
            properties=lazy("waltap.ports.sink.jsonl:JsonLinesProperties"),
            factory=lazy("waltap.ports.sink.jsonl:JsonLinesSink"),
        ),
        SinkSpec(
            name="terminal",
            summary="One readable, coloured line per change on standard output.",
            properties=lazy("waltap.ports.sink.terminal:TerminalProperties"),
            factory=lazy("waltap.ports.sink.terminal:TerminalSink"),
            shorthand="width",
        ),
        SinkSpec(
            name="null",
            summary="Counts records and throws them away.",
            factory=lazy("waltap.ports.sink.sink:NullSink"),
        ),
    ]


@hookimpl
def register_offset_stores() -> Iterable[OffsetStoreSpec]:
    """Contribute the offset file and the memory store."""
    from waltap.ports.offsets.file_store import OFFSET_STORES

    return OFFSET_STORES


@hookimpl
def register_signal_channels() -> Iterable[SignalChannelSpec]:
    """Contribute the signal file."""
    return [
        SignalChannelSpec(
            name="file",
            summary="A file of JSON lines.",
            properties=lazy("waltap.ports.signals.inbox:FileSignalProperties"),
            factory=lazy("waltap.ports.signals.inbox:FileSignals"),
        )
    ]


@hookimpl
def register_notification_channels() -> Iterable[NotificationChannelSpec]:
    """Contribute the log and HTTP."""
    return [
        NotificationChannelSpec(
            name="log",
            summary="A line of the log per notification.",
            factory=lazy("waltap.ports.notifications.channel:LogNotifications"),
        ),
        NotificationChannelSpec(
            name="webhook",
            summary="An HTTP POST of JSON per notification, signed by HMAC.",
            properties=lazy("waltap.ports.notifications.webhook_channel:WebhookProperties"),
            factory=lazy("waltap.ports.notifications.webhook_channel:WebhookNotifications"),
        ),
    ]


def _simple_header(_properties: Any, context: Any) -> "Converter":
    from waltap.encoders.format.simple_header import SimpleHeaderConverter

    return SimpleHeaderConverter(None, context)


def _json_format(properties: Any, context: Any) -> "Format":
    from waltap.encoders.json.event_format import JsonEventFormat
    from waltap.encoders.json.format import JsonFormat

    if context.record_steps or "NUMERIC" in (properties.key_decimal, properties.value_decimal):
        from waltap.encoders.format.conversion import json_records

        return json_records(properties, context)
    return (JsonEventFormat if context.transforms else JsonFormat)(properties, context)
