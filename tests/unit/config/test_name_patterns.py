"""The forms that patterns of tables and columns may have, and which of them match nothing."""

from typing import Any

import pytest

from waltap.changes.capture.java_regex import NameMatcher
from waltap.config.layers import read_tables
from waltap.config.name_patterns import CatalogNames, spoken, unmatched
from waltap.config.resolve import resolve
from waltap.plugins.host import Host


def matches(pattern: str, kind: str, name: str, database: str = "shop") -> bool:
    return NameMatcher(spoken(pattern, database, kind))(name)


def test_a_column_and_a_table_may_be_named_with_their_database():
    for pattern in (
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
    ):
        assert matches(pattern, "columns", "public.users.secret"), pattern
        assert not matches(pattern, "columns", "public.users.plain"), pattern
        assert not matches(pattern, "columns", "public.other.secret"), pattern
    for pattern in (r"shop\..*", "shop.*", "s.*", "shop_eu.t", r"sh\.op\.t"):
        assert spoken(pattern, "shop", "tables") == (pattern,), "the name of a schema is none"
    assert matches("shop.public.orders", "tables", "public.orders")
    assert matches(r"shop\.(public|app)\.orders", "tables", "app.orders")
    assert not matches("shop.orders", "tables", "public.orders")


def test_names_show_what_matches():
    names = CatalogNames([("public", "users", "id", "int4"), ("app", "empty", None, None)])
    assert names.match("schemas", "app")
    assert names.match("tables", r"app\.e.*")
    assert names.match("columns", r"PUBLIC\.users\.id")
    assert names.match("types", r".*\.serial")
    assert names.match("cells", "public.users:id")
    assert not names.match("columns", r"public\.users")


SOURCE = {"type": "postgres", "database.dbname": "shop"}
LINES = {"type": "jsonl", "path": "/lines"}


def idle(tables: dict[str, Any], *columns: str) -> set[str]:
    """Return the patterns of a profile that match none of ``columns``."""
    given = {"name": "p", "source": SOURCE, "sink": LINES, **tables}
    topics = [f"shop.{each.rpartition('.')[0]}" for each in columns]
    known = CatalogNames(((*each.split("."), "text") for each in columns), topics, topics)  # type: ignore[misc]
    profile = resolve(read_tables(given), Host())
    return {each.pattern for each in unmatched(profile, lambda: known)}


SPARK = {"type": "spark", "path": "/tables"}
ROUTE = {"type": "route", "regex": r"public\.(.*)", "replacement": "other.$1"}
ROUTER = {"type": "regex-router", "regex": r"other\..*", "replacement": "x"}
TOPICS = {
    "type": "kafka",
    "bootstrap.servers": "b:1",
    "topic.creation.groups": "big,none",
    "topic.creation.big.include": r"x,.*\.public\.a",
    "topic.creation.none.include": "y.*",
}
QUERY = "snapshot.select.statement.overrides"
LOOKED_UP: dict[str, tuple[dict[str, Any], list[str], set[str]]] = {
    "rules of a sink": (
        {"sink": SPARK | {
            "mode": r"public\.logs:append,public\.gone:append,scd1",
            "deletes": r"all\.orders:soft,tenant_1\.orders:soft,hard",
            "columns.names": "snake",
            "columns.renames": r".*\.(.*)__c:$1,.*\.none:x",
            "source.into": r"tenant_(\d)\.(.*):all.$2@$1,shard_.*:all.s",
        }},
        ["tenant_1.orders.id__c", "public.logs.id"],
        {r"public\.gone:append", r"tenant_1\.orders:soft", r".*\.none:x", r"shard_.*:all.s"},
    ),
    "rules of a table format, where case counts": (
        {"sink": SPARK | {
            "format": "delta",
            "format.catalog": "spark_catalog",
            "format.names": r"public\.orders:a,PUBLIC\.orders:b,public\.orders_changes:c",
            "format.partition.by": r"public\.orders:region,id;.*/changes:_op;public\.none:x",
            "format.cluster.by": r"all\.shards:id;shard_1\.orders:id",
            "source.into": r"shard_(\d)\.(.*):all.shards@$1,SHARD.*:all.s",
        }},
        ["public.orders.id", "shard_1.orders.id"],
        {r"PUBLIC\.orders:b", r"public\.orders_changes:c", r"public\.none:x", r"shard_1\.orders:id", "SHARD.*:all.s"},
    ),
    "topics": ({"sink": TOPICS}, ["public.a.id"], {"x", "y.*"}),
    "no topics behind a router": ({"sink": TOPICS, "transforms": [ROUTE, ROUTER]}, ["public.a.id"], set()),
    "a predicate and a naming strategy": (
        {
            "source": SOURCE | {
                "topic.naming.strategy": "schema_regex",
                "topic.regex": r"shop\.public\.b(.*)",
                "topic.replacement": "b",
                "topic.key.field.regex": r"shop\.(.*)",
                "topic.key.field.replacement": "$1",
            },
            "predicates": {"mine": {"type": "TopicNameMatches", "pattern": r"shop\.publik\..*"}},
            "transforms": [{"type": "record-filter", "condition": "true", "predicate": "mine"}],
        },
        ["public.a.id"],
        {r"shop\.publik\..*", r"shop\.public\.b(.*)"},
    ),
    "names of tables behind a property": (
        {"source": SOURCE | {
            QUERY: "public.a,shop.public.a,public.gone",
            f"{QUERY}.public.a": "SELECT 1",
            f"{QUERY}.public.unlisted": "SELECT 1",
            "snapshot.max.threads.multiplier.public.a": "2",
            "snapshot.max.threads.multiplier.public.none": "2",
        }},
        ["public.a.id"],
        {"public.gone", "public.unlisted", "public.none"},
    ),
}  # fmt: skip
"""What a profile has, the columns of its source, and the patterns that match none."""


@pytest.mark.parametrize("case", LOOKED_UP)
def test_patterns_are_looked_up(case):
    tables, columns, unused = LOOKED_UP[case]
    assert idle(tables, *columns) == unused
