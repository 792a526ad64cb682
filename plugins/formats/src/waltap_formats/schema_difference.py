"""Differences between two versions of a schema, in words for messages.

Schemas are JSON, as Avro's are, or Protobuf texts. The reader of Protobuf reads messages with their
fields, as far as differences need them; it skips enums, services, extensions and options. Source: the
language guides of proto2 and proto3.
"""

import re
from collections.abc import Iterator
from typing import Any

import orjson

# Differences that a message names; it counts the rest.
NAMED = 5


def difference(old: str, new: str) -> str:
    """Return the first differences between two schemas.

    They are JSON or Protobuf; other texts give "".
    """
    try:
        found = list(_walk(orjson.loads(old), orjson.loads(new), ""))
    except orjson.JSONDecodeError:
        found = _of_protobuf(old, new)
    more = f", and {len(found) - NAMED} more" if len(found) > NAMED else ""
    return ", ".join(found[:NAMED]) + more


def _of_protobuf(old: str, new: str) -> list[str]:
    try:
        return list(_proto_differences(read_text(old), read_text(new)))
    except NotProto:
        return []


def _walk(old: Any, new: Any, path: str) -> Iterator[str]:
    if isinstance(old, dict) and isinstance(new, dict):
        for name in [*old, *(name for name in new if name not in old)]:
            if name not in ("fields", "properties"):
                below = path if name in ("type", "items") else _below(path, name)
                yield from _pair(old, new, name, below)
        for name in ("fields", "properties"):
            if name in old or name in new:
                yield from _members(_named(old.get(name)), _named(new.get(name)), path)
    elif isinstance(old, list) and isinstance(new, list):
        plain = [each for each in old if not isinstance(each, dict)]
        if plain != [each for each in new if not isinstance(each, dict)]:
            yield f"{path or 'the schema'}: {_short(old)} became {_short(new)}"
        else:
            dicts = [[each for each in version if isinstance(each, dict)] for version in (old, new)]
            for one, other in zip(*dicts, strict=False):
                yield from _walk(one, other, path)
    elif old != new:
        yield f"{path or 'the schema'}: {_short(old)} became {_short(new)}"


def _pair(old: dict[str, Any], new: dict[str, Any], name: str, path: str) -> Iterator[str]:
    if name.startswith("connect.") or name in ("name", "namespace", "doc"):
        return
    if name in old and name in new:
        yield from _walk(old[name], new[name], path)
    elif name in old:
        yield f"{path} is gone (was {_short(old[name])})"
    else:
        yield f"{path} is new ({_short(new[name])})"


def _members(old: dict[str, Any], new: dict[str, Any], path: str) -> Iterator[str]:
    for name in [*old, *(name for name in new if name not in old)]:
        if name not in new:
            yield f"the field {_below(path, name)} is gone"
        elif name not in old:
            given = isinstance(new[name], dict) and "default" in new[name]
            without = "" if given else " without a default"
            yield f"the field {_below(path, name)} is new{without}"
        else:
            yield from _walk(old[name], new[name], _below(path, name))


def _named(fields: Any) -> dict[str, Any]:
    # A default, and a schema that was registered by hand, may have other content of this name.
    if isinstance(fields, list):
        return {str(field.get("name")): field for field in fields if isinstance(field, dict)}
    return fields if isinstance(fields, dict) else {}


def _below(path: str, name: str) -> str:
    return f"{path}.{name}" if path else name


def _short(value: Any) -> str:
    if isinstance(value, dict):
        value = value.get("name") or value.get("type") or value
    text = orjson.dumps(value).decode()
    return text if len(text) <= 60 else f"{text[:57]}..."


# --- Protobuf -------------------------------------------------------------------------------------


