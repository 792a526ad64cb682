"""What `doctor` and a start say that is no refusal (those: test_refusals.py): warnings, reported once, and what changes
them; and the command's exit codes."""

import json
import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from psycopg.errors import QueryCanceled
from tests.harness.command import waltap
from tests.harness.servers.postgres import Database

from waltap.errors import WaltapError

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
        with pytest.raises(QueryCanceled):
            pipeline.database.run(
                "SET statement_timeout = 100", "ALTER TABLE p DETACH PARTITION p1 CONCURRENTLY"
            )
    check = pipeline.doctor()["partitions"]
    assert "public.p1 is half detached" in check.found
    pipeline.database.execute(check.remedy)
    assert "partitions" not in pipeline.doctor()


# --- sinks and state -------------------------------------------------------------------------------------


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
