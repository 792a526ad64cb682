"""Connect schemas of envelopes, source blocks and the pipeline's records.

Source: Debezium 3.6's events; field order and optionality are part of the contract.
"""

import base64
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import msgspec

from waltap.changes.mapping.connect_schema import ConnectKind, Field, Schema

# Transaction metadata counts logical messages under this name.
MESSAGE_COLLECTION = "LOGICAL_DECODING_MESSAGE"

# Value of `binary.handling.mode` → bytes to Connect value.
CONTENT_FORMS: dict[str, Callable[[bytes], object]] = {
    "bytes": bytes,
    "base64": lambda content: base64.b64encode(content).decode(),
    "base64-url-safe": lambda content: base64.urlsafe_b64encode(content).decode(),
    "hex": bytes.hex,
}


@dataclass(frozen=True, slots=True, kw_only=True)
class EnvelopeForm:
    """Define the envelope around rows."""

    name: str
    # The envelope has stamps finer than milliseconds.
    fine_stamps: bool = True
    # The source block has the replication origin.
    origins: bool = True
    # The transaction block follows `ts_ms`.
    transaction_last: bool = False
    # The declared values of `source.snapshot`.
    markers: str = (
        "true,first,first_in_data_collection,last_in_data_collection,last,false,incremental"
    )
    # Of the envelope's schema; None: none.
    version: int | None = 2
    # Of the source block's schema; None: none.
    source_version: int | None = 1
    # The envelope ends with the names of the fields of `after` that the server did not send, null
    # where it sent all.
    unsent: bool = False


NEWEST = EnvelopeForm(name="Debezium 3")
DEBEZIUM_2_5 = EnvelopeForm(
    name="Debezium 2.5",
    fine_stamps=False,
    origins=False,
    transaction_last=True,
    markers="true,last,false,incremental",
    version=1,
    source_version=None,
)


_STRING = Schema(kind=ConnectKind.STRING)
_OPTIONAL_STRING = Schema(kind=ConnectKind.STRING, optional=True)
_UNSENT = Schema(kind=ConnectKind.ARRAY, optional=True, items=_STRING)
_INT64 = Schema(kind=ConnectKind.INT64)
_OPTIONAL_INT64 = Schema(kind=ConnectKind.INT64, optional=True)
HEADER = _STRING


def _struct(name: str, *fields: Field, optional: bool = False, version: int | None = 1) -> Schema:
    return Schema(
        kind=ConnectKind.STRUCT, optional=optional, name=name, version=version, fields=fields
    )


TRANSACTION_BLOCK = _struct(
    "event.block",
    Field("id", _STRING),
    Field("total_order", _INT64),
    Field("data_collection_order", _INT64),
    optional=True,
)
TRANSACTION_KEY = _struct(
    "io.debezium.connector.common.TransactionMetadataKey", Field("id", _STRING)
)
_COLLECTION = _struct(
    "event.collection",
    Field("data_collection", _STRING),
    Field("event_count", _INT64),
    optional=True,
)
TRANSACTION_VALUE = _struct(
    "io.debezium.connector.common.TransactionMetadataValue",
    Field("status", _STRING),
    Field("id", _STRING),
    Field("event_count", _OPTIONAL_INT64),
    Field("data_collections", Schema(kind=ConnectKind.ARRAY, optional=True, items=_COLLECTION)),
    Field("ts_ms", _INT64),
)
HEARTBEAT_KEY = _struct("io.debezium.connector.common.ServerNameKey", Field("serverName", _STRING))
HEARTBEAT_VALUE = _struct("io.debezium.connector.common.Heartbeat", Field("ts_ms", _INT64))
NOTIFICATION_KEY = _struct("io.debezium.connector.common.NotificationKey", Field("id", _STRING))
NOTIFICATION_VALUE = _struct(
    "io.debezium.connector.common.Notification",
    Field("id", _STRING),
    Field("type", _STRING),
    Field("aggregate_type", _STRING),
    Field(
        "additional_data",
        Schema(kind=ConnectKind.MAP, optional=True, keys=_STRING, values=_STRING),
    ),
    Field("timestamp", _INT64),
)


