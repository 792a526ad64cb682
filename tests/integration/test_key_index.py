"""Which columns are the key of a table, by either rule; Debezium's is recorded in the corpus key_index."""

from pathlib import Path

import pytest
from waltap_postgres.catalog.catalogue import PostgresCatalogue
from waltap_postgres.properties import PostgresProperties

from tests.servers.postgres import Database

SETUP = Path(__file__).parents[1] / "differential" / "corpora" / "key_index" / "setup.sql"

SOUND = {
    "b_included": ("a",),
    "e_partial": ("b",),
    "j_primary_include": ("b",),
    "k_primary_deferrable": ("a",),
    "l_hash_not_unique": ("b",),
}
"""Tables that have a key which holds for every row; all others of the corpus have none."""

LISTED = {
    "a_nullable": ("pk",),
    "b_included": ("a", "c"),
    "c_expression_first": ("a",),
    "e_partial": ("a",),
    "f_deferrable": ("a",),
    "g_by_name": ("c", "b"),
    "h_clustered": ("b",),
    "i_upper": ("a",),
    "j_primary_include": ("b",),
    "k_primary_deferrable": ("a",),
    "l_hash_not_unique": ("b",),
    "n_call": ("a",),
    "o_order": ("c", "a"),
    "q_mixed_first": ("a",),
}


@pytest.mark.parametrize(("rule", "keys"), [("sound", SOUND), ("debezium", LISTED)])
def test_a_table_without_primary_key_has_the_key_of_the_rule(
    database: Database, rule: str, keys: dict[str, tuple[str, ...]]
) -> None:
    database.psql(SETUP)
    properties = PostgresProperties.model_construct(key_index=rule)
    with database.connect(autocommit=True) as connection:
        tables = PostgresCatalogue(connection, properties).tables()
    assert len(tables) > len(keys)
    found = {t.relation.table: t.relation.primary_key for t in tables if t.relation.primary_key}
    assert found == keys


def test_a_deferrable_primary_key_supports_no_updates(database: Database) -> None:
    """PostgreSQL takes no deferrable key for a replica identity, and refuses updates then."""
    database.psql(SETUP)
    with database.connect(autocommit=True) as connection:
        catalogue = PostgresCatalogue(connection, PostgresProperties.model_construct())
        table = catalogue.table("public", "k_primary_deferrable")
    assert table is not None
    assert not table.supports_updates
    assert not any(column.in_identity for column in table.relation.columns)
