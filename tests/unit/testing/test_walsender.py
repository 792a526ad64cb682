"""The scripted walsender against real libpq, driven as a connector drives it."""

import select
import struct
import time

import psycopg
import pytest
from psycopg import pq

from waltap_testing.walsender import (
    AwaitConfirmed,
    AwaitFeedback,
    CopyDone,
    CopyOut,
    PauseSeconds,
    RowsAnswer,
    ScriptedWalsender,
    ScriptFailed,
    SendKeepalive,
    SendRaw,
    ServerError,
    StreamScript,
    XLogData,
)

START = b"START_REPLICATION SLOT s LOGICAL 0/0 (proto_version '1')"


OPEN = []


@pytest.fixture(autouse=True)
def _closed():
    """Close the connections of a test, before the server that it made looks at them."""
    yield
    while OPEN:
        OPEN.pop().finish()


def attempt(server, extra=" replication=database"):
    """Connect without blocking: `PGconn.connect` keeps the interpreter's lock, and the server's
    threads would never run."""
    connection = pq.PGconn.connect_start((server.dsn + extra).encode())
    while (state := connection.connect_poll()) in (
        pq.PollingStatus.READING,
        pq.PollingStatus.WRITING,
    ):
        reading = state == pq.PollingStatus.READING
        sockets = [connection.socket]
        select.select(sockets if reading else [], [] if reading else sockets, [], 5)
    OPEN.append(connection)
    return connection


def connect(server, extra=" replication=database"):
    connection = attempt(server, extra)
    assert connection.status == pq.ConnStatus.OK, connection.error_message
    return connection


def stream(server):
    connection = connect(server)
    assert connection.exec_(START).status == pq.ExecStatus.COPY_BOTH
    return connection


def frames(connection, count, seconds=60.0):
    """Return the next ``count`` CopyData payloads; fewer when the stream ends."""
    found, deadline = [], time.monotonic() + seconds
    while len(found) < count and time.monotonic() < deadline:
        size, data = connection.get_copy_data(1)
        if size > 0:
            found.append(bytes(data))
        elif size < 0:
            break
        else:
            select.select([connection.socket], [], [], 0.5)
            connection.consume_input()
    return found


def confirm(connection, lsn):
    connection.put_copy_data(struct.pack("!cQQQqB", b"r", lsn, lsn, lsn, 0, 0))
    connection.flush()


def result(connection):
    """Return the next result; `get_result` keeps the interpreter's lock while it blocks."""
    while connection.is_busy():
        select.select([connection.socket], [], [], 5)
        connection.consume_input()
    return connection.get_result()


def results(connection):
    return list(iter(lambda: result(connection), None))


def column(found):
    return [[found.get_value(j, i) for i in range(found.nfields)] for j in range(found.ntuples)]


def test_replication_commands_are_answered_as_a_walsender_does(walsender):
    server = walsender(wal_end=0x16B374D848, system_id="42", timeline=3, database="shop")
    connection = connect(server)
    assert column(connection.exec_(b"IDENTIFY_SYSTEM")) == [[b"42", b"3", b"16/B374D848", b"shop"]]
    assert column(connection.exec_(b"SHOW wal_level")) == [[b"logical"]]
    made = connection.exec_(b"CREATE_REPLICATION_SLOT \"s\" LOGICAL pgoutput (SNAPSHOT 'export')")
    assert column(made) == [[b"s", b"16/B374D848", b"00000003-00000001-1", b"pgoutput"]]
    made = connection.exec_(
        b"CREATE_REPLICATION_SLOT s TEMPORARY LOGICAL pgoutput NOEXPORT_SNAPSHOT"
    )
    assert column(made)[0][2] is None
    dropped = connection.exec_(b"DROP_REPLICATION_SLOT s WAIT")
    assert dropped.status == pq.ExecStatus.COMMAND_OK
    unknown = connection.exec_(b"SELECT 1")
    assert unknown.error_field(pq.DiagnosticField.SQLSTATE) == b"0A000"
    assert [query.text for query in server.unanswered] == ["SELECT 1"]


def test_a_given_answer_comes_first_and_several_come_in_turn(walsender):
    server = walsender(
        answers={
            "^CREATE_REPLICATION_SLOT": [ServerError("42710", "already exists"), None],
            "from pg_class": RowsAnswer(["relname", ("oid", 26)], [["t", "16384"], [None, "1"]]),
        }
    )
    connection = connect(server)
    create = b"CREATE_REPLICATION_SLOT s LOGICAL pgoutput"
    first, second = connection.exec_(create), connection.exec_(create)
    assert first.error_field(pq.DiagnosticField.SQLSTATE) == b"42710"
    assert second.status == pq.ExecStatus.TUPLES_OK
    rows = connection.exec_(b"SELECT relname, oid FROM pg_class")
    assert column(rows) == [[b"t", b"16384"], [None, b"1"]]
    assert rows.ftype(1) == 26


