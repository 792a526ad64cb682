"""Records as schemas and values, before a converter makes bytes.

They have the form that Kafka Connect's converters read.
"""

from typing import Any

import msgspec

from waltap.changes.mapping.connect_schema import Schema

__all__ = ["ConnectHeader", "ConnectRecord"]

# (name, schema, value).
ConnectHeader = tuple[str, Schema | None, Any]


class ConnectRecord(msgspec.Struct, eq=False):
    """A record for a topic, with a Connect key and value.

    Values are int, float, bool, str, bytes, list, and dict for structs and maps. A field that is
    missing in a struct's dict is null. A value without schema is a dict, a list or a scalar. A
    tombstone's value, and the key of a record without key, have neither schema nor value.
    """

    topic: str
    # One object per relation version: encoders are found by it, so a transform must keep the schema
    # that it made of each schema.
    key_schema: Schema | None
    key: Any
    value_schema: Schema | None
    value: Any
    headers: tuple[ConnectHeader, ...] = ()
    partition: int | None = None
    # In ms since 1970 UTC. None: the writer of the record gives it one.
    timestamp: int | None = None
