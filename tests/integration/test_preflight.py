"""What `doctor` says and what `run` does: the same checks, before anything is made, and remedies that
suffice when they are carried out as they stand."""

import json
import os
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from waltap.signals.errors import SignalTableUnusable

from tests.harness.command import waltap
from tests.harness.pipeline import PipelineRig, until
from tests.harness.servers.postgres import Cluster, Database

NAME = re.compile(r"[^a-z0-9_]")


class Shop:
    """A database with one table, and a profile beside it that tests change."""

    def __init__(self, database: Database, folder: Path) -> None:
        self.database, self.folder = database, folder
        self.source: dict[str, Any] = {"type": "postgres", **database.properties()}
        self.sink: dict[str, Any] = {"type": "jsonl", "path": "out/lines.jsonl"}
        self.variables: dict[str, str] = {}

    @property
    def path(self) -> Path:
        def table(values: dict[str, Any]) -> str:
            return "\n".join(f'"{name}" = {json.dumps(value)}' for name, value in values.items())

        path = self.folder / f"{self.database.name}.toml"
        path.write_text(f"[source]\n{table(self.source)}\n[sink]\n{table(self.sink)}\n")
        return path

    def doctor(self) -> dict[str, dict[str, str]]:
        """Return the failed checks by name, having compared them with the exit code."""
        done = waltap("doctor", self.path, "--json", cwd=self.folder, **self.variables)
        assert done.stdout, done.stderr
        failed = {c["name"]: c for c in json.loads(done.stdout) if c["verdict"] == "error"}
        assert done.returncode == (1 if failed else 0)
        return failed

    def warnings(self) -> dict[str, dict[str, str]]:
        """Return the checks that warn, by name."""
        done = waltap("doctor", self.path, "--json", cwd=self.folder, **self.variables)
        return {c["name"]: c for c in json.loads(done.stdout) if c["verdict"] == "warning"}

    def run(self, *more: object) -> subprocess.CompletedProcess[str]:
        return waltap(
            "run", self.path, "--until-idle", 0.3, *more, cwd=self.folder, **self.variables
        )

    def made(self) -> list[str]:
        """Return what there is on the server and on the disk that the test did not make."""
        rows = self.database.execute(
            "SELECT slot_name::text FROM pg_replication_slots WHERE database = current_database()"
            " UNION ALL SELECT pubname::text FROM pg_publication"
        )
        names = [path.name for path in self.folder.iterdir() if path != self.path]
        return sorted([name for (name,) in rows] + names)


@pytest.fixture
def shop(database: Database, tmp_path: Path) -> Shop:
    database.execute("CREATE TABLE t (id int PRIMARY KEY); INSERT INTO t VALUES (1)")
    return Shop(database, tmp_path)


@pytest.fixture
def role(shop: Shop) -> Iterator[str]:
    """Return a role that may connect and replicate, and owns nothing."""
    name = f"r_{shop.database.name}"
    shop.database.execute(f"CREATE ROLE {name} LOGIN REPLICATION PASSWORD 'x'")
    shop.source |= {"database.user": name, "database.password": "x"}
    yield name
    shop.database.execute(f"DROP OWNED BY {name} CASCADE; DROP ROLE {name}")


def assert_both_refuse(shop: Shop, check: str, code: str) -> dict[str, str]:
    """Assert that doctor and run refuse alike, and that nothing was made; return the check."""
    before = shop.made()
    failed = shop.doctor()
    assert check in failed, failed
    refused = shop.run()
    assert refused.returncode != 0
    assert code in refused.stderr
    assert failed[check]["code"] == code
    assert shop.made() == before
    return failed[check]


def assert_both_succeed(shop: Shop) -> None:
    assert shop.doctor() == {}
    done = shop.run()
    assert done.returncode == 0, done.stderr


