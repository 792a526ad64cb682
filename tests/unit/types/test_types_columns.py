"""Schemas, optionality, defaults, stand-ins and placeholders of columns."""

import json
from typing import Any

import pytest
from tests.unit.types.columns import MOOD, column, mapping

from waltap.changes.decode.relation import Column, DataType, TypeKind
from waltap.changes.mapping.connect_schema import ConnectKind
from waltap.changes.mapping.json_schema import schema_json
from waltap.changes.mapping.type_mapping import TypeOptions
from waltap.changes.mapping.type_registry import TypeRegistry
from waltap.changes.mapping.value_form import default_text
from waltap_testing.installed import installed_types

ISO = {"time_precision_mode": "isostring"}
S = "__debezium_unavailable_value"


DEFAULTS = [
    ("7", "7"),
    ("'-1'::integer", "-1"),
    ("'it''s'::text", "it's"),
    ("'NULL'::character varying", "NULL"),
    ("NULL::character varying", None),
    ("nextval('t_id_seq'::regclass)", "generated"),
    ("now()", "generated"),
    ("(now() AT TIME ZONE 'utc'::text)", "generated"),
    ("timezone('utc'::text, now())", "generated"),
    ("CURRENT_TIMESTAMP", "generated"),
    ("(3 + 4)", "(3 + 4)"),
    ("B'101'::\"bit\"", "101"),
    (None, None),
]


@pytest.mark.parametrize(("expression", "text"), DEFAULTS)
def test_default_expression_gives_literal_or_placeholder(expression, text):
    assert default_text(expression, "generated") == text


SCHEMA_DEFAULTS: list[tuple[Any, str, dict[str, Any], Any]] = [
    (("int4",), "7", {}, 7),
    (("int4",), "nextval('t_id_seq'::regclass)", {}, 0),
    (("int4",), "(3 + 4)", {}, None),
    (("int2",), "40000", {}, None),
    (("int4",), "('007'::text)::integer", {}, 7),
    (("int8",), "'9223372036854775807'::bigint", {}, 9223372036854775807),
    (("bool",), "true", {}, True),
    (("bool",), "random_bool()", {}, False),
    (("float8",), "2.5", {}, 2.5),
    (("float8",), "1", {}, 1.0),
    (("numeric", 6, 2), "1.50", {}, "AJY="),
    (("numeric", 5, 2), "2.555", {}, None),
    (("numeric", 12), "0.0", {}, "AA=="),
    (("numeric",), "1.25", {}, None),  # a struct has no default
    (("numeric",), "1.25", {"decimal_handling_mode": "string"}, "1.25"),
    (("numeric",), "NaN", {"decimal_handling_mode": "string"}, None),
    (("numeric",), "(5)::numeric", {"decimal_handling_mode": "string"}, None),
    (("numeric", 4), "(1 + 1)", {"decimal_handling_mode": "string"}, None),
    (("numeric", 5, 2), "2.5", {"decimal_handling_mode": "string"}, "2.50"),
    (("numeric", 19, 4), "1", {"decimal_handling_mode": "double"}, 1.0),
    (("money",), "3.21", {}, None),
    (("text",), "'it''s'::text", {}, "it's"),
    (("text",), "upper('x'::text)", {}, ""),
    (("varchar", 9), "NULL::character varying", {}, None),
    (("bytea",), "'\\x0102'::bytea", {}, None),
    (("date",), "CURRENT_DATE", {}, 0),
    (("date",), "'1999-12-31'::date", ISO, "1999-12-31Z"),
    (("date",), "'2020-01-02 03:04:05'::timestamp without time zone", {}, 18263),
    (("date",), "'0044-03-15 10:00:00+00 BC'::timestamp with time zone", {}, -735160),
    (("time",), "'01:02:03'::time without time zone", {}, 3723000000),
    (("timetz",), "'10:00:00+03'::time with time zone", {}, None),
    (("timestamp",), "CURRENT_TIMESTAMP", {}, 0),
    (
        ("timestamp",),
        "'2020-01-01 12:34:56.789012'::timestamp without time zone",
        {},
        1577882096789012,
    ),
    (("timestamp",), "'2020-01-02'::date", {}, 1577923200000000),
    (("timestamp",), "'2020-01-02'::date", ISO, "2020-01-02T00:00:00Z"),
    (("timestamptz",), "'2020-01-02'::date", {}, "2020-01-02T00:00:00.000000Z"),
    (("timestamptz",), "now()", {}, "1970-01-01T00:00:00.000000Z"),
    (("timestamptz", 0), "now()", {}, "1970-01-01T00:00:00Z"),
    (("interval",), "'1 day'::interval", {}, 86400000000),
    (("bit", 3), "B'101'::\"bit\"", {}, "BQ=="),
    (("bit", 3), "(B'0'::\"bit\")::bit(3)", {}, "AA=="),
    (("bit", 1), "B'1'::\"bit\"", {}, True),
    (("uuid",), "gen_random_uuid()", {}, "00000000-0000-0000-0000-000000000000"),
    (("jsonb",), "'{\"a\": 1}'::jsonb", {}, '{"a": 1}'),
    (("json",), "f()", {}, "{}"),
    (("int4[]",), "'{1,2}'::integer[]", {}, None),
    (("oid",), "7", {}, None),
    ((MOOD,), "'it''s ok'::mood", {}, "it's ok"),
    ((MOOD,), "f()", {}, None),
]


