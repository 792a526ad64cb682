"""The shape of a cell, one column's value in a row.

Source: Debezium's events, and those of a fork of its PostgreSQL connector. In the fork each
column is a struct ``{"value": …, "set": true}``, and a column that was not sent is a null struct.
"""

from dataclasses import dataclass

import msgspec

from waltap.changes.mapping.connect_schema import ConnectKind, Field, Schema
from waltap.changes.mapping.envelope import NEWEST, EnvelopeForm


@dataclass(frozen=True, slots=True, kw_only=True)
class CellShape:
    """Define how encoders write a cell."""

    name: str
    # (field of the value, field that is true): a struct of the two, which is null where the value
    # was not sent. None: the cell is the value itself, or the placeholder of one that was not
    # sent.
    members: tuple[str, str] | None = None

    def schema(self, field: str, schema: Schema) -> Schema:
        """Return the schema of cell ``field``, given its value's."""
        if self.members is None:
            return schema
        value, is_set = self.members
        return Schema(
            kind=ConnectKind.STRUCT,
            optional=schema.optional,
            name=field,
            fields=(
                # The comment moves to the struct, so that it is not repeated inside.
                Field(value, msgspec.structs.replace(schema, doc=None)),
                Field(is_set, Schema(kind=ConnectKind.BOOLEAN)),
            ),
            doc=schema.doc,
        )


PLAIN = CellShape(name="plain")
VALUE_AND_SET = CellShape(name="value and set", members=("value", "set"))


@dataclass(frozen=True, slots=True, kw_only=True)
class EventForm:
    """Define the form of rows and of their envelope."""

    # The shape of values in rows and keys.
    cell: CellShape = PLAIN
    envelope: EnvelopeForm = NEWEST
