"""Paths to fields, as ``field.syntax.version`` reads them: a name (V1), or steps with dots (V2)."""

from typing import Any

from waltap.format.record_transform import RecordUnfit
from waltap.mapping.connect_schema import ConnectKind, Field, Schema

__all__ = ["field_steps", "found_field", "found_in_map", "found_in_struct"]


def field_steps(path: str, version: str) -> tuple[str, ...]:
    """Return the steps of ``path``: ``a.b`` are two, ```a.b`.c`` too.

    Raises: ValueError for a backtick without its other one.
    """
    if version == "V1":
        return (path,)
    steps: list[str] = []
    at = 0
    while at < len(path):
        if path[at] == "`":
            step, at = _quoted(path, at)
        else:
            dot = path.find(".", at)
            end = len(path) if dot < 0 else dot
            step, at = path[at:end], end + 1
        steps.append(step)
    if path.endswith("."):
        steps.append("")
    if not steps:
        raise ValueError("the path of the field is empty")
    return tuple(steps)


def _quoted(path: str, at: int) -> tuple[str, int]:
    """Return the step between backticks that begins at ``at``, and where the next one does. A backtick
    ends it only before a dot or at the end, and not behind a backslash."""
    step, start, look = "", at + 1, at + 1
    while True:
        look = path.find("`", look)
        if look < 0 or (look == len(path) - 1 and path[look - 1] == "\\"):
            raise ValueError(
                f"the backtick at {at} of {path!r} has no other one; a backslash before it escapes it"
            )
        if look == len(path) - 1:
            return step + path[start:look], look + 1
        if path[look + 1] != ".":
            look += 1
        elif path[look - 1] == "\\":
            step += path[start : look - 1] + "`"
            look += 1
            start = look
        else:
            return step + path[start:look], look + 2


def found_field(schema: Schema, steps: tuple[str, ...]) -> Field | None:
    """Return the field that ``steps`` lead to, None where there is none. Raises: RecordUnfit when they
    lead through what is no struct."""
    found = None
    for step in steps:
        if schema.kind is not ConnectKind.STRUCT:
            raise RecordUnfit(f"fields are looked for in a struct, and found {schema.kind.value}")
        found = next((field for field in schema.fields if field.name == step), None)
        if found is None:
            return None
        schema = found.schema
    return found


def found_in_struct(schema: Schema, row: Any, steps: tuple[str, ...], *, with_default: bool) -> Any:
    """Return the value that ``steps`` lead to; what is null on the way leads to null."""
    for number, step in enumerate(steps, 1):
        if row is None:
            return None
        field = next(field for field in schema.fields if field.name == step)
        row, schema = row.get(step), field.schema
        if row is None and (with_default or number < len(steps)):
            row = schema.default
    return row


def found_in_map(value: dict[str, Any], steps: tuple[str, ...]) -> Any:
    """Return the value without schema that ``steps`` lead to."""
    found: Any = value
    for step in steps:
        if found is None:
            return None
        if found.__class__ is not dict:
            raise RecordUnfit(f"fields are looked for in a map, and found {type(found).__name__}")
        found = found.get(step)
    return found