# [walsender]
def test_frames_arrive_in_order_and_every_status_update_is_noted(walsender):
    server = walsender(
        [
            XLogData(b"begin", lsn=0x100),
            SendKeepalive(0x180, reply=True),
            AwaitFeedback(),
            XLogData(b"commit", lsn=0x200, wal_end=0x208),
            AwaitConfirmed(0x200),
            SendRaw(b"kaput"),
        ]
    )
    connection = stream(server)
    first, alive = frames(connection, 2)
    assert struct.unpack("!cQQ", first[:17]) == (b"w", 0x100, 0x100)
    assert first[25:] == b"begin"
    assert alive[0:9] == struct.pack("!cQ", b"k", 0x180)
    assert alive[17] == 1
    assert frames(connection, 1, seconds=0.05) == []  # it waits to be answered
    confirm(connection, 0x80)
    (second,) = frames(connection, 1)
    assert struct.unpack("!cQQ", second[:17]) == (b"w", 0x200, 0x208)
    confirm(connection, 0x200)
    assert frames(connection, 1) == [b"kaput"]
    assert [update.flushed for update in server.feedback] == [0x80, 0x200]
    assert server.feedback[0].seconds <= server.feedback[1].seconds
    connection.finish()


# [/walsender]


def test_the_client_may_end_the_stream(walsender):
    server = walsender([SendKeepalive(1), PauseSeconds(30)])
    connection = stream(server)
    frames(connection, 1)
    connection.put_copy_end()
    connection.flush()
    assert frames(connection, 1) == []
    assert [r.command_status for r in results(connection)] == [b"COPY 0", b"START_REPLICATION"]
    assert connection.exec_(b"IDENTIFY_SYSTEM").status == pq.ExecStatus.TUPLES_OK


def test_the_server_may_end_the_stream(walsender):
    server = walsender([SendKeepalive(1), CopyDone()])
    connection = stream(server)
    assert len(frames(connection, 2)) == 1
    assert result(connection).status == pq.ExecStatus.COPY_IN
    connection.put_copy_end()
    connection.flush()
    assert results(connection)[-1].status == pq.ExecStatus.COMMAND_OK


def test_what_has_no_script_is_an_error_not_a_hang(walsender):
    """A stream; and the extended protocol on a replication connection."""
    connection = connect(walsender())
    assert connection.exec_(START).error_field(pq.DiagnosticField.SQLSTATE) == b"55000"
    refused = connection.exec_params(b"SELECT $1", [b"1"])
    assert refused.error_field(pq.DiagnosticField.SQLSTATE) == b"08P01"


def test_a_confirmation_that_never_comes_fails_the_test():
    with (
        pytest.raises(ScriptFailed, match="0x200 was never confirmed"),
        ScriptedWalsender([SendKeepalive(1), AwaitConfirmed(0x200, within=0.1)]) as server,
    ):
        connection = stream(server)
        frames(connection, 1)
        confirm(connection, 0x1FF)
        server.wait(lambda s: s.sessions[0].failure)


def test_a_start_position_other_than_the_scripts_or_a_malformed_update_fails_the_test():
    with (
        pytest.raises(ScriptFailed, match="expects"),
        ScriptedWalsender(StreamScript((SendKeepalive(1),), matches="LOGICAL 16/10 ")) as server,
    ):
        assert connect(server).exec_(START).status == pq.ExecStatus.FATAL_ERROR
    with (
        pytest.raises(ScriptFailed, match="33 bytes, must be 34"),
        ScriptedWalsender([SendKeepalive(1)]) as server,
    ):
        connection = stream(server)
        connection.put_copy_data(b"r" + bytes(32))
        connection.flush()
        server.wait(lambda s: s.sessions[0].failure)


def test_what_is_waited_for_has_a_deadline(walsender):
    server = walsender()
    with pytest.raises(ScriptFailed, match="did not come"):
        server.wait(lambda s: s.streams > 0, within=0.05)


def test_ordinary_connections_may_bind_parameters_and_copy(walsender):
    rows = RowsAnswer([("relname", 19), ("n", 23)], [["t", "1"]])
    copied = CopyOut([b"1\tone\n", b"2\t\\N\n"], columns=2)
    server = walsender(answers={"FROM pg_class": rows, "^COPY": copied})
    with psycopg.connect(server.dsn) as connection:
        found = connection.execute("SELECT relname, 1 FROM pg_class WHERE oid = %s", ["16384"])
        assert found.fetchall() == [("t", 1)]
        with connection.cursor().copy('COPY "t" TO STDOUT') as copy:
            assert b"".join(bytes(part) for part in copy) == b"1\tone\n2\t\\N\n"
    bound = [query for query in server.sessions[0].queries if query.parameters]
    assert [query.parameters for query in bound] == [("16384",)]
