"""Which of two types, as PostgreSQL prints them, holds more. Sans-IO."""

import re
from typing import Final

__all__ = ["is_wider"]

WIDER: Final = (
    ("smallint", "integer", "bigint", "numeric"),
    ("real", "double precision"),
    ("date", "timestamp without time zone"),
)
"""Types of which each holds the values of those before it."""


def is_wider(existing: str, wanted: str) -> bool:
    """Tell whether ``wanted`` holds values that ``existing`` does not; both as PostgreSQL prints types."""
    if existing in {wanted, "text"}:
        return False
    if wanted == "text":
        return True
    old, new = _parsed(existing), _parsed(wanted)
    for family in WIDER:
        if old[0] in family and new[0] in family and old[0] != new[0]:
            return family.index(new[0]) > family.index(old[0])
    if old[0] in {"character", "character varying"} and new[0] in {
        "character",
        "character varying",
    }:
        return _longer(old[1][:1], new[1][:1])
    if old[0] != new[0]:
        return False
    if old[0] == "numeric":
        if not old[1]:
            return False
        if not new[1]:
            return True
        (precision, scale), (wide, fine) = _digits(old[1]), _digits(new[1])
        return wide - fine > precision - scale or fine > scale
    return _longer(old[1][:1], new[1][:1])


def _longer(old: tuple[int, ...], new: tuple[int, ...]) -> bool:
    return bool(old) and (not new or new > old)


def _digits(modifiers: tuple[int, ...]) -> tuple[int, int]:
    return modifiers[0], modifiers[1] if len(modifiers) > 1 else 0


def _parsed(text: str) -> tuple[str, tuple[int, ...]]:
    """Return a type's name and its modifiers: ``timestamp(3) without time zone`` → (…, (3,))."""
    match = re.search(r"\(([\d,-]+)\)", text)
    if match is None:
        return text, ()
    return text[: match.start()] + text[match.end() :], tuple(map(int, match[1].split(",")))
