"""Each remedy that is SQL or a command is carried out in the situation it is for: as it is printed, by an
administrator, and then the pipeline runs. Those of checks: test_refusals.py; of lost positions: test_start_positions.py,
test_gap_repair.py; `waltap repair` of a target: test_destination_lost.py."""

import json
import re
import shutil
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from tests.harness.shop import Shop
from tests.harness.sql import replica

from waltap_yugabyte.errors import ReadTimeRefused


@pytest.fixture
def shop(database, tmp_path) -> Shop:
    """A pipeline whose slot and publication have the names that they get."""
    database.execute("CREATE TABLE t (id int PRIMARY KEY); INSERT INTO t VALUES (1)")
    made = Shop(tmp_path, database)
    made.name = database.name
    del made.source["slot.name"], made.source["publication.name"]
    return made


@dataclass(frozen=True)
class Case:
    """``breaks`` makes the situation, in which a run prints ``code`` and what ``steps``, patterns, find in
    it: SQL, a command, a setting for one run, or the path of what is to be removed. ``begun``: the pipeline has run before."""

    code: str
    breaks: Callable[[Shop], None]
    steps: tuple[str, ...]
    begun: bool = True

    def __str__(self) -> str:
        words = re.findall(r"[a-z_]{4,}", " ".join(self.steps).lower())
        return f"{self.code}-{'-'.join(words[:4])}"


def slot_of(shop: Shop) -> str:
    (name,) = shop.database.slots()
    return name


def stored(shop: Shop, **changed: Any) -> None:
    """Change what the stored offset says of its only partition."""
    (path,) = shop.folder.rglob("offset.json")
    text = path.read_text()
    for name, value in changed.items():
        text, count = re.subn(rf'("{name}":\s*)("[^"]*"|\d+)', rf"\g<1>{json.dumps(value)}", text)
        assert count, (name, text)
    path.write_text(text)


def no_slot(shop: Shop) -> None:
    shop.database.execute(f"SELECT pg_drop_replication_slot('{slot_of(shop)}')")


def slot_of_another_plugin(shop: Shop) -> None:
    name = slot_of(shop)
    no_slot(shop)
    shop.database.execute(f"SELECT pg_create_logical_replication_slot('{name}', 'test_decoding')")


def another_server(shop: Shop) -> None:
    stored(shop, database="postgres")  # which is there, so it is not the former name of this one


def another_name(shop: Shop) -> None:
    shop.source["slot.name"] = "another"


def belongings_damaged(shop: Shop) -> None:
    (path,) = shop.folder.rglob("belongings.json")
    path.write_text("{")


def snapshot_cut(shop: Shop) -> None:
    """The first run ended in the middle of a table."""
    shop.source["snapshot.mode"] = "initial_only"
    shop.database.execute("INSERT INTO t SELECT generate_series(100, 30000)")
    shop.run("--max-records", 5)
    shop.source["snapshot.mode"] = "no_data"


def older(kind: str) -> Callable[[Shop], None]:
    """An older copy of what a sink of ``kind`` writes is put in its place."""

    def breaks(shop: Shop) -> None:
        shop.sink = {"type": kind, "path": "log"}
        shop.run()
        shutil.copytree(shop.folder / "log", shop.folder / "copy")
        shop.database.execute("INSERT INTO t VALUES (9)")
        shop.run()
        shutil.rmtree(shop.folder / "log")
        (shop.folder / "copy").rename(shop.folder / "log")

    return breaks


def offset_ahead(shop: Shop) -> None:
    stored(shop, end_lsn=0xFFF00000000)


def slot_went_back(shop: Shop) -> None:
    stored(shop, slot_restart_lsn=0xFFF00000000)


def offset_damaged(shop: Shop) -> None:
    (path,) = shop.folder.rglob("offset.json")
    path.write_text("{")


def publication_dropped(shop: Shop) -> None:
    ((name,),) = shop.database.execute("SELECT pubname::text FROM pg_publication")
    shop.database.execute(f"DROP PUBLICATION {name}; INSERT INTO t VALUES (7)")


def publication_of_others_dropped(shop: Shop) -> None:
    publication_dropped(shop)
    shop.source["publication.autocreate.mode"] = "disabled"


def sql(shop: Shop, **more: str) -> None:
    shop.sink = replica(shop.database, **more)
    shop.source["schema.include.list"] = "public"


def target_without_table(shop: Shop) -> None:
    shop.database.execute("CREATE SCHEMA replica")
    sql(shop, **{"schema.evolution": "none"})


def target_without_key(shop: Shop) -> None:
    shop.database.execute("CREATE SCHEMA replica; CREATE TABLE replica.t (id int)")
    sql(shop)


