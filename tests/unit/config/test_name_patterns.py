"""The forms that patterns of tables and columns may have, and which of them match nothing."""

import random
from typing import Any

import pytest

from waltap.capture.java_regex import NameMatcher
from waltap.config.layers import read_tables
from waltap.config.name_patterns import Names, spoken, unmatched
from waltap.config.resolve import resolve
from waltap.host import Host


def matches(pattern: str, kind: str, name: str, database: str = "shop") -> bool:
    return NameMatcher(spoken(pattern, database, kind))(name)


@pytest.mark.parametrize(
    "pattern",
    [
        "public.users.secret",
        r"public\.users\.secret",
        "shop.public.users.secret",
        r"shop\.public\.users\.secret",
        r"SHOP\.public\.users\.se.*",
        "shop.users.secret",
        r"shop\.users\.secret",
        r"(?i)shop\.users\.secret",
        r"^shop\.users\.secret$",
        r"(shop\.users|shop\.orders)\.secret",
        r"(?:shop\.public\.users|x\.y)\.secret",
        r"shop[.]users[.]secret",
        r"\Qshop\E\.users\.secret",
    ],
)
def test_a_column_may_be_named_with_its_database(pattern: str) -> None:
    assert matches(pattern, "columns", "public.users.secret")
    assert not matches(pattern, "columns", "public.users.plain")
    assert not matches(pattern, "columns", "public.other.secret")


@pytest.mark.parametrize("pattern", [r"shop\..*", "shop.*", "s.*", "shop_eu.t", r"sh\.op\.t"])
def test_a_table_list_takes_no_name_of_a_schema_for_that_of_the_database(pattern: str) -> None:
    assert spoken(pattern, "shop", "tables") == (pattern,)


def test_a_table_may_be_named_with_its_database() -> None:
    assert matches("shop.public.orders", "tables", "public.orders")
    assert matches(r"shop\.(public|app)\.orders", "tables", "app.orders")
    assert not matches("shop.orders", "tables", "public.orders")


def test_three_parts_of_a_column_are_read_in_both_ways() -> None:
    assert matches(r"shop\.users\.secret", "columns", "shop.users.secret")
    assert matches(r"shop\.users\.secret", "columns", "app.users.secret")
    assert matches("shop.users", "tables", "shop.users")
    assert not matches("shop.users", "tables", "public.users")


def test_names_of_databases_may_have_any_letters() -> None:
    chance = random.Random(7)
    for _ in range(200):
        database = "".join(chance.choices("aB-+.( $é1", k=chance.randint(1, 6)))
        text = "".join(f"\\{c}" if c in "-+.($" else c for c in database)
        for name in (rf"{text}\.users\.secret", rf"{text}.public.users.secret"):
            assert matches(name, "columns", "public.users.secret", database), (database, name)


def test_names_tell_what_matches() -> None:
    names = Names([("public", "users", "id", "int4"), ("app", "empty", None, None)])
    assert names.match("schemas", "app")
    assert names.match("tables", r"app\.e.*")
    assert names.match("columns", r"PUBLIC\.users\.id")
    assert names.match("types", r".*\.serial")
    assert names.match("cells", "public.users:id")
    assert not names.match("columns", r"public\.users")


def idle(tables: dict[str, Any], *columns: str) -> set[str]:
    """Return the patterns of a profile that match none of ``columns``."""
    source = {"type": "postgres", "database.dbname": "shop"}
    profile = resolve(read_tables({"name": "p", "source": source, **tables}), Host())
    known = Names((*each.split("."), "text") for each in columns)  # type: ignore[misc]
    return {each.pattern for each in unmatched(profile, lambda: known)}


def test_rules_of_a_sink_are_looked_up_by_their_patterns() -> None:
    sink = {
        "type": "spark",
        "path": "/tables",
        "mode": r"public\.logs:append,public\.gone:append,scd1",
        "deletes": r"all\.orders:soft,tenant_1\.orders:soft,hard",
        "columns.names": "snake",
        "columns.renames": r".*\.(.*)__c:$1,.*\.none:x",
        "source.into": r"tenant_(\d)\.(.*):all.$2@$1,shard_.*:all.s",
    }
    found = idle({"sink": sink}, "tenant_1.orders.id__c", "public.logs.id")
    assert found == {
        r"public\.gone:append",
        r"tenant_1\.orders:soft",
        r".*\.none:x",
        r"shard_.*:all.s",
    }


@pytest.mark.parametrize(("regex", "unused"), [(r"public\.a;(.*)", True), (r"public\.(.*)", False)])
def test_a_route_is_looked_up_as_one_pattern(regex: str, unused: bool) -> None:
    route = {"type": "route", "regex": regex, "replacement": "t.$1"}
    sink = {"type": "jsonl", "path": "/lines"}
    assert idle({"sink": sink, "transforms": [route]}, "public.a.id") == (
        {regex} if unused else set()
    )
