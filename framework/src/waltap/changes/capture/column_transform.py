"""Column transforms: truncation, masks, hashes, and source types in schemas.

The rules are Debezium's, with one intended difference. There a column that matches both a
``propagate.source.type`` list and a hash mask is not masked: the first match wins, and
propagation comes first. Here such a column gets both, because a mask must never be lost.

Source: Debezium's documentation of ``column.truncate.to.length.chars``,
``column.mask.with.length.chars``, ``column.mask.hash.hashAlgorithm.with.salt.salt``, and of the
Java Object Serialization Stream Protocol for strings.
"""

import hashlib
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from waltap.base.property import split_list
from waltap.changes.capture.java_regex import (
    HASH,
    NameMatcher,
    digest_name,
    number_in,
)
from waltap.changes.capture.source_type import UNLIMITED, SourceType, is_text, source_type
from waltap.changes.decode.relation import Column
from waltap.changes.mapping.connect_schema import ConnectKind, Schema

if TYPE_CHECKING:
    from waltap.changes.capture.properties import CaptureProperties


@dataclass(frozen=True, slots=True, kw_only=True)
class ColumnTransform:
    """Change the values and the schema of one column of events."""

    # Added to the column's schema.
    parameters: tuple[tuple[str, str], ...] = ()
    # Connect value (None for null) → the value to write; None: values stay.
    value: Callable[[object], object] | None = None
    # The result is the same for every value.
    constant: bool = False
    # Consumers must not see the values as they are.
    hides: bool = False


def truncated(text: str, units: int) -> str:
    """Return the first ``units`` UTF-16 units of ``text``."""
    # A character has at most two units.
    if len(text) <= units // 2:
        return text
    data = text.encode("utf-16-le", "surrogatepass")
    if len(data) <= 2 * units:
        return text
    # Java counts units, so it may cut a surrogate pair in half.
    return data[: 2 * units].decode("utf-16-le", "surrogatepass")


def java_serialised(text: str) -> bytes:
    """Return the bytes of Java's ObjectOutputStream for the String ``text``."""
    if text.isascii() and "\0" not in text:
        data = text.encode()
    else:
        units = text.encode("utf-16-be", "surrogatepass")
        data = b"".join(
            _modified_utf8((units[at] << 8) | units[at + 1]) for at in range(0, len(units), 2)
        )
    # Magic number, version 5, and TC_STRING with a length of 16 bits.
    if len(data) < 0x10000:
        return b"\xac\xed\x00\x05\x74" + len(data).to_bytes(2, "big") + data
    # TC_LONGSTRING, with a length of 64 bits.
    return b"\xac\xed\x00\x05\x7c" + len(data).to_bytes(8, "big") + data


def _modified_utf8(unit: int) -> bytes:
    """Return one UTF-16 unit in modified UTF-8.

    NUL takes two bytes, surrogates three each.
    """
    if 0 < unit < 0x80:
        return bytes((unit,))
    if unit < 0x800:
        return bytes((0xC0 | unit >> 6, 0x80 | unit & 0x3F))
    return bytes((0xE0 | unit >> 12, 0x80 | unit >> 6 & 0x3F, 0x80 | unit & 0x3F))


@dataclass(frozen=True, slots=True)
class _ColumnRule:
    """Match columns by one property, and build their transforms."""

    matches: NameMatcher
    build: Callable[[Column, SourceType], ColumnTransform | None]
    by_type: bool = False
    propagates: bool = False


