"""Masks, hashes, truncation and source types of columns."""

import hashlib

import pytest
from tests.harness.json_events import (
    BARE,
    NOW,
    column,
    json_format,
    part,
    split_properties,
    table,
    values,
)

from waltap.changes.capture.column_transform import ColumnTransforms, java_serialised
from waltap.changes.capture.source_type import source_type
from waltap.changes.capture.topic_naming import field_namer
from waltap.changes.decode.message import Delete, Insert, OldTuple, Update
from waltap.changes.decode.relation import Column, DataType, TypeKind
from waltap.changes.decode.tuple_image import ABSENT, UNCHANGED

SALT = "CzQMA0cB5K"
HELLO = "b4d39ab0d198fb4cac8b2f023da74f670bcaf192dcc79b5d6361b7ae6b2fafdf"


def after(properties: dict[str, str], columns: tuple[str, ...], row: tuple) -> dict:
    relation = table("t", *columns, key=())
    found = json_format({**BARE, **properties}).render([part(Insert(relation, 0, row))], NOW)
    return values(found)[0]["after"]


@pytest.mark.parametrize(
    ("name", "declared", "text", "expected"),
    [
        (f"column.mask.hash.SHA-256.with.salt.{SALT}", "v varchar(255)", "hello", HELLO),
        (f"column.mask.hash.SHA-256.with.salt.{SALT}", "v varchar(20)", "test", "8e68c68edbbac316dfe2"),
        ("column.mask.hash.v2.MD5.with.salt.s.a.l.t", "v text", "é", hashlib.md5("s.a.l.té".encode()).hexdigest()),
        ("column.mask.hash.v2.SHA-512/256.with.salt.x", "v text", "y", hashlib.new("sha512_256", b"xy").hexdigest()),
        ("column.mask.with.3.chars", "v text", "hello", "***"),
        ("column.mask.with.3.chars", "v text", None, "***"),
        ("column.mask.with.3.chars", "v int4", "5", 5),
        ("column.truncate.to.3.chars", "v text", "hello", "hel"),
        ("column.truncate.to.3.chars", "v varchar(3)", "abc", "abc"),
        ("column.truncate.to.3.chars", "v text", "a😀😀", "a😀"),
        ("column.truncate.to.2.chars", "v text", "a😀", "a\ud83d"),
        ("column.truncate.to.2.chars", "v bytea", "\\x0102030405", "AQI="),
        ("column.truncate.to.2.chars", "v bit(33)", "1" * 33, "/////wE="),
        ("column.truncate.to.2.chars", "v text", None, None),
        ("column.truncate.to.0.chars", "v text", "hello", ""),
        ("column.truncate.to.0.chars", "v int4", "12", 12),
    ],
)  # fmt: skip
def test_value_is_transformed(name, declared, text, expected):
    assert after({name: "public.t.v"}, (declared,), (text,)) == {"v": expected}


def test_placeholders_and_stand_ins_are_transformed_too():
    relation = table(
        "t", "id int4 not null", "m text not null", "h text not null", "c text not null"
    )
    form = json_format(
        {
            **BARE,
            "column.mask.with.2.chars": ".*m",
            "column.mask.hash.v2.SHA-256.with.salt.x": ".*h",
            "column.truncate.to.5.chars": ".*c",
        }
    )
    unsent = Update(relation, 0, ("1", UNCHANGED, UNCHANGED, UNCHANGED))
    key_only = Delete(relation, 0, ("1", ABSENT, ABSENT, ABSENT), OldTuple.KEY)
    update, delete, _ = values(form.render([part(unsent, key_only)], NOW))
    hashed = hashlib.sha256(b"x__debezium_unavailable_value").hexdigest()
    assert update["after"] == {"id": 1, "m": "**", "h": hashed, "c": "__deb"}
    assert delete["before"] == {"id": 1, "m": "**", "h": hashlib.sha256(b"x").hexdigest(), "c": ""}


def test_propagated_source_type_never_takes_the_mask_away():
    properties, _ = split_properties(
        {
            "topic.prefix": "t",
            "column.propagate.source.type": ".*",
            "column.mask.hash.v2.SHA-256.with.salt.x": r"public\.t\.v",
        }
    )
    transforms = ColumnTransforms(properties)
    found = transforms.column("public.t", column("v text"), None)
    assert found.value is not None
    assert dict(found.parameters)["masked"] == "true"
    assert dict(found.parameters)["__debezium.source.column.type"] == "TEXT"
    other = transforms.column("public.t", column("w text"), None)
    assert other.value is None


@pytest.mark.parametrize(
    ("text", "body"),
    [
        ("hello", b"t\0\5hello"),
        ("\0", b"t\0\2\xc0\x80"),
        ("😀", b"t\0\6\xed\xa0\xbd\xed\xb8\x80"),
        ("x" * 65535, b"t\xff\xff" + b"x" * 65535),
        ("x" * 65536, b"|\0\0\0\0\0\1\0\0" + b"x" * 65536),
    ],
    ids=["ascii", "nul", "surrogates", "longest short", "long"],
)
def test_java_serialisation_of_strings(text, body):
    assert java_serialised(text) == b"\xac\xed\x00\x05" + body


@pytest.mark.parametrize(("name", "length"), [("_int2", 5), ("int2vector", 2147483647)])
def test_an_array_has_the_length_of_its_elements_and_a_vector_none(name, length):
    element = DataType(oid=21, schema="pg_catalog", name="int2")
    data_type = DataType(
        oid=1, schema="pg_catalog", name=name, kind=TypeKind.ARRAY, element=element
    )
    assert source_type(Column(name="v", type_oid=1, data_type=data_type)).length == length


@pytest.mark.parametrize(
    ("name", "avro", "unicode"),
    [
        ("2nd", "_2nd", "_u0032nd"),
        ("-a", "_a", "_u002da"),
        ("", "", ""),
        ("ă", "_", "_u103"),
        ("😀", "__", "_ud83d_ude00"),
    ],
)
def test_first_characters_and_escapes_of_field_names(name, avro, unicode):
    assert field_namer("avro")(name) == avro
    assert field_namer("avro_unicode")(name) == unicode
