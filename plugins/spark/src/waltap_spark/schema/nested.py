"""Convert nested values between types, by field names.

Spark casts a struct field by field in order, and refuses a struct with fewer fields. A
composite type that got another attribute is a struct with one more field, which is null in
older values.
"""

import json
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from waltap_spark.schema.schema import type_text

if TYPE_CHECKING:
    from pyspark.sql import Column
    from pyspark.sql.types import DataType


def fitted(column: "Column", has: str, wanted: str, *, lenient: bool = False) -> "Column":
    """Return ``column``, of the type ``has``, as type ``wanted``.

    Both types are JSON. Fields are matched by name; a missing field is null. ``lenient``: a
    value that does not fit is null.
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
    # A null struct must stay null, not become a struct of nulls.
    return F.when(column.isNotNull(), F.struct(*fields))


def _type(kind: Any) -> "DataType":
    from pyspark.sql.types import StructType

    field = {"name": "_", "type": kind, "nullable": True, "metadata": {}}
    return StructType.fromJson({"type": "struct", "fields": [field]}).fields[0].dataType


def same_type(one: str, other: str) -> bool:
    """Return whether two types in JSON are equal, however they are written."""
    return one == other or json.loads(one) == json.loads(other)


def new_fields(old: str, new: str) -> list[tuple[tuple[str, ...], str]] | None:
    """Return the fields that ``new`` adds to ``old``.

    Both types are JSON. Each field is its path and its type. Elements of an array have
    ``element`` in the path, values of a map ``value``. None means that the types differ in
    another way, too.
    """
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
    # Formats can add fields only at the end: the others must keep names and order.
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