@pytest.mark.parametrize(("kind", "expression", "options", "expected"), SCHEMA_DEFAULTS)
def test_schema_default(kind, expression, options, expected):
    found = mapping(*kind, options=options, default=expression)
    shown = json.loads(schema_json(found.schema))
    assert shown.get("default") == expected
    assert type(shown.get("default")) is type(expected)


def test_null_is_written_as_the_default_unless_switched_off():
    off: dict[str, Any] = {"options": {"replace_null_with_default": False}, "default": "5"}
    assert mapping("int4", default="5").null_json == "5"
    assert mapping("int4", **off).null_json == "null"
    assert mapping("int4", **off).schema.default == 5
    assert mapping("int4", nullable=False, **off).null_json == "5"


STAND_INS: list[tuple[Any, dict[str, Any], Any]] = [
    (("int4",), {}, 0),
    (("bool",), {}, False),
    (("float8",), {}, 0.0),
    (("text",), {}, ""),
    (("numeric", 9, 2), {}, "AA=="),
    (("numeric", 9, 2), {"decimal_handling_mode": "string"}, "0.00"),
    (("numeric",), {}, {"scale": 0, "value": "AA=="}),
    (("money",), {"decimal_handling_mode": "string"}, "0.00"),
    (("bytea",), {}, ""),
    (("bit", 8), {}, ""),
    (("date",), {}, 0),
    (("date",), ISO, "1970-01-01Z"),
    (("time",), ISO, "00:00:00Z"),
    (("timestamp",), ISO, "1970-01-01T00:00:00Z"),
    (("timestamptz",), {}, "1970-01-01T00:00:00Z"),
    (("timetz",), {}, "00:00:00Z"),
    (("interval",), {}, 0),
    (("interval",), {"interval_handling_mode": "string"}, "P0Y0M0DT0H0M0S"),
    (("hstore",), {}, "{}"),
    (("hstore",), {"hstore_handling_mode": "map"}, {}),
    (("int4[]",), {}, []),
    (("uuid",), {}, ""),
    (("point",), {}, {"x": 0.0, "y": 0.0, "wkb": "AQEAAAAAAAAAAAAAAAAAAAAAAAAA", "srid": None}),
]


@pytest.mark.parametrize(("kind", "options", "expected"), STAND_INS)
def test_required_column_without_value_holds_the_types_zero(kind, options, expected):
    found = mapping(*kind, options=options, nullable=False)
    assert not found.schema.optional
    assert json.loads(found.null_json) == expected
    assert mapping(*kind, options=options).null_json == "null"
    assert mapping("geometry", nullable=False).schema.optional


