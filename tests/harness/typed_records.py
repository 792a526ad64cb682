"""Records of every type's values, as waltap's formats get them: schemas with Connect values."""

from collections.abc import Iterator
from typing import Any

import msgspec
import psycopg
from tests.harness.typed_values import LITERALS, printed_once

from waltap.changes.capture.properties import CaptureProperties
from waltap.changes.decode.message import Delete, Insert, OldTuple
from waltap.changes.decode.relation import Column, Relation
from waltap.changes.mapping.connect_schema import Schema
from waltap.changes.transactions.transaction import TransactionPart
from waltap.encoders.format.converted import ConvertedFormat, RecordConverters
from waltap.encoders.format.converter import ConverterContext
from waltap.encoders.format.format import FormatContext
from waltap.encoders.format.record_transform import ConnectRecord
from waltap.encoders.json.converter import JsonConverter, JsonConverterProperties
from waltap_formats.avro.converter import AvroConverter
from waltap_formats.properties import AvroProperties
from waltap_testing.installed import format_context
from waltap_testing.workload import ITEMS

NOW = 1_767_225_601_123_456_789
_JSON = JsonConverter(JsonConverterProperties(), ConverterContext(record_part="value"))


def context(**capture: object) -> FormatContext:
    """Return what a format may know, with these capture properties."""
    return format_context(CaptureProperties.model_validate({"topic.prefix": "server", **capture}))


def records_of(
    relation: Relation, rows: list[tuple[Any, ...]], **capture: object
) -> list[ConnectRecord]:
    """Return a create of each row, and the delete of the first."""
    plain = RecordConverters(key=_JSON, value=_JSON, header=_JSON)
    made = ConvertedFormat(plain, context(**capture))
    changes: list[Any] = [Insert(relation, 16 + n, row) for n, row in enumerate(rows)]
    changes.append(Delete(relation, 90, rows[0], OldTuple.FULL))
    part = TransactionPart(
        xid=7, begin_lsn=8, commit_lsn=64, commit_ts=1_767_225_600_000_000, end_lsn=99,
        changes=changes,
    )  # fmt: skip
    return made.records([part], NOW)


def table(column: Column, *, nullable: bool = True) -> Relation:
    """Return a table with a key and ``column``."""
    return msgspec.structs.replace(
        ITEMS,
        table="typed",
        columns=(ITEMS.columns[0], msgspec.structs.replace(column, nullable=nullable)),
    )


def typed_records(
    connection: psycopg.Connection[Any], **capture: object
) -> Iterator[tuple[str, list[ConnectRecord]]]:
    for type_name, literals in LITERALS.items():
        column, values = printed_once(connection, type_name, literals)
        rows = [("1", text) for text in values]
        yield type_name, records_of(table(column), [*rows, ("1", None)], **capture)


def with_schema(record: ConnectRecord) -> bytes:
    """Return a record's value as JsonConverter writes it, schema and all; null stays null."""
    return with_schema_of(record.value_schema, record.value)


def with_schema_of(schema: Schema | None, value: Any) -> bytes:
    """Return a value as JsonConverter writes it, schema and all; null stays null."""
    properties = JsonConverterProperties.model_validate({"replace.null.with.default": False})
    converter = JsonConverter(properties, ConverterContext(record_part="value"))
    written = converter.encoder("t", schema)(value)
    assert written is not None
    return written


class UnregisteredAvro(AvroConverter):
    """Avro without a registry; ``straight``: rows are written from their images."""

    def __init__(self, *, straight: bool) -> None:
        url = {"schema.registry.url": "http://nobody"}
        super().__init__(AvroProperties.model_validate(url), ConverterContext(record_part="value"))
        self.straight = straight

    def prefix(self, topic: str, schema: Any) -> bytes:
        return b"\0\0\0\0\1"

    def keys(self, shape: Any, *, read: bool) -> Any:
        return super().keys(shape, read=read) if self.straight else None

    def creates(self, shape: Any, value: Any, key: Any, *, read: bool) -> Any:
        return super().creates(shape, value, key, read=read) if self.straight else None
