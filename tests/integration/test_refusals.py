"""Starts that are refused on a real server. `doctor`, which has the same checks, and a start refuse alike, before
anything is made, and the remedy suffices when it is carried out as it is written."""

import re
from collections.abc import Iterator
from typing import Any, NamedTuple

import psycopg
import pytest
from tests.harness.pipeline import PipelineRig, until
from tests.harness.servers.own_server import own_server
from tests.harness.servers.postgres import Cluster, Database, queries

from waltap.cli.application import exit_code
from waltap.errors import WaltapError
from waltap_postgres.start.server_checks import output_plugin

T = "CREATE TABLE t (id int PRIMARY KEY); INSERT INTO t VALUES (1)"
ROLE = "CREATE ROLE {role} LOGIN REPLICATION PASSWORD 'x';"
OWNS = ROLE + "ALTER TABLE t OWNER TO {role}; GRANT CREATE ON DATABASE {name} TO {role};"
READS = ROLE + "GRANT SELECT ON t TO {role};"
PUBLISHED = "CREATE PUBLICATION {name} FOR TABLE t;"
KEYLESS = "CREATE TABLE keyless (a int);"
SLOT = "SELECT pg_create_logical_replication_slot('{name}', 'pgoutput');"
GONE = "INSERT INTO t VALUES (2); SELECT pg_drop_replication_slot('{name}');"
NO_MATCH = {"table.include.list": r"public\.orders"}
MATCH = {"table.include.list": r"public\.t"}
MASK = {"column.mask.hash.SHA-256.with.salt.pepper": r"public\.t\.secert"}
AUTOCREATE = "publication.autocreate.mode"
SIGNAL_TABLE = "signal.data.collection"


class Case(NamedTuple):
    """The situation as SQL, the check that fails, its code, and what mends it: ``sql`` that the remedy has,
    ``commands`` that it names, or properties. ``begun``: the pipeline ran before."""

    sql: str
    settings: dict[str, Any]
    check: str
    code: str
    remedy: str | dict[str, Any]
    begun: bool = False


CASES = {
    "tables of another owner": Case(READS, {}, "publication", "WT-2109", "sql"),
    "a table that may not be read": Case(
        READS + "CREATE SCHEMA s; CREATE TABLE s.u (id int PRIMARY KEY); CREATE PUBLICATION {name} FOR TABLE t, s.u",
        {}, "rows", "WT-2011", "sql",
    ),
    "rows that a policy hides": Case(
        READS + "ALTER TABLE t ENABLE ROW LEVEL SECURITY;" + PUBLISHED, {}, "rows", "WT-2114", "sql"
    ),
    "a role without replication": Case(
        READS + "ALTER ROLE {role} NOREPLICATION;" + PUBLISHED, {}, "privileges", "WT-2005", "sql"
    ),
    "a table without replica identity": Case(KEYLESS, {}, "publication", "WT-2107", "sql ALTER TABLE"),
    "a table that nobody captures, without it": Case(
        KEYLESS, {AUTOCREATE: "all_tables", **MATCH}, "publication", "WT-2107", {"publication.keyless.tables": "publish"},
    ),
    "no publication, none to be made": Case("", {AUTOCREATE: "disabled"}, "publication", "WT-2106", "sql"),
    "a publication of nothing that is captured": Case(
        "CREATE TABLE u (id int PRIMARY KEY); CREATE PUBLICATION {name} FOR TABLE u",
        {AUTOCREATE: "disabled", **MATCH}, "publication", "WT-2106", "sql",
    ),
    "no table matches": Case("", NO_MATCH, "captured tables", "WT-2116", MATCH),
    "no table matches for wal2json": Case(
        "", {"plugin.name": "wal2json", **NO_MATCH}, "captured tables", "WT-2116", MATCH
    ),
    "no signal table": Case(OWNS, {SIGNAL_TABLE: "public.signals"}, "signal table", "WT-2115", "sql"),
    "a signal table that may not be written": Case(
        OWNS + "CREATE TABLE signals (id text PRIMARY KEY, type text, data text);"
        "CREATE PUBLICATION {name} FOR TABLE t, signals",
        {SIGNAL_TABLE: "public.signals"}, "signal table", "WT-2115", "sql",
    ),
    "masks that match nothing": Case("", MASK, "masks", "WT-2047", {"waltap.unmatched.masks": "warn"}),
    "more tables than the guardrail allows": Case(
        "CREATE TABLE u (id int PRIMARY KEY)",
        {"guardrail.collections.max": 1, "guardrail.collections.limit.action": "fail"},
        "guardrail", "", {"guardrail.collections.max": 2},
    ),
    "a slot of somebody else": Case(SLOT, {}, "start", "WT-2112", "commands"),
    "a slot made anew, behind a gap": Case(GONE + SLOT, {}, "start", "WT-6101", "commands", begun=True),
    "lines that cannot be written": Case(
        "", {"sink.type": "jsonl", "sink.path": "{folder}/file/x"}, "sink jsonl", "WT-5001", {"sink.path": "{folder}/x"},
    ),
    "a change log that cannot be written": Case(
        "", {"sink.type": "changelog", "sink.path": "{folder}/file/x"}, "sink changelog", "WT-5101", {"sink.path": "{folder}/x"},
    ),
    "a state folder that cannot be made": Case(
        "", {"waltap.state.dir": "{folder}/file"}, "state folder", "WT-6005", {"waltap.state.dir": "{folder}/x"}
    ),
}  # fmt: skip