def renamed(schema: Schema, name: Callable[[str], str]) -> Schema:
    """Return ``schema`` with its own name changed by ``name``."""
    return msgspec.structs.replace(schema, name=name(schema.name or ""))


def source_schema(connector: str, form: EnvelopeForm = NEWEST) -> Schema:
    """Return the schema of a connector's ``source`` block."""
    marker = Schema(
        kind=ConnectKind.STRING,
        optional=True,
        name="io.debezium.data.Enum",
        version=1,
        parameters=(("allowed", form.markers),),
        default="false",
    )
    fine = (Field("ts_us", _OPTIONAL_INT64), Field("ts_ns", _OPTIONAL_INT64))
    origin = (Field("origin", _OPTIONAL_STRING), Field("origin_lsn", _OPTIONAL_INT64))
    return _struct(
        f"io.debezium.connector.{connector}.Source",
        Field("version", _STRING),
        Field("connector", _STRING),
        Field("name", _STRING),
        Field("ts_ms", _INT64),
        Field("snapshot", marker),
        Field("db", _STRING),
        Field("sequence", _OPTIONAL_STRING),
        *(fine if form.fine_stamps else ()),
        Field("schema", _STRING),
        Field("table", _STRING),
        Field("txId", _OPTIONAL_INT64),
        Field("lsn", _OPTIONAL_INT64),
        Field("xmin", _OPTIONAL_INT64),
        *(origin if form.origins else ()),
        version=form.source_version,
    )


def key_schema(name: str, fields: Sequence[Field]) -> Schema:
    """Return the schema of keys; ``name`` is full and adjusted."""
    return _struct(name, *fields, version=None)


def row_schema(name: str, fields: Sequence[Field]) -> Schema:
    """Return the schema of ``before`` and ``after``.

    ``name`` is full and adjusted.
    """
    return _struct(name, *fields, optional=True, version=None)


def envelope_schema(name: str, row: Schema, source: Schema, form: EnvelopeForm = NEWEST) -> Schema:
    """Return the schema of values of data topics.

    ``name`` is full and adjusted.
    """
    transaction = (Field("transaction", TRANSACTION_BLOCK),)
    fine = (Field("ts_us", _OPTIONAL_INT64), Field("ts_ns", _OPTIONAL_INT64))
    return _struct(
        name,
        Field("before", row),
        Field("after", row),
        Field("source", source),
        *(() if form.transaction_last else transaction),
        Field("op", _STRING),
        Field("ts_ms", _OPTIONAL_INT64),
        *(fine if form.fine_stamps else ()),
        *(transaction if form.transaction_last else ()),
        *((Field("unsent", _UNSENT),) if form.unsent else ()),
        version=form.version,
    )


def message_key_schema(connector: str) -> Schema:
    """Return the schema of keys of logical messages."""
    return _struct(
        f"io.debezium.connector.{connector}.MessageKey", Field("prefix", _OPTIONAL_STRING)
    )


def message_value_schema(connector: str, source: Schema, *, binary: bool) -> Schema:
    """Return the schema of values of logical messages.

    ``binary`` says that the content is bytes.
    """
    content = Schema(kind=ConnectKind.BYTES if binary else ConnectKind.STRING, optional=True)
    message = _struct(
        f"io.debezium.connector.{connector}.Message",
        Field("prefix", _OPTIONAL_STRING),
        Field("content", content),
    )
    return _struct(
        f"io.debezium.connector.{connector}.MessageValue",
        Field("op", _STRING),
        Field("ts_ms", _OPTIONAL_INT64),
        Field("source", source),
        Field("transaction", TRANSACTION_BLOCK),
        Field("message", message),
    )
