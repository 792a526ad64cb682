"""What `doctor` and a start say that is no refusal (those: test_refusals.py): warnings, reported once, and what changes
them; the command's exit codes; and the switches of services that host PostgreSQL, imitated."""

import json
import os
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from psycopg.errors import QueryCanceled
from tests.harness.command import waltap
from tests.harness.meanwhile import in_background
from tests.harness.pipeline import PipelineRig, until
from tests.harness.servers.own_server import own_server
from tests.harness.servers.postgres import Cluster, Database

from waltap.errors import WaltapError
from waltap.ports.source.connector import PreflightCheck

pytestmark = pytest.mark.pipeline(
    sql="CREATE TABLE t (id int PRIMARY KEY); INSERT INTO t VALUES (1)"
)


def test_a_decoder_that_asks_for_more_than_the_server_has_is_refused_before_the_slot_is_made(
    pipeline,
):
    wrong = {"sink.type": "jsonl", "sink.path": str(pipeline.folder / "out/lines")}
    wrong |= {"pgoutput.streaming": "parallel", "pgoutput.proto_version": "3"}
    done = pipeline.command("doctor", "--json", **wrong)
    assert done.returncode == 1
    failed = {c["name"]: c for c in json.loads(done.stdout) if c["verdict"] == "error"}
    assert failed["decoder"]["code"] == "WT-1001"
    assert "pgoutput.streaming" in failed["decoder"]["found"]
    done = pipeline.command("run", "FILE", "--until-idle", 0.3, **wrong)
    assert (done.returncode, "WT-1001" in done.stderr) == (2, True)
    assert pipeline.database.slots() == {}, "a slot would hold WAL that nothing reads"
    assert not (pipeline.folder / "out/lines").exists(), "no row of a snapshot was written"


def test_a_table_of_another_owner_beside_a_publication_of_ours(pipeline, caplog):
    """Somebody's CREATE TABLE stops no pipeline."""
    database, role = pipeline.database, f"r_{pipeline.database.name}"
    pipeline.settings |= {"database.user": role, "database.password": "x"}
    database.execute(
        f"CREATE ROLE {role} LOGIN REPLICATION PASSWORD 'x'; ALTER TABLE t OWNER TO {role};"
        f"GRANT CREATE ON DATABASE {database.name} TO {role}"
    )
    try:
        with pipeline.running() as run:
            database.execute(f"CREATE TABLE u (id int PRIMARY KEY); GRANT SELECT ON u TO {role}")
            run.until(lambda: 'ADD TABLE "public"."u"' in caplog.text, "the SQL for the owner")
        database.execute("INSERT INTO t VALUES (2); INSERT INTO u VALUES (1)")
        for _ in range(2):
            warned = pipeline.doctor()["publication"]
            assert "public.u" in warned.found
            caplog.clear()
            pipeline.catch_up()
            assert "may not publish tables that it does not own: public.u" in caplog.text
        database.execute(warned.remedy.partition(" (as")[0])
        assert "publication" not in pipeline.doctor()
        pipeline.catch_up()
    finally:
        database.execute(f"DROP OWNED BY {role} CASCADE; DROP ROLE {role}")


