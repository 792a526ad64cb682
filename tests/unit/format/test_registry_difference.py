"""What a message says of two schemas of a subject that do not fit each other."""

import json
from typing import Any

import pytest

from waltap_formats.schema_difference import difference

PROTO = """// of another product, with all that the language has
syntax = "proto3";
package p.q;
import public "other.proto";
option java_package = "p.q";
message Outer {
  option deprecated = true;
  reserved 20 to 30; reserved "gone";
  message Inner { sint64 depth = 1; Inner inner = 2; }
  enum Kind { option allow_alias = true; reserved 9; NONE = 0; BIG = 1; LARGE = 1; LOW = -1; }
  int32 id = 1 [json_name = "ID", (p.rule) = { most: 5 }];
  optional string name = 2; repeated int32 packed = 3;
  map<string, Inner> named = 5;
  Kind kind = 7; /* what follows is one of two */
  oneof one { option (p.o) = ";"; string left = 16; int64 right = 0x11; }
  r.Far message = 13; bool reserved = 18;
}
service S { rpc Ask (Outer) returns (Outer) { option (p.http) = {get: "/v1"}; } }
message Second { int32 id = 1; }
"""


def avro(*fields: Any) -> str:
    return json.dumps({"type": "record", "name": "R", "fields": fields})


@pytest.mark.parametrize(
    ("old", "new", "said"),
    [
        pytest.param(PROTO, PROTO, "", id="nothing"),
        pytest.param(PROTO, PROTO.replace("package p.q", "package p"), "the package p.q became p", id="package"),
        pytest.param(PROTO, PROTO.replace("int32 id = 1 [", "int64 id = 1 ["),
                     "the field Outer.id was int32 and is int64", id="type"),
        pytest.param(PROTO, PROTO.replace("string left", "string other"),
                     "the field number 16 of Outer was left and is other", id="name-within-oneof"),
        pytest.param(PROTO, PROTO.replace("int64 right = 0x11;", ""),
                     "the field Outer.right (number 17) is gone", id="gone-of-oneof"),
        pytest.param(PROTO, PROTO.replace("map<string, Inner>", "map<int32, Inner>"),
                     "the field Outer.named.Entry.key was string and is int32", id="key-of-map"),
        pytest.param(PROTO, PROTO.replace("Inner inner = 2;", "Inner inner = 2; bool new = 3;"),
                     "the field Outer.Inner.new (number 3) is new", id="nested"),
        pytest.param(PROTO, PROTO.replace("message Second", "message Third"),
                     "the message Second is gone, the message Third is new", id="message"),
        pytest.param(PROTO, PROTO[:-3], "", id="text-that-ends-early"),
        pytest.param(PROTO, PROTO.replace("= 0x11", "= many"), "", id="no-number"),
        pytest.param("message M { optional group G = 1 { } }", PROTO, "", id="groups-of-proto2"),
        pytest.param("message M } ", PROTO, "", id="no-block"),
        pytest.param(avro({"name": "a", "type": "int"}), avro({"name": "a", "type": ["null", "int"]}),
                     'a: "int" became ["null","int"]', id="avro-type"),
        pytest.param(avro({"name": "a", "type": "int"}), avro({"name": "b", "type": "int", "default": 1}),
                     "the field a is gone, the field b is new", id="avro-fields"),
        pytest.param(avro(), avro(*({"name": letter, "type": "int"} for letter in "abcdefg")),
                     ", ".join(f"the field {letter} is new without a default" for letter in "abcde")
                     + ", and 2 more", id="avro-many"),
        pytest.param(avro({"name": "a", "type": "int", "default": {"fields": "x", "properties": True}}),
                     avro({"name": "a", "type": "long", "default": {"fields": ["x"], "properties": 1}}),
                     'a: "int" became "long"', id="avro-default-of-such-names"),
    ],
)  # fmt: skip
def test_a_difference_is_named(old, new, said):
    assert difference(old, new) == said