def key_replaced(shop: Shop) -> None:
    shop.database.execute(
        "CREATE SCHEMA replica; ALTER TABLE t ADD k uuid NOT NULL DEFAULT gen_random_uuid()"
    )
    sql(shop)
    shop.run()
    shop.database.execute(
        "CREATE UNIQUE INDEX t_k ON t (k); ALTER TABLE t REPLICA IDENTITY USING INDEX t_k;"
        "INSERT INTO t VALUES (77)"
    )


def key_grown(shop: Shop) -> None:
    shop.database.execute("CREATE SCHEMA replica")
    sql(shop)
    shop.run()
    shop.database.execute(
        "ALTER TABLE t ADD k text NOT NULL DEFAULT 'it''s'; ALTER TABLE t DROP CONSTRAINT t_pkey;"
        "ALTER TABLE t ADD PRIMARY KEY (id, k)"
    )
    shop.database.execute("INSERT INTO t VALUES (78); DELETE FROM t WHERE id = 1")


def key_grown_and_all_renamed(shop: Shop) -> None:
    """In one transaction of the target, which is undone with all names."""
    shop.database.execute("CREATE SCHEMA replica; ALTER TABLE t ADD v int NOT NULL DEFAULT 5")
    sql(shop)
    shop.run()
    shop.database.execute("ALTER TABLE t RENAME TO u; INSERT INTO u VALUES (77)")
    shop.database.execute(
        "ALTER TABLE u RENAME v TO w; ALTER TABLE u ADD k int NOT NULL DEFAULT 3;"
        "ALTER TABLE u DROP CONSTRAINT t_pkey; ALTER TABLE u ADD PRIMARY KEY (id, w, k)"
    )
    shop.database.execute("INSERT INTO u VALUES (78)")


def target_ruled(shop: Shop) -> None:
    shop.database.execute(
        "CREATE SCHEMA replica; CREATE TABLE replica.t (id int PRIMARY KEY);"
        "CREATE RULE nothing AS ON DELETE TO replica.t DO INSTEAD NOTHING;"
        "ALTER TABLE replica.t ENABLE ALWAYS RULE nothing"
    )
    sql(shop)


def positions_captured(shop: Shop) -> None:
    shop.database.execute("CREATE SCHEMA replica")
    sql(shop, **{"position.table": "waltap_position"})
    shop.run()
    shop.database.execute("INSERT INTO t VALUES (5)")


def another_publication(shop: Shop) -> None:
    """The slot has changes from before the publication that the profile names by now."""
    shop.database.execute("INSERT INTO t VALUES (8); CREATE PUBLICATION another FOR TABLE t")
    shop.source |= {"publication.name": "another", "publication.autocreate.mode": "disabled"}


def target_behind(shop: Shop) -> None:
    shop.database.execute("CREATE SCHEMA replica")
    sql(shop)
    shop.run()
    shop.database.execute("TRUNCATE replica.waltap_position, replica.t")


def log_gone(shop: Shop) -> None:
    shop.sink = {"type": "changelog", "path": "log"}
    shop.run()
    shutil.rmtree(shop.folder / "log")


REPAIR, CLEAR, DROP = (
    rf"`waltap {each} FILE`" for each in ("repair", "offsets clear", "slot drop")
)
CREATE = r"CREATE PUBLICATION [^;]*(?=;)"
CASES = [
    Case("WT-2105", slot_of_another_plugin, (r"SELECT pg_drop_replication_slot\('[^']*'\)", CLEAR)),
    Case("WT-6103", offset_ahead, (CLEAR,)),
    Case("WT-6105", slot_went_back, (CLEAR, DROP)),
    Case("WT-6105", slot_went_back, ("snapshot.mode=when_needed",)),
    Case("WT-6105", slot_went_back, ("offset.mismatch.strategy=trust_offset",)),
    Case("WT-6102", another_server, (CLEAR,)),
    Case("WT-6104", another_name, (r'slot.name = "[^"]*"',)),
    Case("WT-6104", another_name, (CLEAR, r"SELECT pg_drop_replication_slot\('[^']*'\)")),
    Case("WT-2125", publication_of_others_dropped, (CREATE, REPAIR)),
    Case("WT-2125", publication_of_others_dropped, (CREATE, DROP, CLEAR)),
    Case("WT-2113", another_publication, ("`waltap run FILE --set snapshot.mode=when_needed`",)),
    Case("WT-2113", another_publication, (DROP, CLEAR)),
    Case("WT-6001", offset_damaged, (CLEAR,)),
    Case("WT-6006", belongings_damaged, (r"(?<=Restore )/\S*",)),
    Case("WT-4002", snapshot_cut, ("snapshot.mode=initial",), begun=False),
    Case("WT-4002", snapshot_cut, (CLEAR,), begun=False),
    Case("WT-5109", older("changelog"), (DROP, CLEAR), begun=False),
    Case("WT-5127", older("files"), (CLEAR,), begun=False),
    Case("WT-5127", older("files"), (REPAIR,), begun=False),
    Case("WT-5704", target_without_table, (r"CREATE TABLE [^;]*(?=;)",), begun=False),
    Case("WT-5706", target_without_key, (r"ALTER TABLE [^;]*(?=;)",), begun=False),
    Case("WT-5706", key_replaced, (r"CREATE UNIQUE INDEX [^;]*(?=;)",), begun=False),
    Case("WT-5706", key_grown, (r"ALTER TABLE .*?(?=; or)",), begun=False),
    Case("WT-5706", key_grown_and_all_renamed, (r"ALTER TABLE .*?(?=; or)",), begun=False),
    Case("WT-5719", target_ruled, (r"ALTER TABLE replica.t DISABLE RULE nothing",), begun=False),
    Case("WT-5724", positions_captured, (r"table.exclude.list=[^;]*",), begun=False),
    Case("WT-5003", target_behind, (CLEAR,), begun=False),
    Case("WT-5107", log_gone, (CLEAR,), begun=False),
]