# --- what does not come ----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("ddl", "what", "decoder"),
    [
        pytest.param("CREATE TABLE odd (a int PRIMARY KEY DEFERRABLE)", "deferrable", "pgoutput", id="deferrable"),
        pytest.param(
            'CREATE TABLE odd (a int NOT NULL, CONSTRAINT "Odd one" UNIQUE (a), b int UNIQUE)',
            "no primary key; its unique index Odd one does", "wal2json", id="unique",
        ),
        pytest.param(
            "CREATE TABLE odd (a int PRIMARY KEY, b int NOT NULL UNIQUE);"
            "ALTER TABLE odd REPLICA IDENTITY USING INDEX odd_b_key", "lacks the key's a", "pgoutput", id="index-without-key",
        ),
        pytest.param(
            "CREATE TABLE odd (a int PRIMARY KEY, b int NOT NULL UNIQUE); ALTER TABLE odd REPLICA IDENTITY USING INDEX odd_b_key;"
            "ALTER TABLE odd DROP CONSTRAINT odd_b_key", "is gone", "wal2json", id="index-gone",
        ),
        pytest.param(
            "CREATE TABLE odd (a int PRIMARY KEY); ALTER TABLE odd REPLICA IDENTITY NOTHING",
            "deletes do not come", "pgoutput", id="nothing",
        ),
    ],
)  # fmt: skip
def test_what_a_replica_identity_leaves_out_is_reported_once_by_doctor_and_at_the_start(
    pipeline, ddl, what, decoder, caplog
):
    pipeline.database.execute(ddl)
    pipeline.settings |= {"plugin.name": decoder, "publication.keyless.tables": "inserts"}
    found = pipeline.doctor()["replica identity"]
    assert found.verdict == "warning"
    assert "public.odd: " in found.found
    assert what in found.found
    pipeline.catch_up()
    assert caplog.text.count(what) == 1
    pipeline.database.execute(found.remedy)
    assert "replica identity" not in pipeline.doctor()


def test_a_partition_without_its_roots_full_identity_is_reported(pipeline):
    pipeline.database.execute(
        "CREATE TABLE odd (a int PRIMARY KEY, b text) PARTITION BY RANGE (a);"
        "CREATE TABLE odd_1 PARTITION OF odd DEFAULT; ALTER TABLE odd REPLICA IDENTITY FULL"
    )
    pipeline.settings |= {"publish.via.partition.root": "true"}
    found = pipeline.doctor()["replica identity"]
    assert "public.odd_1, of a root under FULL, is not" in found.found
    pipeline.database.execute(found.remedy)
    assert "replica identity" not in pipeline.doctor()


ODD = 'v int, q tsquery, m money[], p pair, "x y" int4multirange'


def test_columns_that_nothing_maps_are_reported(pipeline, caplog):
    pipeline.database.execute(
        f"CREATE TYPE pair AS (a int, b text); CREATE TABLE odd (id pg_lsn PRIMARY KEY, {ODD})"
    )
    reported = pipeline.doctor()["columns"]
    assert "public.odd" in reported.found
    assert "id (pg_lsn; tables have this part of the key as text), q (tsquery)," in reported.found
    assert "m (money[]), p (pair), x y (int4multirange)" in reported.found
    assert "include.unknown.datatypes=true" in reported.remedy
    pipeline.catch_up()
    assert caplog.text.count("q (tsquery)") == 1
    assert "columns" not in pipeline.doctor(**{"column.exclude.list": "public.odd.(id|q|m|p|x y)"})
    reported = pipeline.doctor(**{"include.unknown.datatypes": True})["columns"]
    assert "of public.odd are left out, nothing maps their types: m (money[])" in reported.found
    assert "generated column" in reported.remedy


# --- names in properties ---------------------------------------------------------------------------------


def test_a_debezium_file_may_match_no_table_where_debezium_allows_it(database, tmp_path):
    flat = {
        "connector.class": "io.debezium.connector.postgresql.PostgresConnector",
        "topic.prefix": "t", "plugin.name": "pgoutput", "table.include.list": "public.none",
        "slot.name": database.name, "publication.name": database.name,
        "publication.autocreate.mode": "all_tables", **database.properties(),
    }  # fmt: skip
    (tmp_path / "c.json").write_text(json.dumps(flat))
    done = waltap("run", "c.json", "--sink", "jsonl:x", "--until-idle", 0.3, cwd=tmp_path)
    assert "no table fits" in done.stderr
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize("form", [r"{}\.public\.users\.secret", r"{}.users.secret"])
def test_a_mask_may_name_the_database(pipeline, form):
    pipeline.database.execute(
        "CREATE TABLE users (id int PRIMARY KEY, secret text, code text, long text);"
        "INSERT INTO users VALUES (1, 'sesame', 'xyz', 'abcdef')"
    )
    name, lines = pipeline.database.name, pipeline.folder / "lines"
    pipeline.settings |= {
        "column.mask.with.3.chars": form.format(name),
        "column.truncate.to.2.chars": form.format(name).replace("secret", "long"),
        "message.key.columns": form.format(name).rpartition(".")[0].rstrip("\\") + ":code",
        "table.include.list": f"{name}.public.users",
        "snapshot.select.statement.overrides": f"{name}.public.users",
        f"snapshot.select.statement.overrides.{name}.public.users": "SELECT * FROM users WHERE id < 2",
        "sink.type": "jsonl",
        "sink.path": str(lines),
    }
    assert not {"masks", "name patterns"} & set(pipeline.doctor())
    pipeline.catch_up()
    (record,) = map(json.loads, lines.read_text().splitlines())
    assert record["key"]["code"] == "xyz"
    assert record["value"]["after"] == {"id": 1, "secret": "***", "code": "xyz", "long": "ab"}


