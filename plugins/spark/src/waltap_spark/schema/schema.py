"""Schemas of growing tables: Spark types as JSON, common and nested types.

Spark casts a struct field by field in order, and refuses a struct with fewer fields. A
composite type that got another attribute is a struct with one more field, which is null in
older values.
"""

import inspect
import json
import re
from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any, Final

from waltap_spark.schema.expression import column_of, quoted

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import Column, DataFrame
    from pyspark.sql.types import DataType, StructType


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
_DECIMAL: Final = re.compile(r"decimal\((\d+), ?(-?\d+)\)")
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
    found = _common(json.loads(one), json.loads(other))
    return None if found is None else type_text(found)


def _common(first: Any, second: Any) -> Any:
    if first == second:
        return first
    if isinstance(first, str) and isinstance(second, str):
        return _common_number(first, second) or _common_number(second, first)
    if isinstance(first, str) or isinstance(second, str) or first["type"] != second["type"]:
        return None
    kind = first["type"]
    if kind == "array":
        element = _common(first["elementType"], second["elementType"])
        made = {"type": "array", "elementType": element, "containsNull": True}
        return None if element is None else made
    if kind == "map":
        value = _common(first["valueType"], second["valueType"])
        same = first["keyType"] == second["keyType"]
        made = {**first, "valueType": value, "valueContainsNull": True}
        return made if same and value is not None else None
    fields = {field["name"]: field for field in first["fields"]}  # matched by name
    for field in second["fields"]:
        had = fields.get(field["name"], field)
        common = _common(had["type"], field["type"])
        if common is None:
            return None
        fields[field["name"]] = {**had, "type": common, "nullable": True}
    return {"type": "struct", "fields": list(fields.values())}


def _common_number(first: str, second: str) -> str | None:
    if first in _INTEGERS and second in _INTEGERS:
        return max(first, second, key=_INTEGERS.index)
    if {first, second} == {"float", "double"}:
        return "double"
    if first in _INTEGERS[:3] and second == "double":
        return "double"  # 32 bits and less fit into the 53 bits of a double
    decimal = digits_of(second)
    other = (_DIGITS[first], 0) if first in _INTEGERS else digits_of(first)
    if decimal is None or other is None:
        return None
    digits = max(precision - scale for precision, scale in (other, decimal))
    scale = max(other[1], decimal[1])
    return f"decimal({digits + scale},{scale})" if digits + scale <= _MOST_DIGITS else None


def digits_of(kind: str) -> tuple[int, int] | None:
    """Return a decimal's precision and scale, None for another type."""
    found = _DECIMAL.fullmatch(kind)
    return None if found is None else (int(found[1]), int(found[2]))


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


FAMILIES: Final = {
    **dict.fromkeys((*_INTEGERS, "float", "double", "boolean", "decimal"), "number"),
    **dict.fromkeys(("date", "timestamp", "timestamp_ntz"), "time"),
}
"""Spark's types that may be cast into each other."""


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
    other = kind is None or not isinstance(has, Mapping) or has.get("type") != kind
    # The values of a map are converted one by one, its keys are not: a cast converts both.
    keys = kind == "map" and not other and has["keyType"] != wanted["keyType"]
    if other or (keys and not lenient):
        made = _type(wanted)
        if not lenient:
            return column.cast(made)
        # Spark refuses to plan a cast that no value can pass.
        return column.try_cast(made) if _castable(has, wanted) else F.lit(None).cast(made)
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


def fitted_to(frame: "DataFrame", wanted: Mapping[str, str]) -> "DataFrame":
    """Return ``frame`` with the columns ``wanted``; missing ones are null."""
    from pyspark.sql import functions as F  # noqa: N812 - as everybody calls it

    there = {field.name: field.dataType.json() for field in frame.schema.fields}
    columns = (
        fitted(column_of(name), there[name], kind)
        if name in there
        else F.lit(None).cast(_type(json.loads(kind)))
        for name, kind in wanted.items()
    )
    return frame.select(*(each.alias(name) for name, each in zip(wanted, columns, strict=True)))


def _castable(has: Any, wanted: Any) -> bool:
    if isinstance(has, Mapping) or isinstance(wanted, Mapping):
        return bool(wanted == "string")
    one, other = (FAMILIES.get(kind.partition("(")[0], "") for kind in (has, wanted))
    return "string" in {has, wanted} or one == other != ""


def _type(kind: Any) -> "DataType":
    return struct_of({"_": type_text(kind)}).fields[0].dataType


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
