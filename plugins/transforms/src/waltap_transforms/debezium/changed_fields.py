"""ExtractChangedRecordState: list changed and unchanged columns in headers."""

import math
from collections.abc import Mapping
from typing import Any

import msgspec

from waltap.base.property import Properties, declare
from waltap.changes.mapping.connect_schema import ConnectKind, Schema
from waltap.encoders.format.record_transform import ConnectRecord, SchemaMemory
from waltap_transforms.specs import debezium_spec, each
from waltap_transforms.structs import is_envelope, member

__all__ = ["CHANGED_FIELDS"]


class ExtractChangedRecordStateProperties(Properties):
    """Headers to write."""

    changed: str | None = declare(
        "header.changed.name",
        default=None,
        summary="Header with the names of the columns that changed; without it, none is written.",
    )
    unchanged: str | None = declare(
        "header.unchanged.name",
        default=None,
        summary="Header with the names of the columns that did not change; without it, none is written.",
    )


class ExtractChangedRecordState:
    """Add headers with the changed and unchanged columns of updates."""

    def __init__(self, properties: ExtractChangedRecordStateProperties) -> None:
        self._changed = _list_schema(properties.changed)
        self._unchanged = _list_schema(properties.unchanged)
        self._names = SchemaMemory(_names)

    def __call__(self, record: ConnectRecord) -> ConnectRecord:
        """Return ``record`` with the headers.

        Raises: RecordUnfit.
        """
        if record.value is None or not is_envelope(record):
            return record
        assert record.value_schema is not None
        # Other events, and updates without an old row, get empty lists, as in Debezium.
        changed, unchanged = _told_apart(record.value, self._names.of(record.value_schema))
        headers = record.headers
        for schema, names in ((self._changed, changed), (self._unchanged, unchanged)):
            if schema is not None:
                headers += ((schema.name or "", schema, names),)
        return msgspec.structs.replace(record, headers=headers)


def _list_schema(name: str | None) -> Schema | None:
    # A blank name means no header.
    if name is None or not name.strip():
        return None
    text = Schema(kind=ConnectKind.STRING, optional=True)
    return Schema(kind=ConnectKind.ARRAY, optional=True, name=name, items=text)


def _names(envelope: Schema) -> tuple[str, ...]:
    member(envelope, "before", "an event", ConnectKind.STRUCT)
    row = member(envelope, "after", "an event", ConnectKind.STRUCT).schema
    return tuple(field.name for field in row.fields)


def _told_apart(event: Mapping[str, Any], names: tuple[str, ...]) -> tuple[list[str], list[str]]:
    before, after = event.get("before"), event.get("after")
    changed: list[str] = []
    unchanged: list[str] = []
    # Without an old row nothing is known about the columns.
    if before is not None and after is not None:
        for name in names:
            same = _equal(after.get(name), before.get(name))
            (unchanged if same else changed).append(name)
    return changed, unchanged


def _equal(one: Any, other: Any) -> bool:
    """Return whether two values of a column are equal in Java."""
    # Double.equals differs from ==: NaN equals itself, and 0.0 does not equal -0.0.
    if isinstance(one, float) and isinstance(other, float):
        if math.isnan(one) or math.isnan(other):
            return math.isnan(one) and math.isnan(other)
        return one == other and math.copysign(1, one) == math.copysign(1, other)
    return bool(one == other)


CHANGED_FIELDS = (
    debezium_spec(
        "extract-changed-record-state",
        "ExtractChangedRecordState",
        "Writes headers with the names of the columns that an update changed, or did not.",
        ExtractChangedRecordStateProperties,
        lambda properties, _context: each(ExtractChangedRecordState(properties)),
    ),
)