def test_patterns_that_match_nothing_are_reported(pipeline):
    pipeline.database.execute("CREATE TABLE users (id int PRIMARY KEY, secret text)")
    idle = {
        "column.mask.hash.SHA-256.with.salt.pepper": r"public\.users\.secert",
        "waltap.unmatched.masks": "warn",
        "column.exclude.list": r"public\.users\.secret,public\.gone\.x",
        "message.key.columns": "public.users:nokey",
        "table.exclude.list": r"audit\..*",
        "replica.identity.autoset.values": "public.none:FULL",
    }
    found = pipeline.doctor(**idle)
    assert r"public\.users\.secert (column.mask.hash.SHA-256.with.salt." in found["masks"].found
    assert "pepper" not in found["masks"].found
    for name in ("gone", "nokey", "audit", "none"):
        assert name in found["name patterns"].found
    assert "secret" not in found["name patterns"].found


@pytest.mark.parametrize(
    ("plugin", "encoding", "refused"),
    [("wal2json", "EUC_JP", True), ("wal2json", "LATIN1", False), ("pgoutput", "EUC_JP", False)],
)
def test_an_encoding_that_nobody_converts_is_refused(pipeline, plugin, encoding, refused):
    server, name = pipeline.database.server, f"{pipeline.database.name}_other"
    server.execute(
        f"CREATE DATABASE \"{name}\" TEMPLATE template0 ENCODING '{encoding}' LC_COLLATE 'C' LC_CTYPE 'C'"
    )
    other = Database(server, name)
    pipeline.settings["database.dbname"] = name
    try:
        other.execute("CREATE TABLE t (id int PRIMARY KEY)")
        if refused:
            other.execute(
                "SELECT pg_create_logical_replication_slot(%s, %s)", pipeline.slot, plugin
            )
            former = {"plugin.name": plugin, "slot.takeover": True}
            assert pipeline.doctor(**former)["encoding"].error.code == "WT-2119"
            with pytest.raises(WaltapError) as caught:
                pipeline.run(**former)
            assert caught.value.code == "WT-2119"
            for words in ("slot", "drop"), ("offsets", "clear"):
                done = pipeline.command(*words, "FILE", "--yes", **former)
                assert done.returncode == 0, done.stderr
            plugin = "pgoutput"
        pipeline.catch_up(**{"plugin.name": plugin})
    finally:
        other.drop()


# --- publications of others, and servers ------------------------------------------------------------------


