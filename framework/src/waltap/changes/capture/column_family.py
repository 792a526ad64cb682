"""Families of properties: parameters in the name, column patterns as value."""

import hashlib
import re

from waltap.changes.capture.java_regex import NameMatcher

HASH = re.compile(r"column\.mask\.hash\.(v2\.)?([^.]+)\.with\.salt\.(.+)")
_NUMBER = re.compile(r"\d+")
_PYTHON_NAMES = {"SHA": "sha1", "SHA-1": "sha1"}


def split_patterns(text: str) -> tuple[str, ...]:
    """Split a comma list of patterns; an escaped comma is part of one."""
    # NUL holds the place of an escaped comma: no name of PostgreSQL contains it.
    parts = (part.replace("\0", ",").strip() for part in text.replace("\\,", "\0").split(","))
    return tuple(part for part in parts if part)


def check_family(name: str, patterns: str) -> None:
    """Check one property of the families.

    Raises ValueError with the reason.
    """
    try:
        NameMatcher(split_patterns(patterns))
        hashed = HASH.fullmatch(name)
        if hashed is not None:
            digest_name(hashed[2])
    except ValueError as cause:
        raise ValueError(f"{name}: {cause}") from cause
    if name.startswith("column.truncate") and int(number_in(name)) == 0:
        raise ValueError(f"{name}: the length must be positive")


def number_in(name: str) -> str:
    """Return the first number in the name of a property."""
    match = _NUMBER.search(name)
    assert match is not None, name
    return match[0]


def digest_name(algorithm: str) -> str:
    """Return hashlib's name of a JCA algorithm.

    Raises ValueError when there is none.
    """
    name = _PYTHON_NAMES.get(algorithm.upper())
    if name is None:
        plain = algorithm.lower().replace("/", "_")
        name = plain.replace("-", "_") if plain.startswith("sha3") else plain.replace("-", "")
    # A shake digest has no fixed length, so it cannot be used without one.
    if name not in hashlib.algorithms_available or name.startswith("shake"):
        raise ValueError(f"unknown hash algorithm {algorithm}; SHA-256 is a good one")
    return name
