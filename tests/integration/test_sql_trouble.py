"""What the target may do to the SQL sink: each has its code, its remedy, and costs no change."""

import dataclasses
import os
import socket
import threading
from pathlib import Path
from typing import Any

import pytest

from tests.harness.changelog import Database as Model
from tests.harness.changelog import batch, context, in_parts, relation
from tests.harness.pipeline import until
from tests.harness.sql import opened, properties, sink, texts
from tests.harness.servers.postgres import Database
from waltap.errors import ConfigurationError, Retry, SinkError
from waltap.sink.refusal import RecordsRefused
from waltap.source.position import Position, lsn_text
from waltap_sinks.sql import SqlSink
from waltap_sinks.sql.errors import (
    SqlColumnMissing,
    SqlCommitUnknown,
    SqlConflict,
    SqlConflictMidway,
    SqlConstraintViolated,
    SqlNameTaken,
    SqlReadOnly,
    SqlRefused,
    SqlTableUnfit,
    SqlUnreachable,
    SqlValueUnfit,
)

PEOPLE = relation("public.people", [("id", "int4"), ("name", "text"), ("note", "text")])
ALIKE = relation("other.people", [("id", "int4"), ("name", "text"), ("note", "text")])
TABLE = "CREATE SCHEMA replica; CREATE TABLE replica.people (id int PRIMARY KEY, {})"


def filled(*rows: list[str | None]) -> Any:
    source = Model()
    source.insert(PEOPLE, *rows)
    return source.commit()


def test_a_broken_constraint_names_the_change(database: Database, tmp_path: Path) -> None:
    database.execute(TABLE.format("name text CHECK (name <> 'b'), note text"))
    source, target = Model(), opened(database, tmp_path)
    source.insert(PEOPLE, ["1", "a", None])
    first = source.commit()
    source.insert(PEOPLE, ["2", "ok", None], ["3", "b", None])
    second = source.commit()
    with pytest.raises(SqlConstraintViolated) as found:
        target.write(batch(first, second))
    assert f"{lsn_text(second.commit_lsn)}, change 1" in str(found.value)
    assert "people_name_check" in str(found.value)
    assert texts(database, "people", "id") == []
    assert target.flush() is None  # nothing is promised, and nothing follows
    with pytest.raises(SinkError):
        target.write(batch(first))
    target.close()
    database.execute("ALTER TABLE replica.people DROP CONSTRAINT people_name_check")
    target = opened(database, tmp_path)
    target.write(batch(first, second))
    assert len(texts(database, "people", "id")) == 3
    target.close()


def test_a_missing_column_is_made_or_asked_for(database: Database, tmp_path: Path) -> None:
    database.execute(TABLE.format("name text"))
    part = filled(["1", "a", "n"])
    target = opened(database, tmp_path, schema_evolution="none")
    with pytest.raises(SqlColumnMissing, match='ALTER TABLE replica.people ADD COLUMN "note"'):
        target.write(batch(part))
    target.close()
    target = opened(database, tmp_path)
    target.write(batch(part))
    assert texts(database, "people", "id", "note") == [("1", "n")]
    target.close()


def test_a_missing_table_is_made_or_asked_for(database: Database, tmp_path: Path) -> None:
    target = opened(database, tmp_path, schema_evolution="none")
    with pytest.raises(SqlColumnMissing, match=r'CREATE TABLE .* PRIMARY KEY \("id"\)'):
        target.write(batch(filled(["1", "a", "n"])))
    target.close()


def test_a_column_dropped_under_the_sink_comes_back(database: Database, tmp_path: Path) -> None:
    source, target = Model(), opened(database, tmp_path)
    source.insert(PEOPLE, ["1", "a", "n"])
    target.write(batch(source.commit()))
    database.execute("ALTER TABLE replica.people DROP COLUMN note")
    source.insert(PEOPLE, ["2", "b", "m"])
    target.write(batch(source.commit()))
    assert texts(database, "people", "id", "note") == [("1", None), ("2", "m")]
    target.close()


