"""VectorToJson: write vectors as JSON text."""

from typing import Any

from waltap.changes.mapping import double_text, float_text
from waltap.changes.mapping.connect_schema import ConnectKind, Schema
from waltap.encoders.format.record_transform import ConnectRecord, RecordUnfit
from waltap_transforms.debezium.struct_rewrite import Convert, StructRewrite
from waltap_transforms.specs import debezium_spec, each

__all__ = ["VECTORS"]

# Schema name → the text that Java prints for an element.
DENSE = {"io.debezium.data.DoubleVector": double_text, "io.debezium.data.FloatVector": float_text}
SPARSE = "io.debezium.data.SparseDoubleVector"


class VectorToJson:
    """Convert the vectors of records to JSON."""

    def __init__(self) -> None:
        self._rewrite = StructRewrite(_vector, inside=False)

    def __call__(self, record: ConnectRecord) -> ConnectRecord:
        """Return ``record`` with JSON vectors.

        Raises: RecordUnfit for a value that is not a struct.
        """
        if record.value is None:
            return record
        if record.value_schema is None or record.value_schema.kind is not ConnectKind.STRUCT:
            raise RecordUnfit("the value is no struct")
        return self._rewrite(record)


def _vector(schema: Schema) -> tuple[Schema, Convert] | None:
    json = Schema(
        kind=ConnectKind.STRING, optional=schema.optional, name="io.debezium.data.Json", version=1
    )
    if schema.name == SPARSE:
        return json, _sparse
    text = DENSE.get(schema.name or "")
    if text is None:
        return None

    def dense(value: Any) -> str:
        numbers = ", ".join("null" if each is None else text(each) for each in value)
        return f'{{ "values": [{numbers}] }}'

    return json, dense


def _sparse(value: Any) -> str:
    numbers = ", ".join(f'"{at}": {double_text(of)}' for at, of in sorted(value["vector"].items()))
    return f'{{ "dimensions": {value["dimensions"]}, "vector": {{ {numbers} }} }}'


VECTORS = (
    debezium_spec(
        "vector-to-json",
        "VectorToJsonConverter",
        "Writes vectors as JSON text.",
        None,
        lambda _properties, _context: each(VectorToJson()),
    ),
)
