"""Events that cannot be delivered, through whole pipelines on real servers: kept, looked at, replayed."""

import json
from pathlib import Path

import pytest
from tests.harness.dead_letters import KEEP, dead_letters, letters_of, verified
from tests.harness.pipeline import PipelineRig
from tests.harness.servers.postgres import Database
from tests.harness.sql import pipeline as to_replica

from waltap_sinks.sql.errors import SqlConstraintViolated


@pytest.fixture
def target(database: Database) -> Database:
    """Return the database, with a table for the copy in a schema that is not captured."""
    database.execute("CREATE TABLE people (id int PRIMARY KEY, name text, note text)")
    database.execute(
        "CREATE SCHEMA replica; CREATE TABLE replica.people (id int PRIMARY KEY, "
        "name text CHECK (name <> 'bad'), note varchar(5))"
    )
    return database


@pytest.fixture
def to_sql(target: Database, tmp_path: Path) -> PipelineRig:
    more = {"snapshot.mode": "no_data", "sink.schema.evolution": "none"}
    return to_replica(target, tmp_path, **more)


def test_rows_that_a_table_refuses_are_replayed_when_it_takes_them(
    to_sql: PipelineRig, target: Database
) -> None:
    to_sql.settings |= KEEP
    to_sql.catch_up()
    target.execute("INSERT INTO people SELECT i, 'ok', 'n' FROM generate_series(1, 50) i")
    target.execute(
        "INSERT INTO people VALUES (60, 'ok', 'n'), (61, 'bad', 'n'), (62, 'ok', 'long one')"
    )
    target.execute("UPDATE people SET name = 'bad' WHERE id = 7")
    target.execute("DELETE FROM people WHERE id = 8")
    run = to_sql.catch_up()
    assert run.engine.status().dead_letters == 3
    found = {n for (n,) in target.execute("SELECT id FROM replica.people")}
    assert found == {*range(1, 51), 60} - {8}
    letters = letters_of(to_sql)
    assert [(each.op, each.code, each.place.index) for each in letters] == [
        ("c", "WT-5703", 1),
        ("c", "WT-5705", 2),
        ("u", "WT-5703", 0),
    ]
    assert letters[0].event is not None
    assert letters[0].event["value"]["after"] == {"id": 61, "name": "bad", "note": "n"}

    listed = dead_letters(to_sql, "list")
    assert listed.returncode == 0, listed.stderr
    assert [line.split()[0] for line in listed.stdout.splitlines()] == [e.id for e in letters]
    shown = dead_letters(to_sql, "show", letters[1].id)
    told = json.loads(shown.stdout)
    assert told["event"]["value"]["after"]["note"] == "long one"
    assert "change" not in told

    told = verified(to_sql)
    assert told.returncode == 1, told.stdout
    said = " ".join(told.stdout.replace("│", " ").split())
    assert "3 of 3 rows that differ were refused: they are dead letters" in said, told.stdout

    again = dead_letters(to_sql, "replay")
    assert again.returncode == 1, again.stderr
    assert [each.attempts for each in letters_of(to_sql)] == [2, 2, 2]

    target.execute("ALTER TABLE replica.people DROP CONSTRAINT people_name_check")
    target.execute("ALTER TABLE replica.people ALTER note TYPE text")
    position = to_sql.offset()
    replayed = dead_letters(to_sql, "replay")
    assert replayed.returncode == 0, replayed.stdout + replayed.stderr
    rows = target.execute("SELECT * FROM people ORDER BY id")
    assert target.execute("SELECT * FROM replica.people ORDER BY id") == rows
    assert all(each.replayed_ms for each in letters_of(to_sql))
    assert to_sql.offset() == position
    assert "0 delivered" in dead_letters(to_sql, "replay").stderr
    told = verified(to_sql)
    assert told.returncode == 0, told.stdout
    assert "dead letters" not in told.stdout

    target.execute("INSERT INTO people VALUES (70, 'after', 'n')")
    to_sql.catch_up()
    assert target.execute("SELECT name FROM replica.people WHERE id = 70") == [("after",)]
    assert "3 dropped" in dead_letters(to_sql, "drop", "--replayed", "--yes").stdout
    assert letters_of(to_sql) == []


def test_by_default_a_refused_row_stops_the_pipeline_and_is_named(
    to_sql: PipelineRig, target: Database
) -> None:
    to_sql.catch_up()
    target.execute("INSERT INTO people VALUES (1, 'ok', 'n'), (2, 'bad', 'n')")
    with pytest.raises(SqlConstraintViolated, match=r"[0-9A-F]+/[0-9A-F]+, change 1"):
        to_sql.catch_up()
    assert target.execute("SELECT id FROM replica.people") == []


def test_rows_of_an_initial_snapshot_are_refused_alone(
    to_sql: PipelineRig, target: Database
) -> None:
    target.execute(
        "INSERT INTO people SELECT i, CASE WHEN i % 100 = 7 THEN 'bad' ELSE 'ok' END, 'n' "
        "FROM generate_series(1, 1000) i"
    )
    to_sql.settings |= KEEP | {"snapshot.mode": "initial"}
    run = to_sql.catch_up()
    assert run.engine.status().dead_letters == 10
    ((count,),) = target.execute("SELECT count(*) FROM replica.people")
    assert count == 990
    target.execute("ALTER TABLE replica.people DROP CONSTRAINT people_name_check")
    assert dead_letters(to_sql, "replay").returncode == 0
    rows = target.execute("SELECT * FROM people ORDER BY id")
    assert target.execute("SELECT * FROM replica.people ORDER BY id") == rows


