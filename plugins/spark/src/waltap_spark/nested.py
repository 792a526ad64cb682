"""Types within types: the value of one as that of another, by the names of fields, and what fields came.

Spark casts a struct field by field in their order, and none that has fewer fields. A type that got another
attribute is a struct with one field more, which older values have as null.
"""

import json
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from waltap_spark.schema import type_text

if TYPE_CHECKING:
    from pyspark.sql import Column
    from pyspark.sql.types import DataType

__all__ = ["fitted", "new_fields", "same_type"]


def fitted(column: "Column", has: str, wanted: str, *, lenient: bool = False) -> "Column":
    """Return ``column``, of the type ``has``, as ``wanted`` (JSON): fields by name, null where there are
    none. ``lenient``: what does not fit is null.
    """
    return _fitted(column, json.loads(has), json.loads(wanted), lenient)


def _fitted(column: "Column", has: Any, wanted: Any, lenient: bool) -> "Column":
    from pyspark.sql import functions as F  # noqa: N812 - as everybody calls it

    if has == wanted:
        return column
    kind = wanted.get("type") if isinstance(wanted, Mapping) else None
    if kind is None or not isinstance(has, Mapping) or has.get("type") != kind:
        made = _type(wanted)
        return column.try_cast(made) if lenient else column.cast(made)
    if kind == "array":
        inner, now = has["elementType"], wanted["elementType"]
        return F.transform(column, lambda each: _fitted(each, inner, now, lenient))
    if kind == "map":
        inner, now = has["valueType"], wanted["valueType"]
        return F.transform_values(column, lambda _key, each: _fitted(each, inner, now, lenient))
    there = {field["name"]: field["type"] for field in has["fields"]}
    fields = [
        (
            _fitted(column.getField(name), there[name], type_, lenient)
            if name in there
            else F.lit(None).cast(_type(type_))
        ).alias(name)
        for name, type_ in ((field["name"], field["type"]) for field in wanted["fields"])
    ]
    return F.when(column.isNotNull(), F.struct(*fields))


def _type(kind: Any) -> "DataType":
    from pyspark.sql.types import StructType

    field = {"name": "_", "type": kind, "nullable": True, "metadata": {}}
    return StructType.fromJson({"type": "struct", "fields": [field]}).fields[0].dataType


def same_type(one: str, other: str) -> bool:
    """Tell whether two types, in JSON, are the same, however they are written."""
    return one == other or json.loads(one) == json.loads(other)


def new_fields(old: str, new: str) -> list[tuple[tuple[str, ...], str]] | None:
    """Return the fields that ``new`` (JSON) has more than ``old``: the way to each, and its type; None
    where that is not all that differs. Elements of an array are on the way as ``element``, values of a map
    as ``value``."""
    return _new_fields(json.loads(old), json.loads(new), ())


def _new_fields(
    old: Any, new: Any, way: tuple[str, ...]
) -> list[tuple[tuple[str, ...], str]] | None:
    if old == new:
        return []
    kind = new.get("type") if isinstance(new, Mapping) else None
    if kind is None or not isinstance(old, Mapping) or old.get("type") != kind:
        return None
    if kind == "array":
        return _new_fields(old["elementType"], new["elementType"], (*way, "element"))
    if kind == "map":
        if old["keyType"] != new["keyType"]:
            return None
        return _new_fields(old["valueType"], new["valueType"], (*way, "value"))
    names = [field["name"] for field in new["fields"]]
    if [field["name"] for field in old["fields"]] != names[: len(old["fields"])]:
        return None
    found: list[tuple[tuple[str, ...], str]] = []
    for had, field in zip(old["fields"], new["fields"], strict=False):
        more = _new_fields(had["type"], field["type"], (*way, field["name"]))
        if more is None:
            return None
        found += more
    found += [
        ((*way, f["name"]), type_text(f["type"])) for f in new["fields"][len(old["fields"]) :]
    ]
    return found
