"""Schemas of growing tables: Spark types as JSON, and common types."""

import inspect
import json
import re
from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any, Final

from waltap_spark.schema.expression import quoted

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql.types import StructType


# Columns of change sets after the table's own.
# They are the columns of the change log's segments, and the log's epoch, which comes first in the
# order of rows.
LOG_FIELDS: Final = {
    "_op": '"string"',
    "_commit_lsn": '"long"',
    "_seq": '"integer"',
    "_sub": '"byte"',
    "_lsn": '"long"',
    "_commit_ts": '"timestamp"',
    "_xid": '"long"',
    "_unchanged": '{"containsNull":true,"elementType":"string","type":"array"}',
    "_epoch": '"integer"',
}

_INTEGERS: Final = ("byte", "short", "integer", "long")
_DIGITS: Final = {"byte": 3, "short": 5, "integer": 10, "long": 19}
_DECIMAL: Final = re.compile(r"decimal\((\d+),(-?\d+)\)")
_MOST_DIGITS: Final = 38


def arrow_schema(struct: "StructType") -> "pa.Schema":
    """Return the Arrow schema of Spark's batches of ``struct``.

    Instants are in UTC.
    """
    from pyspark.sql.pandas.types import to_arrow_schema

    if "timezone" in inspect.signature(to_arrow_schema).parameters:
        return to_arrow_schema(struct, timezone="UTC")
    return to_arrow_schema(struct)  # pyspark 4.1 always uses UTC


def types_of(struct: "StructType") -> dict[str, str]:
    """Return name → type in JSON, without the log's own fields."""
    return {
        field.name: field.dataType.json() for field in struct.fields if field.name not in LOG_FIELDS
    }


def floating(columns: Mapping[str, str], names: Iterable[str]) -> list[str]:
    """Return the columns of ``names`` that contain floating point.

    Spark groups -0.0 and 0.0 as one value.
    """
    return [name for name in names if '"float"' in columns[name] or '"double"' in columns[name]]


def struct_of(types: Mapping[str, str]) -> "StructType":
    """Return a struct type of nullable fields.

    ``types`` is name → type in JSON.
    """
    from pyspark.sql.types import StructType

    fields = [
        {"name": name, "type": json.loads(text), "nullable": True, "metadata": {}}
        for name, text in types.items()
    ]
    return StructType.fromJson({"type": "struct", "fields": fields})


def log_struct(types: Mapping[str, str]) -> "StructType":
    """Return the struct type of a change set's files."""
    return struct_of({**types, **LOG_FIELDS})


def common_type(one: str, other: str) -> str | None:
    """Return the type that holds every value of both exactly.

    None means that only text does.
    """
    if one == other:
        return one
    first, second = json.loads(one), json.loads(other)
    if isinstance(first, dict) or isinstance(second, dict):
        nested = _common_nested(first, second)
        return None if nested is None else type_text(nested)
    found = _common_number(first, second) or _common_number(second, first)
    return None if found is None else json.dumps(found)


def _common_number(first: str, second: str) -> str | None:
    if first in _INTEGERS and second in _INTEGERS:
        return max(first, second, key=_INTEGERS.index)
    if {first, second} == {"float", "double"}:
        return "double"
    if first in _INTEGERS[:3] and second == "double":
        return "double"  # 32 bits and less fit into the 53 bits of a double
    decimal = _DECIMAL.fullmatch(second)
    if decimal is None:
        return None
    if first in _INTEGERS:
        return _decimal([(_DIGITS[first], 0), (int(decimal[1]), int(decimal[2]))])
    other = _DECIMAL.fullmatch(first)
    if other is None:
        return None
    return _decimal([(int(found[1]), int(found[2])) for found in (other, decimal)])


def _decimal(shapes: Iterable[tuple[int, int]]) -> str | None:
    digits = max(precision - scale for precision, scale in shapes)
    scale = max(scale for _precision, scale in shapes)
    return f"decimal({digits + scale},{scale})" if digits + scale <= _MOST_DIGITS else None


def _common_nested(first: object, second: object) -> object | None:
    """Return the common type of two types, one of which is nested.

    Fields are matched by name.
    """
    if not (isinstance(first, dict) and isinstance(second, dict)):
        return None
    kind = first.get("type")
    if kind != second.get("type") or kind not in ("array", "map", "struct"):
        return None
    if kind == "array":
        element = _common(first["elementType"], second["elementType"])
        made = {"type": "array", "elementType": element, "containsNull": True}
        return None if element is None else made
    if kind == "map":
        value = _common(first["valueType"], second["valueType"])
        same = first["keyType"] == second["keyType"]
        made = {**first, "valueType": value, "valueContainsNull": True}
        return made if same and value is not None else None
    fields = {field["name"]: field for field in first["fields"]}
    for field in second["fields"]:
        had = fields.get(field["name"], field)
        common = _common(had["type"], field["type"])
        if common is None:
            return None
        fields[field["name"]] = {**had, "type": common, "nullable": True}
    return {"type": "struct", "fields": list(fields.values())}


def _common(one: object, other: object) -> object | None:
    found = common_type(type_text(one), type_text(other))
    return None if found is None else json.loads(found)


def type_text(kind: object) -> str:
    """Return a type as Spark writes it in JSON."""
    return json.dumps(kind, separators=(",", ":"), sort_keys=True)


def sql_type(kind: str) -> str:
    """Return a JSON type as DDL, with quoted field names."""
    return _sql(json.loads(kind))


def _sql(kind: Any) -> str:
    if isinstance(kind, str):
        return _SQL.get(kind, kind)
    if kind["type"] == "array":
        return f"array<{_sql(kind['elementType'])}>"
    if kind["type"] == "map":
        return f"map<{_sql(kind['keyType'])}, {_sql(kind['valueType'])}>"
    fields = (f"{quoted(field['name'])}: {_sql(field['type'])}" for field in kind["fields"])
    return f"struct<{', '.join(fields)}>"


_SQL: Final = {"byte": "tinyint", "short": "smallint", "integer": "int", "long": "bigint"}