def test_a_column_that_is_too_narrow_is_widened_or_told(database: Database, tmp_path: Path) -> None:
    database.execute(TABLE.format("name varchar(3), note text"))
    part = filled(["1", "ok", None], ["2", "secret", None])
    target = opened(database, tmp_path, schema_evolution="none")
    with pytest.raises(SqlValueUnfit, match="character varying.3") as found:
        target.write(batch(part))
    assert "column name" in str(found.value)
    assert f"{lsn_text(part.commit_lsn)}, change 1" in str(found.value)
    assert "secret" not in str(found.value)
    target.close()
    target = opened(database, tmp_path)
    target.write(batch(part))
    assert texts(database, "people", "name") == [("ok",), ("secret",)]
    target.close()


def test_a_value_of_another_kind_is_told_without_it(database: Database, tmp_path: Path) -> None:
    database.execute(TABLE.format("name int, note text"))
    target = opened(database, tmp_path, schema_evolution="none")
    with pytest.raises(SqlValueUnfit) as found:
        target.write(batch(filled(["1", "secret", None])))
    assert "secret" not in str(found.value)
    target.close()


def test_a_view_and_a_table_without_key_are_refused(database: Database, tmp_path: Path) -> None:
    database.execute("CREATE SCHEMA replica; CREATE VIEW replica.people AS SELECT 1 AS id")
    target = opened(database, tmp_path)
    with pytest.raises(SqlTableUnfit, match="no table"):
        target.write(batch(filled(["1", "a", None])))
    target.close()
    database.execute("DROP VIEW replica.people")
    database.execute("CREATE TABLE replica.people (id int, name text, note text)")
    target = opened(database, tmp_path)
    with pytest.raises(SqlTableUnfit, match=r'ADD PRIMARY KEY \("id"\)'):
        target.write(batch(filled(["1", "a", None])))
    target.close()


def test_two_tables_of_one_name_are_refused(database: Database, tmp_path: Path) -> None:
    source, target = Model(), opened(database, tmp_path)
    source.insert(PEOPLE, ["1", "a", None])
    source.insert(ALIKE, ["1", "b", None])
    with pytest.raises(SqlNameTaken, match=r"public.people and other.people"):
        target.write(batch(source.commit()))
    target.close()


def test_a_table_that_another_session_makes_meanwhile_is_used(
    database: Database, tmp_path: Path
) -> None:
    """Both begin to create it; the one that comes second finds it there."""
    part = filled(["1", "a", "n"])
    target = opened(database, tmp_path)
    with database.connect(autocommit=False) as other:
        other.execute(TABLE.format("name text, note text"))
        written = threading.Thread(target=lambda: _written(target, part))
        written.start()
        until(lambda: _waits(database), "the sink to wait")
        other.commit()
    written.join(90)
    target.close()
    assert texts(database, "people", "id", "note") == [("1", "n")]


def _written(target: Any, part: Any) -> None:
    while True:
        try:
            target.write(batch(part))
        except SqlConflict:
            continue
        return


def _waits(database: Database) -> bool:
    return _count_waiting(database) > 0


def test_a_deadlock_is_undone_and_the_batch_goes_in_again(
    database: Database, tmp_path: Path
) -> None:
    source, target = Model(), opened(database, tmp_path, lock_timeout_ms=500)
    source.insert(PEOPLE, ["1", "a", None], ["2", "b", None])
    target.write(batch(source.commit()))
    source.update(PEOPLE, ["1"], name="c")
    source.update(PEOPLE, ["2"], name="d")
    part = source.commit()
    with database.connect(autocommit=False) as other:
        other.execute("UPDATE replica.people SET note = 'theirs' WHERE id = 2")
        with pytest.raises(SqlConflict) as found:
            target.write(batch(part))
        assert found.value.retry is Retry.SAME_BATCH
        other.commit()
    target.write(batch(part))
    assert target.flush() == Position(part.end_lsn)
    assert texts(database, "people", "id", "name") == [("1", "c"), ("2", "d")]
    target.close()


