"""Schemas of change events in Kafka Connect's JSON or Avro.

A `TopicField` is a column with Connect's type, the semantic name of its values, and its parts. Knows
no Spark.
"""

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Final

from waltap_spark.errors import EventUnreadable

_AVRO: Final = {
    "int": "int32", "long": "int64", "float": "float", "double": "double", "boolean": "boolean",
    "string": "string", "bytes": "bytes", "enum": "string", "fixed": "bytes",
}  # fmt: skip

DECIMAL: Final = "org.apache.kafka.connect.data.Decimal"

# Parameters that change the meaning of values, unlike labels of an enum or the source's type.
_DISTINGUISHING: Final = ("scale", "connect.decimal.precision", "length")


@dataclass(frozen=True, slots=True)
class TopicField:
    """One column, or a part of one."""

    name: str
    # Connect's type.
    kind: str
    # The semantic name, such as io.debezium.time.Date.
    meaning: str = ""
    parameters: Mapping[str, str] = field(default_factory=dict, hash=False)
    items: "TopicField | None" = None
    fields: "tuple[TopicField, ...]" = ()
    # Of a map in JSON.
    keys: "TopicField | None" = None

    def described(self) -> str:
        """Return a manifest's type, equal for values of equal meaning."""
        parts = [self.meaning or self.kind]
        parameters = sorted(self.parameters.items())
        parts += [f"{name}={value}" for name, value in parameters if name in _DISTINGUISHING]
        parts += [] if self.items is None else [self.items.described()]
        parts += [f"{each.name}:{each.described()}" for each in self.fields]
        return " ".join(parts)


def fields_of_json(schema: str) -> tuple[TopicField, ...]:
    """Return the columns of an event's own JSON schema. Raises: EventUnreadable."""
    try:
        envelope = json.loads(schema)
        for each in envelope["fields"]:
            if each["field"] == "after":
                return tuple(map(_of_json, each["fields"]))
    except (ValueError, KeyError, TypeError) as cause:
        raise EventUnreadable(f"the schema of an event cannot be read: {cause!r}") from cause
    raise EventUnreadable("the schema of an event has no field 'after'")


def _of_json(found: Mapping[str, Any]) -> TopicField:
    kind = found["type"]
    return TopicField(
        name=found.get("field", ""),
        kind=kind,
        meaning=found.get("name") or "",
        parameters={} if kind == "struct" else dict(found.get("parameters") or {}),
        items=_of_json(found["items" if kind == "array" else "values"])
        if kind in ("array", "map")
        else None,
        fields=tuple(map(_of_json, found.get("fields") or ())),
        keys=_of_json(found["keys"]) if kind == "map" and "keys" in found else None,
    )


def fields_of_avro(schema: str) -> tuple[TopicField, ...]:
    """Return the columns of an Avro schema of events. Raises: EventUnreadable."""
    try:
        envelope = json.loads(schema)
        known: dict[str, Any] = {}
        for each in envelope["fields"]:
            made = _of_avro(each["name"], each["type"], known, str(envelope.get("namespace", "")))
            if each["name"] in ("before", "after") and made.fields:
                return made.fields
    except (ValueError, KeyError, TypeError) as cause:
        raise EventUnreadable(f"the Avro schema of an event cannot be read: {cause!r}") from cause
    raise EventUnreadable("the Avro schema of an event has no field 'after'")


def _of_avro(name: str, kind: Any, known: dict[str, Any], space: str) -> TopicField:
    if isinstance(kind, list):
        (kind,) = [each for each in kind if each != "null"]
    if isinstance(kind, str):
        if kind in _AVRO:
            return TopicField(name, _AVRO[kind])
        kind = known[kind] if kind in known else known[f"{space}.{kind}"]
    type_ = kind["type"]
    if isinstance(type_, dict):
        return _of_avro(name, type_, known, space)
    space = str(kind.get("namespace", space))
    if "name" in kind:
        known[kind["name"]] = known[f"{space}.{kind['name']}"] = kind
    meaning = kind.get("connect.name") or ""
    parameters = {str(n): str(v) for n, v in (kind.get("connect.parameters") or {}).items()}
    if kind.get("logicalType") == "decimal":
        meaning = DECIMAL
        parameters |= {
            "scale": str(kind.get("scale", 0)), "connect.decimal.precision": str(kind["precision"]),
        }  # fmt: skip
    if type_ == "record":
        fields = tuple(
            _of_avro(each["name"], each["type"], known, space) for each in kind["fields"]
        )
        return TopicField(name, "struct", meaning, {}, None, fields)
    if type_ in ("array", "map"):
        items = _of_avro("", kind["items" if type_ == "array" else "values"], known, space)
        return TopicField(name, type_, meaning, {}, items)
    narrow = kind.get("connect.type")
    return TopicField(
        name, narrow if narrow in ("int8", "int16") else _AVRO[type_], meaning, parameters
    )


def key_fields(key: str) -> tuple[str, ...]:
    """Return the columns of a record's key. Raises: EventUnreadable.

    The key is JSON, with or without schema.
    """
    try:
        found = json.loads(key)
        if isinstance(found, dict) and set(found) == {"schema", "payload"}:
            found = found["payload"]
    except ValueError as cause:
        raise EventUnreadable(f"the key of an event is no JSON: {key[:100]!r}") from cause
    if found is not None and not isinstance(found, dict):
        raise EventUnreadable(f"the key of an event is no JSON object: {key[:100]!r}")
    return tuple(found or ())


def names_in_avro(schema: str) -> dict[str, set[str]]:
    """Return an Avro record's fields, and their inner fields.

    Raises: EventUnreadable if it is no record.
    """
    try:
        return {each["name"]: _names(each["type"]) for each in json.loads(schema)["fields"]}
    except (ValueError, KeyError, TypeError) as cause:
        raise EventUnreadable(f"an Avro schema is none of a record: {schema[:100]!r}") from cause


def _names(kind: Any) -> set[str]:
    options = kind if isinstance(kind, list) else [kind]
    return {
        each["name"] for one in options if isinstance(one, dict) for each in one.get("fields", ())
    }


def without_decimals(schema: str) -> str:
    """Return an Avro schema without decimals, which then are bytes.

    Spark's decimals have 38 digits at most.
    """

    def bare(part: dict[str, Any]) -> dict[str, Any]:
        left_out = {"logicalType", "precision", "scale"}
        if part.get("logicalType") != "decimal":
            return part
        return {name: value for name, value in part.items() if name not in left_out}

    return json.dumps(json.loads(schema, object_hook=bare))
