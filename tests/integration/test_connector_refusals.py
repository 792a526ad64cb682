"""Starts that a real server refuses: the right code, what fixes it, and nothing left behind.

And the least that a server must grant for a start to work.
"""

import functools
import re
import shutil
import socket
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psycopg
import pytest
from waltap.cli.failure import exit_code
from waltap.errors import WaltapError
from waltap_postgres.catalog.server_checks import output_plugin

from tests.harness.pipeline import PipelineRig, until
from tests.harness.servers.postgres import Cluster, Database
from tests.harness.servers.requirement import missing

ROLES = """
CREATE ROLE capture LOGIN REPLICATION PASSWORD 'right';
CREATE ROLE reader LOGIN PASSWORD 'right';
CREATE ROLE idle NOLOGIN;
CREATE ROLE full_house LOGIN REPLICATION PASSWORD 'right' CONNECTION LIMIT 0;
CREATE ROLE strict LOGIN REPLICATION PASSWORD 'right';
"""

HBA = """
host all,replication strict all reject
host all capture,reader,full_house all scram-sha-256
host all all all trust
host replication all all trust
local all all trust
"""


@pytest.fixture(scope="module")
def cluster() -> Iterator[Cluster]:
    """Return a server with passwords, TLS where there is ``openssl``, one slot and two walsenders."""
    made = Cluster.create(max_replication_slots="1", max_wal_senders="1")
    try:
        if made.execute("SELECT 1 FROM pg_settings WHERE name = 'output_plugin_libraries'"):
            made.execute("ALTER SYSTEM SET output_plugin_libraries = 'pgoutput'")
        made.execute(ROLES)
        (made.folder / "data" / "pg_hba.conf").write_text(HBA)
        speaks_tls = made.execute(
            "SELECT setting <> '' FROM pg_settings WHERE name = 'ssl_library'"
        )
        if shutil.which("openssl") and speaks_tls == [(True,)]:
            certify(made)
        made.reload()
        yield made
    finally:
        made.remove()


def certify(cluster: Cluster) -> None:
    """Give the server a certificate of its own making for 127.0.0.1 and let it speak TLS."""
    data = cluster.folder / "data"
    command = (
        "openssl req -new -x509 -days 2 -nodes -subj /CN=127.0.0.1"
        " -addext subjectAltName=IP:127.0.0.1 -out server.crt -keyout server.key"
    )
    subprocess.run(command.split(), cwd=data, check=True, capture_output=True)
    for name in ("server.crt", "server.key"):
        (data / name).chmod(0o600)
        if cluster.account is not None:
            shutil.chown(data / name, cluster.account)
    shutil.copy(data / "server.crt", cluster.folder / "root.crt")
    cluster.execute("ALTER SYSTEM SET ssl = on")


@pytest.fixture(scope="module")
def closed_shop(cluster: Cluster) -> Iterator[Database]:
    """Return a database for starts that fail: they leave nothing, so that one serves all."""
    database = stocked(cluster, "shop")
    yield database
    assert database.drop() == []


@pytest.fixture
def shop(cluster: Cluster) -> Iterator[Database]:
    """Return a database with one table that ``capture`` may read and publish."""
    database = stocked(cluster, "shop2")
    yield database
    assert database.drop() == []


def stocked(cluster: Cluster, name: str) -> Database:
    database = cluster.create_database(name)
    database.execute(
        "CREATE TABLE t (id int PRIMARY KEY); INSERT INTO t VALUES (1); ALTER TABLE t OWNER TO capture;"
        f"GRANT CREATE ON DATABASE {name} TO capture, reader, full_house; GRANT SELECT ON t TO reader"
    )
    return database


def nothing_left(pipeline: PipelineRig) -> bool:
    database = pipeline.database
    publications = database.execute("SELECT count(*) FROM pg_publication")
    return (database.slots(), publications, pipeline.offset()) == ({}, [(0,)], None)


def refusal(pipeline: PipelineRig, **settings: Any) -> WaltapError:
    with pytest.raises(WaltapError) as caught:
        pipeline.run(**settings)
    assert pipeline.destination.events == []
    return caught.value


@functools.cache
def closed_port() -> int:
    """A port that is taken, so that nobody else gets it, and on which nobody listens."""
    TAKEN.bind(("127.0.0.1", 0))
    return int(TAKEN.getsockname()[1])


TAKEN = socket.socket()


AS = {"database.password": "right"}