def test_a_deadlock_within_a_large_transaction_delivers_all_of_it_again(
    database: Database, tmp_path: Path
) -> None:
    source, target = Model(), opened(database, tmp_path, lock_timeout_ms=500)
    source.insert(PEOPLE, ["1", "a", None], ["2", "b", None])
    target.write(batch(source.commit()))
    source.update(PEOPLE, ["1"], name="c")
    source.update(PEOPLE, ["2"], name="d")
    one, two = in_parts(source.commit(), 1, 1)
    target.write(batch(one))
    with database.connect(autocommit=False) as other:
        other.execute("UPDATE replica.people SET note = 'theirs' WHERE id = 2")
        with pytest.raises(SqlConflictMidway) as found:
            target.write(batch(two))
        assert found.value.retry is Retry.RECONNECT
    target.close()
    assert texts(database, "people", "name") == [("a",), ("b",)]


SLOW_COMMIT = """
CREATE FUNCTION replica.wait() RETURNS trigger LANGUAGE plpgsql AS
$$ BEGIN PERFORM pg_advisory_xact_lock(4711); RETURN NULL; END $$;
CREATE CONSTRAINT TRIGGER slow AFTER INSERT ON replica.people
  DEFERRABLE INITIALLY DEFERRED FOR EACH ROW EXECUTE FUNCTION replica.wait();
ALTER TABLE replica.people ENABLE ALWAYS TRIGGER slow;
"""


@pytest.mark.parametrize("commits", [True, False], ids=["it commits", "it is undone"])
def test_a_connection_lost_in_mid_commit_is_decided_by_the_position(
    database: Database, tmp_path: Path, *, commits: bool
) -> None:
    """The server is in the middle of COMMIT when the connection goes. The next instance waits for what
    becomes of it: what was committed does not come again, what was not does."""
    database.execute(TABLE.format("name text, note text"))
    database.execute(SLOW_COMMIT)
    source, target = Model(), opened(database, tmp_path)
    source.insert(PEOPLE, ["1", "a", None])
    part = source.commit()
    failures: list[BaseException] = []
    gate = database.connect(autocommit=False)
    gate.execute("SELECT pg_advisory_xact_lock(4711)")
    writer = threading.Thread(target=lambda: failures.append(_failure(target, part)))
    writer.start()
    until(lambda: _waits(database), "the server to be in COMMIT")
    _cut(target)
    writer.join(90)
    assert isinstance(failures[0], SqlCommitUnknown), failures[0]
    target.close()
    again = sink(database, tmp_path)
    found: list[Position | None] = []
    opener = threading.Thread(target=lambda: found.append(again.open()))
    opener.start()
    until(lambda: _count_waiting(database) == 2, "the next instance to wait for it")
    if not commits:
        database.execute(
            "SELECT pg_terminate_backend(pid) FROM pg_stat_activity"
            " WHERE wait_event = 'advisory' AND datname = current_database()"
        )
    gate.rollback()
    gate.close()
    opener.join(90)
    assert found == [Position(part.end_lsn) if commits else None]
    again.write(batch(part))
    again.close()
    assert texts(database, "people", "id", "name") == [("1", "a")]


def _count_waiting(database: Database) -> int:
    ((count,),) = database.execute(
        "SELECT count(*) FROM pg_stat_activity WHERE datname = current_database()"
        " AND wait_event_type = 'Lock' AND application_name LIKE 'waltap%'"
    )
    return int(count)


def _cut(target: Any) -> None:
    """Shut the socket: nothing more comes through, in either direction."""
    number = os.dup(target._target.raw.pgconn.socket)
    with socket.socket(fileno=number) as link:
        link.shutdown(socket.SHUT_RDWR)


def _failure(target: Any, part: Any) -> BaseException:
    try:
        target.write(batch(part))
    except BaseException as error:
        return error
    return AssertionError("it was committed")


def test_a_server_that_goes_away_is_reconnected_to(database: Database, tmp_path: Path) -> None:
    source, target = Model(), opened(database, tmp_path)
    source.insert(PEOPLE, ["1", "a", None])
    target.write(batch(source.commit()))
    database.execute(
        "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE datname = current_database()"
        " AND application_name LIKE 'waltap%'"
    )
    source.insert(PEOPLE, ["2", "b", None])
    with pytest.raises(SqlUnreachable) as found:
        target.write(batch(source.commit()))
    assert found.value.retry is Retry.RECONNECT
    target.close()