class ColumnTransforms:
    """Hold the transforms of a configuration.

    They are looked up once per column of a relation version.
    """

    def __init__(self, properties: "CaptureProperties") -> None:
        """Compile the transforms that ``properties`` configure."""
        self.rules: list[_ColumnRule] = []
        # The order is Debezium's: the first match wins.
        for name, patterns in properties.column_truncate.items():
            self._add(patterns, _truncation(int(number_in(name))))
        for name, patterns in properties.column_mask.items():
            self._add(patterns, _masking("*" * int(number_in(name))))
        for listed, by_type in (
            (properties.column_source_type, False),
            (properties.datatype_source_type, True),
        ):
            if listed:
                matches = NameMatcher(listed)
                self.rules.append(_ColumnRule(matches, _propagation, by_type, propagates=True))
        for name, patterns in {**properties.column_hash, **properties.column_hash_v2}.items():
            self._add(patterns, _hashing(name))

    def _add(
        self, patterns: str, build: Callable[[Column, SourceType], ColumnTransform | None]
    ) -> None:
        self.rules.append(_ColumnRule(NameMatcher(split_list(patterns)), build))

    def column(
        self, table: str, column: Column, schema: Schema | None, *, listed: bool = False
    ) -> ColumnTransform | None:
        """Return the transform of ``column`` of ``table`` (schema.table), or None.

        ``schema`` is its Connect schema: transforms of text leave what is neither text nor plain
        bytes alone. None is text.
        ``listed`` names its type as the driver lists it (`listed_name`).
        """
        if not self.rules:
            return None
        source = source_type(column, listed=listed)
        by_name, by_type = f"{table}.{column.name}", f"{table}.{source.name}"
        found: ColumnTransform | None = None
        for rule in self.rules:
            if not rule.matches(by_type if rule.by_type else by_name):
                continue
            transform = rule.build(column, source)
            if found is None:
                found = transform
                if not rule.propagates:
                    break
            # Propagation came first; the mask must not be lost.
            elif not rule.propagates and transform is not None:
                found = replace(transform, parameters=found.parameters + transform.parameters)
                break
        if found is not None and found.value is not None and not _transformed(schema):
            return ColumnTransform(parameters=found.parameters)
        return found

    def meant(self, table: str, column: str) -> bool:
        """Return whether a mask, hash or truncation is configured for ``column``.

        The column's type does not matter.
        """
        name = f"{table}.{column}"
        return any(not rule.propagates and rule.matches(name) for rule in self.rules)


def _transformed(schema: Schema | None) -> bool:
    if schema is None or schema.kind is ConnectKind.STRING:
        return True
    return schema.kind is ConnectKind.BYTES and schema.name is None  # no decimals, no bits


def _truncation(units: int) -> Callable[[Column, SourceType], ColumnTransform | None]:
    def cut(value: object) -> object:
        if isinstance(value, str):
            return truncated(value, units)
        return value[:units] if isinstance(value, bytes) else value

    def build(column: Column, source: SourceType) -> ColumnTransform | None:
        # The declared length is short enough: no value can be longer.
        if source.length is not None and source.length <= units:
            return ColumnTransform(hides=True)
        parameters = (("truncateLength", str(units)),)
        return ColumnTransform(parameters=parameters, value=cut, hides=True)

    return build


def _masking(mask: str) -> Callable[[Column, SourceType], ColumnTransform | None]:
    def build(column: Column, _source: SourceType) -> ColumnTransform | None:
        parameters = (("masked", "true"),)
        if not is_text(column):
            return ColumnTransform(parameters=parameters)
        return ColumnTransform(
            parameters=parameters, value=lambda _value: mask, constant=True, hides=True
        )

    return build


def _hashing(name: str) -> Callable[[Column, SourceType], ColumnTransform | None]:
    match = HASH.fullmatch(name)
    assert match is not None, name
    # The salt is hashed once; each value continues from a copy.
    salted = hashlib.new(digest_name(match[2]), match[3].encode(), usedforsecurity=False)
    java = match[1] is None

    def build(column: Column, source: SourceType) -> ColumnTransform | None:
        parameters = (("masked", "true"),)
        if not is_text(column):
            return ColumnTransform(parameters=parameters)
        length = source.length or UNLIMITED

        def hashed(value: object) -> object:
            if not isinstance(value, str):
                return None
            digest = salted.copy()
            # Debezium's first version hashes the serialised String, `v2` its UTF-8 bytes.
            digest.update(java_serialised(value) if java else value.encode("utf-8", "replace"))
            return digest.hexdigest()[:length]

        return ColumnTransform(parameters=parameters, value=hashed, hides=True)

    return build


def _propagation(column: Column, source: SourceType) -> ColumnTransform:
    parameters = [("__debezium.source.column.type", source.name.upper())]
    if source.length is not None:
        parameters.append(("__debezium.source.column.length", str(source.length)))
    if source.scale is not None:
        parameters.append(("__debezium.source.column.scale", str(source.scale)))
    if column.comment:
        parameters.append(("__debezium.source.column.comment", column.comment))
    parameters.append(("__debezium.source.column.name", column.name))
    return ColumnTransform(parameters=tuple(parameters))
