"""Scenarios of operations: nodes that go away, other servers, refusals, checks; who reads a slot, when it may be dropped, and
what a connection manager leaves of a session. Double A.

Verified against a protocol double built from published sources; no YugabyteDB server was run.
"""

import re
from contextlib import closing

import pytest
from tests.harness.yugabyte.pipeline import YugabytePipeline
from tests.harness.yugabyte.server import Yugabyte

from waltap.errors import WaltapError
from waltap_postgres.connection import PostgresSession, watch
from waltap_postgres.errors import OtherConnector, PositionGap
from waltap_yugabyte.errors import ChangeRefused, NotYugabyte, SlotRead, SlotStillActive
from waltap_yugabyte.properties import YugabyteProperties


def ids(pipeline: YugabytePipeline) -> list[int]:
    return [r["key"]["id"]["value"] for r in pipeline.records() if r["value"] is not None]


def test_scenario_15_pgoutput_takes_no_table_with_change(pipeline):
    with pytest.raises(WaltapError, match="replica identity CHANGE") as refused:
        pipeline.run(**{"plugin.name": "pgoutput"})
    assert isinstance(refused.value, ChangeRefused)
    assert "Consider using output plugin yboutput instead" in str(refused.value)
    assert pipeline.server.asked("^CREATE_REPLICATION_SLOT") == []  # seen before anything was made


def test_scenario_15_the_servers_own_refusal_is_reported_with_the_hint(pipeline):
    """The table had another identity when it was looked at than when the slot was made."""
    server, database = pipeline.server, pipeline.server.database
    name = pipeline.settings["publication.name"]
    database.execute(f'CREATE PUBLICATION "{name}" FOR TABLE t')
    server.create(f'CREATE_REPLICATION_SLOT "{pipeline.slot}" LOGICAL pgoutput')
    database.execute("SELECT yb_replica_identity('t', 'DEFAULT')")
    with pytest.raises(WaltapError) as refused:
        pipeline.run(
            **{"plugin.name": "pgoutput", "slot.takeover": True, "snapshot.mode": "no_data"}
        )
    assert isinstance(refused.value, ChangeRefused)
    assert len(server.streams) == 1  # final: it is not tried again


def test_scenario_32_links_are_cut_and_nodes_go_away(pipeline):
    server, database = pipeline.server, pipeline.server.database
    hosts = f"127.0.0.1:{server.port},127.0.0.1:{server.another()}"
    with pipeline.running(**{"database.hostname": hosts, "errors.max.retries": 60}) as run:
        for number in range(3):
            database.execute("INSERT INTO t (id) VALUES (%s)", number)
            run.until(lambda number=number: number in ids(pipeline), "the row")
            server.cut()
            database.execute("INSERT INTO t (id) VALUES (%s)", 100 + number)
            run.until(lambda number=number: 100 + number in ids(pipeline), "the row after")
    assert sorted(set(ids(pipeline))) == [*range(3), *range(100, 103)]
    assert len(run.notices.failures) >= 3


def test_connections_are_spread_over_the_hosts_that_are_named(pipeline):
    """Or tried in their order, where the profile or libpq's own parameter says so."""
    server = pipeline.server
    other = server.another()
    given = {**pipeline.server.properties(), "driver.NAME": {},
             "database.hostname": f"127.0.0.1:{server.port},127.0.0.1:{other}"}  # fmt: skip

    def reached(times: int, **chosen: object) -> list[int]:
        """Return the ports of as many connections, or of those until both were seen."""
        properties = YugabyteProperties.model_validate(given | chosen)
        before = len(server.nodes)
        for _ in range(times):
            with closing(PostgresSession(properties, role="test", watch=watch(properties))):
                found = server.nodes[before:]
            if set(found) == {server.port, other}:
                break
        return server.nodes[before:]

    assert set(reached(200)) == {server.port, other}
    assert set(reached(10, **{"yb.load.balance.connections": False})) == {server.port}
    own = {"driver.NAME": {"driver.loadBalanceHosts": "false"}}
    assert set(reached(10, **own)) == {server.port}


def test_scenario_35_each_connector_names_the_other(pipeline):
    with pytest.raises(OtherConnector, match="YB-2025.2.4.0") as refused:
        pipeline.run(**{"type": "postgres", "plugin.name": "pgoutput", "yb.event.form": None,
                        "yb.read.time.wait.ms": None})  # fmt: skip
    assert "type = 'yugabyte'" in str(refused.value)
    server = pipeline.server.database.server
    plain = {"database.hostname": server.host, "database.port": server.port}
    with pytest.raises(NotYugabyte, match="PostgreSQL 1"):
        pipeline.run(**plain)


