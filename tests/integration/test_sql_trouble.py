"""What a target may do to the SQL sink: each has its code and its remedy, and costs no change."""

import contextlib
import os
import re
import resource
import socket
import threading
from dataclasses import replace
from pathlib import Path
from typing import Any

import psutil
import psycopg
import pymysql
import pytest
import sqlalchemy
from tests.harness.changelog import Database as Model
from tests.harness.changelog import batch, in_parts, relation
from tests.harness.meanwhile import in_background
from tests.harness.pipeline import until
from tests.harness.proxy import Proxy
from tests.harness.servers.jars import MissingProgram
from tests.harness.servers.pgbouncer import PgBouncer
from tests.harness.servers.requirement import missing
from tests.harness.sql import PEOPLE, VISITS, failure, finish, in_postgresql, lesser, waiting

from waltap.changes.transactions.position import Position, lsn_text
from waltap.errors import ConfigurationError, RetryVerdict, SinkError
from waltap_sinks.sql.errors import (
    SqlColumnMissing,
    SqlCommitUnknown,
    SqlConflict,
    SqlConflictMidway,
    SqlConstraintViolated,
    SqlNameTaken,
    SqlPositionChanged,
    SqlReadOnly,
    SqlRefused,
    SqlTableGone,
    SqlTableUnfit,
    SqlUnreachable,
    SqlValueUnfit,
)
from waltap_sinks.sql.targets import silence

ALIKE = relation("other.people", [("id", "int4"), ("name", "text"), ("note", "text")])
TABLE = "CREATE TABLE people (id int PRIMARY KEY, {})"
SERVERS = pytest.mark.parametrize("place", ["postgres", "maria"], indirect=True)


def filled(*rows: list[str | None]) -> Any:
    source = Model()
    return source.inserted(PEOPLE, *rows)


def test_a_failure_of_ddl_names_its_table(postgres):
    source, target = Model(), postgres.opened()
    target.write(batch(source.inserted(VISITS, ["1", "x"])))
    postgres.execute("CREATE DOMAIN people AS int")
    part = source.inserted(PEOPLE, ["1", "a", None])
    assert "public.people: type" in str(failure(target, part))


# --- links ---


def connections(port: int) -> set[int]:
    found = psutil.Process().net_connections("tcp")
    return {each.laddr.port for each in found if each.raddr and each.raddr.port == port}


def probed_soon(here: int, there: int) -> bool:
    """Return whether the kernel probes a connection between two ports when it was silent for 30 s."""
    for line in Path("/proc/net/tcp").read_text().splitlines()[1:]:
        _, *ends, _, _, timer = line.split()[:6]
        if [int(end.rpartition(":")[2], 16) for end in ends] == [here, there]:
            kind, _, ticks = timer.partition(":")
            return kind == "02" and int(ticks, 16) <= 3000  # 01: something is not acknowledged yet
    raise AssertionError(f"no connection from {here} to {there}")


@SERVERS
def test_a_link_to_a_machine_that_is_gone_ends_in_a_minute(place):
    """Else the sink waits for hours, and locks of a process whose machine is gone stay as long."""
    port = sqlalchemy.make_url(place.url).port
    assert port is not None
    before = connections(port)
    with contextlib.closing(place.opened()):
        (own,) = connections(port) - before
        until(lambda: probed_soon(own, port), "the sink's own probes")
        if place.kind == "postgresql":
            until(lambda: probed_soon(port, own), "the target's probes")


SLEEPS = {
    "postgresql": ("postgresql", "SELECT pg_sleep(1)"),
    "mariadb": ("mysql", "SELECT sleep(1)"),
}


