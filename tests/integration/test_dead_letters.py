"""Events that cannot be delivered, through whole pipelines on real servers: kept, looked at, redelivered."""

import json
from contextlib import nullcontext

import pytest
from confluent_kafka.admin import NewTopic
from tests.harness.command import waltap
from tests.harness.dead_letters import KEEP, dead_letters, dead_letters_of, verified
from tests.harness.json_lines import records
from tests.harness.kafka import create, limit, read_all
from tests.harness.pipeline import PipelineRig, until
from tests.harness.servers.kafka import Kafka
from tests.harness.servers.postgres import Database
from tests.harness.sql import pipeline as to_replica


@pytest.fixture
def target(database) -> Database:
    """Return the database, with a table for the copy in a schema that is not captured."""
    database.execute("CREATE TABLE people (id int PRIMARY KEY, name text, note text)")
    database.execute(
        "CREATE SCHEMA replica; CREATE TABLE replica.people (id int PRIMARY KEY, "
        "name text CHECK (name <> 'bad'), note varchar(5))"
    )
    return database


@pytest.fixture
def to_sql(target, tmp_path) -> PipelineRig:
    more = {"snapshot.mode": "no_data", "sink.schema.evolution": "none"}
    return to_replica(target, tmp_path, **more)


def test_rows_that_a_table_refuses_are_redelivered_when_it_takes_them(to_sql, target):
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
    kept = dead_letters_of(to_sql)
    assert [(each.op, each.code, each.location.index) for each in kept] == [
        ("c", "WT-5703", 1),
        ("c", "WT-5705", 2),
        ("u", "WT-5703", 0),
    ]
    assert kept[0].event is not None
    assert kept[0].event["value"]["after"] == {"id": 61, "name": "bad", "note": "n"}

    listed = dead_letters(to_sql, "list")
    assert listed.returncode == 0, listed.stderr
    shown_ids = [line.split()[0] for line in listed.stdout.splitlines() if " ago " in line]
    assert shown_ids == [e.id for e in kept]
    shown = dead_letters(to_sql, "show", kept[1].id)
    reported = json.loads(shown.stdout)
    assert reported["event"]["value"]["after"]["note"] == "long one"
    assert "change" not in reported

    reported = verified(to_sql)
    assert reported.returncode == 1, reported.stdout
    said = " ".join(reported.stdout.replace("│", " ").split())
    assert "3 of 3 rows that differ were refused: they are dead letters" in said, reported.stdout

    again = dead_letters(to_sql, "redeliver")
    assert again.returncode == 1, again.stderr
    assert [each.attempts for each in dead_letters_of(to_sql)] == [2, 2, 2]

    target.execute("ALTER TABLE replica.people DROP CONSTRAINT people_name_check")
    target.execute("ALTER TABLE replica.people ALTER note TYPE text")
    position = to_sql.offset()
    redelivered = dead_letters(to_sql, "redeliver")
    assert redelivered.returncode == 0, redelivered.stdout + redelivered.stderr
    rows = target.execute("SELECT * FROM people ORDER BY id")
    assert target.execute("SELECT * FROM replica.people ORDER BY id") == rows
    assert all(each.redelivered_ms for each in dead_letters_of(to_sql))
    assert to_sql.offset() == position
    reported = verified(to_sql)
    assert reported.returncode == 0, reported.stdout
    assert "dead letters" not in reported.stdout

    target.execute("INSERT INTO people VALUES (70, 'after', 'n')")
    to_sql.catch_up()
    assert target.execute("SELECT name FROM replica.people WHERE id = 70") == [("after",)]
    assert "3 dropped" in dead_letters(to_sql, "drop", "--redelivered", "--yes").stdout
    assert dead_letters_of(to_sql) == []


def test_a_redelivery_ends_no_temporary_slot(to_sql, target):
    """A running pipeline would let go of its connection for it, and the slot of all that is to come."""
    to_sql.settings |= KEEP | {"slot.temporary": "true"}
    with to_sql.running() as run:
        target.execute("INSERT INTO people VALUES (2, 'bad', 'n')")
        run.until(lambda: len(dead_letters_of(to_sql)) == 1, "a dead letter")
        answer = dead_letters(to_sql, "redeliver")
        assert answer.returncode == 1, answer.stdout + answer.stderr
        assert "temporary slot" in answer.stdout + answer.stderr
        target.execute("INSERT INTO people VALUES (4, 'ok', 'n')")
        run.until(lambda: target.execute("SELECT id FROM replica.people") == [(4,)], "the next row")