class Situation:
    """A case on the database of a pipeline."""

    def __init__(self, pipeline: PipelineRig, case: Case) -> None:
        self.pipeline, self.database = pipeline, pipeline.database
        self.words = {"name": self.database.name, "role": f"r_{self.database.name}", "folder": pipeline.folder}  # fmt: skip
        (pipeline.folder / "file").touch()
        if case.begun:
            pipeline.catch_up()
        self.database.run(*case.sql.format(**self.words).split(";"))
        self.prepare(case.settings)
        if "{role}" in case.sql:
            self.prepare({"database.user": "{role}", "database.password": "x"})

    def prepare(self, settings: dict[str, Any]) -> None:
        for name, value in settings.items():
            given = value.format(**self.words) if isinstance(value, str) else value
            self.pipeline.settings[name] = given

    def made(self) -> tuple[object, ...]:
        """Return what the test did not make, on the server and on the disk."""
        publications = self.database.execute("SELECT pubname::text FROM pg_publication ORDER BY 1")
        files = {path.name for path in self.pipeline.folder.iterdir()} - {"state", "ready"}
        return self.database.slots(), publications, files, self.pipeline.offset()

    def mend(self, remedy: str, way: str) -> None:
        """Do what the remedy says, as a superuser would."""
        if way == "commands":
            commands = re.findall(r"`waltap ([a-z ]+) FILE`", remedy)
            commands = [each for each in commands if each != "repair"]  # test_gap_repair.py
            assert commands, remedy
            for command in commands:
                done = self.pipeline.command(*command.split(), "--yes")
                assert done.returncode == 0, done.stderr
            return
        begin = way.removeprefix("sql").strip() or "ALTER|CREATE|GRANT|SELECT"
        text = remedy[re.search(begin, remedy).start() :]  # type: ignore[union-attr]
        statements = [part.partition(" (before")[0].rstrip(".;") for part in text.split("; ")]
        statements = [each for each in statements if re.match("ALTER|CREATE|GRANT|SELECT", each)]
        assert statements, remedy
        self.database.run(*statements)

    def forget(self) -> None:
        role = self.words["role"]
        if self.database.execute("SELECT 1 FROM pg_roles WHERE rolname = %s", role):
            self.database.execute(f"DROP OWNED BY {role} CASCADE; DROP ROLE {role}")


