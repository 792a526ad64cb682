"""Schemas of tables as they grow: Spark types as JSON, and which type holds two others."""

import json
import re
from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from pyspark.sql.types import StructType

__all__ = ["LOG_FIELDS", "common_type", "log_struct", "struct_of", "types_of"]

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
"""Columns of change sets after the table's own: those of the change log's segments, and the epoch
of the log, which comes first where rows are put in order."""

_INTEGERS: Final = ("byte", "short", "integer", "long")
_DIGITS: Final = {"byte": 3, "short": 5, "integer": 10, "long": 19}
_DECIMAL: Final = re.compile(r"decimal\((\d+),(-?\d+)\)")
_MOST_DIGITS: Final = 38


def types_of(struct: "StructType") -> dict[str, str]:
    """Return the fields of ``struct`` as name → type in JSON, without the log's own."""
    return {
        field.name: field.dataType.json() for field in struct.fields if field.name not in LOG_FIELDS
    }


def struct_of(types: Mapping[str, str]) -> "StructType":
    """Return a struct type of nullable fields from name → type in JSON."""
    from pyspark.sql.types import StructType

    fields = [
        {"name": name, "type": json.loads(text), "nullable": True, "metadata": {}}
        for name, text in types.items()
    ]
    return StructType.fromJson({"type": "struct", "fields": fields})


def log_struct(types: Mapping[str, str]) -> "StructType":
    """Return the struct type of the files of a change set whose table has ``types``."""
    return struct_of({**types, **LOG_FIELDS})


def common_type(one: str, other: str) -> str | None:
    """Return the type that holds every value of both exactly, None when there is none but text."""
    if one == other:
        return one
    first, second = json.loads(one), json.loads(other)
    if isinstance(first, dict) or isinstance(second, dict):
        return _common_nested(first, second)
    found = _common_number(first, second) or _common_number(second, first)
    return None if found is None else json.dumps(found)


def _common_number(first: str, second: str) -> str | None:
    if first in _INTEGERS and second in _INTEGERS:
        return max(first, second, key=_INTEGERS.index)
    if {first, second} == {"float", "double"}:
        return "double"
    if first in _INTEGERS[:3] and second == "double":
        return "double"  # 32 bits and less fit into the 53 of a double
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
    whole = max(precision - scale for precision, scale in shapes)
    scale = max(scale for _precision, scale in shapes)
    return f"decimal({whole + scale},{scale})" if whole + scale <= _MOST_DIGITS else None


def _common_nested(first: object, second: object) -> str | None:
    if not (isinstance(first, dict) and isinstance(second, dict)):
        return None
    if first.get("type") != "array" or second.get("type") != "array":
        return None
    element = common_type(json.dumps(first["elementType"]), json.dumps(second["elementType"]))
    if element is None:
        return None
    return json.dumps({"type": "array", "elementType": json.loads(element), "containsNull": True})