@pytest.mark.parametrize("all_of_them", [False, True], ids=["one", "all"])
@SERVERS
def test_a_link_that_swallows_everything_ends_with_its_session(place, monkeypatch, all_of_them):
    """TCP acknowledges for it. A server that works for the sink is waited for."""
    monkeypatch.setattr(silence, "SILENCE_S", 0.2)
    module, sleeps = SLEEPS[place.kind]
    monkeypatch.setattr(f"waltap_sinks.sql.targets.{module}.QUESTION_S", 5)
    port = sqlalchemy.make_url(place.url).port
    assert port is not None
    source = Model()
    with Proxy("127.0.0.1", port) as proxy:
        url = place.url.replace(str(port), str(proxy.port))
        sink = replace(place, url=url).opened()
        sink.write(batch(source.inserted(PEOPLE, ["1", "a", None])))
        sink._target.run(sleeps)
        sink._begin()
        sink._metadata.store(Position(5))  # locks the row of positions
        proxy.swallow(endless=True, all_of_them=all_of_them)
        part = source.inserted(PEOPLE, ["2", "b", None])
        lost = failure(sink, part)
        assert isinstance(lost, SqlUnreachable), lost
        assert "loses what is sent" in str(lost)
        proxy.pass_again()
        sink.open()
        sink.write(batch(part))
    assert place.rows("people", "id") == [("1",), ("2",)]


def test_behind_a_pooler_a_long_statement_is_waited_for(postgres, database, monkeypatch):
    """The session of the sink's last transaction is another client's now, which must keep it."""
    monkeypatch.setattr(silence, "SILENCE_S", 0.2)
    try:
        pooler = PgBouncer.create(
            server=database.server, pool_mode="transaction", ignore_startup_parameters="options"
        )
    except MissingProgram as reason:
        missing(str(reason))
    try:
        url = sqlalchemy.make_url(postgres.url).set(host="127.0.0.1", port=pooler.port)
        own = replace(postgres, url=url.render_as_string(hide_password=False)).opened()
        with psycopg.connect(own._properties.url) as other:
            other.execute("SELECT 1")
            own._target.run("SELECT pg_sleep(1.5)")
            other.execute("SELECT 1")
    finally:
        pooler.remove()


# --- tables that do not take a change ---


def test_a_broken_constraint_names_the_change(place):
    place.execute(TABLE.format("name varchar(10) UNIQUE, note varchar(9)"))
    place.execute("""INSERT INTO people VALUES (5, 'my''s "own"', 'x')""")
    source, target = Model(), place.opened()
    first = source.inserted(PEOPLE, ["1", "a", None])
    second = source.inserted(PEOPLE, ["2", "ok", None], ["3", 'my\'s "own"', None])
    with pytest.raises(SqlConstraintViolated) as found:
        target.write(batch(first, second))
    assert f"{lsn_text(second.commit_lsn)}, change 1" in str(found.value)
    assert "own" not in str(found.value)
    assert place.rows("people", "id") == [("5",)]
    assert target.flush() is None  # nothing is promised, and nothing follows
    with pytest.raises(SinkError):
        target.write(batch(first))
    target.close()
    place.execute("DELETE FROM people WHERE id = 5")
    target = place.opened()
    target.write(batch(first, second))
    assert len(place.rows("people", "id")) == 3


def test_a_broken_constraint_in_a_large_transaction_is_named(place):
    place.execute(TABLE.format("name varchar(10) UNIQUE, note varchar(9)"))
    source, target = Model(), place.opened()
    whole = source.inserted(PEOPLE, ["1", "a", None], ["2", "b", None], ["3", "a", None])
    first, second = in_parts(whole, 1, 2)
    target.write(batch(first))
    assert isinstance(error := failure(target, second), SqlConstraintViolated)
    assert re.search("(?i)unique|for key", str(error))


@SERVERS
def test_a_missing_column_is_asked_for_or_made_also_under_the_sink(place, tmp_path):
    place.execute(TABLE.format("name text"))
    source = Model()
    part = source.inserted(PEOPLE, ["1", "a", "n"])
    asks = "ALTER TABLE .*people ADD COLUMN .note"
    place.refuses(SqlColumnMissing, part, asks, schema_evolution="none")
    target = place.opened()
    target.write(batch(part))
    assert place.rows("people", "note") == [("n",)]
    place.execute("ALTER TABLE people DROP COLUMN note")
    source.insert(PEOPLE, ["2", "b", "m"])
    target.write(batch(source.commit()))  # nobody knows that the column was there: it has no number
    assert place.rows("people", "id", "note") == [("1", None), ("2", "m")]


