"""Send format against text output, on a real server: one value read both ways must be the same."""

import json
from dataclasses import replace
from typing import Any

import psycopg
import pytest

from tests.harness.typed_values import LITERALS, UNKNOWN, both_once, typed
from waltap.decode.relation import Relation
from waltap.arrow.tuples import RelationCodec
from waltap.json.schema import value_json
from waltap.mapping.type_mapping import TypeOptions
from waltap.mapping.type_registry import TypeRegistry
from waltap_testing.installed import installed_types

CASES = [pytest.param(name, id=name) for name in LITERALS]
MODES = [
    TypeOptions(),
    TypeOptions(
        time_precision_mode="isostring",
        decimal_handling_mode="string",
        hstore_handling_mode="map",
        interval_handling_mode="string",
        binary_handling_mode="hex",
        infinite_date="extreme",
        multidimensional_arrays="literal",
    ),
    TypeOptions(
        time_precision_mode="nanoseconds",
        decimal_handling_mode="double",
        binary_handling_mode="base64-url-safe",
    ),
    TypeOptions(time_precision_mode="connect", binary_handling_mode="base64"),
]


@pytest.mark.parametrize("type_name", CASES)
def test_text_made_from_send_format_is_the_servers(
    typed: psycopg.Connection[Any], type_name: str
) -> None:
    column, values = both_once(typed, type_name, LITERALS[type_name])
    mapping = TypeRegistry(installed_types()).column(column)
    assert mapping is not None
    assert mapping.from_binary is not None
    for text, sent in values:
        assert mapping.from_binary(sent) == text


@pytest.mark.parametrize("type_name", UNKNOWN)
def test_text_of_unknown_types_is_the_servers(
    typed: psycopg.Connection[Any], type_name: str
) -> None:
    column, values = both_once(typed, type_name, UNKNOWN[type_name])
    assert TypeRegistry(installed_types()).column(column) is None
    mapping = TypeRegistry(installed_types(), TypeOptions(include_unknown_datatypes=True)).column(
        column
    )
    assert mapping is not None
    assert mapping.opaque or column.data_type.element is not None
    assert mapping.from_binary is not None
    for text, sent in values:
        assert mapping.from_binary(sent) == text


@pytest.mark.parametrize("options", MODES, ids=["default", "text", "numbers", "connect"])
@pytest.mark.parametrize("type_name", CASES)
def test_json_is_the_json_of_the_connect_value(
    typed: psycopg.Connection[Any], type_name: str, options: TypeOptions
) -> None:
    column, values = both_once(typed, type_name, LITERALS[type_name])
    mapping = TypeRegistry(installed_types(), options).column(column)
    assert mapping is not None
    for text, _ in values:
        found = mapping.json(text)
        expected = value_json(mapping.schema, mapping.to_connect(text))
        assert equal(json.loads(found), json.loads(expected)), text


def equal(a: object, b: object) -> bool:
    """Compare parsed JSON, numbers also in kind."""
    if isinstance(a, list) and isinstance(b, list):
        return len(a) == len(b) and all(map(equal, a, b))
    if isinstance(a, dict) and isinstance(b, dict):
        return list(a) == list(b) and all(equal(a[key], b[key]) for key in a)
    return type(a) is type(b) and a == b


@pytest.mark.parametrize("policy", ["null", "string"])
@pytest.mark.parametrize("type_name", CASES)
def test_arrow_column_is_the_same_from_both_formats(
    typed: psycopg.Connection[Any], type_name: str, policy: str
) -> None:
    column, values = both_once(typed, type_name, LITERALS[type_name])
    relation = Relation(oid=1, schema="s", table="t", columns=(column,))
    options = replace(TypeOptions(), arrow_misfit=policy)
    codec = RelationCodec(relation, TypeRegistry(installed_types(), options))
    from_text = codec.batch([(None,), *((text,) for text, _ in values)])
    from_sent = codec.batch([(None,), *((sent,) for _, sent in values)])
    from_text.validate(full=True)
    from_sent.validate(full=True)
    assert str(from_text.column(0)) == str(from_sent.column(0))  # NaN equals itself as text
    assert from_text.schema == from_sent.schema == codec.schema
    assert from_text.column(0).null_count >= 1
