"""How `waltap verify` connects to the source of a profile."""

from pathlib import Path

import pytest
from psycopg.conninfo import conninfo_to_dict
from waltap.config.layers import read_tables
from waltap.config.resolve import resolve
from waltap.host import Host
from waltap_sinks.comparison.commands import dsn_of


@pytest.mark.parametrize(
    ("given", "password"),
    [
        ({"database.password": "it's a secret"}, "it's a secret"),
        ({"database.password.command": "echo of the moment"}, "of the moment"),
        ({}, None),
    ],
)
def test_it_has_the_password_that_a_run_has(
    tmp_path: Path, given: dict[str, str], password: str | None
) -> None:
    place = {"database.hostname": "db", "database.user": "u", "database.dbname": "shop"}
    tables = {
        "name": "p",
        "source": {"type": "postgres", **place, **given},
        "sink": {"type": "changelog", "path": str(tmp_path / "log")},
    }
    found = conninfo_to_dict(dsn_of(resolve(read_tables(tables), Host())))
    assert found.get("password") == password
    assert (found["host"], found["user"], found["dbname"]) == ("db", "u", "shop")
