"""Which type holds two others without losing a value; None where only text would."""

import json

import pytest

from waltap_spark.schema import common_type


def of(text: str) -> str:
    return json.dumps(text)


@pytest.mark.parametrize(
    ("one", "other", "common"),
    [
        ("short", "integer", "integer"),
        ("integer", "long", "long"),
        ("float", "double", "double"),
        ("integer", "double", "double"),
        ("long", "double", None),
        ("integer", "float", None),
        ("decimal(10,2)", "decimal(12,1)", "decimal(13,2)"),
        ("decimal(38,2)", "decimal(38,10)", None),
        ("integer", "decimal(10,2)", "decimal(12,2)"),
        ("short", "decimal(10,2)", "decimal(10,2)"),
        ("long", "decimal(38,20)", None),
        ("string", "integer", None),
        ("date", "timestamp", None),
        ("timestamp", "timestamp_ntz", None),
        ("boolean", "integer", None),
    ],
)
def test_a_common_type_holds_every_value_of_both(one: str, other: str, common: str | None) -> None:
    expected = None if common is None else of(common)
    assert common_type(of(one), of(other)) == expected
    assert common_type(of(other), of(one)) == expected


def test_arrays_widen_with_their_elements() -> None:
    def array(element: str) -> str:
        return json.dumps({"type": "array", "elementType": element, "containsNull": True})

    found = common_type(array("integer"), array("long"))
    assert found is not None
    assert json.loads(found) == json.loads(array("long"))
    assert common_type(array("integer"), array("string")) is None
    assert common_type(array("integer"), of("integer")) is None