@pytest.mark.parametrize(
    ("settings", "code", "status", "says", "advises"),
    [
        pytest.param(
            {"database.port": closed_port()}, "WT-2002", 3, "refused", "127.0.0.1:", id="nobody listens",
        ),
        pytest.param(
            {"database.hostname": "no.such.host.invalid"}, "WT-2002", 3, "no.such.host", "database.hostname",
            id="no such host",
        ),
        pytest.param(
            {"database.user": "capture", "database.password": "wrong"}, "WT-2003", 1,
            'password authentication failed for user "capture"', "ALTER ROLE capture", id="bad password",
        ),
        pytest.param(
            {"database.user": "capture"}, "WT-2003", 1, "no password supplied", "database.password",
            id="no password",
        ),
        pytest.param(
            {"database.user": "idle"}, "WT-2003", 1, "not permitted to log in", "LOGIN", id="may not log in",
        ),
        pytest.param(
            {"database.user": "nobody_at_all"}, "WT-2003", 1, "does not exist", "database.user", id="no such role",
        ),
        pytest.param(
            {"database.user": "strict", **AS}, "WT-2003", 1, "pg_hba.conf", "pg_hba.conf", id="kept out by pg_hba",
        ),
        pytest.param(
            {"database.dbname": "nothing"}, "WT-2004", 1, '"nothing" does not exist', "psql -l", id="no such database",
        ),
        pytest.param(
            {"database.user": "capture", **AS, "publication.autocreate.mode": "all_tables"}, "WT-2109", 1,
            "not a superuser", 'CREATE PUBLICATION "shop" FOR ALL TABLES', id="may not publish all tables",
        ),
        pytest.param(
            {"database.user": "reader", **AS, "publication.autocreate.mode": "no_tables", "table.include.list": "x"},
            "WT-2005", 1, "has no REPLICATION", 'ALTER ROLE "reader" WITH REPLICATION', id="no replication privilege",
        ),
        pytest.param(
            {"database.user": "full_house", **AS}, "WT-2010", 3, "too many connections", "max_connections",
            id="too many connections",
        ),
        pytest.param(
            {"publication.autocreate.mode": "disabled"}, "WT-2106", 1, "does not exist",
            'CREATE PUBLICATION "shop" FOR TABLE "public"."t"', id="no publication, none to be made",
        ),
        pytest.param(
            {"plugin.name": "wal2json"}, "WT-2008", 1, "wal2json",
            "output_plugin_libraries = 'pgoutput', 'wal2json'", id="output plugin not allowed",
        ),
        pytest.param(
            {"slot.stream.params": "no_such_option=1"}, "WT-2009", 1, "no_such_option", "SQLSTATE",
            id="unknown stream option",
        ),
        pytest.param(
            {"waltap.state.dir": "/dev/null/x"}, "WT-6005", 1, "Not a directory", "/dev/null/x",
            id="no folder for offsets",
        ),
    ],
)  # fmt: skip
def test_a_refused_start_says_what_mends_it_and_leaves_nothing(
    closed_shop: Database, tmp_path: Path, settings: dict[str, Any], code: str, status: int, says: str, advises: str
) -> None:  # fmt: skip
    pipeline = PipelineRig(closed_shop, tmp_path)
    quiet = {"snapshot.mode": "no_data"} if "slot.stream.params" in settings else {}
    error = refusal(pipeline, **settings, **quiet)
    assert (error.code, exit_code(error)) == (code, status)
    assert says in error.problem
    assert advises in error.advice()
    assert "right" not in str(error)
    assert nothing_left(pipeline)


def test_a_table_without_key_is_refused_before_anything_is_made(
    shop: Database, tmp_path: Path
) -> None:
    shop.execute("CREATE TABLE log (line text)")
    pipeline = PipelineRig(shop, tmp_path)
    error = refusal(pipeline)
    assert (error.code, exit_code(error)) == ("WT-2107", 1)
    assert "public.log" in error.problem
    assert 'ALTER TABLE "public"."log" REPLICA IDENTITY FULL' in error.advice()
    assert "publication.keyless.tables=inserts" in error.advice()
    assert nothing_left(pipeline)


def test_a_publication_of_all_tables_spares_tables_without_key_too(
    shop: Database, tmp_path: Path
) -> None:
    """It would break a table that nobody captures."""
    shop.execute("CREATE TABLE log (line text)")
    settings = {"publication.autocreate.mode": "all_tables", "table.include.list": r"public\.t"}
    pipeline = PipelineRig(shop, tmp_path, settings)
    error = refusal(pipeline)
    assert error.code == "WT-2107"
    assert "public.log" in error.problem
    assert nothing_left(pipeline)
    pipeline.catch_up(**{"publication.keyless.tables": "publish"})


