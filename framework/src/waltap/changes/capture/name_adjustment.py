"""Adjust names of schemas and fields, and sanitise names of topics.

Source: Debezium's documentation of ``schema.name.adjustment.mode``,
``field.name.adjustment.mode`` and of the topic naming strategies. All of them work on UTF-16
units, as Java does.
"""

import re
from collections.abc import Callable

MODES = ("none", "avro", "avro_unicode")

# Kafka's limit.
TOPIC_LENGTH = 249
_ASTRAL = re.compile("[\U00010000-\U0010ffff]")


def _units(name: str) -> str:
    """Return ``name`` with characters beyond the BMP as two surrogates."""

    def surrogates(match: re.Match[str]) -> str:
        code = ord(match[0]) - 0x10000
        return chr(0xD800 + (code >> 10)) + chr(0xDC00 + (code & 0x3FF))

    return _ASTRAL.sub(surrogates, name)


def _escape(match: re.Match[str]) -> str:
    """Return ``_u`` and the unit in hexadecimal."""
    digits = f"{ord(match[0]):x}"
    # Debezium pads only one or two digits, to four.
    return f"_u{digits.zfill(4) if len(digits) <= 2 else digits}"


def _unchanged(name: str) -> str:
    return name


def _replacing(later: str) -> Callable[[str], str]:
    """Return the mode ``avro``.

    Characters that Avro forbids become ``_``.
    """
    bad = re.compile(f"[^A-Za-z0-9_{later}]")

    def adjust(name: str) -> str:
        name = bad.sub("_", _units(name))
        if not name or name[0].isalpha() or name[0] == "_":
            return name
        # A leading digit stays, after the underscore; any other bad start is replaced.
        return "_" + (name if name[0].isdigit() else name[1:])

    return adjust


def _escaping(later: str) -> Callable[[str], str]:
    """Return the mode ``avro_unicode``.

    Characters that Avro forbids become ``_uXXXX``.
    """
    # An underscore is escaped, too: it starts an escape.
    bad = re.compile(f"[^A-Za-z0-9{later}]")
    bad_first = re.compile("[^A-Za-z]")

    def adjust(name: str) -> str:
        name = _units(name)
        return bad_first.sub(_escape, name[:1]) + bad.sub(_escape, name[1:])

    return adjust


_SCHEMA = {"none": _unchanged, "avro": _replacing("."), "avro_unicode": _escaping(".")}
_FIELD = {"none": _unchanged, "avro": _replacing(""), "avro_unicode": _escaping("")}


def schema_namer(mode: str) -> Callable[[str], str]:
    """Return the adjustment of a schema's full name; dots stay.

    ``mode`` is ``schema.name.adjustment.mode``.
    """
    return _SCHEMA[mode]


def field_namer(mode: str) -> Callable[[str], str]:
    """Return the adjustment of a field's name.

    ``mode`` is ``field.name.adjustment.mode``.
    """
    return _FIELD[mode]


_BAD_IN_TOPIC = re.compile(r"[^A-Za-z0-9._\-]")
_BAD_IN_UNICODE_TOPIC = re.compile(r"[^A-Za-z0-9.\-]")


def _cut(name: str) -> str:
    name = name[:TOPIC_LENGTH]
    # Kafka refuses topics of these two names.
    return {".": "_", "..": "__"}.get(name, name)


def sanitised_topic(name: str) -> str:
    """Return ``name`` as a Kafka topic name of at most 249 characters.

    Other characters become ``_``.
    """
    return _cut(_BAD_IN_TOPIC.sub("_", _units(name)))


def unicode_topic(name: str) -> str:
    """Return ``name`` as a Kafka topic name.

    Other characters and ``_`` become ``_uXXXX``.
    """
    return _cut(_BAD_IN_UNICODE_TOPIC.sub(_escape, _units(name)))