@pytest.mark.parametrize("case", CASES, ids=str)
def test_what_is_printed_suffices(shop, case):
    if case.begun:
        shop.run()
    case.breaks(shop)
    refused = shop.waltap("run FILE --until-idle 0.3")
    said = printed(refused.stderr)
    assert refused.returncode != 0, said
    assert case.code in said
    settings: list[str] = []
    for step in case.steps:
        found = re.search(step, said)
        assert found, (step, said)
        text = found[0]
        if text.startswith("`waltap"):
            line = text[8:-1].replace("PROFILE", "FILE")
            more = {"repair": "", "run": "--until-idle 0.3"}.get(line.split()[0], "--yes")
            shop.says(f"{line} {more}")
        elif re.match(r"[a-z._]+ ?=", text):
            settings += ["--set", re.sub(' = "(.*)"', r"=\1", text)]
        elif text.startswith("/"):
            Path(text).unlink()
        else:
            shop.database.execute(text)
    shop.run(*settings)


def test_the_procedures_for_a_read_time_find_the_servers_own_functions(shop):
    """They run with a superuser's rights for whoever calls them. The setting is one that PostgreSQL takes."""
    both = re.findall(r"CREATE PROCEDURE .*?SECURITY DEFINER[^;.]*", ReadTimeRefused.remedy)
    assert len(both) == 2
    for statement in both:
        shop.database.execute(statement.replace("yb_", "yb.yb_").replace("set_yb.", "set_"))
    shop.database.execute(
        "CREATE FUNCTION public.quote_literal(text) RETURNS text LANGUAGE plpgsql AS"
        " $$ BEGIN RAISE EXCEPTION 'planted'; END $$"
    )
    ((found,),) = shop.database.execute(
        "SET search_path = public, pg_catalog; CALL set_yb_read_time('5 ht');"
        "CALL disable_catalog_version_check(); SHOW yb.yb_read_time"
    )
    assert found == "5 ht"


@pytest.mark.parametrize("place", ["file", "maria"], indirect=True)
@pytest.mark.parametrize(
    ("step", "left"), [(r"waltap\.\S+ = string", 2), (r"table\.exclude\.list = \S+(?=\. )", 1)]
)
def test_a_key_that_the_target_cannot_hold(shop, place, step, left):
    """The rest of the tables goes on either way."""
    shop.database.execute("CREATE TABLE odd (k date PRIMARY KEY); INSERT INTO odd VALUES (now())")
    shop.sink = {"type": "sql", "url": place.url}
    shop.run()
    shop.database.execute("INSERT INTO odd VALUES ('infinity'); INSERT INTO t VALUES (2)")
    said = printed(shop.waltap("run FILE --until-idle 0.3").stderr)
    assert "WT-5721" in said
    found = re.search(step, said)
    assert found, said
    name, _, value = found[0].partition(" = ")
    shop.source[name] = value
    if place.kind == "mariadb" and value == "string":  # a date takes no text there
        assert "drop the table" in said
        place.execute("DROP TABLE odd")
        assert "WT-5718" in printed(shop.waltap("run FILE --until-idle 0.3").stderr)
        shop.says("repair FILE")
    shop.run()
    assert [len(place.execute(f"SELECT * FROM {table}")) for table in ("odd", "t")] == [left, 2]


def printed(stderr: str) -> str:
    """Return what is printed, messages of the log among it, without the frames around it and the ends of
    lines."""
    lines = [
        json.loads(line)["message"] if line.startswith("{") else line
        for line in stderr.splitlines()
    ]
    return " ".join(re.sub(r"[│╭╮╰╯─]", " ", " ".join(lines)).split())
