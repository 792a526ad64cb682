"""Differences between two schemas, in words for messages."""

from collections.abc import Iterator
from typing import Any

import orjson

__all__ = ["difference"]

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
    from waltap_formats.protobuf.difference import proto_differences
    from waltap_formats.protobuf.text import NotProto, read_text

    try:
        return list(proto_differences(read_text(old), read_text(new)))
    except NotProto:
        return []


def _walk(old: Any, new: Any, place: str) -> Iterator[str]:
    if isinstance(old, dict) and isinstance(new, dict):
        for name in [*old, *(name for name in new if name not in old)]:
            if name not in ("fields", "properties"):
                below = place if name in ("type", "items") else _below(place, name)
                yield from _pair(old, new, name, below)
        for name in ("fields", "properties"):
            if name in old or name in new:
                yield from _members(_named(old.get(name)), _named(new.get(name)), place)
    elif isinstance(old, list) and isinstance(new, list):
        plain = [each for each in old if not isinstance(each, dict)]
        if plain != [each for each in new if not isinstance(each, dict)]:
            yield f"{place or 'the schema'}: {_short(old)} became {_short(new)}"
        else:
            dicts = [[each for each in side if isinstance(each, dict)] for side in (old, new)]
            for one, other in zip(*dicts, strict=False):
                yield from _walk(one, other, place)
    elif old != new:
        yield f"{place or 'the schema'}: {_short(old)} became {_short(new)}"


def _pair(old: dict[str, Any], new: dict[str, Any], name: str, place: str) -> Iterator[str]:
    if name.startswith("connect.") or name in ("name", "namespace", "doc"):
        return
    if name in old and name in new:
        yield from _walk(old[name], new[name], place)
    elif name in old:
        yield f"{place} is gone (was {_short(old[name])})"
    else:
        yield f"{place} is new ({_short(new[name])})"


def _members(old: dict[str, Any], new: dict[str, Any], place: str) -> Iterator[str]:
    for name in [*old, *(name for name in new if name not in old)]:
        if name not in new:
            yield f"the field {_below(place, name)} is gone"
        elif name not in old:
            given = isinstance(new[name], dict) and "default" in new[name]
            without = "" if given else " without a default"
            yield f"the field {_below(place, name)} is new{without}"
        else:
            yield from _walk(old[name], new[name], _below(place, name))


def _named(fields: Any) -> dict[str, Any]:
    if isinstance(fields, list):
        return {str(field.get("name")): field for field in fields}
    return dict(fields or {})


def _below(place: str, name: str) -> str:
    return f"{place}.{name}" if place else name


def _short(value: Any) -> str:
    if isinstance(value, dict):
        value = value.get("name") or value.get("type") or value
    text = orjson.dumps(value).decode()
    return text if len(text) <= 60 else f"{text[:57]}..."
