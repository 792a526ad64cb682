"""`waltap plan`: what a start would make, told before; and then exactly that is made."""

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.harness import command
from tests.harness.servers.postgres import Database


def profile(database: Database, folder: Path, **more: object) -> Path:
    settings = {
        "type": "postgres",
        **database.properties(),
        "slot.name": "plan_" + database.name[-20:],
        "publication.name": "plan_" + database.name[-20:],
        "publication.autocreate.mode": "filtered",
        "waltap.state.dir": str(folder / "state"),
        **more,
    }
    lines = "\n".join(f'"{name}" = {json.dumps(value)}' for name, value in settings.items())
    path = folder / "shop.toml"
    path.write_text(f'name = "shop"\n[source]\n{lines}\n[sink]\ntype = "null"\n')
    return path


def waltap(path: Path, *arguments: str, code: int = 0) -> str:
    done = command.waltap(*arguments, path, cwd=path.parent, COLUMNS="200")
    assert done.returncode == code, done.stdout + done.stderr
    return done.stdout


def plan(path: Path, *arguments: str, code: int = 0) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(waltap(path, "plan", "--json", *arguments, code=code))
    return found


@pytest.fixture
def shop(database: Database) -> Database:
    database.execute(
        "CREATE TABLE t (id int PRIMARY KEY, price numeric(10,2), at timestamptz);"
        "INSERT INTO t SELECT g, g, now() FROM generate_series(1, 5000) g;"
        "CREATE TABLE whole (id int PRIMARY KEY); ALTER TABLE whole REPLICA IDENTITY FULL;"
        "CREATE TABLE parts (id int PRIMARY KEY) PARTITION BY RANGE (id);"
        "CREATE TABLE part PARTITION OF parts FOR VALUES FROM (0) TO (10);"
        "INSERT INTO parts VALUES (1); ANALYZE"
    )
    return database


def made(database: Database) -> list[tuple[Any, ...]]:
    return database.execute(
        "SELECT pubname::text FROM pg_publication UNION ALL"
        " SELECT slot_name::text FROM pg_replication_slots WHERE database = current_database()"
    )


def test_a_plan_tells_everything_and_makes_nothing(shop: Database, tmp_path: Path) -> None:
    path = profile(shop, tmp_path, **{"replica.identity.autoset.values": "public.t:FULL"})
    found = plan(path)
    alter, publication = found["statements"]
    assert alter == 'ALTER TABLE "public"."t" REPLICA IDENTITY FULL'
    assert publication.startswith('CREATE PUBLICATION "plan_')
    assert found["slot"].startswith("CREATE_REPLICATION_SLOT")
    assert found["by_others"] == []
    tables = {each["table"]: each for each in found["tables"]}
    assert tables["public.t"]["rows"] == 5000
    assert tables["public.t"]["bytes"] > 100_000
    assert tables["public.t"]["key"] == ["id"]
    assert tables["public.t"]["read"]
    assert "FULL: the whole row" in tables["public.whole"]["before"]
    assert sum(each["bytes"] or 0 for name, each in tables.items() if "part" in name) > 0
    columns = {each["name"]: each for each in tables["public.t"]["columns"]}
    assert columns["price"]["arrow"] == "decimal128(10, 2)"
    assert "ZonedTimestamp" in columns["at"]["schema"]
    assert found["snapshot"]["rows"] >= 5000
    assert made(shop) == []


def test_what_was_planned_is_what_is_made(shop: Database, tmp_path: Path) -> None:
    path = profile(shop, tmp_path)
    shown = waltap(path, "plan", "--types")
    assert "CREATE PUBLICATION" in shown
    assert "decimal128(10, 2)" in shown
    waltap(path, "run", "--until-idle", "0.5")
    after = plan(path)
    assert after["statements"] == []
    assert after["slot"] is None
    assert not any(each["read"] for each in after["tables"])
    assert len(made(shop)) == 2


def test_the_sql_of_a_plan_is_what_a_role_without_rights_needs(
    shop: Database, tmp_path: Path
) -> None:
    role = "poor_" + shop.name[-20:]
    shop.execute(f"CREATE ROLE {role} LOGIN REPLICATION")
    try:
        path = profile(
            shop, tmp_path, **{"database.user": role, "signal.data.collection": "public.signals"}
        )
        script = waltap(path, "plan", "--sql", code=1)
        assert "GRANT SELECT ON" in script
        assert "CREATE TABLE" in script
        shop.psql(script)
        waltap(path, "plan", "--sql")
        waltap(path, "run", "--until-idle", "0.5")
    finally:
        waltap(path, "drop", "--yes")
        shop.execute(f"DROP OWNED BY {role} CASCADE; DROP ROLE {role}")


def test_a_publication_that_others_make_is_in_the_sql(shop: Database, tmp_path: Path) -> None:
    path = profile(shop, tmp_path, **{"publication.autocreate.mode": "disabled"})
    script = waltap(path, "plan", "--sql", code=1)
    assert "CREATE PUBLICATION" in script
    shop.psql(script)
    assert plan(path)["by_others"] == []
    waltap(path, "run", "--until-idle", "0.5")


def test_a_table_that_stops_a_start_does_not_stop_the_plan(shop: Database, tmp_path: Path) -> None:
    shop.execute("CREATE TABLE keyless (a int)")
    found = plan(profile(shop, tmp_path), code=1)
    assert "public.keyless" in {each["table"] for each in found["tables"]}
    assert [each["name"] for each in found["problems"] if each["verdict"] == "error"] == [
        "publication"
    ]