# Comments and quoted texts, and options of a field; neither has a part in a difference.
TEXTS = re.compile(r"""//[^\n]*|/\*.*?\*/|"(?:[^"\\]|\\.)*"|'(?:[^'\\]|\\.)*'""", re.DOTALL)
OPTIONS = re.compile(r"\[[^\[\]]*\]")
STATEMENT = re.compile(r"([^;{}]*)([;{}])")
FIELD = re.compile(
    r"(?:(optional|repeated|required)\s+)?"
    r"(?:map\s*<\s*([\w.]+)\s*,\s*([\w.]+)\s*>|([\w.]+))\s+(\w+)\s*=\s*(\w+)\s*"
)
# Statements within a message that are no fields.
OTHERS = re.compile(r"(?:option|reserved|extensions|extend)\b|$")

# Number of a field → name, label and type.
Fields = dict[int, tuple[str, str, str]]
# Names from the outer to the inner message → its fields, in the order of the text.
Messages = dict[tuple[str, ...], Fields]


class NotProto(ValueError):
    """Refuse a text that is no Protobuf schema."""


def read_text(text: str) -> tuple[str, Messages]:
    """Return the package and the messages of a schema. Raises: NotProto."""
    text, package = TEXTS.sub(" ", text), ""
    while OPTIONS.search(text):
        text = OPTIONS.sub("", text)
    messages: Messages = {}
    # The message of each open block; None for a block without fields.
    blocks: list[tuple[str, ...] | None] = [()]
    for statement, end in STATEMENT.findall(text):
        words, within = statement.split(), blocks[-1]
        if end == "}":
            blocks.pop()
        elif end == "{":
            inner = within if within is not None and words[:1] == ["oneof"] else None
            if within is not None and words[:1] == ["message"] and len(words) == 2:
                inner = (*within, words[1])
                messages[inner] = {}
            blocks.append(inner)
            if "group" in words:
                raise NotProto("groups of proto2 are not read")
        elif within:
            _read_field(statement.strip(), within, messages)
        elif words[:1] == ["package"] and len(blocks) == 1:
            package = words[-1]
        if not blocks:
            break
    if len(blocks) != 1:
        raise NotProto("the blocks of the text are not closed")
    return package, messages


def _read_field(statement: str, within: tuple[str, ...], messages: Messages) -> None:
    if OTHERS.match(statement):
        return
    field = FIELD.fullmatch(statement)
    if field is None:
        raise NotProto(f"{statement} is no field")
    label, key, value, kind, name, number = field.groups()
    if key is not None:
        # A map is a repeated message of key and value on the wire.
        label, kind = "repeated", f"{name}.Entry"
        messages[*within, kind] = {1: ("key", "", key), 2: ("value", "", value)}
    try:
        messages[within][int(number, 0)] = name, label or "", kind
    except ValueError:
        raise NotProto(f"{number} is no number") from None


def _proto_differences(old: tuple[str, Messages], new: tuple[str, Messages]) -> Iterator[str]:
    if old[0] != new[0]:
        yield f"the package {old[0]} became {new[0]}"
    before, after = old[1], new[1]
    for path in [*before, *(path for path in after if path not in before)]:
        outer, below = path[:-1], ".".join(path)
        if path in before and path in after:
            yield from _message_fields(before[path], after[path], below)
        elif not outer or (outer in before and outer in after):
            yield f"the message {below} is {'new' if path in after else 'gone'}"


def _message_fields(before: Fields, after: Fields, path: str) -> Iterator[str]:
    for number in sorted({*before, *after}):
        one, other = before.get(number), after.get(number)
        if one is None or other is None:
            name, *_ = one or other or ("",)
            state = "gone" if other is None else "new"
            yield f"the field {path}.{name} (number {number}) is {state}"
        elif one[0] != other[0]:
            yield f"the field number {number} of {path} was {one[0]} and is {other[0]}"
        elif one != other:
            kinds = [" ".join(filter(None, each[1:])) for each in (one, other)]
            yield f"the field {path}.{one[0]} was {kinds[0]} and is {kinds[1]}"
