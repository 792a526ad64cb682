"""What a MariaDB target does not hold: `doctor` and `plan` tell of it before the run."""

import contextlib
import json
from pathlib import Path

from tests.harness.servers.mariadb import MariaDb
from tests.harness.servers.postgres import Database
from tests.harness.shop import Shop


def test_what_a_target_does_not_hold_is_told_before_the_run_with_what_ends_it(
    database: Database, tmp_path: Path, mariadb: MariaDb
) -> None:
    shop = Shop(tmp_path, database)
    name = f"held_{shop.database.name}"
    mariadb.execute(f"CREATE DATABASE {name}")
    shop.database.execute(
        "CREATE TABLE words (a text, b text, v text, PRIMARY KEY (a, b));"
        "CREATE TABLE short (a varchar(256), b varchar(9), n int, PRIMARY KEY (a, b, n))"
    )
    shop.source["table.include.list"] = "public.words,public.short"
    shop.sink = {"type": "sql", "url": mariadb.url(name)}

    def told(command: str, verdict: str) -> list[dict[str, str]]:
        found = json.loads(shop.waltap(f"{command} FILE --json").stdout)
        checks = found["problems"] if command == "plan" else found
        return [c for c in checks if c["name"].startswith("target") and c["verdict"] == verdict]

    for command in ("doctor", "plan"):
        (keys,) = told(command, "warning")
        assert "384 characters of a, b, of the key of public.words (768 by 2" in keys["found"]
    limit = keys["remedy"].partition("ALTER TABLE")[2].partition("; or")[0]
    shop.database.execute("ALTER TABLE" + limit)
    mariadb.execute(
        f"CREATE TABLE {name}.words (a varchar(99) COLLATE latin1_swedish_ci, b varchar(99) COLLATE"
        " utf8mb4_nopad_bin, v text CHARACTER SET latin1, PRIMARY KEY (a, b))"
    )
    (refused,) = told("doctor", "error")
    assert "compares keys in a" in refused["found"]
    (narrow,) = [c for c in told("plan", "warning") if c["name"] == "target words"]
    assert "column v is latin1" in narrow["found"]
    for remedy in (refused["remedy"], narrow["remedy"]):  # they suffice as they stand
        statement = remedy[remedy.index("ALTER TABLE") :].partition(";")[0]
        with contextlib.closing(mariadb.connect(name)) as connection:
            connection.cursor().execute(statement)
            connection.commit()
    found = json.loads(shop.waltap("doctor FILE --json").stdout)
    left = {c["name"]: c["verdict"] for c in found if c["name"].startswith("target")}
    assert "error" not in left.values()
    assert left.get("target words", "ok") == "ok"
    shop.database.execute("INSERT INTO words VALUES ('k', 'K', '\U0001f600')")
    shop.run()
    mariadb.execute(f"DROP DATABASE {name}")