def carry_out(shop: Shop, remedy: str, begin: str = "") -> None:
    """Run the SQL of a remedy, as a superuser would: from its first word of SQL to ``; or`` or its end."""
    words = "ALTER|CREATE|GRANT|SELECT"
    text = remedy[re.search(begin or words, remedy).start() :]  # type: ignore[union-attr]
    statements = []
    for part in text.split("; "):
        if not re.match(words, part):
            break
        statements.append(part.partition(" (before")[0].rstrip(".;"))
    assert statements, remedy
    for statement in statements:
        shop.database.execute(statement)


# --- the server --------------------------------------------------------------------------------------


def test_everything_in_order_is_ready_and_runs(shop: Shop) -> None:
    assert_both_succeed(shop)
    assert_both_succeed(shop)  # also with state, slot and publication there


@pytest.mark.parametrize("mode", ["filtered", "all_tables"])
def test_tables_of_another_owner(shop: Shop, role: str, mode: str) -> None:
    shop.source["publication.autocreate.mode"] = mode
    shop.database.execute(f"GRANT SELECT ON t TO {role}")
    check = assert_both_refuse(shop, "publication", "WT-2109")
    carry_out(shop, check["remedy"])
    assert_both_succeed(shop)


def test_a_table_of_another_owner_beside_a_publication_of_ours(shop: Shop, role: str) -> None:
    database = shop.database
    database.execute(
        f"ALTER TABLE t OWNER TO {role}; GRANT CREATE ON DATABASE {database.name} TO {role}"
    )
    assert_both_succeed(shop)
    database.execute(f"CREATE TABLE u (id int PRIMARY KEY); GRANT SELECT ON u TO {role}")
    database.execute("INSERT INTO t VALUES (2); INSERT INTO u VALUES (1)")
    for _ in range(2):  # somebody's CREATE TABLE stops no pipeline
        warned = shop.warnings()["publication"]
        assert "public.u" in warned["found"]
        done = shop.run()
        assert done.returncode == 0, done.stderr
        assert "may not publish tables that it does not own: public.u" in done.stderr
    carry_out(shop, warned["remedy"].partition(" (as")[0])
    assert_both_succeed(shop)


def test_a_table_that_may_not_be_read(shop: Shop, role: str) -> None:
    shop.database.execute(
        f"CREATE SCHEMA s; CREATE TABLE s.u (id int PRIMARY KEY); GRANT SELECT ON t TO {role}"
    )
    shop.database.execute(f"CREATE PUBLICATION {shop.database.name} FOR TABLE t, s.u")
    check = assert_both_refuse(shop, "rows", "WT-2011")
    carry_out(shop, check["remedy"])
    assert_both_succeed(shop)


def test_rows_that_a_policy_hides(shop: Shop, role: str) -> None:
    shop.database.execute(
        f"GRANT SELECT ON t TO {role}; ALTER TABLE t ENABLE ROW LEVEL SECURITY;"
        f"CREATE PUBLICATION {shop.database.name} FOR TABLE t"
    )
    check = assert_both_refuse(shop, "rows", "WT-2114")
    carry_out(shop, check["remedy"])
    assert_both_succeed(shop)


def test_a_role_without_replication(shop: Shop, role: str) -> None:
    shop.database.execute(
        f"ALTER ROLE {role} NOREPLICATION; GRANT SELECT ON t TO {role};"
        f"CREATE PUBLICATION {shop.database.name} FOR TABLE t"
    )
    check = assert_both_refuse(shop, "privileges", "WT-2005")
    carry_out(shop, check["remedy"])
    assert_both_succeed(shop)


def test_a_table_without_replica_identity(shop: Shop) -> None:
    shop.database.execute("CREATE TABLE keyless (a int)")
    check = assert_both_refuse(shop, "publication", "WT-2107")
    carry_out(shop, check["remedy"], begin="ALTER TABLE")
    assert_both_succeed(shop)