@pytest.mark.parametrize(
    ("covers", "way"),
    [
        ("ALL TABLES", "profile"),
        ("TABLE t, p", "publication"),
        ("TABLE p WHERE (id > 0)", "profile"),
    ],
)
def test_partitions_are_published_by_other_names_than_the_profile_has(pipeline, covers, way):
    """Nothing that is captured is published, or other tables are, too."""
    if "WHERE" in covers:
        pipeline.database.execute("DROP TABLE t")
    pipeline.settings["publication.autocreate.mode"] = "disabled"
    pipeline.database.execute(
        "CREATE TABLE p (id int PRIMARY KEY) PARTITION BY RANGE (id);"
        "CREATE TABLE p1 PARTITION OF p DEFAULT; INSERT INTO p VALUES (1);"
        f"CREATE PUBLICATION {pipeline.slot} FOR {covers} WITH (publish_via_partition_root = true)"
    )
    check = pipeline.doctor()["publication"]
    if "WHERE" in covers:
        with pytest.raises(WaltapError) as refused:
            pipeline.run()
        assert refused.value.code == check.error.code == "WT-2106"
    else:
        assert "under other names" in check.found
        assert "ADD TABLE" not in check.remedy
    setting = re.search(r"(publish\.[a-z.]+)=(\w+)", check.remedy)
    statement = re.search(r"ALTER PUBLICATION [^;]+", check.remedy)
    if way == "profile":
        assert setting, check
        pipeline.settings[setting[1]] = setting[2] == "true"
    else:
        assert statement, check
        pipeline.database.execute(statement[0])
    left = pipeline.doctor().get("publication")
    assert left is None or "WHERE (id > 0)" in left.found
    pipeline.catch_up()
    pipeline.deliver("INSERT INTO p VALUES (2)")
    name = "public.p" if way == "profile" else "public.p1"
    found = [(e.op, e.table) for e in pipeline.destination.events if e.table != "public.t"]
    assert found == [("r", name), ("c", name)]


@pytest.mark.pipeline(
    sql="CREATE TABLE p (id int PRIMARY KEY) PARTITION BY RANGE (id);"
    "CREATE TABLE p1 PARTITION OF p FOR VALUES FROM (0) TO (10)",
    settings={"publish.via.partition.root": True},
)
def test_partitions_that_are_half_detached_or_unlogged_are_reported(pipeline):
    pipeline.database.execute(
        "CREATE UNLOGGED TABLE p2 PARTITION OF p FOR VALUES FROM (10) TO (20)"
    )
    check = pipeline.doctor()["partitions"]
    assert "public.p2 is unlogged" in check.found
    pipeline.database.execute(check.remedy)
    with pipeline.database.connect(autocommit=False) as reader:
        reader.execute("SELECT FROM p")
        alter = "ALTER TABLE p DETACH PARTITION p1 CONCURRENTLY"
        detaching = in_background(pipeline.database.run, alter)
        half = "SELECT 1 FROM pg_inherits WHERE inhdetachpending"
        until(lambda: pipeline.database.execute(half), "the first half")
        cancel = "SELECT pg_cancel_backend(pid) FROM pg_stat_activity WHERE query = %s"
        pipeline.database.execute(cancel, alter)
        with pytest.raises(QueryCanceled):
            detaching.result(120)
    check = pipeline.doctor()["partitions"]
    assert "public.p1 is half detached" in check.found
    pipeline.database.execute(check.remedy)
    assert "partitions" not in pipeline.doctor()


# --- sinks and state -------------------------------------------------------------------------------------


def test_a_log_file_that_cannot_be_written_fails_the_check_and_no_pipeline_of_a_program(pipeline):
    """The command refuses it where it opens it; a program has its own log."""
    pipeline.settings["waltap.log.file"] = str(pipeline.folder / "x/log")
    assert pipeline.doctor()["log file"].verdict == "error"
    pipeline.catch_up()


def test_spark_without_java(pipeline):
    spark = {"sink.type": "spark", "sink.path": str(pipeline.folder / "lake")}
    for words in (["doctor", "--json"], ["run"]):
        done = waltap(*words, pipeline.file(**spark), JAVA_HOME=str(pipeline.folder))
        assert done.returncode != 0
        assert "WT-5201" in done.stdout + done.stderr
    assert pipeline.database.slots() == {}


