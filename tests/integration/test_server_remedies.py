"""Remedies for the server itself (settings, slots, roles) are carried out as they are printed."""

import re
import string
from collections.abc import Iterator

import pytest
from tests.harness.pipeline import PipelineRig, until
from tests.harness.servers.own_server import own_server
from tests.harness.servers.postgres import Cluster, Database, queries
from tests.integration.test_least_privilege import documented

from waltap.errors import WaltapError
from waltap_postgres.connection_errors import PasswordOutdated
from waltap_postgres.errors import (
    AuthenticationRefused,
    NothingCaptured,
    ServerLimit,
    SlotExists,
    SnapshotTooOld,
)


@pytest.fixture(scope="module")
def cluster() -> Iterator[Cluster]:
    with own_server(Cluster.create_newest) as made:
        yield made


@pytest.fixture
def pipeline(cluster, tmp_path) -> Iterator[PipelineRig]:
    database = cluster.create_database("shop")
    database.execute("CREATE TABLE t (id int PRIMARY KEY); INSERT INTO t VALUES (1)")
    yield PipelineRig(database, tmp_path)
    assert database.drop() == []


def carry_out(database: Database, remedy: str) -> list[str]:
    """Execute the statements of ``remedy`` one by one, as psql does; return them."""
    statements = re.findall(r"(?:ALTER|CREATE|GRANT|SELECT) [^;`]*(?=;|$)", remedy)
    for statement in statements:
        database.execute(statement)
    return statements


@pytest.mark.parametrize(
    ("setting", "value", "check", "given"),
    [
        ("idle_replication_slot_timeout", "10d", "slot limits", {"waltap.wal.budget": "10GB"}),
        ("max_slot_wal_keep_size", "-1", "slot limits", {}),
        ("wal_level", "replica", "wal_level", {}),
        ("synchronized_standby_slots", "", "slot.failover", {"slot.failover": True}),
    ],
)
def test_the_setting_that_doctor_names_ends_its_warning(pipeline, setting, value, check, given):
    database = pipeline.database
    database.execute("SELECT pg_create_physical_replication_slot('standby')")
    try:
        database.execute(f"ALTER SYSTEM SET {setting} = '{value}'")
        database.execute("SELECT pg_reload_conf()")
        until(lambda: check in pipeline.doctor(**given), "the warning")
        remedy = pipeline.doctor(**given)[check].remedy
        assert setting in remedy
        statements = carry_out(database, remedy.replace("'SLOT'", "'standby'"))
        assert statements
        if setting == "wal_level":  # it takes a restart, as long as that it is only written
            database.execute("SELECT pg_reload_conf()")
        until(lambda: check not in pipeline.doctor(**given), "the warning's end")
    finally:
        database.execute(f"ALTER SYSTEM RESET {setting}")
        database.execute("SELECT pg_reload_conf()")
        database.execute("SELECT pg_drop_replication_slot('standby')")


def test_the_role_that_is_to_capture_in_place_of_a_superuser_does(pipeline):
    database = pipeline.database
    reported = pipeline.doctor()["privileges"]
    assert "superuser" in reported.found
    (create,) = re.findall(r"CREATE ROLE [^;]*", reported.remedy)
    database.execute(create)
    role = create.split()[2]
    try:
        for statement in documented("Stream", "Snapshot")[1:]:  # what else the page grants
            own = re.sub(r"\bleast\b", role, statement).replace(
                "PUBLICATION waltap", "PUBLICATION shop"
            )
            own = own.replace("sales.orders, sales.customers", "t").replace(
                "SCHEMA sales", "SCHEMA public"
            )
            database.execute(own)
        pipeline.settings |= {
            "database.user": role,
            "publication.name": "shop",
            "publication.autocreate.mode": "disabled",
        }
        assert "privileges" not in pipeline.doctor()
        pipeline.catch_up()
        pipeline.deliver("INSERT INTO t VALUES (2)")
        assert pipeline.destination.ids("t") == [1, 2]
    finally:
        database.execute(f"DROP OWNED BY {role}; DROP ROLE {role}")