def test_a_table_without_key_can_give_its_inserts_and_stay_writable(
    shop: Database, tmp_path: Path
) -> None:
    shop.execute("CREATE TABLE log (line text)")
    pipeline = PipelineRig(shop, tmp_path, {"publication.keyless.tables": "inserts"})
    pipeline.catch_up()
    shop.execute("INSERT INTO log VALUES ('a')")
    shop.execute("UPDATE log SET line = 'b'")
    shop.execute("DELETE FROM log")
    shop.execute("INSERT INTO t VALUES (2)")
    shop.execute("UPDATE t SET id = 3 WHERE id = 2")
    pipeline.catch_up()
    events = [(e.op, e.table) for e in pipeline.destination.events if e.op != "r"]
    assert events == [("c", "public.log"), ("c", "public.t"), ("u", "public.t")]


def test_a_publication_that_covers_nothing_captured_is_refused(
    shop: Database, tmp_path: Path
) -> None:
    pipeline = PipelineRig(shop, tmp_path, {"publication.autocreate.mode": "disabled"})
    shop.execute("CREATE TABLE other (id int PRIMARY KEY)")
    shop.execute(f"CREATE PUBLICATION {pipeline.settings['publication.name']} FOR TABLE other")
    error = refusal(pipeline, **{"table.include.list": r"public\.t"})
    assert error.code == "WT-2106"
    assert 'ALTER PUBLICATION "shop2" ADD TABLE "public"."t"' in error.advice()
    assert shop.slots() == {}


def test_no_free_slot_is_told(shop: Database, tmp_path: Path) -> None:
    shop.execute("SELECT pg_create_logical_replication_slot('taken', 'pgoutput')")
    pipeline = PipelineRig(shop, tmp_path)
    error = refusal(pipeline)
    assert (error.code, exit_code(error)) == ("WT-2007", 1)
    assert "max_replication_slots" in error.advice()
    assert list(shop.slots()) == ["taken"]
    assert shop.execute("SELECT count(*) FROM pg_publication") == [(0,)]


def test_no_free_walsender_is_told(shop: Database, tmp_path: Path) -> None:
    pipeline = PipelineRig(shop, tmp_path)
    other = psycopg.pq.PGconn.connect(f"{shop.dsn}?replication=database".encode())
    try:
        error = refusal(pipeline)
    finally:
        other.finish()
    assert (error.code, exit_code(error)) == ("WT-2010", 3)
    assert "max_wal_senders" in error.advice()
    assert nothing_left(pipeline)


def test_wal_level_below_logical_is_told(shop: Database, cluster: Cluster, tmp_path: Path) -> None:
    pipeline = PipelineRig(shop, tmp_path)
    cluster.execute("ALTER SYSTEM SET wal_level = 'replica'")
    cluster.restart()
    try:
        error = refusal(pipeline)
        assert (error.code, exit_code(error)) == ("WT-2006", 1)
        assert "ALTER SYSTEM SET wal_level = 'logical'" in error.advice()
        assert nothing_left(pipeline)
        cluster.execute("ALTER SYSTEM SET wal_level = 'logical'")
        for reload in ("SELECT 1", "SELECT pg_reload_conf()"):  # it may be told, or only written
            cluster.execute(reload)
            until(lambda: "set already: restart" in refusal(pipeline).advice(), "the new files")
            assert "ALTER SYSTEM" not in refusal(pipeline).advice()
    finally:
        cluster.execute("ALTER SYSTEM RESET wal_level")
        cluster.restart()


# --- the least that works ---------------------------------------------------------------------------


@pytest.mark.parametrize(
    "owner", [True, False], ids=["owner of the tables", "reader of the tables"]
)
def test_a_role_that_is_no_superuser_captures(
    shop: Database, cluster: Cluster, tmp_path: Path, owner: bool
) -> None:
    """As owner with CREATE it publishes by itself; a publication made for it needs SELECT alone.
    Functions that tell of the control file may be kept from it."""
    shop.execute(
        "REVOKE EXECUTE ON FUNCTION pg_control_system(), pg_control_checkpoint() FROM PUBLIC"
    )
    pipeline = PipelineRig(shop, tmp_path, {"database.user": "capture", **AS})
    settings = {}
    if not owner:
        shop.execute("ALTER TABLE t OWNER TO postgres; GRANT SELECT ON t TO capture")
        shop.execute("CREATE PUBLICATION shop2 FOR TABLE t")
        settings = {"publication.autocreate.mode": "disabled"}
    pipeline.catch_up(**settings)
    shop.execute("INSERT INTO t VALUES (2)")
    pipeline.catch_up(**settings)
    assert [(e.op, e.row["id"]) for e in pipeline.destination.events] == [("r", "1"), ("c", "2")]
    offset = pipeline.offset()
    assert offset is not None
    assert shop.execute("SELECT system_identifier::text FROM pg_control_system()") == [
        (offset.sole.system_id,)
    ]