def test_a_table_whose_inserts_alone_are_published_is_not_said_to_refuse_updates(
    shop: Shop,
) -> None:
    shop.database.execute("CREATE TABLE keyless (a int)")
    shop.source["publication.keyless.tables"] = "inserts"
    checks = json.loads(waltap("doctor", shop.path, "--json", cwd=shop.folder).stdout)
    (found,) = (check for check in checks if check["name"] == "replica identity")
    assert found["verdict"] == "warning"
    assert "only inserts" in found["found"]
    assert shop.run().returncode == 0
    shop.database.execute("INSERT INTO keyless VALUES (1); UPDATE keyless SET a = 2")


IDENTITIES = [
    pytest.param(
        "CREATE TABLE odd (a int PRIMARY KEY DEFERRABLE)", "deferrable", id="deferrable"
    ),
    pytest.param(
        'CREATE TABLE odd (a int NOT NULL, CONSTRAINT "Odd one" UNIQUE (a), b int UNIQUE)',
        'no primary key; its unique index Odd one does', id="unique",
    ),
    pytest.param(
        "CREATE TABLE odd (a int PRIMARY KEY DEFERRABLE, b int NOT NULL UNIQUE)",
        "its primary key is deferrable", id="deferrable-and-unique",
    ),
    pytest.param(
        "CREATE TABLE odd (a int PRIMARY KEY, b int NOT NULL UNIQUE);"
        " ALTER TABLE odd REPLICA IDENTITY USING INDEX odd_b_key",
        "lacks the key's a", id="index-without-key",
    ),
    pytest.param(
        "CREATE TABLE odd (a int PRIMARY KEY, b int NOT NULL UNIQUE);"
        " ALTER TABLE odd REPLICA IDENTITY USING INDEX odd_b_key;"
        " ALTER TABLE odd DROP CONSTRAINT odd_b_key",
        "is gone", id="index-gone",
    ),
    pytest.param(
        "CREATE TABLE odd (a int PRIMARY KEY); ALTER TABLE odd REPLICA IDENTITY NOTHING",
        "deletes do not come", id="nothing",
    ),
]  # fmt: skip


@pytest.mark.parametrize("decoder", ["pgoutput", "wal2json"])
@pytest.mark.parametrize(("ddl", "what"), IDENTITIES)
def test_what_a_replica_identity_leaves_out_is_told_once_by_doctor_and_at_the_start(
    shop: Shop, ddl: str, what: str, decoder: str
) -> None:
    shop.database.execute(ddl)
    shop.source |= {"plugin.name": decoder, "publication.keyless.tables": "inserts"}
    checks = json.loads(waltap("doctor", shop.path, "--json", cwd=shop.folder).stdout)
    (found,) = (check for check in checks if check["name"] == "replica identity")
    assert found["verdict"] == "warning"
    assert "public.odd: " in found["found"]
    assert what in found["found"]
    done = shop.run()
    assert done.returncode == 0, done.stderr
    assert done.stderr.count(what) == 1
    shop.database.execute(found["remedy"])
    checks = json.loads(waltap("doctor", shop.path, "--json", cwd=shop.folder).stdout)
    (after,) = (check for check in checks if check["name"] == "replica identity")
    assert after["verdict"] == "ok"


def test_an_identity_that_changes_while_streaming_is_told_in_the_log(shop: Shop) -> None:
    assert shop.run().returncode == 0
    shop.database.execute(
        "ALTER TABLE t REPLICA IDENTITY NOTHING; INSERT INTO t SELECT max(id) + 1 FROM t"
    )
    shop.database.execute("ALTER TABLE t REPLICA IDENTITY DEFAULT")
    done = shop.run()
    assert done.returncode == 0, done.stderr
    assert done.stderr.count("deletes do not come") == 1, done.stderr