KEPT_OUT = {
    "no such role": "",
    "may not log in": "CREATE ROLE guest NOLOGIN REPLICATION",
    "bad password": "CREATE ROLE guest LOGIN REPLICATION PASSWORD 'another'",
    "no line in pg_hba.conf": "CREATE ROLE guest LOGIN REPLICATION PASSWORD '…'",
}


@pytest.mark.parametrize("case", KEPT_OUT)
def test_a_role_that_is_kept_out_is_let_in(cluster, pipeline, case):
    """The password of what is printed is typed as it is."""
    database, hba = pipeline.database, cluster.folder / "data" / "pg_hba.conf"
    before = hba.read_text()
    line = "" if "pg_hba" in case else "host all guest all scram-sha-256\n"
    if case in {"may not log in", "no such role"}:
        line = "host all guest all trust\n"  # else the password is asked for first
    hba.write_text(f"{line}host all guest all reject\n{before}")
    cluster.reload()
    try:
        if KEPT_OUT[case]:
            database.execute(KEPT_OUT[case])
        pipeline.settings |= {"database.user": "guest", "database.password": "…"}
        with pytest.raises(AuthenticationRefused) as refused:
            pipeline.run()
        advice = refused.value.advice()
        if "pg_hba" in case:
            (added,) = re.findall(r"host \S+ guest ADDRESS \S+(?=,)", advice)
            hba.write_text(f"{added.replace('ADDRESS', 'all')}\n{hba.read_text()}")
            (reload,) = queries(advice)
            database.execute(reload)
        else:
            statement, *_ = re.findall(r"(?:CREATE ROLE guest|ALTER ROLE) .*?(?=;|,|\.$)", advice)
            database.execute(statement)
        database.execute("ALTER TABLE t OWNER TO guest; GRANT CREATE ON DATABASE shop TO guest")
        until(lambda: _caught_up(pipeline), "the role is let in")
        assert pipeline.destination.ids("t") == [1]
    finally:
        hba.write_text(before)
        cluster.reload()
        database.execute(
            "ALTER TABLE t OWNER TO postgres; DROP OWNED BY guest CASCADE; DROP ROLE guest"
        )


def _caught_up(pipeline: PipelineRig) -> bool:
    """Run; False where the server has not read its new settings yet."""
    try:
        pipeline.catch_up()
    except AuthenticationRefused:
        return False
    return True


def test_a_slot_that_nobody_needs_is_dropped(pipeline):
    database = pipeline.database
    pipeline.deliver("SELECT pg_create_logical_replication_slot('left_behind', 'pgoutput')")
    reported = pipeline.doctor()["orphan slots"]
    assert carry_out(database, reported.remedy) == [
        "SELECT pg_drop_replication_slot('left_behind')"
    ]
    assert "orphan slots" not in pipeline.doctor()
    database.execute("SELECT pg_create_logical_replication_slot('there', 'pgoutput')")
    assert carry_out(database, SlotExists("a slot", slot="there").advice())
    assert "there" not in str(database.slots())


def test_a_threshold_for_old_snapshots_is_taken_back(private_server):
    """PostgreSQL up to 16 has it; no test can wait for the minutes that it takes to be in the way."""
    statements = re.findall(r"ALTER SYSTEM [^;]*", SnapshotTooOld.remedy)
    assert len(statements) == 1
    private_server.execute("ALTER SYSTEM SET old_snapshot_threshold = '1min'")
    private_server.restart()
    private_server.execute(statements[0])
    private_server.restart()
    assert private_server.execute("SHOW old_snapshot_threshold") == [("-1",)]


def test_every_query_that_a_remedy_prints_is_one(pipeline, database):
    """On PostgreSQL 18 and on 15. Those with names of a situation are executed in it, elsewhere."""
    found = {
        query
        for error in WaltapError.family()
        if isinstance(error.remedy, str)
        for query in queries(error.remedy)
        if re.search(r" FROM |\(", query)  # else the word is of a sentence
        and not any(name for _, name, *_ in string.Formatter().parse(query))
    }
    for error in (PasswordOutdated, NothingCaptured, ServerLimit):
        assert found >= set(queries(error.remedy)), error
    for query in found - {"SELECT pg_promote()"}:  # which test_failover.py does
        pipeline.database.execute(query)
        database.execute(query)
