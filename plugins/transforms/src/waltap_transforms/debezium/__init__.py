"""Debezium's transforms of records.

Each one behaves like the class of its name in Debezium 3.6.
"""

from waltap_transforms.debezium.changed_fields import (
    ExtractChangedRecordState,
    ExtractChangedRecordStateProperties,
)
from waltap_transforms.debezium.event_router import EventRouter, EventRouterProperties
from waltap_transforms.debezium.geometry import (
    GeometryFormat,
    GeometryFormatProperties,
    SwapCoordinates,
    SwapCoordinatesProperties,
)
from waltap_transforms.debezium.header_to_value import HeaderToValue, HeaderToValueProperties
from waltap_transforms.debezium.logical_table_router import (
    ByLogicalTableRouter,
    ByLogicalTableRouterProperties,
)
from waltap_transforms.debezium.message_content import (
    DecodeMessageContent,
    DecodeMessageContentProperties,
)
from waltap_transforms.debezium.new_record_state import (
    ExtractNewRecordState,
    ExtractNewRecordStateProperties,
)
from waltap_transforms.debezium.partition_routing import (
    PartitionRouting,
    PartitionRoutingProperties,
)
from waltap_transforms.debezium.schema_change_filter import (
    SchemaChangeFilter,
    SchemaChangeFilterProperties,
)
from waltap_transforms.debezium.scripting import (
    ContentBasedRouter,
    ContentBasedRouterProperties,
    RecordFilter,
    RecordFilterProperties,
)
from waltap_transforms.debezium.source_schema import ExtractSchema, ExtractSchemaProperties
from waltap_transforms.debezium.spec import debezium_spec
from waltap_transforms.debezium.timezone_converter import (
    TimezoneConverter,
    TimezoneConverterProperties,
)
from waltap_transforms.debezium.tracing import ActivateTracingSpan, TracingProperties
from waltap_transforms.debezium.vectors import VectorToJson

__all__ = ["DEBEZIUM"]

# The specs that the plugin registers.
DEBEZIUM = (
    debezium_spec(
        "extract-new-record-state",
        "ExtractNewRecordState",
        "Puts the row in the place of the change event, with members of the event as fields or headers.",
        ExtractNewRecordStateProperties,
        lambda properties, _context: ExtractNewRecordState(properties),
        older=("UnwrapFromEnvelope",),  # profiles of old Debezium versions still have this name
        ends_events=True,
    ),
    debezium_spec(
        "event-router",
        "outbox.EventRouter",
        "Makes the events of an outbox table records of their own, each for the topic of its aggregate.",
        EventRouterProperties,
        EventRouter,
        ends_events=True,
    ),
    debezium_spec(
        "by-logical-table-router",
        "ByLogicalTableRouter",
        "Gives records of several tables one topic, with a field in their keys that tells the table.",
        ByLogicalTableRouterProperties,
        lambda properties, _context: ByLogicalTableRouter(properties),
    ),
    debezium_spec(
        "record-filter",
        "Filter",
        "Keeps the records for which an expression is true.",
        RecordFilterProperties,
        lambda properties, _context: RecordFilter(properties),
    ),
    debezium_spec(
        "content-based-router",
        "ContentBasedRouter",
        "Gives records the topic that an expression says.",
        ContentBasedRouterProperties,
        lambda properties, _context: ContentBasedRouter(properties),
    ),
    debezium_spec(
        "extract-changed-record-state",
        "ExtractChangedRecordState",
        "Writes headers with the names of the columns that an update changed, or did not.",
        ExtractChangedRecordStateProperties,
        lambda properties, _context: ExtractChangedRecordState(properties),
    ),
    debezium_spec(
        "header-to-value",
        "HeaderToValue",
        "Moves or copies headers into fields of the value.",
        HeaderToValueProperties,
        lambda properties, _context: HeaderToValue(properties),
    ),
    debezium_spec(
        "partition-routing",
        "partitions.PartitionRouting",
        "Chooses the partition by fields of the event.",
        PartitionRoutingProperties,
        lambda properties, _context: PartitionRouting(properties),
    ),
    debezium_spec(
        "timezone-converter",
        "TimezoneConverter",
        "Converts times of rows to another time zone.",
        TimezoneConverterProperties,
        TimezoneConverter,
    ),
    debezium_spec(
        "decode-message-content",
        "DecodeLogicalDecodingMessageContent",
        "Makes change events of logical messages whose content is JSON.",
        DecodeMessageContentProperties,
        lambda properties, context: DecodeMessageContent(properties, context.connector),
        package="io.debezium.connector.postgresql.transforms",
    ),
    debezium_spec(
        "schema-change-filter",
        "SchemaChangeEventFilter",
        "Leaves schema change events out, by what was changed.",
        SchemaChangeFilterProperties,
        lambda properties, _context: SchemaChangeFilter(properties),
    ),
    debezium_spec(
        "vector-to-json",
        "VectorToJsonConverter",
        "Writes vectors as JSON text.",
        None,
        lambda _properties, _context: VectorToJson(),
    ),
    debezium_spec(
        "extract-schema",
        "ExtractSchemaToNewRecord",
        "Writes the columns of the table into every event.",
        ExtractSchemaProperties,
        lambda properties, _context: ExtractSchema(properties),
    ),
    debezium_spec(
        "swap-geometry-coordinates",
        "SwapGeometryCoordinates",
        "Swaps x and y of geometries.",
        SwapCoordinatesProperties,
        lambda properties, _context: SwapCoordinates(properties),
    ),
    debezium_spec(
        "geometry-format",
        "GeometryFormatTransformer",
        "Puts the SRID into geometries, or takes it out.",
        GeometryFormatProperties,
        lambda properties, _context: GeometryFormat(properties),
    ),
    debezium_spec(
        "activate-tracing-span",
        "tracing.ActivateTracingSpan",
        "Makes OpenTelemetry spans of events, and writes their headers.",
        TracingProperties,
        ActivateTracingSpan,
    ),
)
