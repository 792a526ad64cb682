"""What encoders say of a value that does not fit its schema."""

from waltap.mapping.connect_schema import Schema

__all__ = ["SchemaMismatch", "required"]


class SchemaMismatch(ValueError):
    """A value does not fit its schema; the text names fields and types, never a value."""


def required(what: str, schema: Schema) -> SchemaMismatch:
    """Return the error of null in ``what``, which is required."""
    return SchemaMismatch(f"{what} is required ({schema.kind.value}) and null")
