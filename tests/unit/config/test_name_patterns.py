"""The forms that patterns of tables and columns may have, and which of them match nothing."""

import random

import pytest

from waltap.capture.java_regex import NameMatcher
from waltap.config.name_patterns import Names, spoken


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
