"""Kafka Connect's own transforms.

Each one behaves like the Java class of its name.
"""

from waltap_transforms.connect.cast import CAST
from waltap_transforms.connect.flatten import FLATTEN
from waltap_transforms.connect.headers import HEADERS
from waltap_transforms.connect.insert_field import INSERT_FIELD
from waltap_transforms.connect.mask_field import MASK_FIELD
from waltap_transforms.connect.nested_field import NESTED_FIELD
from waltap_transforms.connect.replace_field import REPLACE_FIELD
from waltap_transforms.connect.schema_metadata import SCHEMA_METADATA
from waltap_transforms.connect.timestamp_converter import TIMESTAMP_CONVERTER
from waltap_transforms.connect.topics import TOPICS
from waltap_transforms.connect.value_to_key import VALUE_TO_KEY

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
    *VALUE_TO_KEY,
)
