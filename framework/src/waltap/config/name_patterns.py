"""Patterns of tables and columns in properties: their forms, and unmatched ones.

Debezium's older documentation names columns ``database.table.column`` and
``database.schema.table.column``, and tables ``database.schema.table``. A pattern that begins with the
database's name, or has an alternative that does, also matches its form without it.
"""

import re
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, replace
from typing import Any, TypeVar

from waltap.base.property import Properties, declarations, split_list
from waltap.base.redaction import redacted
from waltap.changes.capture.java_regex import java_pattern
from waltap.config.profile import Component, Profile, TransformUse

C = TypeVar("C", bound=Component[Any])
_SEPARATOR = r"(?:\\\.|\[\.\]|\.(?![*+?{]))"
_PARTS = re.compile(rf"{_SEPARATOR}|:")
_AT_LEAST = {"tables": 1, "identities": 1, "columns": 1, "types": 1, "cells": 1, "keys": 1}
"""Fewest separators after the database's name; with fewer it is a schema's name."""

_AS_WRITTEN = frozenset({"table", "rules", "ruled", "renames", "topics", "unrenamed"})
"""Patterns with one form, without the database's name: other settings use their groups, or they match
topics."""

_CASE_COUNTS = frozenset({"rules", "renames", "topics", "unrenamed"})

_SINGLE = frozenset({"table", "topics", "unrenamed"})
"""Patterns that are the complete value, commas included."""

_SERIAL = {"int2": "smallserial", "int4": "serial", "int8": "bigserial"}
MASKS = "column.mask."


@dataclass(frozen=True, slots=True)
class UnmatchedPattern:
    """A pattern of the property ``name`` that matches nothing."""

    name: str
    pattern: str
    kind: str

    def __str__(self) -> str:
        return f"{self.pattern} ({redacted(self.name)})"

    @property
    def masks(self) -> bool:
        """Return whether values would be delivered that the property should hide."""
        return self.name.startswith(MASKS)


class CatalogNames:
    """The names that patterns can match, from all columns.

    A column is (schema, table, column, type). ``topics`` are the records' topics, ``unrenamed`` the
    topics before a naming strategy renames them.
    """

    def __init__(
        self,
        columns: Iterable[tuple[str, str, str | None, str | None]],
        topics: Iterable[str] = (),
        unrenamed: Iterable[str] = (),
    ) -> None:
        kinds = ("schemas", "tables", "columns", "types", "cells")
        found: dict[str, dict[str, None]] = {kind: {} for kind in kinds}
        for schema, table, column, type_name in columns:
            name = f"{schema}.{table}"
            found["schemas"][schema] = found["tables"][name] = None
            if column is not None and type_name is not None:
                found["columns"][f"{name}.{column}"] = found["cells"][f"{name}:{column}"] = None
                found["types"][f"{name}.{type_name}"] = None
                if type_name in _SERIAL:
                    found["types"][f"{name}.{_SERIAL[type_name]}"] = None
        self._of = {kind: list(names) for kind, names in found.items()}
        self._of |= {"topics": list(topics), "unrenamed": list(unrenamed)}

    def of(self, kind: str) -> list[str]:
        """Return the names of a kind, none if they are unknown."""
        return self._of[kind]

    def match(
        self,
        kind: str,
        pattern: str,
        called: Callable[[str], str] = lambda name: name,
        *,
        exact: bool = False,
    ) -> bool:
        """Return whether ``pattern`` matches a name after ``called``.

        ``exact``: case counts.
        """
        compiled = java_pattern(pattern, ignore_case=not exact)
        return any(compiled.fullmatch(called(name)) for name in self._of[kind])


def spoken(pattern: str, database: str, kind: str) -> tuple[str, ...]:
    """Return ``pattern``, and its forms without the name of ``database``.

    A pattern may begin with the database, as in ``shop.public.orders``.
    """
    least = _AT_LEAST.get(kind)
    if least is None or not database:
        return (pattern,)
    letters = (c if c.isalnum() else rf"\\?{re.escape(c)}" for c in database)
    name = rf"(?:\\Q{re.escape(database)}\\E|{''.join(letters)})"
    begins = re.compile(rf"(^(?:\(\?i\))?\^?|[(|](?:\?:)?){name}{_SEPARATOR}", re.IGNORECASE)
    first = begins.search(pattern)
    if first is None or len(_PARTS.findall(pattern, first.end())) < least:
        return (pattern,)
    found = [pattern, begins.sub(lambda match: match[1], pattern)]
    if kind in ("columns", "cells", "types", "keys"):
        found.append(begins.sub(lambda match: match[1] + r"[^.]+\.", pattern))
    return tuple(dict.fromkeys(found))


