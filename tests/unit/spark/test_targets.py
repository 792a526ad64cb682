"""What targets are called, whose they are, and what their files are divided by."""

import pytest

from waltap.errors import ConfigurationError
from waltap_spark.errors import FormatLimit, NameTaken
from waltap_spark.formats.choice import FormatChoice
from waltap_spark.output import StoredTable, TableState, TargetTable
from waltap_spark.targets import (
    FileLayout,
    NameClaims,
    PartitionField,
    checked_divisions,
    checked_names,
    named,
)

RULES = (r"public\.(.*)_changes:$1_log", r"crm\.Orders:raw.orders_upper", r"odd\..*:$0")


def test_a_table_is_called_by_the_first_rule_that_matches_its_name_as_it_is_written() -> None:
    assert named(RULES, "public", "orders_changes") == ("public", "orders_log")
    assert named(RULES, "crm", "Orders") == ("raw", "orders_upper")
    assert named(RULES, "crm", "orders") == ("crm", "orders")
    assert named(RULES, "odd", "t") == ("odd", "t")


def test_a_group_that_matches_nothing_gives_no_name() -> None:
    rules = (r"crm\.(\w+)_x|crm\.other:raw.$1",)
    assert named(rules, "crm", "orders_x") == ("raw", "orders")
    with pytest.raises(FormatLimit, match=r"gives crm\.other no name"):
        named(rules, "crm", "other")


@pytest.mark.parametrize("rule", ["orders", r"public\.a:", ":b", "a:b.c.d", "a:b.", "a:$1", "(:b"])
def test_a_rule_that_gives_no_name_is_refused(rule: str) -> None:
    with pytest.raises(ValueError, match=r"."):
        checked_names([rule])


def holding(name: str, *targets: str) -> TableState:
    schema, _, table = name.partition(".")
    held = StoredTable(targets={str(n): TargetTable(at=at) for n, at in enumerate(targets)})
    return TableState(schema=schema, table=table, held=held)


def test_a_name_is_one_tables_and_all_of_a_tables_names_are_taken_or_none() -> None:
    tables = {"p.a": holding("p.a", "c.p.a", "c.p.a_changes")}
    claims = NameClaims(lambda: tables)
    claims.take("p.a", ["c.p.a", "c.p.a_changes"], tells_case=True)
    with pytest.raises(NameTaken, match=r"p\.a's already") as told:
        claims.take("p.a_changes", ["c.p.x", "c.p.a_changes"], tells_case=True)
    assert r"format.names = p\.a_changes:NAME" in str(told.value)
    claims.take("p.b", ["c.p.x"], tells_case=True)
    claims.take("p.A", ["c.p.A"], tells_case=True)
    with pytest.raises(NameTaken, match=r"take for c\.p\.x"):
        claims.take("p.X", ["c.p.X"], tells_case=False)
    claims.release("p.b")
    claims.take("p.X", ["c.p.X"], tells_case=False)


def test_divisions_are_columns_or_transforms_of_them() -> None:
    rules = r"p\.a:region,days(we ird), bucket(16, id);.*/changes:_op"
    checked_divisions(rules, transforms=True)
    layout = FileLayout.of("p.a", rules, r"p\..*:region,id")
    assert layout.partition == (
        PartitionField("region"),
        PartitionField("we ird", "days"),
        PartitionField("id", "bucket", 16),
    )
    assert [each.sql for each in layout.partition] == [
        "`region`", "days(`we ird`)", "bucket(16, `id`)",
    ]  # fmt: skip
    assert layout.cluster == ("region", "id")
    assert FileLayout.of("p.a/changes", rules, "").partition == (PartitionField("_op"),)
    assert FileLayout.of("p.b", rules, "") == FileLayout()
    layout.require("p.a", ["region", "we ird", "id", "more"])
    with pytest.raises(FormatLimit, match=r"divided by we ird, which it does not have"):
        layout.require("p.a", ["region", "id"])


@pytest.mark.parametrize(
    ("table_format", "name", "value", "told"),
    [
        ("delta", "partition.by", r"p\.a:days(at)", r"format\.partition\.by.*columns alone"),
        ("delta", "partition.by", "region", r"TABLE-REGEX:COLUMN"),
        ("iceberg", "cluster.by", r"p\.a:id,,b", r"TABLE-REGEX:COLUMN"),
        ("iceberg", "names", r"p\.a:b", r"format\.catalog, which is not given"),
        ("parquet", "partition.by", r"p\.a:region", r"format\.partition\.by"),
    ],
)
def test_what_a_format_cannot_do_is_refused_by_the_name_of_the_property(
    table_format: str, name: str, value: str, told: str
) -> None:
    with pytest.raises(ConfigurationError, match=told):
        _ = FormatChoice(table_format, {f"format.{name}": value}).factory
