"""What this converter is for: which columns it takes, and that its values are of its schema."""

import pytest

from waltap.changes.mapping.conversion import carried
from waltap_testing.workload import ITEMS
from waltap_isbn.plugin import register_converters
from waltap_isbn.converter import IsbnProperties

(SPEC,) = register_converters()
PROPERTIES = IsbnProperties.model_validate({"columns": "public.items.name"})
NAME = next(column for column in ITEMS.columns if column.name == "name")


def test_it_takes_the_columns_that_are_named_and_no_others():
    taken = [column.name for column in ITEMS.columns if SPEC.factory(PROPERTIES)(ITEMS, column)]
    assert taken == ["name"]


def test_values_are_those_of_the_schema():
    conversion = SPEC.factory(PROPERTIES)(ITEMS, NAME)
    number, nothing = conversion.values(["978-3-16-148410-0", None])
    assert number == {"group": "3", "publisher": "16", "title": "148410", "check": 0}
    assert carried(conversion.schema, number) == (
        '{"group":"3","publisher":"16","title":"148410","check":0}'
    )
    assert nothing is None
    assert carried(conversion.schema, nothing) is None


def test_another_text_is_an_error_that_waltap_tells_of():
    conversion = SPEC.factory(PROPERTIES)(ITEMS, NAME)
    with pytest.raises(ValueError, match="unpack"):
        conversion.values(["no number"])
