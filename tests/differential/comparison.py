"""Compares two canonical dumps and says where they differ.

Numbers differ in kind too: 1 is not 1.0. Field order does not count, as JSON says.
"""

import difflib
import json
import re
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from tests.differential.normalise import Record, payload, text

ABSENT = "<absent>"
SHOWN_CHARACTERS = 300


@dataclass(frozen=True, slots=True, kw_only=True)
class Difference:
    """One place where two dumps differ.

    ``path`` leads to it inside the record (``.value.after.price``); it is empty when the whole
    record is only on one side. ``record`` says which record, for a reader.
    """

    topic: str
    record: str
    path: str
    expected: Any
    found: Any

    def __str__(self) -> str:
        return (
            f"{self.record}{self.path}: expected {_short(self.expected)}, got {_short(self.found)}"
        )


def differences(expected: Sequence[Record], found: Sequence[Record]) -> list[Difference]:
    """Return every difference, in the order of the records; an empty list means equal."""
    result: list[Difference] = []
    wanted, got = [_signature(r) for r in expected], [_signature(r) for r in found]
    for tag, i1, i2, j1, j2 in _alignment(wanted, got):
        if tag == "equal" or (tag == "replace" and i2 - i1 == j2 - j1):
            for i, j in zip(range(i1, i2), range(j1, j2), strict=True):
                name = _name(i, wanted[i])
                for path, a, b in _walk(expected[i], found[j], ""):
                    topic = str(expected[i]["topic"])
                    result.append(
                        Difference(topic=topic, record=name, path=path, expected=a, found=b)
                    )
            continue
        for i in range(i1, i2):
            result.append(_one_sided(expected[i], _name(i, wanted[i]), missing=True))
        for j in range(j1, j2):
            result.append(_one_sided(found[j], _name(j, got[j]), missing=False))
    return result


def report(found: Sequence[Difference], limit: int = 12) -> str:
    """Return the first differences, and how many there are at which path."""
    said = [f"  {difference}" for difference in found[:limit]]
    if len(found) > limit:
        said.append(f"  ... {len(found) - limit} more")
    paths = Counter(re.sub(r"\[\d+\]", "[]", d.path) or "whole records" for d in found)
    said.append("  by path:")
    said += [f"  {count:6d}  {path}" for path, count in paths.most_common(40)]
    return "\n".join(said)


def _alignment(
    wanted: list[tuple[str, str, str]], got: list[tuple[str, str, str]]
) -> list[tuple[str, int, int, int, int]]:
    if wanted == got:
        return [("equal", 0, len(wanted), 0, len(got))]
    matcher = difflib.SequenceMatcher(None, wanted, got, autojunk=False)
    return [(tag, i1, i2, j1, j2) for tag, i1, i2, j1, j2 in matcher.get_opcodes()]


def _signature(record: Record) -> tuple[str, str, str]:
    """What makes two records counterparts: topic, key and kind."""
    value = payload(record["value"])
    kind = (value.get("op") or value.get("status")) if isinstance(value, dict) else _kind(value)
    return str(record["topic"]), json.dumps(payload(record["key"]), sort_keys=True), str(kind)


def _name(place: int, signature: tuple[str, str, str]) -> str:
    topic, key, kind = signature
    return f"#{place + 1} {topic} {kind} {_short(json.loads(key))} "


def _one_sided(record: Record, name: str, *, missing: bool) -> Difference:
    value = payload(record["value"])
    sides = (value, ABSENT) if missing else (ABSENT, value)
    return Difference(
        topic=str(record["topic"]), record=name, path="", expected=sides[0], found=sides[1]
    )


def _walk(a: Any, b: Any, path: str) -> Iterator[tuple[str, Any, Any]]:
    if isinstance(a, dict) and isinstance(b, dict):
        for name in [*a, *(name for name in b if name not in a)]:
            if name not in a or name not in b:
                yield f"{path}.{name}", a.get(name, ABSENT), b.get(name, ABSENT)
            else:
                yield from _walk(a[name], b[name], f"{path}.{name}")
    elif isinstance(a, list) and isinstance(b, list):
        for i in range(max(len(a), len(b))):
            if i < len(a) and i < len(b):
                yield from _walk(a[i], b[i], f"{path}[{i}]")
            else:
                x, y = (side[i] if i < len(side) else ABSENT for side in (a, b))
                yield f"{path}[{i}]", x, y
    elif _kind(a) != _kind(b) or (a != b and not (a != a and b != b)):
        yield path, a, b


def _kind(value: Any) -> str:
    return "null" if value is None else type(value).__name__


def _short(value: Any) -> str:
    plain = text(value)
    return plain if len(plain) <= SHOWN_CHARACTERS else plain[: SHOWN_CHARACTERS - 3] + "..."
