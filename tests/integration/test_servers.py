"""The fixtures keep their own promises."""

import psycopg
import pytest

from tests.harness.servers.postgres import Cluster, Database, Server


def test_server_decodes_logically_in_utc(server: Server) -> None:
    found = dict(
        server.execute(
            "SELECT name, setting FROM pg_settings WHERE name IN ('wal_level', 'TimeZone')"
        )
    )
    assert found == {"wal_level": "logical", "TimeZone": "UTC"}


@pytest.mark.parametrize("plugin", ["pgoutput", "test_decoding", "wal2json", "decoderbufs"])
def test_every_output_plugin_can_be_used(database: Database, plugin: str) -> None:
    database.execute(f"SELECT pg_create_logical_replication_slot('{database.name}', '{plugin}')")
    assert database.slots() == {database.name: False}


def test_a_slot_still_streamed_from_is_reported_as_leaked(server: Server) -> None:
    made = server.create_database("waltap_servers_leak")
    made.execute(
        "SELECT pg_create_logical_replication_slot('waltap_servers_leak', 'test_decoding')"
    )
    stream = psycopg.pq.PGconn.connect(f"{made.dsn}?replication=database".encode())
    stream.exec_(b"START_REPLICATION SLOT waltap_servers_leak LOGICAL 0/0")
    assert made.drop(patience=0.2) == ["waltap_servers_leak"]
    stream.finish()


def test_psql_runs_meta_commands_and_stops_at_an_error(database: Database) -> None:
    assert database.psql("SELECT 1 \\g\n\\echo two\n") == "1\ntwo\n"
    with pytest.raises(AssertionError, match="division by zero"):
        database.psql("SELECT 1/0;\n")


def test_private_server_keeps_committed_rows_over_kill_and_restart(private_server: Cluster) -> None:
    database = private_server.create_database("kept")
    database.execute("CREATE TABLE t (a int); INSERT INTO t VALUES (1)")
    private_server.kill()
    assert private_server.pid() is None
    private_server.start()
    assert database.execute("TABLE t") == [(1,)]
    private_server.restart()
    assert database.execute("TABLE t") == [(1,)]
