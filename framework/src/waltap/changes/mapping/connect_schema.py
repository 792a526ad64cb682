"""Connect schemas, the model of JSON, Avro and Arrow."""

import enum
from decimal import Decimal

import msgspec


class ConnectKind(enum.Enum):
    """Name the primitive and structured kinds of Kafka Connect."""

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
    """Describe one schema node."""

    kind: ConnectKind
    optional: bool = False
    name: str | None = None
    version: int | None = None
    # They keep their order.
    parameters: tuple[tuple[str, str], ...] = ()
    doc: str | None = None
    # A Connect value: int, float, bool, str, bytes, list or dict.
    default: object = None
    # Of a struct.
    fields: "tuple[Field, ...]" = ()
    # Of an array.
    items: "Schema | None" = None
    # Of a map, as are `values`.
    keys: "Schema | None" = None
    values: "Schema | None" = None


class Field(msgspec.Struct, frozen=True):
    """Describe one member of a struct schema."""

    name: str
    schema: Schema


# Kafka Connect's logical types.
DATA = "org.apache.kafka.connect.data."
DECIMAL, DATE = f"{DATA}Decimal", f"{DATA}Date"
TIME, TIMESTAMP = f"{DATA}Time", f"{DATA}Timestamp"


def scale_of(schema: Schema) -> int:
    """Return the scale of a Decimal schema."""
    return int(dict(schema.parameters).get("scale", "0"))


def decimal_of(unscaled: bytes, scale: int) -> Decimal:
    """Return the decimal of an unscaled value and a scale."""
    # Arithmetic of Decimal would round to 28 digits.
    number = int.from_bytes(unscaled, "big", signed=True)
    return Decimal((int(number < 0), tuple(map(int, str(abs(number)))), -scale))
