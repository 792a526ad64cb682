"""What types columns have in Iceberg, by Spark. Knows no Spark."""

import json
from typing import Any, Final

from waltap_spark.schema import type_text

__all__ = ["promotes", "stored_type"]

_GROWS: Final = frozenset({("integer", "long"), ("float", "double")})


def promotes(old: str, new: str) -> bool:
    """Tell whether Iceberg makes ``new`` (JSON) of the type ``old`` without a file being written."""
    before, after = json.loads(old), json.loads(new)
    if not isinstance(before, str) or not isinstance(after, str):
        return False
    if before.startswith("decimal(") and after.startswith("decimal("):
        (had, had_scale), (digits, scale) = _digits(before), _digits(after)
        return scale == had_scale and digits >= had
    return (before, after) in _GROWS


def stored_type(kind: str) -> str:
    """Return the type (JSON) in which values of ``kind`` are stored."""
    if not any(word in kind for word in ("byte", "short", "time(")):
        return kind
    return type_text(_stored(json.loads(kind)))


def _stored(kind: Any) -> Any:
    """Return a type, as Spark's JSON has it, with those that Iceberg has."""
    if isinstance(kind, str):
        if kind in ("byte", "short"):
            return "integer"
        return "string" if kind.startswith("time(") else kind
    nested = {
        name: _stored(kind[name])
        for name in ("elementType", "keyType", "valueType")
        if name in kind
    }
    if "fields" in kind:
        nested["fields"] = [{**each, "type": _stored(each["type"])} for each in kind["fields"]]
    return {**kind, **nested}


def _digits(kind: str) -> tuple[int, int]:
    precision, scale = kind[len("decimal(") : -1].split(",")
    return int(precision), int(scale)