@pytest.mark.parametrize(
    "properties",
    [
        {},
        {"publication.autocreate.mode": "all_tables"},
        {"publication.autocreate.mode": "disabled"},
        {"plugin.name": "wal2json"},
    ],
)
def test_no_table_that_matches(shop: Shop, properties: dict[str, str]) -> None:
    if properties.get("publication.autocreate.mode") == "disabled":
        shop.database.execute(f"CREATE PUBLICATION {shop.database.name} FOR ALL TABLES")
    shop.source |= properties
    shop.source["table.include.list"] = r"public\.orders"
    assert_both_refuse(shop, "captured tables", "WT-2116")
    shop.source["table.include.list"] = r"public\.t"
    assert_both_succeed(shop)


@pytest.mark.parametrize("mode", ["all_tables", "filtered"])
def test_a_debezium_file_may_match_no_table_where_debezium_allows_it(shop: Shop, mode: str) -> None:
    flat = {
        "connector.class": "io.debezium.connector.postgresql.PostgresConnector",
        "topic.prefix": "t", "plugin.name": "pgoutput", "table.include.list": "public.none",
        "slot.name": shop.database.name, "publication.name": shop.database.name,
        "publication.autocreate.mode": mode, **shop.database.properties(),
    }  # fmt: skip
    path = shop.folder / "c.json"
    path.write_text(json.dumps(flat))
    done = waltap("run", path, "--sink", "jsonl:x", "--until-idle", 0.3, cwd=shop.folder)
    assert "no table fits" in done.stderr
    assert (done.returncode == 0) == (mode == "all_tables"), done.stderr


@pytest.mark.parametrize("state", ["absent", "in an absent schema", "not writable"])
def test_a_signal_table_that_is_missing_or_of_no_use(shop: Shop, role: str, state: str) -> None:
    database = shop.database
    database.execute(
        f"ALTER TABLE t OWNER TO {role}; GRANT CREATE ON DATABASE {database.name} TO {role}"
    )
    name = "ops.signals" if "schema" in state else "public.signals"
    shop.source["signal.data.collection"] = name
    if state == "not writable":
        database.execute(
            "CREATE TABLE signals (id text PRIMARY KEY, type text, data text);"
            f"CREATE PUBLICATION {database.name} FOR TABLE t, signals"
        )
    check = assert_both_refuse(shop, "signal table", "WT-2115")
    carry_out(shop, check["remedy"])
    assert_both_succeed(shop)


def test_a_slot_of_somebody_else(shop: Shop) -> None:
    slot = shop.database.name
    shop.database.execute("SELECT pg_create_logical_replication_slot(%s, 'pgoutput')", slot)
    check = assert_both_refuse(shop, "start", "WT-2112")
    status = waltap("status", shop.path, cwd=shop.folder)
    assert status.returncode == 1
    assert "WT-2112" in status.stdout
    assert "slot.adopt=true" in check["remedy"]
    assert "waltap slot drop FILE" in check["remedy"]
    status = waltap("status", shop.path, cwd=shop.folder)
    assert status.returncode == 1
    assert "WT-2112" in status.stdout
    assert "begins as" not in status.stdout
    dropped = waltap("slot", "drop", shop.path, "--yes", cwd=shop.folder)
    assert dropped.returncode == 0, dropped.stderr
    assert_both_succeed(shop)


@pytest.mark.parametrize(
    ("change", "found"),
    [
        ("SET (publish = 'insert')", "no update, delete"),
        ("SET TABLE t WHERE (id > 5)", "of public.t only rows WHERE (id > 5)"),
        ("SET TABLE t (id)", "of public.t no column v"),
    ],
)
def test_a_publication_that_keeps_changes_back_is_told_of(
    shop: Shop, change: str, found: str
) -> None:
    shop.database.execute("ALTER TABLE t ADD v int")
    assert_both_succeed(shop)
    shop.database.execute(f'ALTER PUBLICATION "{shop.database.name}" {change}')
    check = shop.warnings()["publication"]
    assert found in check["found"]
    assert found in shop.run().stderr  # which puts it right, since the pipeline made it
    assert "publication" not in shop.warnings()


