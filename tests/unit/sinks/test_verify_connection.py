"""How `waltap verify` connects to the source of a profile."""

from pathlib import Path

from psycopg.conninfo import conninfo_to_dict
from waltap.config.layers import read_tables
from waltap.config.resolve import resolve
from waltap.host import Host
from waltap_sinks.comparison.commands import dsn_of


def test_the_password_is_the_profiles(tmp_path: Path) -> None:
    source = {
        "type": "postgres",
        "database.hostname": "db",
        "database.user": "u",
        "database.password": "it's a secret",
        "database.dbname": "shop",
    }
    sink = {"type": "changelog", "path": str(tmp_path / "log")}
    profile = resolve(read_tables({"name": "p", "source": source, "sink": sink}), Host())
    found = conninfo_to_dict(dsn_of(profile))
    assert found["password"] == "it's a secret"
    assert (found["host"], found["user"], found["dbname"]) == ("db", "u", "shop")


def test_a_command_that_gives_it_is_asked(tmp_path: Path) -> None:
    source = {
        "type": "postgres",
        "database.hostname": "db",
        "database.user": "u",
        "database.dbname": "shop",
        "database.password.command": "echo of the moment",
    }
    sink = {"type": "changelog", "path": str(tmp_path / "log")}
    profile = resolve(read_tables({"name": "p", "source": source, "sink": sink}), Host())
    assert conninfo_to_dict(dsn_of(profile))["password"] == "of the moment"