def in_database(profile: Profile) -> Profile:
    """Return ``profile`` with patterns that begin with the database's name."""
    database = getattr(profile.connector.properties, "dbname", "")
    if not database:
        return profile

    def of(component: C) -> C:
        properties = component.properties
        if properties is None:
            return component
        changed = _in_database(properties, database)
        return component if changed is properties else replace(component, properties=changed)

    return replace(
        profile,
        capture=_in_database(profile.capture, database),
        connector=of(profile.connector),
        sink=of(profile.sink),
        transforms=tuple(map(of, profile.transforms)),
        converters=tuple(map(of, profile.converters)),
        branches=tuple(
            replace(each, sink=of(each.sink), transforms=tuple(map(of, each.transforms)))
            for each in profile.branches
        ),
    )


P = TypeVar("P", bound=Properties)


def _in_database(properties: P, database: str) -> P:
    changed: dict[str, object] = {}
    for declaration in declarations(type(properties)):
        kind, value = declaration.patterns, getattr(properties, declaration.field)
        if kind is None or kind in _AS_WRITTEN or not value:
            continue
        new = _rewritten(value, lambda entry, kind=kind: spoken(entry, database, kind))  # type: ignore[misc]
        if new != value:
            changed[declaration.field] = new
    if not changed:
        return properties
    copy = properties.model_copy(update=changed)
    copy.keep_given({field: getattr(properties, field) for field in changed})
    return copy


def _rewritten(value: object, forms: Callable[[str], tuple[str, ...]]) -> object:
    if isinstance(value, tuple):
        return tuple(form for entry in value for form in forms(entry))
    if isinstance(value, dict):
        return {
            name: ",".join(
                form.replace(",", "\\,") for entry in split_list(text) for form in forms(entry)
            )
            for name, text in value.items()
        }
    entries = (entry for entry in str(value).split(";") if entry.strip())
    return ";".join(form for entry in entries for form in forms(entry.strip()))


def unmatched(profile: Profile, names: Callable[[], CatalogNames]) -> Iterator[UnmatchedPattern]:
    """Yield the patterns of a profile that match nothing.

    ``names`` queries the catalogue, and only if the profile has patterns.
    """
    database = getattr(profile.connector.properties, "dbname", "")
    known: CatalogNames | None = None
    for properties, routed in _parts(profile):
        for name, kind, entry in _patterns(properties):
            called = properties.ruled_name if kind == "ruled" else str
            for looked_up, pattern in _subjects(kind, entry):
                known = known or names()
                if looked_up in ("topics", "unrenamed") and (routed or not known.of(looked_up)):
                    continue
                forms = (pattern,) if kind in _AS_WRITTEN else spoken(pattern, database, looked_up)
                exact = kind in _CASE_COUNTS
                if not any(known.match(looked_up, form, called, exact=exact) for form in forms):
                    yield UnmatchedPattern(name, entry, looked_up)
                    break

        def of(kind: str, routed: bool = routed) -> list[str]:
            nonlocal known
            known = known or names()
            return [] if routed and kind == "topics" else known.of(kind)

        for name, pattern in properties.idle_names(of):
            yield UnmatchedPattern(name, pattern, "")


def _parts(profile: Profile) -> Iterator[tuple[Properties, bool]]:
    """Yield a profile's components in the order that changes pass them.

    The second value: whether records may have other topics there than their tables have.
    """
    for alone in (profile.capture, profile.connector.properties):
        if alone is not None:
            yield alone, False
    yield from ((use.properties, True) for use in profile.converters if use.properties is not None)
    routed = False
    for each in _of_transforms(profile.transforms):
        yield each, routed
        routed = routed or each.routes
    ends = [(branch.transforms, branch.sink) for branch in profile.branches] or [((), profile.sink)]
    for transforms, sink in ends:
        here = routed
        for each in _of_transforms(transforms):
            yield each, here
            here = here or each.routes
        if sink.properties is not None:
            yield sink.properties, here


def _of_transforms(uses: Iterable[TransformUse]) -> Iterator[Properties]:
    for use in uses:
        if use.predicate is not None and use.predicate.properties is not None:
            yield use.predicate.properties
        if use.properties is not None:
            yield use.properties


def _patterns(properties: Properties) -> Iterator[tuple[str, str, str]]:
    """Yield (property, kind, entry) as the profile has them."""
    for declaration in declarations(type(properties)):
        kind, value = declaration.patterns, properties.given(declaration.field)
        if kind is None or not value:
            continue
        if isinstance(value, dict):
            for name, text in value.items():
                yield from ((name, kind, entry) for entry in split_list(text))
        else:
            entries = value
            if isinstance(value, str):
                entries = [value] if kind in _SINGLE else value.split(";")
            yield from ((declaration.name, kind, e.strip()) for e in entries if e.strip())


def _subjects(kind: str, entry: str) -> Iterator[tuple[str, str]]:
    """Yield the (kind of name, pattern) of an entry that must match."""
    if kind in ("identities", "rules", "ruled", "renames"):
        pattern, colon, _value = entry.rpartition(":")
        if colon:
            yield "columns" if kind == "renames" else "tables", pattern
    elif kind == "table":
        yield "tables", entry
    elif kind == "keys":
        table, _, columns = entry.partition(":")
        for column in columns.split(","):
            yield "columns", f"{table.strip()}.{column.strip()}"
    else:
        yield kind, entry