def test_operations_that_are_skipped_are_not_missed_in_the_publication(shop: Shop) -> None:
    shop.source["skipped.operations"] = "u,d,t"
    assert_both_succeed(shop)
    assert "publication" not in shop.warnings()


@pytest.mark.parametrize(
    ("plugin", "encoding", "refused"),
    [("wal2json", "EUC_JP", True), ("wal2json", "LATIN1", False), ("pgoutput", "EUC_JP", False)],
)
def test_an_encoding_that_nobody_converts_is_refused(
    shop: Shop, plugin: str, encoding: str, *, refused: bool
) -> None:
    name = f"{shop.database.name}_other"
    shop.database.server.execute(
        f"CREATE DATABASE \"{name}\" TEMPLATE template0 ENCODING '{encoding}' LC_COLLATE 'C' LC_CTYPE 'C'"
    )
    other = Database(shop.database.server, name)
    try:
        other.execute("CREATE TABLE t (id int PRIMARY KEY)")
        shop.source |= {"database.dbname": name, "plugin.name": plugin}
        if refused:
            assert_both_refuse(shop, "encoding", "WT-2119")
            shop.source["plugin.name"] = "pgoutput"
        assert_both_succeed(shop)
    finally:
        other.drop()


# --- a gap -------------------------------------------------------------------------------------------


def with_a_gap(shop: Shop) -> None:
    assert shop.run().returncode == 0
    slot = shop.database.name
    shop.database.execute("INSERT INTO t VALUES (2)")
    shop.database.execute("SELECT pg_drop_replication_slot(%s)", slot)
    shop.database.execute("SELECT pg_create_logical_replication_slot(%s, 'pgoutput')", slot)


def test_a_gap_is_told_by_doctor_status_and_run(shop: Shop) -> None:
    with_a_gap(shop)
    check = assert_both_refuse(shop, "start", "WT-6101")
    status = waltap("status", shop.path, cwd=shop.folder)
    assert status.returncode == 1
    assert "WT-6101" in status.stdout
    document = json.loads(waltap("status", shop.path, "--json", cwd=shop.folder).stdout)
    assert document["resumable"] is False
    commands = re.findall(r"`waltap ([a-z ]+) FILE`", check["remedy"])
    assert commands == ["offsets clear", "slot drop"]
    for command in commands:
        done = waltap(*command.split(), shop.path, "--yes", cwd=shop.folder)
        assert done.returncode == 0, done.stderr
    assert_both_succeed(shop)


def test_a_gap_that_the_snapshot_mode_mends_is_no_error(shop: Shop) -> None:
    with_a_gap(shop)
    shop.source["snapshot.mode"] = "when_needed"
    assert_both_succeed(shop)
    assert (shop.folder / "out" / "lines.jsonl").read_text().count('"op":"r"') == 3


def test_a_slot_that_is_gone(shop: Shop) -> None:
    assert shop.run().returncode == 0
    shop.database.execute("SELECT pg_drop_replication_slot(%s)", shop.database.name)
    check = assert_both_refuse(shop, "start", "WT-2103")
    assert "`waltap run FILE --set snapshot.mode=when_needed`" in check["remedy"]
    shop.source["snapshot.mode"] = "when_needed"
    assert_both_succeed(shop)


# --- sinks and state ---------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("sink", "code"),
    [("jsonl", "WT-5001"), ("changelog", "WT-5101"), ("spark", "WT-5101")],
)
def test_a_sink_that_cannot_be_written(shop: Shop, sink: str, code: str) -> None:
    (shop.folder / "out").write_text("a file in the way")
    shop.sink = {"type": sink, "path": "out/x"}
    assert_both_refuse(shop, f"sink {sink}", code)


def test_spark_without_java(shop: Shop) -> None:
    shop.sink = {"type": "spark", "path": "lake"}
    shop.variables = {"JAVA_HOME": str(shop.folder)}
    assert_both_refuse(shop, "sink spark", "WT-5201")