@pytest.mark.parametrize(
    ("extra", "library", "settings"),
    [
        ("webhook", "httpx", {"notification.enabled.channels": "webhook", "notification.webhook.url": "http://h/"}),
        ("monitor", "prometheus_client", {"waltap.http": "127.0.0.1:0"}),
        ("otel", "opentelemetry.exporter", {"waltap.otel.endpoint": "http://h"}),
        ("openlineage", "openlineage.client", {"waltap.openlineage.to": "lineage.jsonl"}),
    ],
)  # fmt: skip
def test_a_missing_library_that_only_a_run_imports(pipeline, extra, library, settings, monkeypatch):
    assert extra not in pipeline.doctor(**settings)
    for name in [each for each in sys.modules if f"{each}.".startswith(f"{library}.")]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, library, None)
    assert f"pip install 'waltap[{extra}]'" in pipeline.doctor(**settings)[extra].remedy


@pytest.mark.skipif(not Path("/dev/shm").is_dir() or os.geteuid() != 0, reason="needs a mount")
@pytest.mark.parametrize(
    ("options", "sink", "check"),
    [
        ("size=64k", "jsonl", "sink jsonl"),
        ("ro", "changelog", "sink changelog"),
        ("size=64k", "state", "state folder"),
        ("ro", "state", "state folder"),
    ],
)
def test_a_disk_that_is_full_or_read_only(pipeline, options, sink, check):
    mount = pipeline.folder / "disk"
    mount.mkdir()
    done = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", options, "tmpfs", str(mount)], capture_output=True, check=False
    )  # fmt: skip
    if done.returncode:
        pytest.skip("mounting is not allowed here")
    settings: dict[str, Any] = {"sink.type": sink, "sink.path": str(mount / "out")}
    if sink == "state":
        settings = {"waltap.state.dir": str(mount / "state")}
    try:
        if options != "ro":
            with pytest.raises(OSError, match="No space left"), (mount / "fill").open("wb") as file:
                while True:
                    file.write(bytes(4096))
                    file.flush()
        before = sorted(mount.rglob("*"))
        code = pipeline.doctor(**settings)[check].error.code
        with pytest.raises(WaltapError) as refused:
            pipeline.run(**settings)
        assert refused.value.code == code
        assert sorted(mount.rglob("*")) == before
        assert pipeline.database.slots() == {}
    finally:
        subprocess.run(["umount", str(mount)], check=True)


def test_a_connector_that_strimzi_keeps_paused_is_an_error_of_doctor(database, tmp_path):
    path = tmp_path / "connector.json"
    config = database.properties() | {"topic.prefix": "p", "database.password": "x"}
    spec = {"class": "io.debezium.connector.postgresql.PostgresConnector", "config": config}
    for state, code in (("paused", 1), ("running", 0)):
        resource = {
            "kind": "KafkaConnector",
            "metadata": {"name": "p"},
            "spec": spec | {"state": state},
        }
        path.write_text(json.dumps({"apiVersion": "kafka.strimzi.io/v1beta2", **resource}))
        done = waltap("doctor", path, "--sink", "null", cwd=tmp_path)
        assert done.returncode == code, done.stdout + done.stderr
        assert ("Take spec.state out" in done.stdout) is (state == "paused")


# --- services that host PostgreSQL: a server of ours has what reports each (roles, settings, schemas, a name)


ROLE = "hosted"


@pytest.fixture(scope="module")
def cluster() -> Iterator[Cluster]:
    """Return a server as services make them: without logical decoding."""
    with own_server(wal_level="replica") as made:
        made.execute(f"CREATE ROLE {ROLE} LOGIN")
        yield made


@pytest.fixture(scope="module")
def shop(cluster) -> Database:
    made = cluster.create_database("shop")
    made.execute("CREATE TABLE t (id int PRIMARY KEY)")
    made.execute("CREATE PUBLICATION shop FOR TABLE t")
    made.execute(f"GRANT SELECT ON t TO {ROLE}")
    return made


def looked(
    shop: Database, folder: Path, **settings: Any
) -> tuple[dict[str, PreflightCheck], list[str]]:
    given = {name.replace("__", "."): value for name, value in settings.items()}
    given = {"database.user": ROLE, "publication.autocreate.mode": "disabled", **given}
    return PipelineRig(shop, folder, given).looked()


