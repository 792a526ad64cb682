"""Types with one planted fault each."""

import struct
from dataclasses import replace
from typing import Any, ClassVar

import pytest

from waltap.mapping import (
    ColumnMapping,
    DataType,
    Field,
    Kind,
    Schema,
    TypeSpec,
    converted,
    simple_type,
    types_named,
)
from waltap_testing import TypeRig, TypeSuite

SEMVER = DataType(oid=16_500, schema="public", name="semver")
PARTS = ("major", "minor", "patch")
SCHEMA = Schema(
    kind=Kind.STRUCT, name="semver", fields=tuple(Field(n, Schema(kind=Kind.INT32)) for n in PARTS)
)
ZERO = dict.fromkeys(PARTS, 0)


def parse(text: str) -> dict[str, int]:
    parts = [int(part) for part in text.split(".")]
    return dict(zip(PARTS, parts, strict=True))


def arrow():
    import pyarrow as pa

    return pa.struct([(name, pa.int32()) for name in PARTS])


def read(data: bytes) -> str:
    return ".".join(map(str, struct.unpack(">iii", data)))


def spec(**changed: Any) -> TypeSpec:
    given: dict[str, Any] = {
        "summary": "Versions.",
        "claims": types_named("semver"),
        "schema": SCHEMA,
        "parse": parse,
        "zero": ZERO,
        "arrow": arrow,
        "from_binary": read,
    }
    return simple_type("semver", **{**given, **changed})


def mapped(**changed: Any) -> TypeSpec:
    """Return the spec with fields of its mappings changed."""
    right = spec()

    def build(column, mapper) -> ColumnMapping:
        return replace(right.build(column, mapper), **changed)

    return replace(right, build=build)


class Planted(TypeSuite):
    """The suite on a faulty type."""

    spec: ClassVar[TypeSpec]

    @pytest.fixture
    def rig(self):
        return TypeRig(
            self.spec,
            SEMVER,
            {"1.2.3": {"major": 1, "minor": 2, "patch": 3}, "0.10.0": {**ZERO, "minor": 10}},
            binary={"1.2.3": struct.pack(">iii", 1, 2, 3)},
            defaults={"'1.0.0'::semver": {**ZERO, "major": 1}, "latest()": None},
            malformed=("", "1.2", "x.y.z"),
        )


class TestTypeWithoutFault(Planted):
    spec = spec()
    caught_by = ""


class TestJsonSaysAnother(Planted):
    spec = mapped(to_json=lambda text: '{"major":1,"minor":0,"patch":0}')
    caught_by = "test_json_says_what_the_connect_value_says"


class TestSchemaSaysText(Planted):
    spec = spec(schema=Schema(kind=Kind.STRING))
    caught_by = "test_values_fit_the_schema"


class TestArrowSwapsMembers(Planted):
    spec = mapped(
        arrow=converted(
            "semver", arrow, lambda text: dict(zip(PARTS[::-1], parse(text).values(), strict=True))
        )
    )
    caught_by = "test_arrow_says_what_the_connect_value_says"


class TestArrowMakesNullOfWhatItCannotRead(Planted):
    spec = mapped(arrow=converted("semver", arrow, lambda text: _quiet(text)))
    caught_by = "test_malformed_text_has_no_arrow_form"


class TestSendFormatOfAnotherOrder(Planted):
    spec = spec(from_binary=lambda data: ".".join(map(str, struct.unpack("<iii", data))))
    caught_by = "test_the_send_format_gives_the_text"


class TestClaimsEverything(Planted):
    spec = spec(claims=lambda _type: True)
    caught_by = "test_it_claims_its_type_and_no_other"


class TestMalformedTextIsAKeyError(Planted):
    spec = spec(parse=lambda text: {"1.2.3": parse("1.2.3"), "0.10.0": parse("0.10.0")}[text])
    caught_by = "test_malformed_text_is_a_value_error"


class TestZeroOfAnotherShape(Planted):
    spec = mapped(fallback={"major": "0"})
    caught_by = "test_null_is_written_as_the_schema_allows"


class TestDefaultIsTheText(Planted):
    spec = replace(
        spec(),
        build=lambda column, mapper: replace(
            (made := spec().build(column, mapper)),
            schema=_with_default(made.schema, column.default),
        ),
    )
    caught_by = "test_defaults_are_values"


def _quiet(text: str) -> object:
    try:
        return parse(text)
    except ValueError:
        return None


def _with_default(schema: Schema, default: str | None) -> Schema:
    import msgspec

    return msgspec.structs.replace(schema, default=default)