def test_a_state_folder_that_cannot_be_made(shop: Shop) -> None:
    (shop.folder / ".waltap").write_text("a file in the way")
    assert_both_refuse(shop, "state folder", "WT-6005")


@pytest.mark.skipif(not Path("/dev/shm").is_dir() or os.geteuid() != 0, reason="needs a mount")
@pytest.mark.parametrize(
    ("options", "sink", "check"),
    [
        ("size=64k", "jsonl", "sink jsonl"),
        ("size=64k", "changelog", "sink changelog"),
        ("ro", "jsonl", "sink jsonl"),
        ("size=64k", "state", "state folder"),
        ("ro", "state", "state folder"),
    ],
)
def test_a_disk_that_is_full_or_read_only(shop: Shop, options: str, sink: str, check: str) -> None:
    mount = shop.folder / "disk"
    mount.mkdir()
    done = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", options, "tmpfs", str(mount)],
        capture_output=True, check=False,
    )  # fmt: skip
    if done.returncode:
        pytest.skip("mounting is not allowed here")
    try:
        if options != "ro":
            with pytest.raises(OSError, match="No space left"), (mount / "fill").open("wb") as file:
                while True:
                    file.write(bytes(4096))
                    file.flush()
        if sink == "state":
            shop.source["waltap.state.dir"] = "disk/state"
        else:
            shop.sink = {"type": sink, "path": "disk/out"}
        failed = shop.doctor()
        assert check in failed, failed
        before = sorted(mount.rglob("*"))
        refused = shop.run()
        assert refused.returncode != 0
        assert failed[check]["code"] in refused.stderr
        assert sorted(mount.rglob("*")) == before
        assert shop.database.slots() == {}
    finally:
        subprocess.run(["umount", str(mount)], check=True)


def test_a_pipeline_that_runs_already(shop: Shop) -> None:
    process = subprocess.Popen(
        [sys.executable, "-m", "waltap", "run", str(shop.path), "--ready-file", "ready"],
        cwd=shop.folder, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
    )  # fmt: skip
    try:
        until((shop.folder / "ready").exists, "the ready file")
        assert shop.doctor() == {}
        told = " ".join(waltap("doctor", shop.path, cwd=shop.folder).stdout.split())
        assert f"runs as pid {process.pid}" in told
    finally:
        process.terminate()
        process.communicate(timeout=90)
    assert shop.doctor() == {}


def test_state_that_an_earlier_version_kept_elsewhere_is_not_passed_over(
    shop: Shop, tmp_path_factory: pytest.TempPathFactory
) -> None:
    """A version whose paths started at the current directory was run from there, like a service."""
    assert shop.run().returncode == 0
    elsewhere = tmp_path_factory.mktemp("elsewhere")
    (shop.folder / ".waltap").rename(elsewhere / ".waltap")
    name = shop.path.stem
    (elsewhere / ".waltap" / name / "belongings.json").unlink()
    refused = waltap("run", shop.path, "--until-idle", 0.3, cwd=elsewhere)
    assert refused.returncode == 1
    assert "WT-2013" in refused.stderr
    moved = re.search(r"mv (\S+) (\S+);", " ".join(refused.stderr.split()))
    assert moved, refused.stderr
    Path(moved[2]).parent.mkdir(exist_ok=True)
    Path(moved[1]).rename(moved[2])
    assert_both_succeed(shop)
    assert (shop.folder / "out" / "lines.jsonl").read_text().count("\n") == 1


def test_a_change_log_that_was_removed(shop: Shop) -> None:
    shop.sink = {"type": "changelog", "path": "log"}
    assert_both_succeed(shop)
    log, aside = shop.folder / "log", shop.folder / "aside"
    log.rename(aside)
    assert_both_refuse(shop, "sink changelog", "WT-5107")
    aside.rename(log)
    assert_both_succeed(shop)


