"""Which tables are one, what they are called there, and which columns fit."""

import pytest

from waltap.errors import ConfigurationError
from waltap_spark.errors import NameTaken, SourcesDiffer
from waltap_spark.output import StoredTable, TableState, TargetTable
from waltap_spark.settings import apply_options, properties_of
from waltap_spark.shared_targets import (
    SharedShapes,
    TargetMappings,
    checked_places,
    require_place,
    sharers,
    union_columns,
)
from waltap_spark.target_mapping import TargetMapping
from waltap_spark.targets import NameClaims

INT, LONG, TEXT = '"integer"', '"long"', '"string"'
RULES = (r"t_(\w+)\.(.*):all.$2@$1", r"shard\d\.(orders):all.$1")


def source(schema: str, **columns: str) -> TableState:
    place = TargetMappings(RULES).of(schema, "orders")
    return TableState(schema=schema, table="orders", columns=columns, place=place)


def test_the_first_rule_that_matches_says_where_a_table_is_and_which_source() -> None:
    places = TargetMappings(RULES, "tenant")
    assert places.of("t_acme", "orders") == TargetMapping(
        schema="all", table="orders", source="acme", column="tenant"
    )
    found = places.of("shard7", "orders")
    assert found is not None
    assert (found.name, found.source) == ("all.orders", "shard7")
    assert places.of("T_acme", "orders") is None
    table = source("t_a", id=INT)
    assert (table.name, table.target_name) == ("t_a.orders", "all.orders")
    assert table.target_folder == "tables/all/orders"
    assert TableState(schema="a", table="b").target_name == "a.b"


@pytest.mark.parametrize("rule", ["orders", "a:b", "a:b.c@", ":b.c", "a:b.c.d", "a:$1.c", "(:b.c"])
def test_a_rule_that_gives_no_place_is_refused(rule: str) -> None:
    with pytest.raises(ValueError, match=r"."):
        checked_places([rule])


def test_the_profile_says_both_and_no_name_that_tables_have_for_something_else() -> None:
    made = properties_of([r"source.into=t_(\w+)\.(.*):all.$2@$1", "source.column=tenant"], "/out")
    place = apply_options(made).places.of("t_a", "orders")
    assert place == TargetMapping(schema="all", table="orders", source="a", column="tenant")
    with pytest.raises(ConfigurationError, match=r"_commit_LSN"):
        properties_of(["source.column=_commit_LSN"], "/out")


def test_a_type_that_does_not_fit_with_the_others_stops_that_source_alone() -> None:
    first, second = source("t_a", id=INT, n=INT), source("t_b", id=LONG, more=TEXT)
    assert union_columns([first, second]) == {"id": LONG, "n": INT, "more": TEXT}
    shapes = SharedShapes(lambda: {first.name: first})
    shapes.required(second)
    with pytest.raises(SourcesDiffer, match=r"column n of t_c\.orders.* is string, and integer"):
        shapes.required(source("t_c", id=INT, n=TEXT))
    shapes.required(source("t_c", id=INT, n=LONG))
    with pytest.raises(SourcesDiffer, match=r"both be source a of all\.orders"):
        shapes.required(TableState(schema="x", table="y", columns={"id": INT}, place=first.place))
    with pytest.raises(SourcesDiffer, match=r"all\.orders is called as the target"):
        shapes.required(TableState(schema="all", table="orders", columns={"id": INT}))
    alone = SharedShapes(
        lambda: {"all.orders": TableState(schema="all", table="orders", columns={"id": INT})}
    )
    with pytest.raises(SourcesDiffer, match=r"which is a table by itself"):
        alone.required(first)
    assert [each.name for each in sharers([second, first])["all.orders"]] == [
        "t_a.orders", "t_b.orders",
    ]  # fmt: skip


def test_a_column_that_every_source_dropped_comes_back_with_any_type() -> None:
    with_n = [source(schema, id=INT, n=INT) for schema in ("t_a", "t_b")]
    shapes = SharedShapes(lambda: {each.name: each for each in with_n})
    shapes.required(source("t_a", id=INT))
    with pytest.raises(SourcesDiffer, match=r"column n of t_a\.orders"):
        shapes.required(source("t_a", id=INT, n=TEXT))
    shapes.required(source("t_b", id=INT))
    shapes.required(source("t_a", id=INT, n=TEXT))
    with pytest.raises(SourcesDiffer, match=r"column n of t_b\.orders"):
        shapes.required(source("t_b", id=INT, n=INT))
    shapes.required(source("t_a", id=INT, n='"date"'))
    with pytest.raises(SourcesDiffer, match=r"column n of t_b\.orders"):
        shapes.required(source("t_b", id=INT, n=TEXT))


def test_a_pattern_may_have_what_stands_before_a_source() -> None:
    checked_places([r"t\.a@b:all.c", r"t\.a@b:all.c@d"])
    assert TargetMappings((r"t\.a@b:all.c",)).of("t", "a@b") == TargetMapping(
        schema="all", table="c", source="t"
    )


def test_a_name_may_have_a_dot_that_a_rule_puts_into_another() -> None:
    places = TargetMappings((r"(.*)\.(\w+):$1.$2@$2",))
    assert places.of("a.b", "orders") == TargetMapping(
        schema="a.b", table="orders", source="orders"
    )
    checked_places([r"(.*)\.(\w+):all\.$2"])
    place = TargetMappings((r"(.*)\.(\w+):all\.$2",)).of("t", "orders")
    assert place == TargetMapping(schema="all", table="orders", source="t")


@pytest.mark.parametrize("into", ["all.$2@$1", "all.$1", "$1.$2"])
def test_a_group_that_matches_nothing_gives_no_name(into: str) -> None:
    places = TargetMappings((rf"t(\d)?\.(.*):{into}",))
    named = places.of("t1", "orders")
    require_place(TableState(schema="t1", table="orders", place=named), places, ["id"])
    place = places.of("t", "orders")
    with pytest.raises(SourcesDiffer, match=r"source\.into.* t\.orders no name"):
        require_place(TableState(schema="t", table="orders", place=place), places, ["id"])


def test_a_place_is_given_once_and_its_column_is_nobody_elses() -> None:
    places = TargetMappings(RULES)
    require_place(source("t_a"), places, ["id"])
    with pytest.raises(
        SourcesDiffer, match=r"was made source a of all\.orders.*by itself"
    ) as refused:
        require_place(source("t_a"), TargetMappings(), ["id"])
    assert "put back the rule under which it was made (source.into, source.column)" in str(
        refused.value.advice()
    )
    with pytest.raises(SourcesDiffer, match=r"column _Source of t_a\.orders"):
        require_place(source("t_a"), places, ["id", "_Source"])


def test_sources_share_a_name_with_other_sources_and_with_nobody_else() -> None:
    held = StoredTable(targets={"current": TargetTable(at="c.all.orders")})
    first = source("t_a", id=INT)
    tables = {first.name: TableState(schema="t_a", table="orders", held=held, place=first.place)}
    claims = NameClaims(lambda: tables)
    claims.take("t_b.orders", ["c.all.orders"], tells_case=True, source="b")
    with pytest.raises(NameTaken, match=r"that is t_a\.orders's already"):
        claims.take("other.orders", ["c.all.orders"], tells_case=True, source="a")
    with pytest.raises(NameTaken, match=r"already"):
        claims.take("all.orders", ["c.all.orders"], tells_case=True)
