"""The error for values that do not fit."""

from waltap.changes.mapping.connect_schema import Schema

__all__ = ["SchemaMismatch", "required"]


class SchemaMismatch(ValueError):
    """A value does not fit its schema.

    The text names fields and types, never a value. ``way`` says what helps, where the usual does not.
    """

    def __init__(self, text: str, *, way: str = "") -> None:
        super().__init__(text)
        self.way = way


def required(what: str, schema: Schema) -> SchemaMismatch:
    """Return the error for null in a required place."""
    return SchemaMismatch(f"{what} is required ({schema.kind.value}) and null")