def test_the_signal_table_that_the_remedy_makes_can_be_published(shop: Shop) -> None:
    columns = re.search(r"\(id .*NULL\)", SignalTableUnusable.remedy)
    assert columns is not None
    shop.database.execute(f"CREATE TABLE signals {columns[0]}")
    shop.source["signal.data.collection"] = "public.signals"
    assert_both_succeed(shop)


ODD = 'v int, q tsquery, m money[], p pair, "x y" int4multirange'


def test_columns_that_nothing_maps_are_told_of(shop: Shop) -> None:
    database = shop.database
    database.execute(
        f"CREATE TYPE pair AS (a int, b text); CREATE TABLE odd (id int PRIMARY KEY, {ODD})"
    )
    told = shop.warnings()["columns"]
    assert "public.odd" in told["found"]
    assert "q (tsquery), m (money[]), p (pair), x y (int4multirange)" in told["found"]
    assert "include.unknown.datatypes=true" in told["remedy"]
    done = shop.run()
    assert done.stderr.count("q (tsquery)") == 1, done.stderr
    shop.source["column.exclude.list"] = "public.odd.(q|m|p|x y)"
    assert "columns" not in shop.warnings()
    del shop.source["column.exclude.list"]
    shop.source["include.unknown.datatypes"] = True
    told = shop.warnings()["columns"]
    assert "of public.odd are left out, nothing maps their types: m (money[])" in told["found"]
    assert "generated column" in told["remedy"]


