"""Paths to fields in the syntax of ``field.syntax.version``.

V1 is the name of a field. V2 has steps with dots between them.
"""

from typing import Any

from waltap.format.record_transform import RecordUnfit
from waltap.mapping.connect_schema import ConnectKind, Field, Schema

__all__ = ["field_steps", "found_field", "found_in_map", "found_in_struct"]


def field_steps(path: str, version: str) -> tuple[str, ...]:
    """Split ``path`` into its steps.

    In V2, ``a.b`` has two steps, and ```a.b`.c`` has two as well. Raises: ValueError for a backtick
    that is not closed.
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
    # The loop ends at the last dot; Connect reads an empty name after it.
    if path.endswith("."):
        steps.append("")
    if not steps:
        raise ValueError("the path of the field is empty")
    return tuple(steps)


def _quoted(path: str, at: int) -> tuple[str, int]:
    """Return the step in backticks at ``at``, and the start of the next step."""
    step, start, look = "", at + 1, at + 1
    # A backtick closes the step only before a dot or at the end of the path, so that names may have
    # backticks. A backslash before it escapes one that would close the step.
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
    """Return the field at ``steps``, None if it is missing.

    Raises: RecordUnfit for a step into a field that is not a struct.
    """
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
    """Return the value at ``steps``.

    It is null if a struct on the path is null and has no default.
    """
    for number, step in enumerate(steps, 1):
        if row is None:
            return None
        field = next(field for field in schema.fields if field.name == step)
        row, schema = row.get(step), field.schema
        # A null struct on the path takes its default even if ``with_default`` is false: Connect's
        # property concerns only the last field.
        if row is None and (with_default or number < len(steps)):
            row = schema.default
    return row


def found_in_map(value: dict[str, Any], steps: tuple[str, ...]) -> Any:
    """Return the value at ``steps`` of a map without schema."""
    found: Any = value
    for step in steps:
        if found is None:
            return None
        if found.__class__ is not dict:
            raise RecordUnfit(f"fields are looked for in a map, and found {type(found).__name__}")
        found = found.get(step)
    return found
