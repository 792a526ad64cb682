"""Each remedy that is SQL or a command is carried out in the situation it is for: as it is printed, by an
administrator, and then the pipeline runs. Those of checks: test_refusals.py; of lost positions: test_start_positions.py,
test_gap_repair.py; `waltap repair` of a target: test_destination_lost.py."""

import json
import re
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from tests.harness.json_lines import records
from tests.harness.shop import Shop
from tests.harness.sql import replica

from waltap.config.layers import load
from waltap.config.resolve import resolve
from waltap.pipeline import Engine, Limits
from waltap.plugins.host import Host
from waltap_postgres.errors import DecodingStopped
from waltap_yugabyte.errors import ReadTimeRefused

UNTIL_IDLE = Limits(until_idle=0.3)


@pytest.fixture
def shop(database, tmp_path, monkeypatch) -> Shop:
    """A pipeline whose slot and publication have the names that they get."""
    monkeypatch.chdir(tmp_path)
    database.execute("CREATE TABLE t (id int PRIMARY KEY); INSERT INTO t VALUES (1)")
    made = Shop(tmp_path, database)
    made.name = database.name
    del made.source["slot.name"], made.source["publication.name"]
    return made


def run(shop: Shop, limits: Limits = UNTIL_IDLE, **settings: str) -> None:
    """Run the pipeline in this process: what is printed is asked of the run that is refused."""
    host = Host()
    Engine(resolve(load(shop.path), host, overrides=settings), host, limits=limits).run()


class Case(NamedTuple):
    """A situation in which a run prints ``code`` and what ``steps``, patterns, find in it: SQL, a command, a
    setting for one run, or the path of what is to be removed.

    It is made of SQL ``before``, of a ``sink``, where ``runs`` of a run, of SQL that comes ``then``, in which {slot} and
    {publication} are the pipeline's, of what the offset is made to say, or of a damaged file, of settings, and what ``acts``.
    """

    code: str
    steps: tuple[str, ...]
    then: str = ""
    source: dict[str, Any] = {}
    stored: dict[str, Any] = {}
    damaged: str = ""
    before: str | None = None
    sink: dict[str, str] = {}
    runs: bool = True
    acts: Callable[[Shop], None] = lambda _shop: None

    def __str__(self) -> str:
        words = re.findall(r"[a-z_]{4,}", " ".join(self.steps).lower())
        return f"{self.code}-{'-'.join(words[:4])}"

    def happens(self, shop: Shop) -> None:
        database = shop.database
        if self.before is not None:  # into tables of the same database
            database.run("CREATE SCHEMA replica", *filter(None, self.before.split(";")))
            shop.sink = replica(database, **self.sink)
            shop.source["schema.include.list"] = "public"
        if self.runs:
            run(shop)
        named = {}
        if "{" in self.then:
            ((named["publication"],),) = database.execute(
                "SELECT pubname::text FROM pg_publication"
            )
            (named["slot"],) = database.slots()
        database.run(*filter(None, self.then.format(**named).split(";")))
        if self.stored:
            (path,) = shop.folder.rglob("offset.json")
            text = path.read_text()
            for name, value in self.stored.items():
                said = rf'("{name}":\s*)("[^"]*"|\d+)'
                text, count = re.subn(said, rf"\g<1>{json.dumps(value)}", text)
                assert count, (name, text)
            path.write_text(text)
        if self.damaged:
            (path,) = shop.folder.rglob(self.damaged)
            path.write_text("{")
        shop.source |= self.source
        self.acts(shop)


def snapshot_cut(shop: Shop) -> None:
    """The first run ended in the middle of a table."""
    shop.source["snapshot.mode"] = "initial_only"
    shop.database.execute("INSERT INTO t SELECT generate_series(100, 30000)")
    run(shop, Limits(max_records=5))
    shop.source["snapshot.mode"] = "no_data"


def older(kind: str) -> Callable[[Shop], None]:
    """An older copy of what a sink of ``kind`` writes is put in its place."""

    def acts(shop: Shop) -> None:
        shop.sink = {"type": kind, "path": "log"}
        run(shop)
        shutil.copytree(shop.folder / "log", shop.folder / "copy")
        shop.database.execute("INSERT INTO t VALUES (9)")
        run(shop)
        shutil.rmtree(shop.folder / "log")
        (shop.folder / "copy").rename(shop.folder / "log")

    return acts