@pytest.mark.pipeline(sql=T)
@pytest.mark.parametrize("case", CASES)
def test_doctor_and_run_refuse_alike_and_the_remedy_suffices(pipeline, case):
    chosen = CASES[case]
    situation = Situation(pipeline, chosen)
    try:
        before, delivered = situation.made(), len(pipeline.destination.events)
        check = pipeline.doctor()[chosen.check]
        assert check.verdict == "error"
        with pytest.raises(WaltapError) as refused:
            pipeline.run()
        if chosen.code:
            assert refused.value.code == check.error.code == chosen.code
        assert exit_code(refused.value) == (3 if chosen.code == "WT-5101" else 1)
        assert situation.made() == before
        assert len(pipeline.destination.events) == delivered
        assert "pepper" not in str(refused.value)
        if isinstance(chosen.remedy, dict):
            situation.prepare(chosen.remedy)
        else:
            situation.mend(check.remedy, chosen.remedy)
        left = pipeline.doctor()
        assert not [each for each in left.values() if each.verdict == "error"]
        pipeline.catch_up()
        if "sink.type" not in chosen.settings:
            pipeline.deliver("INSERT INTO t VALUES (9)")
            assert 9 in pipeline.destination.ids("t")
    finally:
        situation.forget()


# --- connections: a server with passwords, one slot and two walsenders -------------------------------------

ROLES = """
CREATE ROLE capture LOGIN REPLICATION PASSWORD 'right';
CREATE ROLE reader LOGIN PASSWORD 'right';
CREATE ROLE idle NOLOGIN;
CREATE ROLE full_house LOGIN REPLICATION PASSWORD 'right' CONNECTION LIMIT 0;
CREATE ROLE expired LOGIN REPLICATION PASSWORD 'right' VALID UNTIL '2001-01-01';
CREATE ROLE strict LOGIN REPLICATION PASSWORD 'right';
"""
HBA = """
host all,replication strict all reject
host all capture,reader,full_house,expired all scram-sha-256
host all all all trust
host replication all all trust
local all all trust
"""
LIBRARIES = "output_plugin_libraries"


@pytest.fixture(scope="module")
def cluster() -> Iterator[Cluster]:
    with own_server(max_replication_slots="1", max_wal_senders="1") as made:
        if made.execute(f"SELECT 1 FROM pg_settings WHERE name = '{LIBRARIES}'"):
            made.execute(f"ALTER SYSTEM SET {LIBRARIES} = 'pgoutput'")
        made.execute(ROLES)
        (made.folder / "data" / "pg_hba.conf").write_text(HBA)
        made.reload()
        yield made


def stocked(cluster: Cluster, name: str) -> Iterator[Database]:
    """Make a database with one table that ``capture`` may read and publish."""
    database = cluster.create_database(name)
    database.execute(
        f"{T}; ALTER TABLE t OWNER TO capture; GRANT SELECT ON t TO reader;"
        f"GRANT CREATE ON DATABASE {name} TO capture, reader, full_house"
    )
    yield database
    assert database.drop() == []


@pytest.fixture(scope="module")
def closed_shop(cluster) -> Iterator[Database]:
    """Return a database for starts that fail: they leave nothing, so that one serves all."""
    yield from stocked(cluster, "shop")


@pytest.fixture
def shop(cluster) -> Iterator[Database]:
    yield from stocked(cluster, "shop2")


def refusal(pipeline: PipelineRig, **settings: Any) -> WaltapError:
    """Return what a start is refused with that leaves nothing behind."""
    database, publications = pipeline.database, "SELECT count(*) FROM pg_publication"
    before = list(database.slots()), database.execute(publications)
    with pytest.raises(WaltapError) as caught:
        pipeline.run(**settings)
    assert pipeline.destination.events == []
    assert pipeline.offset() is None
    assert (list(database.slots()), database.execute(publications)) == before
    return caught.value


AS = {"database.password": "right"}