def test_a_running_pipeline_redelivers_letters_and_goes_on(to_sql, target):
    to_sql.settings |= KEEP
    to_sql.catch_up()
    assert "there are no dead letters" in dead_letters(to_sql, "list").stdout
    target.execute("INSERT INTO people VALUES (2, 'bad', 'n'), (3, 'ok', 'too long')")
    with to_sql.running() as run:
        run.until(lambda: len(dead_letters_of(to_sql)) == 2, "letters")
        refused = dead_letters(to_sql, "redeliver")
        assert refused.returncode == 1, refused.stdout + refused.stderr
        assert refused.stdout.count("refused: ") == 2
        assert [each.attempts for each in dead_letters_of(to_sql)] == [2, 2]
        target.execute("ALTER TABLE replica.people DROP CONSTRAINT people_name_check")
        first, second = dead_letters_of(to_sql)
        answer = dead_letters(to_sql, "redeliver")
        assert answer.returncode == 1, answer.stdout + answer.stderr
        assert f"{first.id}  delivered" in answer.stdout
        assert f"{second.id}  refused: " in answer.stdout
        target.execute("INSERT INTO people VALUES (4, 'ok', 'n')")
        run.until(
            lambda: target.execute("SELECT id FROM replica.people ORDER BY id") == [(2,), (4,)],
            "the row behind the redelivery",
        )
    target.execute("ALTER TABLE replica.people ALTER note TYPE text")
    assert "1 delivered, 0 refused" in dead_letters(to_sql, "redeliver").stderr
    assert target.execute("SELECT id FROM replica.people ORDER BY id") == [(2,), (3,), (4,)]


