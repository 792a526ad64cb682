"""Members of a change event, as in ``add.fields`` and ``add.headers``."""

from collections.abc import Iterable, Mapping
from typing import Any

import msgspec

from waltap.format.record_transform import RecordUnfit
from waltap.mapping.connect_schema import ConnectKind, Schema
from waltap_transforms.debezium.structure import field_of

__all__ = ["EventField", "event_fields"]

# Fields that need no struct before them, and their structs: `transaction`, and the event itself. Every
# other field without a struct is one of `source`.
TRANSACTION = frozenset({"id", "data_collection_order", "total_order"})
EVENT = frozenset({"op", "ts_ms", "ts_us", "ts_ns"})


class EventField(msgspec.Struct, frozen=True):
    """Describe one member of a change event, and its new name."""

    # None for a field of the event itself.
    struct: str | None
    field: str
    # Name of the field or header that is written.
    name: str
    # False if the struct lacks the field; then the event itself has it, from another transform.
    inside: bool = True

    def schema_in(self, envelope: Schema) -> Schema | None:
        """Return the schema of the written field.

        None means that events of ``envelope`` lack the field. Raises: RecordUnfit if they lack the struct.
        """
        found = field_of(self._parent(envelope), self.field) or field_of(envelope, self.field)
        if found is None:
            return None
        schema = found.schema
        if schema.kind is ConnectKind.STRUCT:
            raise RecordUnfit(f"{self.field} is a struct; name one of its fields")
        # Optional without a default: the struct, such as `transaction`, may be null.
        return Schema(
            kind=schema.kind,
            optional=True,
            name=schema.name,
            version=schema.version,
            doc=schema.doc,
            parameters=schema.parameters,
            items=schema.items,
            keys=schema.keys,
            values=schema.values,
        )

    def bound(self, envelope: Schema) -> "EventField":
        """Return the member as events of ``envelope`` have it."""
        inside = field_of(self._parent(envelope), self.field) is not None
        return msgspec.structs.replace(self, inside=inside)

    def of(self, event: Mapping[str, Any]) -> Any:
        """Return the value in ``event``, null if the struct is null."""
        if self.struct is None:
            return event.get(self.field)
        parent = event.get(self.struct)
        if parent is None:
            return None
        return parent.get(self.field) if self.inside else event.get(self.field)

    def _parent(self, envelope: Schema) -> Schema:
        if self.struct is None:
            return envelope
        parent = field_of(envelope, self.struct)
        if parent is None or parent.schema.kind is not ConnectKind.STRUCT:
            raise RecordUnfit(f"{self.struct} is no struct of {envelope.name}")
        return parent.schema


def event_fields(prefix: str, entries: Iterable[str]) -> tuple[EventField, ...]:
    """Parse ``entries`` into members.

    Raises: ValueError for an entry that is not ``[struct.]field[:name]``.
    """
    found = []
    for entry in entries:
        path, *new = _parts(entry, ":")
        if len(new) > 1:
            raise ValueError(f"{entry!r} is not [struct.]field[:name]")
        names = _parts(path, ".")
        field = names[0] if len(names) == 1 else names[1]
        struct = _struct_of(field) if len(names) == 1 else names[0]
        # The struct is part of the name only if the entry names it: `source.table` is `source_table`.
        plain = field if len(names) == 1 else f"{struct}_{field}"
        found.append(EventField(struct, field, prefix + (new[0] if new else plain)))
    return tuple(found)


def _parts(text: str, separator: str) -> list[str]:
    """Split ``text`` as Java's String.split does."""
    # Java removes empty parts at the end.
    parts = text.split(separator)
    while len(parts) > 1 and not parts[-1]:
        parts.pop()
    return parts


def _struct_of(field: str) -> str | None:
    if field in TRANSACTION:
        return "transaction"
    return None if field in EVENT else "source"