def test_an_index_on_a_part_of_a_column_is_no_key(maria):
    """It would let two rows of one key in."""
    maria.execute("CREATE TABLE people (id int, name text, note text, UNIQUE (name(3), id))")
    maria.refuses(SqlTableUnfit, filled(["1", "a", None]), "no unique index on `id`")


def test_a_row_that_is_larger_than_a_packet_of_the_server_is_a_value(maria):
    """The server would end the connection for it, and again after each reconnect."""
    ((most,),) = maria.execute("SELECT @@max_allowed_packet")
    source, target = Model(), maria.opened()
    first = source.inserted(PEOPLE, ["1", "a", None])
    large = source.inserted(PEOPLE, ["2", "ä" * (most // 2), None])
    target.write(batch(first))
    with pytest.raises(SqlValueUnfit, match="max_allowed_packet"):
        target.write(batch(large))
    assert target.flush() == Position(first.end_lsn)
    with target._target._raw.cursor() as cursor:
        for size in range(most - 3, most + 2):  # either side sees the same limit
            with contextlib.suppress(pymysql.DataError):
                cursor.execute("SELECT 1 # ".ljust(size, "a"))


@SERVERS
def test_a_column_that_is_too_narrow_is_reported_or_widened(place):
    place.execute(TABLE.format("name varchar(3), note text"))
    part = filled(["1", "ok", None], ["2", "secret", None])
    found = str(place.refuses(SqlValueUnfit, part, schema_evolution="none"))
    assert f"{lsn_text(part.commit_lsn)}, change 1" in found
    if place.kind == "postgresql":
        assert "column name" in found
        assert "character varying(3)" in found
    assert "secret" not in found
    assert place.rows("people", "id") == []
    place.deliver(part)
    assert place.rows("people", "name") == [("ok",), ("secret",)]


@pytest.mark.parametrize(
    ("kind", "value", "text"),
    [
        ("int", 'se"secret', "invalid input syntax for type integer (column id or name)"),
        ("smallint", "54321", "value … is out of range for type smallint (column name)"),
        ("bit(2)", "54321", "… is not a valid binary digit. Widen"),
    ],
)
def test_a_value_of_another_kind_is_reported_without_it(postgres, kind, value, text):
    postgres.execute(TABLE.format(f"name {kind}, note text"))
    part = filled(["1", value, None])
    found = postgres.refuses(SqlValueUnfit, part, schema_evolution="none")
    assert f"people: {text}" in str(found)


@SERVERS
def test_a_table_that_is_a_view_or_has_two_sources(place):
    place.execute("CREATE VIEW people AS SELECT 1 AS id")
    place.refuses(SqlTableUnfit, filled(["1", "a", None]), "no table")
    place.execute("DROP VIEW people")
    source = Model()
    source.insert(PEOPLE, ["2", "a", None])
    source.insert(ALIKE, ["1", "b", None])
    both, named = "public.people and other.people", {"table_name_format": "{table}"}
    place.refuses(SqlNameTaken, source.commit(), both, **named)


@SERVERS
def test_a_table_dropped_under_the_sink_is_reported(place):
    source, sink = Model(), place.opened()
    sink.write(batch(source.inserted(PEOPLE, ["1", "a", None])))
    place.execute("DROP TABLE people")
    part = source.inserted(PEOPLE, ["2", "b", None])
    assert isinstance(failure(sink, part), SqlTableGone)
    sink.close()
    repairing = place.opened(repairs=True)
    repairing.write(batch(part))
    assert repairing.flush() == Position(part.end_lsn)
    place.execute("DROP TABLE waltap_position")  # a backup from before the first run is put back
    lost = failure(repairing, source.inserted(PEOPLE, ["3", "c", None]))
    assert isinstance(lost, SqlPositionChanged)
    assert place.rows("people", "id") == [("2",)]


# --- others at the target ---


def test_a_table_that_another_session_makes_meanwhile_is_used(database, postgres):
    """Both begin to create it; the one that comes second finds it there."""
    part = filled(["1", "a", "n"])
    target = postgres.opened()
    with database.connect(autocommit=False) as other:
        other.execute(TABLE.format("name text, note text"))
        written = in_background(_written, target, part)
        until(lambda: waiting(postgres) > 0, "the sink to wait")
        other.commit()
    written.result(120)
    assert postgres.rows("people", "id", "note") == [("1", "n")]


def _written(target: Any, part: Any) -> None:
    while True:
        try:
            target.write(batch(part))
        except SqlConflict:
            continue
        return


HELD = {
    "postgresql": "UPDATE people SET note = 'theirs' WHERE id = 2",
    "sqlite": "BEGIN IMMEDIATE",
    "mariadb": "SELECT * FROM people WHERE id = 2 FOR UPDATE",
}


@pytest.mark.parametrize("place", ["postgres", "file", "maria"], indirect=True)
def test_a_lock_that_somebody_holds_costs_nothing(place):
    source, target = Model(), place.opened(lock_timeout_ms=1000)
    target.write(batch(source.inserted(PEOPLE, ["1", "a", None], ["2", "b", None])))
    source.update(PEOPLE, ["1"], name="c")
    source.update(PEOPLE, ["2"], name="d")
    part = source.commit()
    with contextlib.closing(place.connect()) as other:
        if place.kind == "mariadb":
            other.begin()
        other.cursor().execute(HELD[place.kind])
        with pytest.raises(SqlConflict) as found:
            target.write(batch(part))
        assert found.value.retry is RetryVerdict.SAME_BATCH
        other.commit()
    target.write(batch(part))
    assert target.flush() == Position(part.end_lsn)
    assert place.rows("people", "id", "name") == [("1", "c"), ("2", "d")]


MEANT: dict[str, list[tuple[Exception, type[SinkError]]]] = {
    "postgresql": [
        (psycopg.errors.DeadlockDetected(), SqlConflict),
        (psycopg.errors.SerializationFailure(), SqlConflict),
        (psycopg.errors.DiskFull(), SqlUnreachable),
        (psycopg.errors.AdminShutdown(), SqlUnreachable),
        (psycopg.errors.ReadOnlySqlTransaction(), SqlReadOnly),
    ],
    "mariadb": [
        (pymysql.OperationalError(1213, "Deadlock found"), SqlConflict),
        (pymysql.OperationalError(2013, "Lost connection"), SqlUnreachable),
        (pymysql.OperationalError(1792, "READ ONLY transaction"), SqlReadOnly),
        (pymysql.OperationalError(1114, "The table is full"), SqlUnreachable),
        (pymysql.OperationalError(3675, "Create table failed, tablespace full"), SqlUnreachable),
        (pymysql.OperationalError(1047, "WSREP has not yet prepared node"), SqlUnreachable),
    ],
}
"""What a server says that works for others, too, and what that means."""


@SERVERS
def test_what_a_server_cannot_do_now_is_done_later(place):
    assert SqlReadOnly.retry is SqlUnreachable.retry is RetryVerdict.RECONNECT
    with contextlib.closing(place.opened()) as sink:
        for error, meaning in MEANT[place.kind]:
            assert sink._target.meaning(error) is meaning


def test_a_database_whose_transactions_begin_read_only_is_written(database, postgres):
    database.execute(f"ALTER DATABASE {database.name} SET default_transaction_read_only = on")
    postgres.deliver(filled(["1", "a", None]))
    assert postgres.rows("people", "id") == [("1",)]


MANY = [[str(n), f"name {n}", None] for n in range(1, 1001)]


@pytest.mark.parametrize("asked", ["write", "flush"])
def test_a_lock_that_a_large_batch_meets_costs_nothing(database, postgres, asked):
    """The batch is kept until it is in: by a second `write`, or by a connection of its own after a `flush`."""
    source, target = Model(), postgres.opened(lock_timeout_ms=300)
    before = source.inserted(PEOPLE, *MANY)
    target.write(batch(before))
    assert target.flush() == Position(before.end_lsn)
    for row in MANY:
        source.update(PEOPLE, [row[0]], name="changed")
    first = source.commit()
    source.update(PEOPLE, ["1"], name="last")
    second = source.commit()
    with database.connect(autocommit=False) as other:
        other.execute("UPDATE people SET note = 'theirs' WHERE id = 2")
        target.write(batch(first))
        if asked == "write":
            with pytest.raises(SqlConflict) as found:
                target.write(batch(second))
            assert found.value.retry is RetryVerdict.SAME_BATCH
        else:
            with pytest.raises(SqlConflictMidway) as found:
                target.flush()
            assert found.value.retry is RetryVerdict.RECONNECT
        other.commit()
    if asked == "write":
        target.write(batch(second))
    else:
        target.close()
        target = postgres.opened(lock_timeout_ms=300)
        target.write(batch(first, second))
    assert target.flush() == Position(second.end_lsn)
    names = [name for (name,) in postgres.rows("people", "name")]
    assert (names.count("changed"), names.count("last")) == (999, 1)


# --- connections, and what a user may not ---


SLOW_COMMIT = """
CREATE FUNCTION public.wait() RETURNS trigger LANGUAGE plpgsql AS
$$ BEGIN PERFORM pg_advisory_xact_lock(4711); RETURN NULL; END $$;
CREATE CONSTRAINT TRIGGER slow AFTER INSERT ON people
  DEFERRABLE INITIALLY DEFERRED FOR EACH ROW EXECUTE FUNCTION public.wait();
ALTER TABLE people ENABLE ALWAYS TRIGGER slow;
"""


@pytest.mark.parametrize("commits", [True, False], ids=["it commits", "it is undone"])
def test_a_connection_lost_in_mid_commit_is_decided_by_the_position(database, postgres, *, commits):
    """The server is in the middle of COMMIT when the connection goes. The next instance waits for what
    becomes of it: what was committed does not come again, what was not does."""
    database.execute(TABLE.format("name text, note text"))
    database.execute(SLOW_COMMIT)
    source, target = Model(), postgres.opened()
    part = source.inserted(PEOPLE, ["1", "a", None])
    gate = database.connect(autocommit=False)
    gate.execute("SELECT pg_advisory_xact_lock(4711)")
    writing = in_background(failure, target, part)
    until(lambda: waiting(postgres) > 0, "the server to be in COMMIT")
    _cut(target)
    failed = writing.result(120)
    assert isinstance(failed, SqlCommitUnknown), failed
    target.close()
    again = postgres.sink()
    opening = in_background(again.open)
    until(lambda: waiting(postgres) == 2, "the next instance to wait for it")
    if not commits:
        database.execute(
            "SELECT pg_terminate_backend(pid) FROM pg_stat_activity"
            " WHERE wait_event = 'advisory' AND datname = current_database()"
        )
    gate.rollback()
    gate.close()
    assert opening.result(120) == (Position(part.end_lsn) if commits else None)
    again.write(batch(part))
    assert postgres.rows("people", "id", "name") == [("1", "a")]


def _cut(target: Any) -> None:
    """Shut the socket: nothing more comes through, in either direction."""
    number = os.dup(target._target.raw.pgconn.socket)
    with socket.socket(fileno=number) as link:
        link.shutdown(socket.SHUT_RDWR)


def test_a_commit_whose_answer_is_lost_does_not_come_again(mariadb, maria):
    """The server has committed, and nobody hears of it."""
    armed = threading.Event()

    def heard(data: bytes) -> None:
        if armed.is_set() and b"COMMIT" in data:
            proxy.cut_after(0)

    proxy = Proxy("127.0.0.1", mariadb.port, heard)
    url = maria.url.replace(str(mariadb.port), str(proxy.port))
    source, sink = Model(), replace(maria, url=url).opened()
    sink.write(batch(source.inserted(PEOPLE, ["1", "a", None])))

    armed.set()
    part = source.inserted(PEOPLE, ["2", "b", None])
    lost = failure(sink, part)
    assert isinstance(lost, SqlCommitUnknown), lost
    assert lost.retry is RetryVerdict.RECONNECT
    sink.close()
    proxy.close()
    again = maria.sink()
    assert again.open() == Position(part.end_lsn)
    again.write(batch(part))
    assert maria.rows("people", "id") == [("1",), ("2",)]


def test_credentials_that_expire_in_postgresql(private_server, tmp_path):
    private_server.execute("CREATE ROLE clerk LOGIN PASSWORD 'first'")
    private_server.ask_for_password("clerk")
    database = private_server.create_database("expiry")
    database.execute(
        "GRANT ALL ON SCHEMA public TO clerk; GRANT CREATE ON DATABASE expiry TO clerk"
    )
    dsn = database.dsn.replace("//postgres", "//clerk:first", 1)
    place = replace(in_postgresql(database, tmp_path), url=dsn)
    source, sink = Model(), place.opened()
    first = source.inserted(PEOPLE, ["1", "a", None])
    sink.write(batch(first))
    assert sink.flush() == Position(first.end_lsn)
    private_server.execute("ALTER ROLE clerk VALID UNTIL '2001-01-01'")
    private_server.execute(
        "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE usename = 'clerk'"
    )
    second = source.inserted(PEOPLE, ["2", "b", None])
    assert isinstance(failure(sink, second), SqlUnreachable)
    sink.close()
    with pytest.raises(SqlRefused, match="Check user and password") as refused:
        place.opened()
    assert "first" not in str(refused.value)
    private_server.execute("ALTER ROLE clerk VALID UNTIL 'infinity'")
    sink = place.sink()
    assert sink.open() == Position(first.end_lsn)
    finish(sink, second)
    assert len(place.rows("people", "id")) == 2


@SERVERS
def test_nobody_there_and_no_such_database_are_reported(place):
    away = replace(place, url=f"{place.kind}://app:hidden@127.0.0.1:1/x").sink()
    for call in (away.check, away.open):
        with pytest.raises(SqlUnreachable, match="the target: ") as found:  # not the source
            call()
        assert "hidden" not in str(found.value)
    with pytest.raises(SqlRefused):
        replace(place, url=place.url + "_not_there").sink().check()


def test_a_file_that_is_not_there_and_no_address_are_reported(file):
    with pytest.raises(SqlUnreachable):
        replace(file, url=f"sqlite:///{file.folder}/nowhere/x.db").sink().open()
    with pytest.raises(ConfigurationError, match=r"sink\.url"):
        replace(file, url="shop.db").sink()


def test_rights_that_are_lacking_or_taken_away_are_reported(database, postgres):
    with lesser(database, postgres) as (name, place):
        database.execute(f"ALTER ROLE {name} SET search_path = nowhere")
        with pytest.raises(SqlRefused, match="no schema of the user's search_path"):
            place.opened()
        database.execute(f"ALTER ROLE {name} RESET search_path")
        with pytest.raises(SqlRefused, match="CREATE on the schema"):
            place.opened()
        database.execute(TABLE.format("name text, note text"))
        database.execute(f"GRANT ALL ON SCHEMA public TO {name}; GRANT ALL ON people TO {name}")
        source, target = Model(), place.opened(schema_evolution="none")
        target.write(batch(source.inserted(PEOPLE, ["1", "a", None])))
        # A table is made in a schema that is there, without the right to make schemas.
        place.deliver(source.inserted(VISITS, ["1", "home"]), named="another")
        database.execute(f"REVOKE INSERT ON people FROM {name}")
        source.insert(PEOPLE, ["2", "b", None])
        with pytest.raises(SqlRefused, match="permission denied for table people"):
            target.write(batch(source.commit()))
        database.execute(f"ALTER ROLE {name} NOLOGIN")
        with pytest.raises(SqlRefused, match="Check user and password"):
            place.opened()


def test_a_check_makes_nothing(postgres):
    (check,) = postgres.sink().check()
    assert check.verdict == "ok"
    made = postgres.execute("SELECT count(*) FROM pg_class WHERE relname LIKE 'waltap%'")
    assert made == [(0,)]


@pytest.mark.parametrize("place", ["file", "duck"], indirect=True)
def test_a_disk_that_is_full_for_a_commit_is_named_and_waited_for(place):
    source, target = Model(), place.opened()
    target.write(batch(source.inserted(PEOPLE, ["1", "a", None])))
    promised, part = target.flush(), source.inserted(PEOPLE, ["2", "b" * 500_000, None])
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (100_000, limits[1]))
    try:
        lost = failure(target, part)
        target.close()
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    assert isinstance(lost, SqlCommitUnknown | SqlUnreachable), lost
    assert re.search("full|disk|File too large", str(lost)), lost
    target = place.sink()
    assert target.open() == promised
    finish(target, part)
    assert len(place.rows("people", "id")) == 2