def test_each_of_several_sinks_has_letters_of_its_own_and_a_sink_gets_copies(
    to_sql, target, tmp_path
):
    lines, copies = tmp_path / "events.jsonl", tmp_path / "letters.jsonl"
    to_sql.tables = {"dead_letters": {"type": "jsonl", "path": str(copies)}}
    to_sql.settings = {k: v for k, v in to_sql.settings.items() if not k.startswith("sink.")}
    to_sql.branches = [
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
    (kept,) = dead_letters_of(to_sql)
    assert (kept.sink, kept.op) == ("copy", "c")
    (copy,) = records(copies)
    assert (copy["topic"], copy["key"]) == ("p.dead-letters", kept.id)
    assert copy["value"]["event"]["value"]["after"]["id"] == 2
    assert "change" not in copy["value"]
    assert target.execute("SELECT id FROM replica.people ORDER BY id") == [(1,), (3,)]
    assert len(lines.read_text().splitlines()) == 3
    target.execute("ALTER TABLE replica.people DROP CONSTRAINT people_name_check")
    answer = dead_letters(to_sql, "redeliver")
    assert answer.returncode == 0, answer.stderr
    assert target.execute("SELECT id FROM replica.people ORDER BY id") == [(1,), (2,), (3,)]
    assert len(lines.read_text().splitlines()) == 3


# --- a record that is too large for Kafka ----------------------------------------------------------------


def test_a_record_too_large_for_kafka_is_redelivered_when_it_may_be_larger(
    database, kafka, tmp_path
):
    prefix = kafka.topic_name()
    topic = f"{prefix}.public.t"
    create(kafka.bootstrap, NewTopic(topic, 1, config={"max.message.bytes": "20000"}))
    database.execute("CREATE TABLE t (id int PRIMARY KEY, v text)")
    settings = {
        "snapshot.mode": "no_data",
        "topic.prefix": prefix,
        "sink.type": "kafka",
        "sink.bootstrap.servers": kafka.bootstrap,
        "sink.delivery.guarantee": "exactly_once",
        "sink.producer.message.max.bytes": 1_000_000,
    }
    pipeline = PipelineRig(database, tmp_path, settings | KEEP)
    pipeline.catch_up()
    pipeline.deliver(
        "INSERT INTO t SELECT i, CASE WHEN i = 3 THEN repeat('x', 50000) ELSE 'v' END "
        "FROM generate_series(1, 5) i"
    )
    assert _ids(kafka, topic) == [1, 2, 4, 5]
    (dead_letter,) = dead_letters_of(pipeline)
    assert (dead_letter.code, dead_letter.table, dead_letter.location.index) == (
        "WT-5405",
        "public.t",
        2,
    )
    assert dead_letters(pipeline, "redeliver", "--re-render").returncode == 1
    (kept,) = dead_letters_of(pipeline)
    assert (kept.record, kept.attempts) == (dead_letter.record, 2)
    limit(kafka.bootstrap, 200_000, topic)
    until(lambda: dead_letters(pipeline, "redeliver").returncode == 0, "the new limit")
    assert _ids(kafka, topic) == [1, 2, 4, 5, 3]
    last = read_all(kafka.bootstrap, topic)[-1]
    marks = dict(last.headers() or [])
    assert json.loads(marks["waltap-dead-letter"]) == dead_letter.id
    pipeline.deliver("INSERT INTO t VALUES (6, 'v')")
    assert _ids(kafka, topic) == [1, 2, 4, 5, 3, 6]


def _ids(kafka: Kafka, topic: str) -> list[int]:
    return [json.loads(m.value() or b"")["after"]["id"] for m in read_all(kafka.bootstrap, topic)]


# --- changes that no event can be made of: stopped at, left out, or kept -----------------------------------------


@pytest.fixture
def to_lines(database, tmp_path) -> PipelineRig:
    database.execute("CREATE TABLE n (id int PRIMARY KEY, v numeric(9,2))")
    sink = {"sink.type": "jsonl", "sink.path": str(tmp_path / "events.jsonl")}
    return PipelineRig(database, tmp_path, sink | {"snapshot.mode": "no_data"})


def _written(pipeline: PipelineRig) -> list[int]:
    found = records(pipeline.folder / "events.jsonl")
    return [record["value"]["after"]["id"] for record in found]


NAN = "INSERT INTO n VALUES (1, 1.5), (2, 'NaN'), (3, 2.5)"


def test_a_value_that_cannot_be_converted_becomes_a_dead_letter(to_lines):
    to_lines.settings |= {"event.converting.failure.handling.mode": "dead_letter"}
    to_lines.catch_up()
    to_lines.deliver(NAN)
    assert _written(to_lines) == [1, 3]
    (dead_letter,) = dead_letters_of(to_lines)
    assert (dead_letter.table, dead_letter.op, dead_letter.location.index) == ("public.n", "c", 1)
    assert dead_letter.record is None
    # with null in its place it can be delivered
    del to_lines.settings["event.converting.failure.handling.mode"]
    answer = dead_letters(to_lines, "redeliver")
    assert answer.returncode == 0, answer.stdout + answer.stderr
    assert _written(to_lines) == [1, 3, 2]


@pytest.mark.parametrize("running", [False, True], ids=["by the command", "by the run"])
def test_a_redelivery_reads_values_back_that_the_server_did_not_send(to_lines, running):
    to_lines.database.execute(
        "ALTER TABLE n ADD body text; ALTER TABLE n ALTER body SET STORAGE EXTERNAL;"
        "INSERT INTO n SELECT i, 1, repeat('x', 3000) FROM generate_series(1, 2) i"
    )
    to_lines.tables["transforms"] = [{"type": "reselect-columns"}]
    to_lines.settings |= {"event.converting.failure.handling.mode": "dead_letter"}
    to_lines.catch_up()
    to_lines.deliver("UPDATE n SET v = 'NaN' WHERE id = 2")
    assert len(dead_letters_of(to_lines)) == 1
    del to_lines.settings["event.converting.failure.handling.mode"]
    file = to_lines.file()
    file.write_text(file.read_text() + '[[transforms]]\ntype = "reselect-columns"\n')
    with to_lines.running() if running else nullcontext():
        answer = waltap("dead-letters", "redeliver", file, cwd=to_lines.folder)
        assert answer.returncode == 0, answer.stdout + answer.stderr
    (found,) = records(to_lines.folder / "events.jsonl")
    assert found["value"]["after"] == {"id": 2, "v": None, "body": "x" * 3000}


@pytest.mark.parametrize(("mode", "tolerance"), [("skip", "none"), (None, "all")])
def test_an_event_that_cannot_be_made_is_left_out_where_that_is_said(to_lines, mode, tolerance):
    to_lines.settings |= {
        "event.converting.failure.handling.mode": "fail",
        "event.processing.failure.handling.mode": mode,
        "errors.tolerance": tolerance,
    }
    to_lines.catch_up()
    to_lines.database.execute(NAN)
    run = to_lines.catch_up()
    assert _written(to_lines) == [1, 3]
    assert dead_letters_of(to_lines) == []
    assert run.engine.status().left_out == 1
