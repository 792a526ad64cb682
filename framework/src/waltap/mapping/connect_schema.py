"""Connect schemas: the typed model that JSON with schemas, Avro and Arrow derive from."""

import enum

import msgspec

__all__ = ["ConnectKind", "Field", "Schema"]


class ConnectKind(enum.Enum):
    """The primitive and structured kinds of Kafka Connect."""

    INT8 = "int8"
    INT16 = "int16"
    INT32 = "int32"
    INT64 = "int64"
    FLOAT32 = "float"
    FLOAT64 = "double"
    BOOLEAN = "boolean"
    STRING = "string"
    BYTES = "bytes"
    ARRAY = "array"
    MAP = "map"
    STRUCT = "struct"


class Schema(msgspec.Struct, frozen=True, kw_only=True):
    """One schema node. ``default`` is a Connect value (int, float, bool, str, bytes, list, dict).

    ``items`` is set for arrays, ``keys`` and ``values`` for maps, ``fields`` for structs.
    ``parameters`` keep their order.
    """

    kind: ConnectKind
    optional: bool = False
    name: str | None = None
    version: int | None = None
    parameters: tuple[tuple[str, str], ...] = ()
    doc: str | None = None
    default: object = None
    fields: "tuple[Field, ...]" = ()
    items: "Schema | None" = None
    keys: "Schema | None" = None
    values: "Schema | None" = None


class Field(msgspec.Struct, frozen=True):
    """One member of a struct schema."""

    name: str
    schema: Schema