PLACEHOLDERS: list[tuple[Any, dict[str, Any], Any]] = [
    (("text",), {}, S),
    (("jsonb",), {}, S),
    (("citext",), {}, S),
    (("tsvector",), {}, S),
    ((MOOD,), {}, S),
    (("bytea",), {}, "X19kZWJleml1bV91bmF2YWlsYWJsZV92YWx1ZQ=="),
    (("bytea",), {"binary_handling_mode": "hex"}, S),
    (("bytea",), {"binary_handling_mode": "base64"}, None),
    (("text[]",), {}, [S]),
    (("jsonb[]",), {}, [S]),
    (("bytea[]",), {}, ["X19kZWJleml1bV91bmF2YWlsYWJsZV92YWx1ZQ=="]),
    (("bytea[]",), {"binary_handling_mode": "hex"}, None),
    (("int4[]",), {}, list(S.encode())),
    (("int8[]",), {}, list(S.encode())),
    (("date[]",), {}, list(S.encode())),
    (("date[]",), ISO, None),
    (("uuid[]",), {}, ["b68a35a7-17ad-35b3-af2a-ae46edb4545a"]),
    (("numeric[]",), {}, None),
    (("hstore",), {}, json.dumps({S: S}, separators=(",", ":"))),
    (("hstore",), {"hstore_handling_mode": "map"}, {S: S}),
    (("numeric", 9, 2), {}, None),
    (("numeric",), {"decimal_handling_mode": "string"}, S),
    (("geometry",), {}, None),
    (("vector",), {}, None),
    (("int4[]",), {"unavailable_value_placeholder": b"\xff\x01"}, [-1, 1]),
    (("text",), {"unavailable_value_placeholder": b"\xff"}, "\ufffd"),
]


@pytest.mark.parametrize(("kind", "options", "expected"), PLACEHOLDERS)
def test_unavailable_value(kind, options, expected):
    assert json.loads(mapping(*kind, options=options).unavailable_json) == expected


ARRAYS_LEFT_OUT = "money[] name[] interval[] xml[] point[] varbit[]".split()
UNKNOWN = "tsquery box pg_lsn int4multirange box[] stranger".split()


@pytest.mark.parametrize("name", [*ARRAYS_LEFT_OUT, *UNKNOWN])
def test_unknown_types_are_left_out_unless_asked_for(name):
    """Arrays that Debezium does not know are always."""
    asked = TypeRegistry(installed_types(), TypeOptions(include_unknown_datatypes=True))
    assert TypeRegistry(installed_types()).column(column(name)) is None
    found = asked.column(column(name))
    if name in ARRAYS_LEFT_OUT:
        assert found is None
    else:
        kind = found.schema.items.kind if found.schema.items else found.schema.kind
        assert kind is ConnectKind.BYTES


def user_type(name: str, oid: int, kind: TypeKind, **more: Any) -> DataType:
    return DataType(oid=oid, schema="public", name=name, kind=kind, **more)


def test_column_without_catalogue_is_mapped_by_oid_once():
    registry = TypeRegistry(installed_types())
    kinds = {23: ConnectKind.INT32, 1184: ConnectKind.STRING, 1007: ConnectKind.ARRAY}
    for oid, kind in kinds.items():
        found = registry.column(Column(name="x", type_oid=oid))
        assert found.schema.kind is kind
        assert found.schema.optional
    assert registry.column(column("int4")) is registry.column(column("int4"))
    assert registry.column(column("int4")) is not registry.column(column("int4", nullable=False))


def test_user_type_of_a_built_in_name_is_not_taken_for_it():
    impostor = user_type("int4", 55_555, TypeKind.BASE)
    assert TypeRegistry(installed_types()).column(column(impostor)) is None
    vector = user_type("vector", 55_556, TypeKind.ENUM, labels=("a",))
    assert mapping(vector).schema.name == "io.debezium.data.Enum"


def test_comment_becomes_doc_where_the_schema_has_none():
    assert mapping("int4", comment="of things").schema.doc == "of things"
    assert mapping("point", comment="of things").schema.doc == "Geometry (POINT)"
