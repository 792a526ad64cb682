"""Debezium's transforms of records.

Each one behaves like the class of its name in Debezium 3.6.
"""

from waltap_transforms.debezium.data_types import GEOMETRY, RECORD_SIZE, VECTORS
from waltap_transforms.debezium.event_router import EVENT_ROUTER
from waltap_transforms.debezium.header_to_value import HEADER_TO_VALUE
from waltap_transforms.debezium.json_payload import MESSAGE_CONTENT
from waltap_transforms.debezium.names import NAMES
from waltap_transforms.debezium.record_state import (
    CHANGED_FIELDS,
    NEW_RECORD_STATE,
    READ_TO_INSERT,
)
from waltap_transforms.debezium.routing import LOGICAL_TABLE_ROUTER, PARTITION_ROUTING, TIMESCALE
from waltap_transforms.debezium.schemas import OPEN_LINEAGE, SCHEMA_CHANGE_FILTER, SOURCE_SCHEMA
from waltap_transforms.debezium.scripting import SCRIPTING
from waltap_transforms.debezium.timezone_converter import TIMEZONE_CONVERTER
from waltap_transforms.debezium.tracing import TRACING

__all__ = ["DEBEZIUM"]

# The specs that the plugin registers.
DEBEZIUM = (
    NEW_RECORD_STATE,
    EVENT_ROUTER,
    LOGICAL_TABLE_ROUTER,
    TIMESCALE,
    *SCRIPTING,
    CHANGED_FIELDS,
    HEADER_TO_VALUE,
    PARTITION_ROUTING,
    TIMEZONE_CONVERTER,
    MESSAGE_CONTENT,
    SCHEMA_CHANGE_FILTER,
    OPEN_LINEAGE,
    VECTORS,
    SOURCE_SCHEMA,
    *GEOMETRY,
    RECORD_SIZE,
    READ_TO_INSERT,
    *NAMES,
    TRACING,
)