def log_gone(shop: Shop) -> None:
    shop.sink = {"type": "changelog", "path": "log"}
    run(shop)
    shutil.rmtree(shop.folder / "log")


REPAIR, CLEAR, DROP = (
    rf"`waltap {each} FILE`" for each in ("repair", "offsets clear", "slot drop")
)
CREATE, DROP_SLOT = r"CREATE PUBLICATION [^;]*(?=;)", r"SELECT pg_drop_replication_slot\('[^']*'\)"
ALTER = r"ALTER TABLE .*?(?=; or)"
AHEAD = 0xFFF00000000
WENT_BACK = {"slot_restart_lsn": AHEAD}
OTHER_PLUGIN = (
    "SELECT pg_drop_replication_slot('{slot}');"
    "SELECT pg_create_logical_replication_slot('{slot}', 'test_decoding')"
)
DROPPED = {
    "then": "DROP PUBLICATION {publication}; INSERT INTO t VALUES (7)",
    "source": {"publication.autocreate.mode": "disabled"},
}
# the slot has changes from before the publication that the profile names by now
ANOTHER = {
    "then": "INSERT INTO t VALUES (8); CREATE PUBLICATION another FOR TABLE t",
    "source": {"publication.name": "another", "publication.autocreate.mode": "disabled"},
}
KEY_REPLACED = (
    "CREATE UNIQUE INDEX t_k ON t (k); ALTER TABLE t REPLICA IDENTITY USING INDEX t_k;"
    "INSERT INTO t VALUES (77)"
)
# in one transaction of the target, which is undone with all names
KEY_GROWN_AND_ALL_RENAMED = (
    "ALTER TABLE t RENAME TO u; INSERT INTO u VALUES (77); ALTER TABLE u RENAME v TO w;"
    "ALTER TABLE u ADD k int NOT NULL DEFAULT 3; ALTER TABLE u DROP CONSTRAINT t_pkey;"
    "ALTER TABLE u ADD PRIMARY KEY (id, w, k); INSERT INTO u VALUES (78)"
)
RULED = (
    "CREATE TABLE replica.t (id int PRIMARY KEY);"
    "CREATE RULE nothing AS ON DELETE TO replica.t DO INSTEAD NOTHING;"
    "ALTER TABLE replica.t ENABLE ALWAYS RULE nothing"
)
CASES = [
    Case("WT-2105", (DROP_SLOT, CLEAR), OTHER_PLUGIN),
    Case("WT-6103", (CLEAR,), stored={"end_lsn": AHEAD}),
    Case("WT-6105", (CLEAR, DROP), stored=WENT_BACK),
    Case("WT-6105", ("offset.mismatch.strategy=trust_offset",), stored=WENT_BACK),
    # a database that is there, so it is not the former name of this one
    Case("WT-6102", (CLEAR,), stored={"database": "postgres"}),
    Case("WT-6104", (r'slot.name = "[^"]*"',), source={"slot.name": "another"}),
    Case("WT-6104", (CLEAR, DROP_SLOT), source={"slot.name": "another"}),
    Case("WT-2125", (CREATE, REPAIR), **DROPPED),
    Case("WT-2125", (CREATE, DROP, CLEAR), **DROPPED),
    Case("WT-2113", ("`waltap run FILE --set snapshot.mode=when_needed`",), **ANOTHER),
    Case("WT-2113", (DROP, CLEAR), **ANOTHER),
    Case("WT-6001", (CLEAR,), damaged="offset.json"),
    Case("WT-6006", (r"(?<=Restore )/\S*",), damaged="belongings.json"),
    Case("WT-4002", ("snapshot.mode=initial",), runs=False, acts=snapshot_cut),
    Case("WT-4002", (CLEAR,), runs=False, acts=snapshot_cut),
    Case("WT-5109", (DROP, CLEAR), runs=False, acts=older("changelog")),
    Case("WT-5127", (CLEAR,), runs=False, acts=older("files")),
    Case("WT-5127", (REPAIR,), runs=False, acts=older("files")),
    Case("WT-5107", (CLEAR,), runs=False, acts=log_gone),
    Case("WT-5704", (r"CREATE TABLE [^;]*(?=;)",), before="", sink={"schema.evolution": "none"}, runs=False),
    Case("WT-5706", (r"ALTER TABLE [^;]*(?=;)",), before="CREATE TABLE replica.t (id int)", runs=False),
    Case("WT-5706", (r"CREATE UNIQUE INDEX [^;]*(?=;)",), KEY_REPLACED, before="ALTER TABLE t ADD k uuid NOT NULL DEFAULT gen_random_uuid()"),
    Case("WT-5706", (ALTER,), KEY_GROWN_AND_ALL_RENAMED, before="ALTER TABLE t ADD v int NOT NULL DEFAULT 5"),
    Case("WT-5719", (r"ALTER TABLE replica.t DISABLE RULE nothing",), before=RULED, runs=False),
    Case("WT-5724", (r"table.exclude.list=[^;]*",), "INSERT INTO t VALUES (5)", before="", sink={"position.table": "waltap_position"}),
    Case("WT-5003", (CLEAR,), "TRUNCATE replica.waltap_position, replica.t", before=""),
]  # fmt: skip


