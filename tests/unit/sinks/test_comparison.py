"""How `waltap verify` connects to the source of a profile, and what a comparison looks like."""

import io

import pytest
from psycopg.conninfo import conninfo_to_dict
from rich.console import Console

from waltap.config.layers import read_tables
from waltap.config.resolve import resolve
from waltap.plugins.host import Host
from waltap_sinks.comparison.commands import dsn_of
from waltap_sinks.comparison.differences import TableDifferences, comparison_table


@pytest.mark.parametrize(
    ("given", "password"),
    [
        ({"database.password": "it's a secret"}, "it's a secret"),
        ({"database.password.command": "echo of the moment"}, "of the moment"),
        ({}, None),
    ],
)
def test_it_has_the_password_that_a_run_has(tmp_path, given, password):
    place = {"database.hostname": "db", "database.user": "u", "database.dbname": "shop"}
    tables = {
        "name": "p",
        "source": {"type": "postgres", **place, **given},
        "sink": {"type": "changelog", "path": str(tmp_path / "log")},
    }
    found = conninfo_to_dict(dsn_of(resolve(read_tables(tables), Host())))
    assert found.get("password") == password
    assert (found["host"], found["user"], found["dbname"]) == ("db", "u", "shop")


def test_a_table_is_named_as_it_is_called():
    found = TableDifferences(
        table="public.[b] x", source_rows=1, target_rows=1, source_hash="1", target_hash="1"
    )
    said = io.StringIO()
    Console(file=said, width=160).print(comparison_table([found], "Spark"))
    assert "public.[b] x" in said.getvalue()
