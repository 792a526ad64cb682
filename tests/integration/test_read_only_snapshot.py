"""Incremental snapshots that write nothing to the source, on a real server: chunks find their place in
the stream by WAL positions.

The promise is that of the others: who takes every event, row by row, has the table's state in the end.
"""

import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from waltap_postgres.snapshot.chunk_query import PostgresChunks

from tests.harness.pipeline import PipelineRig, Run
from tests.harness.servers.postgres import Database

SETTINGS = {
    "snapshot.mode": "no_data",
    "incremental.snapshot.chunk.size": 20,
    "publication.autocreate.mode": "all_tables",
}


pytestmark = pytest.mark.pipeline(
    sql="CREATE TABLE t (id int PRIMARY KEY, v text);"
    "INSERT INTO t SELECT n, 'v' || n FROM generate_series(1, 300) n",
    settings=SETTINGS,
)


def ask(run: Run, **data: Any) -> None:
    answer = run.engine.signal(
        "execute-snapshot",
        {"data-collections": ["public.t"]} | {k.replace("_", "-"): v for k, v in data.items()},
    ).result(60)
    assert answer.taken, answer.reason


def completed(run: Run, times: int = 1) -> bool:
    return [event for event, _, _ in run.notices.snapshots].count("completed") >= times


def same(pipeline: PipelineRig) -> None:
    """Compare what was delivered with the table."""
    there = {int(i): v for i, v in pipeline.database.execute("SELECT id, v FROM t")}
    found = pipeline.destination.table("t")
    assert {int(row["id"]): row["v"] for row in found.values()} == there


def test_a_table_at_rest_arrives_though_nothing_streams(pipeline: PipelineRig) -> None:
    database = pipeline.database
    with pipeline.running() as run:
        ask(run)
        run.until(lambda: completed(run), "the snapshot")
        run.until(lambda: not pipeline.offset().signals.get("queue"), "its end to be stored")  # type: ignore[union-attr]
    assert pipeline.destination.ids("t", "r") == list(range(1, 301))
    with pipeline.running() as run:  # and it is over
        database.execute("INSERT INTO t VALUES (1000)")
        run.until(lambda: 1000 in pipeline.destination.ids("t"), "the stream")
    assert len(pipeline.destination.ids("t", "r")) == 300


def test_a_table_under_change_arrives_whole(pipeline: PipelineRig) -> None:
    """Writers insert, update, delete and change keys meanwhile, some of them in long transactions."""
    database = pipeline.database
    ended = threading.Event()

    def write(first: int, together: int) -> None:
        with database.connect(autocommit=False) as connection:
            number = first
            while not ended.is_set():
                for _ in range(together):
                    number += 2
                    row = number * 7 % 300 // 2 * 2 + first
                    connection.execute("UPDATE t SET v = %s WHERE id = %s", (f"u{number}", row))
                    connection.execute("DELETE FROM t WHERE id = %s", (row + 20,))
                    connection.execute(
                        "INSERT INTO t VALUES (%s, 'again') ON CONFLICT DO NOTHING", (row + 40,)
                    )
                    connection.execute(
                        "UPDATE t SET id = %s WHERE id = %s AND NOT EXISTS"
                        " (SELECT FROM t WHERE id = %s)",
                        (row + 60, row + 80, row + 60),
                    )
                connection.commit()

    writers = [threading.Thread(target=write, args=each) for each in ((1, 1), (2, 25))]
    with pipeline.running() as run:
        for writer in writers:
            writer.start()
        try:
            for times in range(1, 4):
                ask(run)
                run.until(lambda n=times: completed(run, n), "the snapshot", within=300)
        finally:
            ended.set()
            for writer in writers:
                writer.join(180)
        database.execute("INSERT INTO t VALUES (100000)")
        run.until(lambda: 100000 in pipeline.destination.ids("t"), "the end of the stream")
    same(pipeline)


@pytest.fixture
def between(monkeypatch: pytest.MonkeyPatch) -> Callable[[Callable[[], object]], None]:
    """Return what lets an action happen when the first chunk has been read."""

    def arrange(action: Callable[[], object]) -> None:
        real, done = PostgresChunks.chunk, []

        def chunk(self: PostgresChunks, *arguments: Any, **named: Any) -> Any:
            rows = real(self, *arguments, **named)
            if not done:
                done.append(action())
            return rows

        monkeypatch.setattr(PostgresChunks, "chunk", chunk)

    return arrange


def test_a_change_behind_the_reading_of_a_chunk_is_not_undone_by_it(
    pipeline: PipelineRig, between: Callable[[Callable[[], object]], None]
) -> None:
    database = pipeline.database
    between(
        lambda: database.execute(
            "UPDATE t SET v = 'newer' WHERE id = 3; DELETE FROM t WHERE id = 4; TRUNCATE t;"
            "INSERT INTO t VALUES (5, 'again')"
        )
    )
    with pipeline.running() as run:
        ask(run)
        run.until(lambda: completed(run), "the snapshot")
    pipeline.catch_up()  # the change comes behind the chunk, maybe behind the end of the snapshot
    same(pipeline)


def test_with_a_signal_table_it_is_read_and_never_written(pipeline: PipelineRig) -> None:
    """The role may not write it, and that is well."""
    database = pipeline.database
    database.execute(
        "CREATE TABLE signals (id varchar(64) PRIMARY KEY, type varchar(32) NOT NULL, data text);"
        "CREATE FUNCTION no() RETURNS trigger LANGUAGE plpgsql AS"
        " $$BEGIN RAISE insufficient_privilege; END$$;"
        "CREATE TRIGGER no BEFORE INSERT ON signals FOR EACH ROW"
        " WHEN (NEW.type LIKE 'snapshot-window%') EXECUTE FUNCTION no()"
    )
    settings = {"signal.data.collection": "public.signals", "read.only": "true"}
    with pipeline.running(**settings) as run:
        database.execute(
            """INSERT INTO signals VALUES ('a', 'execute-snapshot',
               '{"data-collections": ["public.t"], "additional-condition": "id > 290"}')"""
        )
        run.until(lambda: completed(run), "the snapshot")
    assert pipeline.destination.ids("t", "r") == list(range(291, 301))


def test_a_stopped_run_goes_on_with_the_chunk_that_was_next(pipeline: PipelineRig) -> None:
    with pipeline.running() as run:
        ask(run)
        run.until(lambda: len(pipeline.destination.ids("t", "r")) >= 100, "some chunks")
    some = pipeline.destination.ids("t", "r")
    assert len(some) < 300 or completed(run)
    with pipeline.running() as run:
        run.until(lambda: set(pipeline.destination.ids("t", "r")) == set(range(1, 301)), "the rest")
    again = len(pipeline.destination.ids("t", "r")) - 300
    assert again <= 40, "no more than the chunks whose delivery was not stored"