def test_nobody_there_and_a_wrong_password_are_told(database: Database, tmp_path: Path) -> None:
    away = SqlSink(properties("postgresql://app:hidden@127.0.0.1:1/x"), context(tmp_path))
    for call in (away.check, away.open):
        with pytest.raises(SqlUnreachable) as found:
            call()
        assert "hidden" not in str(found.value)
    missing = SqlSink(properties(database.dsn + "_not_there"), context(tmp_path))
    with pytest.raises(SqlRefused):
        missing.check()
    with pytest.raises(ConfigurationError, match=r"sink\.url"):
        SqlSink(properties("shop.db"), context(tmp_path))


def test_a_user_without_rights_is_told_what_is_lacking(database: Database, tmp_path: Path) -> None:
    name = f"lesser_{database.name}"
    database.execute(f"CREATE ROLE {name} LOGIN")
    try:
        dsn = database.dsn.replace("//postgres", f"//{name}", 1)
        target = SqlSink(properties(dsn), context(tmp_path))
        with pytest.raises(SqlRefused, match="CREATE on the schema"):
            target.open()
        target.close()
    finally:
        database.execute(f"DROP ROLE {name}")


def test_a_check_makes_nothing(database: Database, tmp_path: Path) -> None:
    (check,) = sink(database, tmp_path).check()
    assert check.verdict == "ok"
    ((count,),) = database.execute("SELECT count(*) FROM pg_class WHERE relname LIKE 'waltap%'")
    assert count == 0


MANY = [[str(n), f"name {n}", None] for n in range(1, 1001)]


def test_a_large_batch_that_fails_while_the_next_is_made_is_told_then(
    database: Database, tmp_path: Path
) -> None:
    """It is applied behind the caller's back; its error names its own change, and nothing after it goes in."""
    database.execute(TABLE.format("name text CHECK (name <> 'name 700'), note text"))
    source, target = Model(), opened(database, tmp_path)
    source.insert(PEOPLE, *MANY)
    first = source.commit()
    source.insert(PEOPLE, ["5000", "later", None])
    second = source.commit()
    target.write(batch(first))
    with pytest.raises(SqlConstraintViolated, match=f"{lsn_text(first.commit_lsn)}, change 699"):
        target.write(batch(second))
    assert target.flush() is None
    assert texts(database, "people", "id") == []
    target.close()
    database.execute("ALTER TABLE replica.people DROP CONSTRAINT people_name_check")
    target = opened(database, tmp_path)
    target.write(batch(first))
    target.write(batch(second))
    assert target.flush() == Position(second.end_lsn)
    assert len(texts(database, "people", "id")) == 1001
    target.close()


@pytest.mark.parametrize("asked", ["write", "flush"])
def test_a_lock_that_a_large_batch_meets_costs_nothing(
    database: Database, tmp_path: Path, asked: str
) -> None:
    """The batch is kept until it is in: by a second `write`, or by a connection of its own after a `flush`."""
    source, target = Model(), opened(database, tmp_path, lock_timeout_ms=300)
    source.insert(PEOPLE, *MANY)
    before = source.commit()
    target.write(batch(before))
    assert target.flush() == Position(before.end_lsn)
    for row in MANY:
        source.update(PEOPLE, [row[0]], name="changed")
    first = source.commit()
    source.update(PEOPLE, ["1"], name="last")
    second = source.commit()
    with database.connect(autocommit=False) as other:
        other.execute("UPDATE replica.people SET note = 'theirs' WHERE id = 2")
        target.write(batch(first))
        if asked == "write":
            with pytest.raises(SqlConflict) as found:
                target.write(batch(second))
            assert found.value.retry is Retry.SAME_BATCH
        else:
            with pytest.raises(SqlConflictMidway) as found:
                target.flush()
            assert found.value.retry is Retry.RECONNECT
        other.commit()
    if asked == "write":
        target.write(batch(second))
    else:
        target.close()
        target = opened(database, tmp_path, lock_timeout_ms=300)
        target.write(batch(first, second))
    assert target.flush() == Position(second.end_lsn)
    names = [name for (name,) in texts(database, "people", "name")]
    assert (names.count("changed"), names.count("last")) == (999, 1)
    target.close()


