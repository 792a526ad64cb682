"""Kafka Connect's own transforms.

Each one behaves like the Java class of its name.
"""

from waltap_transforms.connect.fields import (
    FLATTEN,
    INSERT_FIELD,
    NESTED_FIELD,
    REPLACE_FIELD,
    SCHEMA_METADATA,
    VALUE_TO_KEY,
)
from waltap_transforms.connect.records import HEADERS, TOPICS
from waltap_transforms.connect.values import CAST, MASK_FIELD, TIMESTAMP_CONVERTER

__all__ = ["CONNECT"]

# The specs that the plugin registers.
CONNECT = (
    *CAST,
    *FLATTEN,
    *HEADERS,
    *INSERT_FIELD,
    *MASK_FIELD,
    *NESTED_FIELD,
    *REPLACE_FIELD,
    *SCHEMA_METADATA,
    *TIMESTAMP_CONVERTER,
    *TOPICS,
    VALUE_TO_KEY,
)