def test_older_releases_have_fewer_columns_and_no_words(yb_database, tmp_path):
    version = "PostgreSQL 11.2-YB-2024.2.5.1-b0 on x86_64"
    with Yugabyte(yb_database, version=version, words=False) as server:
        yb_database.execute("CREATE TABLE t (id int PRIMARY KEY, name text, aura int)")
        yb_database.execute(
            "CREATE OR REPLACE VIEW yb_double.later AS SELECT * FROM yb_double.pg_replication_slots;"
            "ALTER VIEW yb_double.pg_replication_slots RENAME TO newest;"
            "CREATE VIEW yb_double.pg_replication_slots AS SELECT slot_name, plugin, slot_type, datoid,"
            " database, temporary, active, active_pid, xmin, catalog_xmin, restart_lsn,"
            " confirmed_flush_lsn, yb_stream_id, yb_restart_commit_ht FROM yb_double.newest"
        )
        pipeline = YugabytePipeline(server, tmp_path)
        yb_database.execute("INSERT INTO t VALUES (1, 'a', 1)")
        with pipeline.running() as run:
            yb_database.execute("INSERT INTO t VALUES (2, 'b', 2)")
            run.until(lambda: ids(pipeline) == [1, 2], "both rows")
        with pytest.raises(WaltapError, match="syntax error"):
            pipeline.run(**{"slot.name": "other", "slot.lsn.type": "HYBRID_TIME",
                            "waltap.state.dir": str(tmp_path / "other")})  # fmt: skip
        assert server.refused == []


def test_checks_show_what_events_hold_and_when_the_slot_expires(pipeline):
    database = pipeline.server.database
    for table, identity in (("d", "DEFAULT"), ("f", "FULL")):
        database.execute(f"CREATE TABLE {table} (id int PRIMARY KEY)")
        database.execute(f"SELECT yb_replica_identity('{table}', '{identity}')")
    database.execute("CREATE TABLE keyless (v int)")
    with pipeline.running():
        pass
    database.execute("SELECT yb_replica_identity('d', 'FULL')")
    found = pipeline.checked()
    events = [check.found for check in found if check.name == "events"]
    assert any("public.t" in text and "CHANGE" in text for text in events)
    assert any("public.f" in text and "FULL" in text for text in events)
    named = {check.name: check for check in found}
    assert "public.d" in named["replica identity"].found or any(
        "public.d got another replica identity" in check.found for check in found
    )
    assert "public.keyless" in named["primary keys"].found
    assert named["slot expiry"].verdict == "ok"
    assert named["server version"].found == "YugabyteDB 2025.2.4.0"
    assert "wal_level" not in named
    short = {check.name: check for check in pipeline.checked(**{"yb.slot.retention.ms": 1})}
    assert short["slot expiry"].verdict == "warning"
    assert pipeline.server.refused == []


def test_a_role_that_may_not_read_at_a_time_is_found_before_the_start(pipeline):
    """And what the check says to run suffices."""
    database = pipeline.server.database
    pipeline.server.superuser = False
    (check,) = [each for each in pipeline.checked() if each.name == "read time"]
    assert check.verdict == "warning"  # this release may export a snapshot
    older = pipeline.server.version.replace("2025.2", "2024.2")
    database.execute(f"ALTER DATABASE \"{database.name}\" SET yb_double.version = '{older}'")
    (check,) = [each for each in pipeline.checked() if each.name == "read time"]
    assert check.verdict == "error"
    assert check.error is not None
    assert check.error.code == "WT-2153"
    assert not [
        each
        for each in pipeline.checked(**{"yb.consistent.snapshot": False})
        if each.name == "read time"
    ]
    for decoy in (
        "CREATE SCHEMA aside",  # which is not on the role's path
        "CREATE PROCEDURE aside.set_yb_read_time(value TEXT) LANGUAGE sql AS 'SELECT 1'",
        "CREATE PROCEDURE aside.disable_catalog_version_check() LANGUAGE sql AS 'SELECT 1'",
        "CREATE PROCEDURE set_yb_read_time(value INT) LANGUAGE sql AS 'SELECT 1'",
        "CREATE PROCEDURE disable_catalog_version_check(how TEXT) LANGUAGE sql AS 'SELECT 1'",
    ):
        database.execute(decoy)
    for procedure in re.findall(r"CREATE PROCEDURE .*? SECURITY DEFINER[^;.]*", check.remedy):
        assert [each for each in pipeline.checked() if each.name == "read time"]
        database.execute(procedure)
    assert not [each for each in pipeline.checked() if each.name == "read time"]


def test_a_table_that_joins_the_publication_of_a_slot_is_not_streamed_at_once(pipeline, caplog):
    """The refresh of publications: what is written until then does not come, and that is reported."""
    database = pipeline.server.database
    settings = {
        "publication.autocreate.mode": "filtered",
        "table.include.list": "public.t,public.late",
        "snapshot.mode": "no_data",
    }
    with caplog.at_level("WARNING"):
        with pipeline.running(**settings):
            pass
        assert "15 minutes" not in caplog.text, "a slot that is made now streams what is there"
        database.execute("CREATE TABLE late (id int PRIMARY KEY)")
        with pipeline.running(**settings):
            pass
    assert "public.late: added to the publication of an existing slot" in caplog.text
    assert "waltap snapshot FILE public.late" in caplog.text