def test_a_replay_ends_no_temporary_slot(to_sql: PipelineRig, target: Database) -> None:
    """A running pipeline would let go of its connection for it, and the slot of all that is to come."""
    to_sql.settings |= KEEP | {"slot.temporary": "true"}
    with to_sql.running() as run:
        target.execute("INSERT INTO people VALUES (2, 'bad', 'n')")
        run.until(lambda: len(letters_of(to_sql)) == 1, "a letter")
        answer = dead_letters(to_sql, "replay")
        assert answer.returncode == 1, answer.stdout + answer.stderr
        assert "temporary slot" in answer.stdout + answer.stderr
        target.execute("INSERT INTO people VALUES (4, 'ok', 'n')")
        run.until(lambda: target.execute("SELECT id FROM replica.people") == [(4,)], "the next row")


def test_a_running_pipeline_replays_letters_and_goes_on(
    to_sql: PipelineRig, target: Database
) -> None:
    to_sql.settings |= KEEP
    to_sql.catch_up()
    assert "there are no dead letters" in dead_letters(to_sql, "list").stdout
    target.execute("INSERT INTO people VALUES (2, 'bad', 'n'), (3, 'ok', 'too long')")
    with to_sql.running() as run:
        run.until(lambda: len(letters_of(to_sql)) == 2, "letters")
        refused = dead_letters(to_sql, "replay")
        assert refused.returncode == 1, refused.stdout + refused.stderr
        assert refused.stdout.count("refused: ") == 2
        assert [each.attempts for each in letters_of(to_sql)] == [2, 2]
        target.execute("ALTER TABLE replica.people DROP CONSTRAINT people_name_check")
        first, second = letters_of(to_sql)
        answer = dead_letters(to_sql, "replay")
        assert answer.returncode == 1, answer.stdout + answer.stderr
        assert f"{first.id}  delivered" in answer.stdout
        assert f"{second.id}  refused: " in answer.stdout
        target.execute("INSERT INTO people VALUES (4, 'ok', 'n')")
        run.until(
            lambda: target.execute("SELECT id FROM replica.people ORDER BY id") == [(2,), (4,)],
            "the row behind the replay",
        )
        assert "0 delivered, 1 refused" in dead_letters(to_sql, "replay").stderr
    target.execute("ALTER TABLE replica.people ALTER note TYPE text")
    assert "1 delivered, 0 refused" in dead_letters(to_sql, "replay").stderr
    assert target.execute("SELECT id FROM replica.people ORDER BY id") == [(2,), (3,), (4,)]


def test_each_of_several_sinks_has_letters_of_its_own(
    to_sql: PipelineRig, target: Database, tmp_path: Path
) -> None:
    lines = tmp_path / "events.jsonl"
    to_sql.settings = {k: v for k, v in to_sql.settings.items() if not k.startswith("sink.")}
    to_sql.outlets = [
        {
            "name": "copy",
            "type": "sql",
            "url": target.dsn,
            "table.name.format": "replica.{table}",
            "schema.evolution": "none",
            "position.table": "replica.waltap_position",
            "errors.tolerance": "dead_letter",
        },
        {"name": "lines", "type": "jsonl", "path": str(lines)},
    ]
    to_sql.catch_up()
    target.execute("INSERT INTO people VALUES (1, 'ok', 'n'), (2, 'bad', 'n'), (3, 'ok', 'n')")
    to_sql.catch_up()
    assert [(each.sink, each.op) for each in letters_of(to_sql)] == [("copy", "c")]
    assert target.execute("SELECT id FROM replica.people ORDER BY id") == [(1,), (3,)]
    assert len(lines.read_text().splitlines()) == 3
    target.execute("ALTER TABLE replica.people DROP CONSTRAINT people_name_check")
    answer = dead_letters(to_sql, "replay")
    assert answer.returncode == 0, answer.stderr
    assert target.execute("SELECT id FROM replica.people ORDER BY id") == [(1,), (2,), (3,)]
    assert len(lines.read_text().splitlines()) == 3


def test_a_sink_of_its_own_gets_copies(
    to_sql: PipelineRig, target: Database, tmp_path: Path
) -> None:
    copies = tmp_path / "letters.jsonl"
    to_sql.tables = {"dead_letters": {"type": "jsonl", "path": str(copies)}}
    to_sql.settings |= KEEP
    to_sql.catch_up()
    target.execute("INSERT INTO people VALUES (1, 'ok', 'n'), (2, 'bad', 'n')")
    to_sql.catch_up()
    (letter,) = letters_of(to_sql)
    (copy,) = [json.loads(line) for line in copies.read_text().splitlines()]
    assert copy["topic"] == "p.dead-letters"
    assert copy["key"] == letter.id
    assert copy["value"]["event"]["value"]["after"]["id"] == 2
    assert "change" not in copy["value"]
