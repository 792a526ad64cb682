"""Connect records as JSON: what the judge reads and writes, and what is recorded of it."""

import json
from base64 import b64decode
from typing import Any

from tests.differential.transforms import record_text

from waltap.changes.mapping.connect_schema import ConnectKind, Field, Schema
from waltap.encoders.format.record_transform import ConnectRecord


def written_record(record: ConnectRecord) -> dict[str, Any]:
    """Return the JSON of a record. Raises: ValueError for values that do not fit their schemas."""
    made: dict[str, Any] = json.loads(record_text(record))
    return made


def read_record(given: dict[str, Any]) -> ConnectRecord:
    """Return the record that `written_record` wrote."""
    key_schema, key = _read(given["key"])
    value_schema, value = _read(given["value"])
    headers = tuple((each["name"], *_read(each["data"])) for each in given["headers"])
    return ConnectRecord(
        given["topic"], key_schema, key, value_schema, value, headers, given["partition"],
        given["timestamp"],
    )  # fmt: skip


def _read(data: Any) -> tuple[Schema | None, Any]:
    if data is None:
        return None, None
    if data["schema"] is None:
        return None, data["payload"]
    schema = _schema(data["schema"])
    return schema, _value(schema, data["payload"])


def _schema(given: dict[str, Any]) -> Schema:
    kind = ConnectKind(given["type"])
    plain = Schema(
        kind=kind,
        optional=given.get("optional", False),
        name=given.get("name"),
        version=given.get("version"),
        parameters=tuple(given.get("parameters", {}).items()),
        doc=given.get("doc"),
        fields=tuple(Field(each["field"], _schema(each)) for each in given.get("fields", ())),
        items=_schema(given["items"]) if "items" in given else None,
        keys=_schema(given["keys"]) if "keys" in given else None,
        values=_schema(given["values"]) if "values" in given else None,
    )
    default = given.get("default")
    if default is None:
        return plain
    return Schema(
        **{name: getattr(plain, name) for name in plain.__struct_fields__ if name != "default"},
        default=_value(plain, default),
    )


def _value(schema: Schema, given: Any) -> Any:
    if given is None:
        return None
    match schema.kind:
        case ConnectKind.BYTES:
            return b64decode(given)
        case ConnectKind.FLOAT32 | ConnectKind.FLOAT64:
            return float(given)
        case ConnectKind.ARRAY:
            assert schema.items is not None
            return [_value(schema.items, each) for each in given]
        case ConnectKind.MAP:
            assert schema.values is not None
            return {name: _value(schema.values, each) for name, each in given.items()}
        case ConnectKind.STRUCT:
            return {f.name: _value(f.schema, given.get(f.name)) for f in schema.fields}
        case _:
            return given