def group(name: str) -> tuple[str, str]:
    return f"CREATE ROLE {name} NOLOGIN", f"DROP ROLE {name}"


def setting(name: str, value: str) -> tuple[str, str]:
    return (
        f"ALTER DATABASE shop SET \"{name}\" = '{value}'",
        f'ALTER DATABASE shop RESET "{name}"',
    )


AURORA = (
    "CREATE FUNCTION aurora_version() RETURNS text LANGUAGE sql AS $$SELECT '16.4'$$",
    "DROP FUNCTION aurora_version()",
)
REPLICATION = f"ALTER ROLE {ROLE} WITH REPLICATION"
RDS = f"GRANT rds_replication TO {ROLE}"
IMITATED = {
    "RDS": (
        [group("rds_superuser"), group("rds_replication"), setting("rds.logical_replication", "off")],
        "Amazon RDS", "setting rds.logical_replication", "DB parameter group: rds.logical_replication = 1", RDS,
    ),
    "RDS before its reboot": (
        [group("rds_replication"), setting("rds.logical_replication", "on")],
        "Amazon RDS", "setting", "rds.logical_replication is on already: reboot the instance", RDS,
    ),
    "Aurora": (
        [group("rds_replication"), AURORA],
        "Amazon Aurora", "function aurora_version", "DB cluster parameter group", RDS,
    ),
    "Azure": (
        [group("azure_pg_admin"), setting("azure.extensions", "")],
        "Azure Database for PostgreSQL", "setting azure.extensions", "server parameter wal_level = logical", REPLICATION,
    ),
    "Cloud SQL": (
        [group("cloudsqlsuperuser")],
        "Google Cloud SQL", "role cloudsqlsuperuser", "flag cloudsql.logical_decoding = on", REPLICATION,
    ),
    "AlloyDB": (
        [group("alloydbsuperuser"), setting("alloydb.logical_decoding", "off")],
        "Google AlloyDB", "setting alloydb", "flag alloydb.logical_decoding = on", REPLICATION,
    ),
    "Supabase": ([group("supabase_admin")], "Supabase", "role", "logical there as it comes", REPLICATION),
    "Neon": (
        [group("neon_superuser"), setting("neon.timeline_id", "x")],
        "Neon", "setting neon.timeline_id", "Logical Replication: Enable", REPLICATION,
    ),
    "Heroku": (
        [("CREATE SCHEMA heroku_ext", "DROP SCHEMA heroku_ext"), group("rds_superuser")],
        "Heroku Postgres", "schema heroku_ext", "offers no logical replication", "move the database",
    ),
}  # fmt: skip
"""Each with what makes and removes it, then what is to be reported: who, by what, the switch, the grant."""


@pytest.mark.parametrize("case", IMITATED)
def test_the_switch_that_is_reported_is_the_services_own(case, shop, tmp_path):
    made, name, reported_by, switch, grant = IMITATED[case]
    for make, _ in made:
        shop.execute(make)
    try:
        found, others = looked(shop, tmp_path)
        for statement in (each for each in others if not each.startswith("-- ")):
            shop.execute(statement)  # what is no SQL says where it is done: a console
        granted, _ = looked(shop, tmp_path)
    finally:
        shop.execute(f"ALTER ROLE {ROLE} WITH NOREPLICATION")
        for _, remove in made:
            shop.execute(remove)
    assert granted["privileges"].verdict == ("error" if case == "Heroku" else "ok")
    remedies = [each.remedy for each in found.values() if each.verdict in {"error", "warning"}]
    assert not [each for each in remedies if "ALTER SYSTEM" in each], "nobody is a superuser there"
    assert found["hosted by"].found.startswith(f"{name}, recognized by {reported_by}")
    assert found["wal_level"].verdict == "error"
    assert switch in found["wal_level"].remedy
    assert "ALTER SYSTEM" not in found["wal_level"].remedy
    assert grant in found["privileges"].remedy
    assert any(grant in each for each in others)
    assert any(each.startswith("-- ") and switch.partition(": ")[0] in each for each in others)
    assert not any("restart" in each or "reboot" in each for each in others if each[:3] != "-- ")
    assert ("40 hours" in found["hosted by"].found) is (case == "Neon")