@pytest.mark.parametrize(
    ("settings", "code", "status", "says", "advises"),
    [
        pytest.param({"database.port": 1}, "WT-2002", 3, "refused", "127.0.0.1:", id="nobody listens"),
        pytest.param({"database.hostname": "no.such.host.invalid"}, "WT-2002", 3, "no.such.host", "database.hostname", id="no such host"),
        pytest.param({"database.user": "capture", "database.password": "wrong"}, "WT-2003", 1,
            'password authentication failed for user "capture"', "ALTER ROLE capture", id="bad password"),
        pytest.param({"database.user": "capture", "database.password": "${env:PATH}"}, "WT-2003", 1,
            "authentication failed", "database.password", id="bad password of the environment"),
        pytest.param({"database.user": "expired", **AS}, "WT-2003", 1,
            'authentication failed for user "expired"', "ALTER ROLE expired VALID UNTIL 'infinity'", id="expired password"),
        pytest.param({"database.user": "capture"}, "WT-2003", 1, "no password supplied", "${env:WALTAP_PASSWORD}", id="no password"),
        pytest.param({"database.user": "idle"}, "WT-2003", 1, "not permitted to log in", "LOGIN", id="may not log in"),
        pytest.param({"database.user": "nobody_at_all"}, "WT-2003", 1, "does not exist", "database.user", id="no such role"),
        pytest.param({"database.user": "strict", **AS}, "WT-2003", 1, "pg_hba.conf", "pg_hba.conf", id="kept out by pg_hba"),
        pytest.param({"database.dbname": "nothing"}, "WT-2004", 1, '"nothing" does not exist', "psql -l", id="no such database"),
        pytest.param({"database.user": "reader", **AS, AUTOCREATE: "no_tables", "table.include.list": "x"},
            "WT-2005", 1, "has no REPLICATION", 'ALTER ROLE "reader" WITH REPLICATION', id="no replication privilege"),
        pytest.param({"database.user": "full_house", **AS}, "WT-2010", 3, "too many connections", "CONNECTION LIMIT -1", id="too many connections"),
        pytest.param({"plugin.name": "wal2json"}, "WT-2008", 1, "wal2json",
            "output_plugin_libraries = 'pgoutput', 'wal2json'", id="output plugin not allowed"),
        pytest.param({"slot.stream.params": "no_such_option=1", "snapshot.mode": "no_data"},
            "WT-2009", 1, "no_such_option", "SQLSTATE", id="unknown stream option"),
        pytest.param({"waltap.state.dir": "/dev/null/x"}, "WT-6005", 1, "Not a directory", "/dev/null/x", id="no folder for offsets"),
    ],
)  # fmt: skip
def test_a_refused_connection_says_what_mends_it_and_leaves_nothing(
    closed_shop, tmp_path, settings, code, status, says, advises
):
    error = refusal(PipelineRig(closed_shop, tmp_path), **settings)
    assert (error.code, exit_code(error)) == (code, status)
    assert says in error.problem
    assert advises in error.advice()
    assert "right" not in str(error)


@pytest.mark.parametrize("what", ["slot", "walsender"])
def test_no_free_slot_or_walsender_is_reported(shop, tmp_path, what):
    other = psycopg.pq.PGconn.connect(f"{shop.dsn}?replication=database".encode())
    if what == "slot":
        other.finish()
        shop.execute("SELECT pg_create_logical_replication_slot('taken', 'pgoutput')")
    try:
        error = refusal(PipelineRig(shop, tmp_path))
        (named,) = {value for row in shop.execute(*queries(error.advice())) for value in row} & {"taken", "walsender"}  # fmt: skip
    finally:
        other.finish()
    expected = {"slot": ("WT-2007", 1, "max_replication_slots"), "walsender": ("WT-2010", 3, "max_wal_senders")}[what]  # fmt: skip
    assert (error.code, exit_code(error)) == expected[:2]
    assert expected[2] in error.advice()
    assert named == {"slot": "taken", "walsender": "walsender"}[what]


