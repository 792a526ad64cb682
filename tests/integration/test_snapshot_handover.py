"""The hand-over from snapshot to stream on a real server: no row lost, none twice."""

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.harness.pipeline import PipelineRig, until
from tests.harness.servers.postgres import Database


@contextmanager
def writers(database: Database, count: int = 3) -> Iterator[list[list[int]]]:
    """Insert, update and delete from ``count`` connections while the block lasts; each has ids of its
    own, some transactions take long, some roll back. Yields the ids inserted so far."""
    stop = threading.Event()
    inserted: list[list[int]] = [[] for _ in range(count)]

    def write(number: int) -> None:
        with database.connect(autocommit=False) as connection:
            turn = 0
            while not stop.is_set():
                turn += 1
                first = (number + 1) * 1_000_000 + turn * 10
                ids = range(first, first + 1 + turn % 5)
                with connection.cursor() as cursor:
                    cursor.executemany(
                        "INSERT INTO busy (id, v) VALUES (%s, 'new')", [(i,) for i in ids]
                    )
                    if turn % 3 == 0:
                        cursor.execute("UPDATE busy SET v = v || '+' WHERE id = %s", (first,))
                    if turn % 7 == 0 and turn > 7:
                        cursor.execute("DELETE FROM busy WHERE id = %s", (first - 70,))
                if turn % 11 == 0:
                    connection.rollback()
                else:
                    connection.commit()
                    inserted[number].extend(ids)

    threads = [threading.Thread(target=write, args=(n,), daemon=True) for n in range(count)]
    for thread in threads:
        thread.start()
    try:
        yield inserted
    finally:
        stop.set()
        for thread in threads:
            thread.join(90)


def in_database(database: Database, table: str = "busy") -> dict[tuple[str], dict[str, str]]:
    rows = database.execute(f"SELECT id::text, v FROM {table}")
    return {(i,): {"id": i, "v": v} for i, v in rows}


def assert_each_row_arrived_once(pipeline: PipelineRig) -> None:
    """Every row came into being once for the destination: read by the snapshot, or as an insert."""
    ids = pipeline.destination.ids("busy", "r", "c")
    assert len(ids) == len(set(ids))
    assert 3000 < len(pipeline.destination.ids("busy", "r")) < len(ids)


@pytest.fixture
def busy(database: Database) -> Database:
    database.execute(
        "CREATE TABLE busy (id int PRIMARY KEY, v text);"
        "INSERT INTO busy SELECT g, 'old' FROM generate_series(1, 3000) g"
    )
    return database


def test_rows_written_during_the_snapshot_arrive_once_with_a_new_slot(
    busy: Database, tmp_path: Path
) -> None:
    pipeline = PipelineRig(busy, tmp_path, {"snapshot.fetch.size": 500})
    with writers(busy) as inserted:
        until(lambda: all(len(ids) > 20 for ids in inserted), "writers")
        with pipeline.running() as run:
            marks = [len(ids) + 50 for ids in inserted]
            until(lambda: all(len(i) > m for i, m in zip(inserted, marks)), "more writes")
            run.stop()
    pipeline.catch_up()
    assert pipeline.destination.table("busy") == in_database(busy)
    assert_each_row_arrived_once(pipeline)


@pytest.mark.parametrize("plugin", ["pgoutput", "wal2json", "decoderbufs"])
def test_rows_written_during_a_snapshot_beside_an_older_slot_arrive_once(
    busy: Database, tmp_path: Path, plugin: str
) -> None:
    settings = {"snapshot.fetch.size": 500, "plugin.name": plugin, "slot.adopt": "true"}
    pipeline = PipelineRig(busy, tmp_path, settings)
    busy.execute(f"CREATE PUBLICATION {pipeline.slot} FOR TABLE busy")
    busy.execute(f"SELECT pg_create_logical_replication_slot('{pipeline.slot}', '{plugin}')")
    with writers(busy) as inserted:
        until(lambda: all(len(ids) > 50 for ids in inserted), "writers")
        with pipeline.running() as run:
            marks = [len(ids) + 50 for ids in inserted]
            until(lambda: all(len(i) > m for i, m in zip(inserted, marks)), "more writes")
            run.stop()
    pipeline.catch_up()
    assert pipeline.destination.table("busy") == in_database(busy)
    assert_each_row_arrived_once(pipeline)
    offset = pipeline.offset()
    assert offset is not None
    assert offset.sole.visible == ""  # the stream is behind all that the snapshot saw


def test_a_snapshot_at_every_start_leaves_out_of_the_stream_what_it_has_read(
    busy: Database, tmp_path: Path
) -> None:
    """The second start has a stored position and changes after it; its snapshot has read most of them."""
    pipeline = PipelineRig(busy, tmp_path, {"snapshot.mode": "always"})
    pipeline.catch_up()
    pipeline.destination.events.clear()
    with writers(busy) as inserted:
        until(lambda: all(len(ids) > 100 for ids in inserted), "changes that wait")
        with pipeline.running() as run:
            marks = [len(ids) + 50 for ids in inserted]
            until(lambda: all(len(i) > m for i, m in zip(inserted, marks)), "more writes")
            run.stop()
    pipeline.catch_up(**{"snapshot.mode": "initial"})
    assert pipeline.destination.table("busy") == in_database(busy)
    assert_each_row_arrived_once(pipeline)
