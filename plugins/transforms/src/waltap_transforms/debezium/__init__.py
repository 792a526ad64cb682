"""Debezium's transforms of records.

Each one behaves like the class of its name in Debezium 3.6.
"""

from waltap_transforms.debezium.changed_fields import CHANGED_FIELDS
from waltap_transforms.debezium.event_router import EVENT_ROUTER
from waltap_transforms.debezium.geometry import GEOMETRY
from waltap_transforms.debezium.header_to_value import HEADER_TO_VALUE
from waltap_transforms.debezium.logical_table_router import LOGICAL_TABLE_ROUTER
from waltap_transforms.debezium.message_content import MESSAGE_CONTENT
from waltap_transforms.debezium.new_record_state import NEW_RECORD_STATE
from waltap_transforms.debezium.partition_routing import PARTITION_ROUTING
from waltap_transforms.debezium.schema_change_filter import SCHEMA_CHANGE_FILTER
from waltap_transforms.debezium.scripting import SCRIPTING
from waltap_transforms.debezium.source_schema import SOURCE_SCHEMA
from waltap_transforms.debezium.timezone_converter import TIMEZONE_CONVERTER
from waltap_transforms.debezium.tracing import TRACING
from waltap_transforms.debezium.vectors import VECTORS

__all__ = ["DEBEZIUM"]

# The specs that the plugin registers.
DEBEZIUM = (
    *NEW_RECORD_STATE,
    *EVENT_ROUTER,
    *LOGICAL_TABLE_ROUTER,
    *SCRIPTING,
    *CHANGED_FIELDS,
    *HEADER_TO_VALUE,
    *PARTITION_ROUTING,
    *TIMEZONE_CONVERTER,
    *MESSAGE_CONTENT,
    *SCHEMA_CHANGE_FILTER,
    *VECTORS,
    *SOURCE_SCHEMA,
    *GEOMETRY,
    *TRACING,
)