def test_a_transaction_that_keeps_a_slot_from_being_made_is_reported(shop, tmp_path, monkeypatch):
    monkeypatch.setattr("waltap_postgres.replication.slot.CREATE_DEADLINE_S", 0.5)
    pipeline = PipelineRig(shop, tmp_path)
    with shop.connect(autocommit=False) as writer:
        writer.execute("INSERT INTO t VALUES (77)")
        error = refusal(pipeline)
        (query,) = queries(error.advice())
        assert error.code == "WT-2108"
        assert writer.info.backend_pid in {pid for pid, *_ in shop.execute(query)}
    monkeypatch.undo()
    pipeline.catch_up()


def test_wal_level_below_logical_is_reported(shop, cluster, tmp_path):
    pipeline = PipelineRig(shop, tmp_path)
    cluster.execute("ALTER SYSTEM SET wal_level = 'replica'")
    cluster.restart()
    try:
        error = refusal(pipeline)
        assert (error.code, exit_code(error)) == ("WT-2006", 1)
        assert "ALTER SYSTEM SET wal_level = 'logical'" in error.advice()
        cluster.execute("ALTER SYSTEM SET wal_level = 'logical'")
        for reload in (
            "SELECT 1",
            "SELECT pg_reload_conf()",
        ):  # it may be reported, or only written
            cluster.execute(reload)
            until(lambda: "set already: restart" in refusal(pipeline).advice(), "the new files")
            assert "ALTER SYSTEM" not in refusal(pipeline).advice()
    finally:
        cluster.execute("ALTER SYSTEM RESET wal_level")
        cluster.restart()


@pytest.mark.parametrize("owner", [True, False], ids=["owner", "reader"])
def test_a_role_that_is_no_superuser_captures(shop, tmp_path, owner):
    """As owner with CREATE it publishes by itself; a publication made for it needs SELECT alone.
    Functions that report the control file may be kept from it."""
    shop.execute(
        "REVOKE EXECUTE ON FUNCTION pg_control_system(), pg_control_checkpoint() FROM PUBLIC"
    )
    pipeline = PipelineRig(shop, tmp_path, {"database.user": "capture", **AS})
    if not owner:
        shop.execute("ALTER TABLE t OWNER TO postgres; GRANT SELECT ON t TO capture")
        shop.execute("CREATE PUBLICATION shop2 FOR TABLE t")
        pipeline.settings[AUTOCREATE] = "disabled"
    pipeline.catch_up()
    shop.execute("INSERT INTO t VALUES (2)")
    pipeline.catch_up()
    assert [(e.op, e.row["id"]) for e in pipeline.destination.events] == [("r", "1"), ("c", "2")]
    offset = pipeline.offset()
    ((number,),) = shop.execute("SELECT system_identifier::text FROM pg_control_system()")
    assert offset.sole.system_id == number


@pytest.mark.parametrize("said_by", ["run", "doctor"])
def test_what_lets_an_output_plugin_be_loaded_does_so_and_keeps_the_others(
    cluster, shop, tmp_path, said_by
):
    listed = cluster.execute(f"SELECT setting FROM pg_settings WHERE name = '{LIBRARIES}'")
    if not listed:
        pytest.skip("this server loads any output plugin")
    remedy = (
        refusal(PipelineRig(shop, tmp_path), **{"plugin.name": "wal2json"}).advice()
        if said_by == "run"
        else output_plugin({LIBRARIES: listed[0][0]}, "wal2json").remedy
    )
    statements = re.findall(r"(?:ALTER SYSTEM|SELECT pg_reload_conf)[^;]*;", remedy)
    assert len(statements) == 2
    try:
        for statement in statements:
            cluster.execute(statement)
        for plugin in ("wal2json", "pgoutput"):
            until(lambda plugin=plugin: can_be_loaded(shop, plugin), f"{plugin} can be loaded")
    finally:
        cluster.execute(f"ALTER SYSTEM SET {LIBRARIES} = 'pgoutput'")
        cluster.reload()


def can_be_loaded(database: Database, plugin: str) -> bool:
    try:
        database.execute(
            f"SELECT slot_name FROM pg_create_logical_replication_slot('tried', '{plugin}')"
        )
    except psycopg.Error:
        return False
    database.execute("SELECT pg_drop_replication_slot('tried')")
    return True
