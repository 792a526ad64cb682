"""Register the framework's own connectors, formats, sinks and channels.

Each hook imports its classes itself: a command loads every plugin but calls few hooks.
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
)

if TYPE_CHECKING:
    from waltap.encoders.format.converter import Converter
    from waltap.encoders.format.format import Format
    from waltap.ports.source.connector import Connector, ConnectorContext


@hookimpl
def register_connectors() -> Iterable[ConnectorSpec]:
    """Contribute recordings."""
    from waltap.services.recording.properties import RecordingProperties

    return [
        ConnectorSpec(
            name="recording",
            summary="A stream that `waltap record` kept, in the place of a server.",
            properties=RecordingProperties,
            factory=_recording,
        )
    ]


@hookimpl
def register_formats() -> Iterable[FormatSpec]:
    """Contribute JSON."""
    from waltap.encoders.format.conversion import whole
    from waltap.encoders.json.converter import JsonConverterProperties
    from waltap.encoders.json.properties import JsonProperties

    return [
        FormatSpec(
            name="json",
            aliases=("org.apache.kafka.connect.json.JsonConverter",),
            summary="Debezium's records as Kafka Connect's JsonConverter writes them.",
            properties=JsonProperties,
            factory=_json_format,
            takes_events=True,
            takes_record_transforms=True,
            converter=_json_converter,
            converter_properties=JsonConverterProperties,
        ),
        FormatSpec(
            name="simple-header",
            aliases=("org.apache.kafka.connect.storage.SimpleHeaderConverter",),
            summary="Header values as Kafka Connect writes them by default: texts as they are, structs, "
            "lists and maps near to JSON, no schema.",
            properties=None,
            factory=whole(_simple_header),
            takes_events=True,
            takes_record_transforms=True,
            converter=_simple_header,
        ),
    ]


@hookimpl
def register_topic_naming() -> Iterable[TopicNamingSpec]:
    """Contribute Debezium's naming strategies."""
    from waltap.ports.topic_naming import TOPIC_NAMING

    return TOPIC_NAMING


@hookimpl
def register_transforms() -> Iterable[TransformSpec]:
    """Contribute filter, route, reselect-columns and fields."""
    from waltap.ports.transforms.fields import FieldsProperties, fields_changer
    from waltap.ports.transforms.filter import FilterProperties, changes_filter
    from waltap.ports.transforms.reselect import ColumnReselector, ReselectProperties
    from waltap.ports.transforms.route import RouteProperties, table_router

    return [
        TransformSpec(
            name="filter",
            summary="Leaves changes out, by table, operation, or a function of one's own.",
            properties=FilterProperties,
            factory=changes_filter,
        ),
        TransformSpec(
            name="route",
            summary="Sends the records of some tables to another topic.",
            properties=RouteProperties,
            factory=table_router,
        ),
        SourceTransformSpec(
            name="reselect-columns",
            aliases=(
                "io.debezium.processors.reselect.ReselectColumnsPostProcessor",
                "ReselectColumnsPostProcessor",
            ),
            summary="Reads values back that the server did not send.",
            properties=ReselectProperties,
            keeps_all=True,
            factory=ColumnReselector,
        ),
        EventTransformSpec(
            name="fields",
            summary="Leaves fields of records out, or calls them otherwise.",
            properties=FieldsProperties,
            factory=fields_changer,
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
    from waltap.ports.sink.jsonl import JsonLinesProperties, JsonLinesSink
    from waltap.ports.sink.null import NullSink
    from waltap.ports.sink.terminal import TerminalProperties, TerminalSink

    return [
        SinkSpec(
            name="jsonl",
            summary="One JSON object per record, to a file or standard output.",
            properties=JsonLinesProperties,
            factory=JsonLinesSink,
        ),
        SinkSpec(
            name="terminal",
            summary="One readable, coloured line per change on standard output.",
            properties=TerminalProperties,
            factory=TerminalSink,
            shorthand="width",
        ),
        SinkSpec(
            name="null",
            summary="Counts records and throws them away.",
            factory=NullSink,
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
    from waltap.ports.signals.file_channel import FileSignalProperties, FileSignals

    return [
        SignalChannelSpec(
            name="file",
            summary="A file of JSON lines.",
            properties=FileSignalProperties,
            factory=FileSignals,
        )
    ]


@hookimpl
def register_notification_channels() -> Iterable[NotificationChannelSpec]:
    """Contribute the log and HTTP."""
    from waltap.ports.notifications.channel import LogNotifications
    from waltap.ports.notifications.webhook_channel import WebhookNotifications, WebhookProperties

    return [
        NotificationChannelSpec(
            name="log", summary="A line of the log per notification.", factory=LogNotifications
        ),
        NotificationChannelSpec(
            name="webhook",
            summary="An HTTP POST of JSON per notification, signed by HMAC.",
            properties=WebhookProperties,
            factory=WebhookNotifications,
        ),
    ]


def _recording(properties: Any, context: "ConnectorContext") -> "Connector":
    from waltap.services.recording.connector import RecordingConnector

    return RecordingConnector(properties, context)


def _json_converter(properties: Any, context: Any) -> "Converter":
    from waltap.encoders.json.converter import JsonConverter

    return JsonConverter(properties, context)


def _simple_header(_properties: Any, context: Any) -> "Converter":
    from waltap.encoders.format.simple_header import SimpleHeaderConverter

    return SimpleHeaderConverter(None, context)


def _json_format(properties: Any, context: Any) -> "Format":
    from waltap.encoders.json.event_format import JsonEventFormat
    from waltap.encoders.json.format import JsonFormat

    if context.record_steps:
        from waltap.encoders.json.record_format import json_record_format

        return json_record_format(properties, context)
    return (JsonEventFormat if context.transforms else JsonFormat)(properties, context)