def test_where_events_may_be_left_out_an_error_is_that_of_its_batch(
    database: Database, tmp_path: Path
) -> None:
    database.execute(TABLE.format("name text CHECK (name <> 'name 700'), note text"))
    tolerant = dataclasses.replace(context(tmp_path, resumes=True), tolerant=True)
    source, target = Model(), SqlSink(properties(database.dsn), tolerant)
    target.open()
    source.insert(PEOPLE, *MANY)
    with pytest.raises(RecordsRefused):
        target.write(batch(source.commit()))
    target.close()


READ_ONLY = "ALTER DATABASE {} SET default_transaction_read_only = {}"


def test_a_target_that_is_read_only_is_told(database: Database, tmp_path: Path) -> None:
    """A standby: what it does not take comes again. A database that only begins so takes everything."""
    source, target = Model(), opened(database, tmp_path)
    source.insert(PEOPLE, ["1", "a", None])
    target.write(batch(source.commit()))
    promised = target.flush()
    target._target.raw.execute("SET SESSION CHARACTERISTICS AS TRANSACTION READ ONLY")
    target._target.raw.commit()
    source.insert(PEOPLE, ["2", "b", None])
    part = source.commit()
    with pytest.raises(SqlReadOnly, match="read-only") as found:
        target.write(batch(part))
    assert found.value.retry is Retry.RECONNECT
    target.close()
    database.execute(READ_ONLY.format(database.name, "on"))
    target = sink(database, tmp_path)
    assert target.open() == promised
    target.write(batch(part))
    assert target.flush()
    assert len(texts(database, "people", "id")) == 2
    target.close()


def test_rights_that_are_taken_away_are_told(database: Database, tmp_path: Path) -> None:
    name = f"lesser_{database.name}"
    database.execute(f"CREATE ROLE {name} LOGIN")
    try:
        database.execute(TABLE.format("name text, note text"))
        database.execute(f"GRANT ALL ON SCHEMA replica, public TO {name}")
        database.execute(f"GRANT ALL ON replica.people TO {name}")
        dsn = database.dsn.replace("//postgres", f"//{name}", 1)
        target = SqlSink(properties(dsn, schema_evolution="none"), context(tmp_path))
        target.open()
        target.write(batch(filled(["1", "a", None])))
        database.execute(f"REVOKE INSERT ON replica.people FROM {name}")
        with pytest.raises(SqlRefused, match="permission denied for table people"):
            target.write(batch(later(["2", "b", None])))
        target.close()
    finally:
        database.execute(f"DROP OWNED BY {name}")
        database.execute(f"DROP ROLE {name}")


def later(*rows: list[str | None]) -> Any:
    source = Model()
    source.insert(PEOPLE, ["0", "before", None])
    source.commit()
    source.insert(PEOPLE, *rows)
    return source.commit()


def test_a_disk_that_is_full_is_waited_for(database: Database, tmp_path: Path) -> None:
    """A trigger raises what the server does then: SQLSTATE 53, a lack that may pass."""
    source, target = Model(), opened(database, tmp_path)
    source.insert(PEOPLE, ["1", "a", None])
    target.write(batch(source.commit()))
    target.flush()
    database.execute(
        "CREATE FUNCTION replica.full() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN"
        " RAISE disk_full USING MESSAGE = 'could not extend file: No space left on device'; END $$;"
        "CREATE TRIGGER full_disk BEFORE UPDATE ON replica.people"
        " FOR EACH ROW EXECUTE FUNCTION replica.full();"
        "ALTER TABLE replica.people ENABLE ALWAYS TRIGGER full_disk"
    )
    source.update(PEOPLE, ["1"], name="x")
    with pytest.raises(SqlUnreachable, match="could not extend file") as found:
        target.write(batch(source.commit()))
    assert found.value.retry is Retry.RECONNECT
    target.close()
