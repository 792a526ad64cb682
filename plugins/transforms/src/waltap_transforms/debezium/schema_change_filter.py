"""SchemaChangeEventFilter: drop schema change events by type."""

from pydantic import field_validator

from waltap.base.property import CommaList, Properties, declare
from waltap.encoders.format.record_transform import ConnectRecord
from waltap_transforms.specs import debezium_spec

__all__ = ["SCHEMA_CHANGE_FILTER"]

TYPES = ("CREATE", "ALTER", "DROP", "TRUNCATE", "DATABASE")
# Suffixes of the schema names of Debezium's schema change events.
ENDINGS = (".SchemaChangeValue", ".SchemaChangeKey")


class SchemaChangeFilterProperties(Properties):
    """Types of schema changes to drop."""

    excluded: CommaList = declare(
        "schema.change.event.exclude.list",
        summary="Types of schema changes to leave out: CREATE, ALTER, DROP, TRUNCATE, DATABASE. "
        "PostgreSQL tells of none, so nothing is left out there; it is for other connectors' plugins.",
        words=TYPES,
        min_length=1,
    )

    @field_validator("excluded")
    @classmethod
    def _types(cls, value: tuple[str, ...]) -> tuple[str, ...]:
        if unknown := sorted(set(value) - set(TYPES)):
            raise ValueError(f"no such type: {', '.join(unknown)}; allowed: {', '.join(TYPES)}")
        return value


class SchemaChangeFilter:
    """Drop schema change events of some types."""

    def __init__(self, properties: SchemaChangeFilterProperties) -> None:
        self._excluded = frozenset(properties.excluded)

    def __call__(self, records: list[ConnectRecord]) -> list[ConnectRecord]:
        """Return the records that stay, in order."""
        return [record for record in records if self._stays(record)]

    def _stays(self, record: ConnectRecord) -> bool:
        schema = record.value_schema
        if record.value is None or schema is None or not (schema.name or "").endswith(ENDINGS):
            return True
        changes = record.value.get("tableChanges")
        if changes is None:
            return False
        # An event without table changes is one about the database.
        kind = changes[0].get("type") if changes else "DATABASE"
        return kind not in self._excluded


SCHEMA_CHANGE_FILTER = (
    debezium_spec(
        "schema-change-filter",
        "SchemaChangeEventFilter",
        "Leaves schema change events out, by what was changed.",
        SchemaChangeFilterProperties,
        lambda properties, _context: SchemaChangeFilter(properties),
    ),
)
