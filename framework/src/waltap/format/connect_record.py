"""Records before they are bytes: schemas and values, as Kafka Connect's converters see them."""

from typing import Any

import msgspec

from waltap.mapping.connect_schema import Schema

__all__ = ["ConnectHeader", "ConnectRecord"]

ConnectHeader = tuple[str, Schema | None, Any]
"""(name, schema, value)."""


class ConnectRecord(msgspec.Struct, eq=False):
    """A record for a topic whose key and value are Connect values: int, float, bool, str, bytes, list, and
    dict for structs (field → value; a field that is not there is null) and maps.

    A schema is one object per relation version: encoders are looked up by it, so whoever changes one keeps
    what it made of each. Schema and value None: a tombstone's value, or a record without key. Values
    without schema are dicts, lists and scalars. ``timestamp`` is in ms since 1970 UTC; None: whoever
    writes the record gives it one.
    """

    topic: str
    key_schema: Schema | None
    key: Any
    value_schema: Schema | None
    value: Any
    headers: tuple[ConnectHeader, ...] = ()
    partition: int | None = None
    timestamp: int | None = None
