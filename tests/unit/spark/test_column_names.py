"""What columns are called by rules."""

import pytest

from waltap.errors import ConfigurationError
from waltap_sinks.changelog.manifest import ColumnEntry
from waltap_spark.column_names import ColumnNames, checked_renames
from waltap_spark.errors import NamesClash
from waltap_spark.plan import SegmentGroup
from waltap_spark.settings import apply_options, properties_of


@pytest.mark.parametrize(
    ("name", "snake"),
    [
        ("OrderID", "order_id"), ("orderId", "order_id"), ("HTTPServerName", "http_server_name"),
        ("already_snake", "already_snake"), ("Full Name", "full_name"), ("a-b", "a_b"),
        ("id2Name", "id2_name"), ("A", "a"), ("größeX", "größe_x"),
    ],
)  # fmt: skip
def test_snake_parts_words(name: str, snake: str) -> None:
    assert ColumnNames(("snake",)).of("s.t", name) == snake


def test_renames_come_before_styles_and_styles_are_by_table() -> None:
    names = ColumnNames((r"crm\..*:snake", "lower"), (r"crm\.(\w+)\.(.*)__c:$2_of_$1",))
    assert names.of("crm.orders", "Total__c") == "Total_of_orders"
    assert names.of("crm.orders", "OrderID") == "order_id"
    assert names.of("public.orders", "OrderID") == "orderid"
    assert names.of("t1.orders", "OrderID", ruled_as="crm.orders") == "order_id"
    assert ColumnNames().of("a.b", "OrderID") == "OrderID"


def group(*names: str) -> SegmentGroup:
    entries = tuple(ColumnEntry(name=each, type="text", arrow="string") for each in names)
    return SegmentGroup("f", 1, (names[0],), entries, oid=1, unchanged=dict.fromkeys(names[1:]))


def test_a_group_has_new_names_and_a_schema_of_its_own_once() -> None:
    found = group("OrderID", "note")
    names = ColumnNames(("snake",))
    names.name(found, "s.t")
    names.name(found, "s.t")
    assert found.called == {"OrderID": "order_id"}
    assert (found.key, [each.name for each in found.columns]) == (
        ("order_id",), ["order_id", "note"],
    )  # fmt: skip
    assert found.fingerprint.startswith("f-")
    alike = group("order_id", "note")
    names.name(alike, "s.t")
    assert (alike.called, alike.fingerprint) == ({}, "f")


@pytest.mark.parametrize(
    "columns", [("a", "A"), ("a", "_Op"), ("a", "_Valid_To"), ("a", "_SOURCE")]
)
def test_names_that_two_would_have_are_refused(columns: tuple[str, ...]) -> None:
    names = ColumnNames(("lower",))
    if columns[1] == "_SOURCE":
        names.name(group(*columns), "s.t")  # reserved where sources share a target alone
        return
    with pytest.raises(NamesClash, match=r"WT-5259"):
        names.name(group(*columns), "s.t")


@pytest.mark.parametrize("rule", ["a", ":b", "a:", "(:b", "a:$1"])
def test_a_rename_that_says_nothing_is_refused(rule: str) -> None:
    with pytest.raises(ValueError, match=r"."):
        checked_renames([rule])


def test_the_profile_says_both() -> None:
    made = properties_of(["columns.names=snake", r"columns.renames=.*\.(.*)__c:$1"], "/out")
    names = apply_options(made).names
    assert names.of("a.b", "Total__c") == "Total"
    assert names.of("a.b", "TotalSum") == "total_sum"
    with pytest.raises(ConfigurationError, match=r"columns\.names"):
        properties_of(["columns.names=upper"], "/out")
