"""What is made of schemas is made once for each object, and bounded."""

from waltap.changes.mapping.connect_schema import ConnectKind, Schema
from waltap.encoders.format.record_transform import SchemaMemory


def test_each_schema_is_asked_for_once_and_equal_ones_apart():
    made: list[Schema] = []

    def make(schema: Schema) -> int:
        made.append(schema)
        return len(made)

    memory = SchemaMemory(make, most=2)
    one, other = Schema(kind=ConnectKind.INT8), Schema(kind=ConnectKind.INT8)
    assert [memory.of(s) for s in (one, other, one, other)] == [1, 2, 1, 2]
    assert memory.of(Schema(kind=ConnectKind.INT16)) == 3
    assert memory.of(one) == 4, "it was full, and is made anew"