# --- slots and sessions --------------------------------------------------------------------------------


AT_ONCE = {"slot.max.retries": 0, "errors.max.retries": 0}


def test_a_second_process_on_a_slot_is_refused_until_the_first_is_gone(pipeline, tmp_path):
    """The cluster refuses none: each would get every change, and confirm what the other has not kept."""
    database = pipeline.server.database
    database.execute("INSERT INTO t VALUES (1, 'a', 1)")
    other = YugabytePipeline(pipeline.server, tmp_path / "other")
    taken = {"slot.takeover": True, "snapshot.mode": "no_data"}
    with pipeline.running() as run:
        run.until(lambda: ids(pipeline) == [1], "the row")
        with pytest.raises(WaltapError) as refused:
            other.run(**taken, **AT_ONCE)
        assert isinstance(refused.value, SlotRead)
        assert "waltap catalogue from 127.0.0.1" in refused.value.advice()
        database.execute("INSERT INTO t VALUES (2, 'b', 2)")
        run.until(lambda: ids(pipeline) == [1, 2], "the next row")
    with other.running(**taken) as run:  # which waits for the session that ends
        database.execute("INSERT INTO t VALUES (3, 'c', 3)")
        run.until(lambda: 3 in ids(other), "the row after")


def test_the_reader_that_is_left_over_is_ended_by_what_the_error_says(pipeline):
    server = pipeline.server
    with pipeline.running():
        pass
    with server.connect() as held:
        held.execute("SET application_name = 'left over'")
        ((key,),) = held.execute(
            "SELECT ('x' || substr(encode(sha256(convert_to(%s, 'UTF8')), 'hex'), 1, 16))::bit(64)::int8",
            [f"waltap slot {pipeline.slot}"],
        ).fetchall()
        held.execute("SELECT pg_advisory_lock(%s)", [key])
        with pytest.raises(SlotRead) as refused:
            pipeline.run(**AT_ONCE)
        ending = refused.value.advice().partition("SELECT ")[2].partition(" ends it")[0]
        server.database.execute(f"SELECT {ending}")
    with pipeline.running() as run:
        server.database.execute("INSERT INTO t VALUES (1, 'a', 1)")
        run.until(lambda: ids(pipeline) == [1], "the row")


def test_a_release_without_advisory_locks_is_read_all_the_same(pipeline):
    pipeline.server.locks = False
    with pipeline.running() as run:
        pipeline.server.database.execute("INSERT INTO t VALUES (1, 'a', 1)")
        run.until(lambda: ids(pipeline) == [1], "the row")


def test_a_slot_is_dropped_minutes_after_its_last_reader_and_its_name_begins_anew(pipeline):
    server, database = pipeline.server, pipeline.server.database
    server.stays_active = True
    database.execute("INSERT INTO t VALUES (1, 'a', 1)")
    with (
        pytest.raises(SlotStillActive) as refused,
        pipeline.running(**{"slot.drop.on.stop": True}) as run,
    ):
        run.until(lambda: ids(pipeline) == [1], "the row")
    assert refused.value.code == "WT-2154"
    assert "Try again later" in refused.value.advice()
    database.execute("INSERT INTO t VALUES (2, 'b', 2)")
    with pipeline.running() as run:  # nothing is lost: the slot is there, and so is the position
        run.until(lambda: ids(pipeline) == [1, 2], "the next row")
    server.quiet()
    assert server.execute("SELECT pg_drop_replication_slot(%s)", pipeline.slot)
    server.create(f'CREATE_REPLICATION_SLOT "{pipeline.slot}" LOGICAL yboutput')
    with pytest.raises(PositionGap, match="created again"):  # the name alone says nothing
        pipeline.run()


def test_settings_arrive_through_a_connection_manager(pipeline):
    """It drops the options of a start packet: values would be written as the role has them."""
    server, database = pipeline.server, pipeline.server.database
    server.managed = True
    for setting in ("DateStyle = 'SQL, DMY'", "bytea_output = 'escape'", "TimeZone = 'Asia/Tokyo'"):
        database.execute(f'ALTER DATABASE "{database.name}" SET {setting}')
    database.execute("CREATE TABLE v (id int PRIMARY KEY, day date, raw bytea, at timestamptz)")
    values = "'2001-02-03', '\\x00ff', '2001-02-03 04:05:06+00'"
    database.execute(f"INSERT INTO v VALUES (1, {values})")
    with pipeline.running() as run:
        run.until(lambda: len(pipeline.events("v")) == 1, "the row that is read")
        database.execute(f"INSERT INTO v VALUES (2, {values})")
        run.until(lambda: len(pipeline.events("v")) == 2, "the row that is streamed")
    (read, streamed) = (after for _, _, _, after in pipeline.events("v"))
    assert read["day"]["value"] == 11356
    assert read["raw"]["value"] == "AP8="
    assert read["at"]["value"] == "2001-02-03T04:05:06.000000Z"
    assert {n: v for n, v in read.items() if n != "id"} == {
        n: v for n, v in streamed.items() if n != "id"
    }
