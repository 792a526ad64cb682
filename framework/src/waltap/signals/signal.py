"""Signals: what users ask of a running pipeline, as Debezium words it. Sans-IO."""

import json
import re
from collections.abc import Iterable

import msgspec

__all__ = ["Signal", "SignalUnusable", "SnapshotRequest", "requests"]


class SignalUnusable(ValueError):
    """A signal that cannot be acted on; its text says why."""


class Signal(msgspec.Struct, frozen=True):
    """One signal: ``kind`` is its type (``execute-snapshot``), ``data`` JSON text."""

    identifier: str
    kind: str
    data: str

    def arguments(self) -> dict[str, object]:
        """Return the data as an object; empty data is one without members.

        Raises: SignalUnusable.
        """
        if not self.data.strip():
            return {}
        try:
            value = json.loads(self.data)
        except ValueError as error:
            raise SignalUnusable(
                f"data of signal {self.identifier!r} is not JSON: {error}"
            ) from error
        if not isinstance(value, dict):
            raise SignalUnusable(f"data of signal {self.identifier!r} is not a JSON object")
        return value


class SnapshotRequest(msgspec.Struct, frozen=True, kw_only=True):
    """One table that a signal wants read: its filter (a predicate, incremental snapshots only) and
    the column to order and cut by in place of the key."""

    schema: str
    table: str
    signal: str
    condition: str | None = None
    surrogate_key: str | None = None

    @property
    def name(self) -> str:
        """Return ``schema.table``."""
        return f"{self.schema}.{self.table}"


def names(arguments: dict[str, object]) -> list[str]:
    """Return the ``data-collections`` of a signal. Raises: SignalUnusable."""
    given = arguments.get("data-collections", [])
    if not isinstance(given, list) or not all(isinstance(entry, str) for entry in given):
        raise SignalUnusable("data-collections must be a list of schema.table patterns")
    return [str(entry) for entry in given]


def requests(signal: Signal, known: Iterable[tuple[str, str]]) -> list[SnapshotRequest]:
    """Return what an ``execute-snapshot`` signal asks for, in its order, each table once.

    Entries are regular expressions over ``schema.table`` of ``known``, full match and
    case-sensitive; one that fits nothing is taken literally. Raises: SignalUnusable.
    """
    arguments = signal.arguments()
    kind = str(arguments.get("type", "incremental")).lower()
    if kind != "incremental":
        raise SignalUnusable(f"snapshot type {kind!r} is not known; known is incremental")
    conditions = _conditions(arguments)
    surrogate = arguments.get("surrogate-key")
    found: dict[tuple[str, str], None] = {}
    tables = list(known)
    for entry in names(arguments):
        pattern = _pattern(entry)
        matches = [t for t in tables if pattern.fullmatch(".".join(t))] if pattern else []
        schema, dot, table = entry.partition(".")
        if not matches and dot:
            matches = [(schema, table)]
        found.update(dict.fromkeys(matches))
    return [
        SnapshotRequest(
            schema=schema,
            table=table,
            signal=signal.identifier,
            condition=_condition(f"{schema}.{table}", conditions),
            surrogate_key=str(surrogate) if surrogate else None,
        )
        for schema, table in found
    ]


def _pattern(text: str, flags: int = 0) -> "re.Pattern[str] | None":
    try:
        return re.compile(text, flags)
    except re.error:
        return None


def _conditions(arguments: dict[str, object]) -> list[tuple[str, str]]:
    given = arguments.get("additional-conditions", [])
    if not isinstance(given, list):
        raise SignalUnusable("additional-conditions must be a list")
    conditions = []
    for entry in given:
        if not isinstance(entry, dict) or "data-collection" not in entry:
            raise SignalUnusable("an additional condition needs data-collection and filter")
        conditions.append((str(entry["data-collection"]), str(entry.get("filter", ""))))
    return conditions


def _condition(name: str, conditions: list[tuple[str, str]]) -> str | None:
    for entry, predicate in conditions:
        pattern = _pattern(entry, re.IGNORECASE)
        if entry == name or (pattern and pattern.fullmatch(name)):
            return predicate or None
    return None