def test_a_column_that_joins_and_nothing_maps_is_told_of_once(
    database: Database, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    database.execute("CREATE TABLE t (id int PRIMARY KEY, v int)")
    pipeline = PipelineRig(database, tmp_path)
    with pipeline.running() as run:
        database.execute("INSERT INTO t VALUES (1, 1)")
        run.until(lambda: pipeline.destination.ids("t") == [1], "the row")
        assert "are left out" not in caplog.text
        database.execute("ALTER TABLE t ADD q tsquery; INSERT INTO t VALUES (2, 1, 'a')")
        database.execute("ALTER TABLE t ADD w int; INSERT INTO t VALUES (3, 1, 'a', 1)")
        run.until(lambda: pipeline.destination.ids("t") == [1, 2, 3], "the rows")
    assert caplog.text.count("columns of public.t are left out") == 1
    assert "q (tsquery)" in caplog.text


def test_a_guardrail_warns_or_refuses(shop: Shop) -> None:
    shop.database.execute("CREATE TABLE u (id int PRIMARY KEY)")
    shop.source["guardrail.collections.max"] = 1
    assert "2 tables" in shop.warnings()["guardrail"]["found"]
    assert not shop.doctor()
    shop.source["guardrail.collections.limit.action"] = "fail"
    assert set(shop.doctor()) == {"guardrail"}
    refused = shop.run()
    assert refused.returncode == 1
    assert "guardrail.collections.max" in refused.stderr
    assert shop.made() == []
    shop.source["guardrail.collections.max"] = 2
    assert not shop.doctor()


@pytest.mark.parametrize("form", [r"{}\.public\.users\.secret", r"{}.users.secret"])
def test_a_mask_may_name_the_database(shop: Shop, form: str) -> None:
    shop.database.execute(
        "CREATE TABLE users (id int PRIMARY KEY, secret text, code text, long text);"
        "INSERT INTO users VALUES (1, 'sesame', 'xyz', 'abcdef')"
    )
    name = shop.database.name
    shop.source |= {
        "column.mask.with.3.chars": form.format(name),
        "column.truncate.to.2.chars": form.format(name).replace("secret", "long"),
        "message.key.columns": form.format(name).rpartition(".")[0].rstrip("\\") + ":code",
        "table.include.list": f"{name}.public.users",
        "snapshot.select.statement.overrides": f"{name}.public.users",
        f"snapshot.select.statement.overrides.{name}.public.users": "SELECT * FROM users WHERE id < 2",
    }
    assert_both_succeed(shop)
    text = (shop.folder / "out/lines.jsonl").read_text()
    lines = [json.loads(line) for line in text.splitlines()]
    assert len(lines) == 1
    assert lines[0]["key"]["code"] == "xyz"
    assert lines[0]["value"]["after"] == {"id": 1, "secret": "***", "code": "xyz", "long": "ab"}


def test_patterns_that_match_nothing_are_told_and_masks_are_refused(shop: Shop) -> None:
    shop.database.execute("CREATE TABLE users (id int PRIMARY KEY, secret text)")
    shop.source["column.mask.hash.SHA-256.with.salt.pepper"] = r"public\.users\.secert"
    check = assert_both_refuse(shop, "masks", "WT-2047")
    assert "public\\.users\\.secert (column.mask.hash.SHA-256.with.salt." in check["found"]
    assert "pepper" not in check["found"]
    shop.source["waltap.unmatched.masks"] = "warn"
    assert "masks" in shop.warnings()
    del shop.source["column.mask.hash.SHA-256.with.salt.pepper"]
    shop.source |= {
        "column.exclude.list": r"public\.users\.secret,public\.gone\.x",
        "message.key.columns": "public.users:nokey",
        "table.exclude.list": r"audit\..*",
        "replica.identity.autoset.values": "public.none:FULL",
    }
    found = shop.warnings()["name patterns"]["found"]
    for idle in ("gone", "nokey", "audit", "none"):
        assert idle in found
    assert "secret" not in found
    assert_both_succeed(shop)


# --- publications of others --------------------------------------------------------------------------


def test_a_publication_of_others_that_sends_partitions_by_other_names_than_the_profile(
    shop: Shop,
) -> None:
    shop.database.execute(
        "DROP TABLE t; CREATE TABLE p (id int PRIMARY KEY) PARTITION BY RANGE (id);"
        "CREATE TABLE p1 PARTITION OF p DEFAULT; INSERT INTO p VALUES (1);"
        f"CREATE PUBLICATION {shop.database.name} FOR TABLE p WHERE (id > 0)"
        " WITH (publish_via_partition_root = true)"
    )
    shop.source["publication.autocreate.mode"] = "disabled"
    check = assert_both_refuse(shop, "publication", "WT-2106")
    setting = re.search(r"(publish\.[a-z.]+)=(\w+)", check["remedy"])
    assert setting, check
    shop.source[setting[1]] = setting[2] == "true"
    assert_both_succeed(shop)
    assert "does not cover" not in shop.warnings()["publication"]["found"]


def test_a_table_without_publication_is_told_also_beside_one_that_is_published_in_part(
    shop: Shop,
) -> None:
    shop.database.execute(
        "CREATE TABLE u (id int PRIMARY KEY);"
        f"CREATE PUBLICATION {shop.database.name} FOR TABLE t WHERE (id > 5)"
    )
    shop.source["publication.autocreate.mode"] = "disabled"
    done = shop.run()
    assert done.returncode == 0, done.stderr
    assert "only rows WHERE (id > 5)" in done.stderr
    assert "does not cover public.u" in done.stderr
    carry_out(shop, shop.warnings()["publication"]["remedy"])
    assert "does not cover" not in shop.run().stderr


def test_what_bounds_the_wal_of_a_slot_is_carried_out(
    private_server: Cluster, tmp_path: Path
) -> None:
    database = private_server.create_database("bounded")
    database.execute("CREATE TABLE t (id int PRIMARY KEY)")
    shop = Shop(database, tmp_path)
    database.execute("ALTER SYSTEM SET max_slot_wal_keep_size = -1")
    private_server.reload()
    carry_out(shop, shop.warnings()["slot limits"]["remedy"])
    until(
        lambda: database.execute("SHOW max_slot_wal_keep_size") == [("50GB",)],
        "the server reads its files",
    )
    assert "slot limits" not in shop.warnings()
