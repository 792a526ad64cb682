"""What the catalogue says of a column beside its type: its number, and the value of older rows."""

import msgspec
import pytest
from tests.harness.servers.postgres import Database

from waltap.changes.decode.relation import Column
from waltap.ports.source.relation_memory import RelationMemory
from waltap_postgres.catalog.catalogue import PostgresCatalogue
from waltap_postgres.catalog.description import RelationDescriber
from waltap_postgres.properties import PostgresProperties

OUTPUT = "-c timezone=UTC -c datestyle=ISO -c bytea_output=hex"


def columns(database: Database, table: str, seen: list[str] | None = None) -> dict[str, Column]:
    """Return the columns of ``table``; ``seen``: as the stream has announced them, by name."""
    with database.connect(options=OUTPUT, autocommit=True) as connection:
        catalogue = PostgresCatalogue(connection, PostgresProperties.model_construct())
        relation = catalogue.relation("public", table)
        assert relation is not None
        if seen is not None:
            wire = tuple(Column(name=name, type_oid=23) for name in seen)
            relation = RelationDescriber(catalogue, RelationMemory()).describe(
                msgspec.structs.replace(relation, columns=wire, primary_key=None)
            )
    return {column.name: column for column in relation.columns}


def test_a_columns_number_outlives_its_name(database: Database) -> None:
    database.psql(
        "create table t (id int primary key, a int, b int, c int);"
        "alter table t drop column a; alter table t rename column b to a;"
        "alter table t add column b int"
    )
    found = columns(database, "t")
    assert {name: column.number for name, column in found.items()} == {
        "id": 1, "a": 3, "c": 4, "b": 5,
    }  # fmt: skip
    described = columns(database, "t", ["id", "a", "c"])
    assert [described[name].number for name in ("id", "a", "c")] == [1, 3, 4]


def test_a_table_that_is_being_altered_is_described_all_the_same(database: Database) -> None:
    """Reading a default locks the table; whoever alters it, or has prepared that, may take for ever."""
    database.psql(
        "create table t (id int primary key, v text default 'x');"
        "create table u (id int primary key, v text default 'y')"
    )
    with database.connect(autocommit=True) as other:
        other.execute("BEGIN; ALTER TABLE t ADD w int")
        found = columns(database, "t")
        with database.connect(options=OUTPUT, autocommit=True) as connection:
            catalogue = PostgresCatalogue(connection, PostgresProperties.model_construct())
            tables = {table.relation.table: table for table in catalogue.tables()}
        other.execute("ROLLBACK")
    assert list(found) == ["id", "v"]
    assert found["v"].nullable
    assert not tables["t"].defaults_known
    assert tables["u"].defaults_known
    assert tables["u"].relation.columns[1].default == "'y'::text"
    assert columns(database, "t")["v"].default == "'x'::text"


@pytest.mark.parametrize(
    ("added", "missing"),
    [
        ("int default 7", "7"),
        ("text default 'a,\"b\" {c} \\'", 'a,"b" {c} \\'),
        ("text default ''", ""),
        ("text default 'NULL'", "NULL"),
        ("int[] default '{1,2}'", "{1,2}"),
        ("text[] default '{\"x y\",NULL}'", '{"x y",NULL}'),
        ("bytea default '\\x00ff'", "\\x00ff"),
        ("timestamptz default '2024-01-01 12:00+02'", "2024-01-01 10:00:00+00"),
        ("numeric default 'NaN'", "NaN"),
        ("int", None),
        ("int default null", None),
        ("float8 default random()", None),
    ],
)
def test_a_constant_default_is_the_value_of_the_rows_before_it(
    database: Database, added: str, missing: str | None
) -> None:
    database.psql(f"create table t (id int primary key); insert into t values (1);"
                  f"alter table t add column v {added}; alter table t alter column v drop default")  # fmt: skip
    assert columns(database, "t")["v"].missing == missing