def test_a_server_of_nobody_is_reported_nothing_of_services(shop, tmp_path):
    found, others = looked(shop, tmp_path)
    assert "hosted by" not in found
    assert "ALTER SYSTEM SET wal_level" in found["wal_level"].remedy
    assert "ALTER SYSTEM SET wal_level = 'logical'" in others
    assert "-- then restart the server" in others


@pytest.mark.parametrize(
    ("address", "name"),
    [
        ("shop.c9akciq32.eu-central-1.rds.amazonaws.com", "Amazon RDS"),
        ("shop.postgres.database.azure.com", "Azure Database for PostgreSQL"),
        ("shop.example.com", None),
    ],
)
def test_a_name_is_a_hint(address, name, shop, tmp_path):
    found, _ = looked(shop, tmp_path, database__hostname=address, driver__hostaddr=shop.server.host)
    reported = f"{name}, recognized by its name {address}"
    assert [
        each.found.partition(":")[0] for each in found.values() if each.name == "hosted by"
    ] == ([] if name is None else [reported])


def test_a_member_of_rds_replication_may_replicate_and_publishes_what_it_owns(shop, tmp_path):
    shop.execute("CREATE ROLE rds_superuser NOLOGIN; CREATE ROLE rds_replication NOLOGIN")
    try:
        shop.execute(RDS)
        found, others = looked(shop, tmp_path)
        assert found["privileges"].verdict == "ok"
        assert RDS not in others
        own = {"publication__autocreate__mode": "all_tables", "publication__name": "own"}
        found, _ = looked(shop, tmp_path, **own)
        assert found["publication"].verdict == "error"
        shop.execute(f"GRANT rds_superuser TO {ROLE}")
        found, _ = looked(shop, tmp_path, **own)
        assert found["publication"].verdict == "ok"
    finally:
        shop.execute("DROP ROLE rds_superuser, rds_replication")


def test_commits_that_do_not_wait_for_the_disk_are_reported(shop, tmp_path):
    assert "latency" not in looked(shop, tmp_path)[0]
    shop.execute(
        "CREATE ROLE app NOLOGIN; ALTER ROLE app IN DATABASE shop SET synchronous_commit = off"
    )
    try:
        latency = looked(shop, tmp_path)[0]["latency"]
        assert latency.verdict == "ok"
        assert "off for role app in database shop: " in latency.found
        assert "600 ms" in latency.found
        shop.execute("ALTER SYSTEM SET wal_writer_delay = '5s'")
        shop.server.reload()
        latency = looked(shop, tmp_path)[0]["latency"]
        assert latency.verdict == "warning"
        assert "15000 ms" in latency.found
        assert "wal_writer_delay" in latency.remedy
    finally:
        shop.execute("DROP OWNED BY app; DROP ROLE app")
        shop.execute("ALTER SYSTEM RESET wal_writer_delay")
        shop.server.reload()


def test_a_standby_that_cannot_decode_is_refused_with_the_primarys_address(cluster, shop, tmp_path):
    if cluster.version >= 160000:
        pytest.skip("the server decodes on standbys")
    cluster.execute("SELECT pg_create_physical_replication_slot('second', true)")
    standby = cluster.standby("second")
    try:
        there = Database(standby, shop.name)
        pipeline = PipelineRig(there, tmp_path, {"publication.autocreate.mode": "disabled"})
        with pytest.raises(WaltapError) as caught:
            pipeline.run()
        assert caught.value.code in {"WT-2124", "WT-2006"}
        found, _ = looked(there, tmp_path, database__user="postgres")
        assert found["standby"].error is not None
        assert found["standby"].error.code == "WT-2124"
        assert f"{cluster.host}:{cluster.port}" in found["standby"].remedy
    finally:
        standby.remove()