@pytest.mark.parametrize("case", CASES, ids=str)
def test_what_is_printed_suffices(shop, case):
    case.happens(shop)
    refused = shop.waltap("run FILE --until-idle 0.3")
    said = printed(refused.stderr)
    assert refused.returncode != 0, said
    assert case.code in said
    settings: dict[str, str] = {}
    for step in case.steps:
        found = re.search(step, said)
        assert found, (step, said)
        text = found[0]
        if text.startswith("`waltap"):
            line = text[8:-1].replace("PROFILE", "FILE")
            more = {"repair": "", "run": "--until-idle 0.3"}.get(line.split()[0], "--yes")
            shop.says(f"{line} {more}")
        elif re.match(r"[a-z._]+ ?=", text):
            name, _, value = text.replace(" = ", "=").partition("=")
            settings[name] = value.strip('"')
        elif text.startswith("/"):
            Path(text).unlink()
        else:
            shop.database.execute(text)
    run(shop, **settings)


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


def test_a_slot_without_two_phase_replaces_one_that_the_server_cannot_decode(shop):
    """The server's fault cannot be had at will: the steps are those of the error itself."""
    setting, *commands = re.findall(r"pgoutput[^,]*|`waltap [^`]*", DecodingStopped("").advice())
    name, value = setting.split("=")
    shop.source[name] = shop.database.server.version >= 150000
    run(shop)
    shop.database.execute("INSERT INTO t VALUES (2)")
    shop.source[name] = json.loads(value)
    for line in commands:
        shop.says(line.removeprefix("`waltap "), *["--yes"] * ("drop" in line))
    shop.database.execute("INSERT INTO t VALUES (3)")
    run(shop)
    assert {record["value"]["after"]["id"] for record in records(shop.folder / "out.jsonl")} == {
        1,
        2,
        3,
    }


@pytest.mark.parametrize("place", ["maria"], indirect=True)
def test_a_key_that_the_target_cannot_hold(shop, place):
    """A date takes no text there: the table is dropped, and made anew."""
    shop.database.execute("CREATE TABLE odd (k date PRIMARY KEY); INSERT INTO odd VALUES (now())")
    shop.sink = {"type": "sql", "url": place.url}
    run(shop)
    shop.database.execute("INSERT INTO odd VALUES ('infinity'); INSERT INTO t VALUES (2)")
    said = printed(shop.waltap("run FILE --until-idle 0.3").stderr)
    assert "WT-5721" in said
    found = re.search(r"(waltap\.\S+) = string.*drop the table", said)
    assert found, said
    shop.source[found[1]] = "string"
    place.execute("DROP TABLE odd")
    assert "WT-5718" in printed(shop.waltap("run FILE --until-idle 0.3").stderr)
    shop.says("repair FILE")
    run(shop)
    assert [len(place.execute(f"SELECT * FROM {table}")) for table in ("odd", "t")] == [2, 2]


def printed(stderr: str) -> str:
    """Return what is printed, messages of the log among it, without the frames around it and the ends of
    lines."""
    lines = [
        json.loads(line)["message"] if line.startswith("{") else line
        for line in stderr.splitlines()
    ]
    return " ".join(re.sub(r"[│╭╮╰╯─]", " ", " ".join(lines)).split())
