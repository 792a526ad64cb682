"""The transform ``fields``: drop and rename fields of events.

It works on events: every record format can follow it, but a sink that takes changes cannot.
"""

from collections.abc import Callable
from typing import Self

from pydantic import model_validator

from waltap.base.property import CommaList, Properties, declare
from waltap.changes.capture.java_regex import NameMatcher
from waltap.changes.events import ChangeEvent, EventRow, EventTransform


class FieldsProperties(Properties):
    """Fields to drop or rename, and their tables."""

    tables: CommaList = declare(
        "tables",
        default=(),
        summary="Patterns of tables (schema.table) to change; without any, all.",
        patterns="tables",
    )
    exclude: CommaList = declare(
        "exclude",
        default=(),
        summary="Fields that before and after are written without. Keys stay as they are.",
        examples=("note",),
    )
    renames: CommaList = declare(
        "renames",
        default=(),
        summary="Fields that before and after have under another name, as old:new.",
        examples=("id:customer_id",),
    )

    @model_validator(mode="after")
    def _readable(self) -> Self:
        # A bad pattern fails when the profile is read, not at the first event.
        NameMatcher(self.tables)
        names = [new for _old, new in self.pairs()]
        if len(set(names)) < len(names):
            raise ValueError("renames: two fields would get one name")
        return self

    def pairs(self) -> list[tuple[str, str]]:
        """Return (old name, new name) of each renamed field.

        Raises: ValueError for an entry that is not ``old:new``.
        """
        found = []
        for entry in self.renames:
            old, colon, new = (part.strip() for part in entry.partition(":"))
            if not (old and colon and new):
                raise ValueError(f"renames: {entry!r} is not old:new")
            found.append((old, new))
        return found


def fields_changer(properties: FieldsProperties) -> EventTransform:
    """Return the transform that drops and renames fields.

    Fields that a table lacks are ignored, so one list can serve many tables.
    """
    concerned = _concerned(properties.tables)
    exclude, renames = properties.exclude, properties.pairs()

    def change(row: EventRow) -> None:
        for name in exclude:
            if name in row.fields():
                del row[name]
        for old, new in renames:
            if old in row.fields():
                row.rename(old, new)

    def transform(events: list[ChangeEvent]) -> list[ChangeEvent]:
        for event in events:
            if concerned(event.relation.schema, event.relation.table):
                for row in (event.before, event.after):
                    if row is not None:
                        change(row)
        return events

    return transform


def _concerned(patterns: tuple[str, ...]) -> Callable[[str, str], bool]:
    """Return the cached test of table names."""
    matches, known = NameMatcher(patterns), dict[tuple[str, str], bool]()

    def concerned(schema: str, table: str) -> bool:
        found = known.get((schema, table))
        if found is None:
            found = not patterns or bool(matches(f"{schema}.{table}"))
            known[schema, table] = found
        return found

    return concerned