def test_a_role_that_owns_no_table_is_told_how_to_be_given_a_publication(
    shop: Database, tmp_path: Path
) -> None:
    shop.execute("ALTER TABLE t OWNER TO postgres; GRANT SELECT ON t TO capture")
    pipeline = PipelineRig(shop, tmp_path, {"database.user": "capture", **AS})
    error = refusal(pipeline)
    assert error.code == "WT-2109"
    assert "public.t (of postgres)" in error.problem
    assert 'CREATE PUBLICATION "shop2" FOR TABLE "public"."t"' in error.advice()
    assert "GRANT CREATE ON DATABASE" in error.advice()
    assert nothing_left(pipeline)


# --- TLS -------------------------------------------------------------------------------------------


@pytest.mark.parametrize("mode", ["require", "verify-full"])
def test_an_encrypted_connection_gives_the_same_events(
    shop: Database, cluster: Cluster, tmp_path: Path, mode: str
) -> None:
    if not (cluster.folder / "root.crt").exists():
        missing("the server speaks no TLS, or there is no openssl to make its certificate")
    shop.execute("CREATE TABLE wide (id int PRIMARY KEY, v text)")
    shop.execute(
        "INSERT INTO wide SELECT g, repeat(chr(64 + g % 60), g) FROM generate_series(1, 2000) g"
    )
    change = (
        "INSERT INTO wide SELECT g, repeat('y', g % 900) FROM generate_series(3001, 6000) g;"
        "UPDATE wide SET v = NULL WHERE id < 100; DELETE FROM wide WHERE id = 7"
    )
    seen = []
    for name, tls in (("plain", "disable"), ("tls", mode)):
        pipeline = PipelineRig(
            shop,
            tmp_path / name,
            {"slot.name": name, "database.sslmode": tls, "snapshot.fetch.size": 700},
        )
        if tls == "verify-full":
            pipeline.settings["database.sslrootcert"] = str(cluster.folder / "root.crt")
        with pipeline.running() as run:
            ((encrypted,),) = shop.execute(
                "SELECT bool_and(s.ssl) FROM pg_stat_ssl s JOIN pg_stat_activity a USING (pid)"
                " WHERE a.application_name LIKE 'waltap %%' AND datname = %s",
                "shop2",
            )
            assert encrypted is (tls != "disable")
            shop.execute(change)
            run.until(lambda p=pipeline: p.destination.ids("wide", "d") == [7], "the delete")
        # the next starts from the same rows, with the only slot there is
        shop.execute(f"SELECT pg_drop_replication_slot('{name}')")
        shop.execute("TRUNCATE wide")
        shop.execute(
            "INSERT INTO wide SELECT g, repeat(chr(64 + g % 60), g) FROM generate_series(1, 2000) g"
        )
        seen.append([(e.op, e.table, e.row) for e in pipeline.destination.events])
    assert len(seen[0]) > 5000
    assert seen[0] == seen[1]


def test_a_certificate_of_an_unknown_authority_is_told(
    shop: Database, cluster: Cluster, tmp_path: Path
) -> None:
    if not (cluster.folder / "root.crt").exists():
        missing("the server speaks no TLS, or there is no openssl to make its certificate")
    own = tmp_path / "own"
    own.mkdir()
    subprocess.run(
        "openssl req -new -x509 -days 2 -nodes -subj /CN=other -out other.crt -keyout other.key".split(),
        cwd=own, check=True, capture_output=True,
    )  # fmt: skip
    pipeline = PipelineRig(shop, tmp_path)
    error = refusal(
        pipeline,
        **{"database.sslmode": "verify-ca", "database.sslrootcert": str(own / "other.crt")},
    )
    assert error.code == "WT-2028"
    assert "certificate verify failed" in error.problem
    assert "signed by the authority that database.sslrootcert names" in error.advice()


LIBRARIES = "output_plugin_libraries"


@pytest.mark.parametrize("said_by", ["run", "doctor"])
def test_what_lets_an_output_plugin_be_loaded_does_so_and_keeps_the_others(
    cluster: Cluster, shop: Database, tmp_path: Path, said_by: str
) -> None:
    listed = cluster.execute(f"SELECT setting FROM pg_settings WHERE name = '{LIBRARIES}'")
    if not listed:
        pytest.skip("this server loads any output plugin")
    pipeline = PipelineRig(shop, tmp_path)
    remedy = (
        refusal(pipeline, **{"plugin.name": "wal2json"}).advice()
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
