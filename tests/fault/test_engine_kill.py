"""``kill -9`` of ``waltap run`` at random points, on a real server, again and again.

Nothing is lost, the order is kept, and what comes twice was not stored yet. Snapshots on demand, prepared
transactions and profiles that change between kills are the hunter's (`tests.hunt`).
"""

import sqlite3

import pytest
from tests.fault.lives import CHANGELOG, JSONL, SEED, Lives, ids, writing
from tests.harness.changelog import logged_ids
from tests.harness.pipeline import until


def test_killed_in_the_stream_nothing_is_lost_and_only_what_was_not_stored_comes_twice(
    database, tmp_path
):
    database.execute("CREATE TABLE t (id int PRIMARY KEY, v text)")
    lives = Lives(database, tmp_path, **JSONL)
    lives.to_the_end()
    restarts: list[tuple[int, int]] = []  # (records so far, id that was durable then)
    with writing(database) as writer:
        for turn in range(4):
            if turn == 2:
                writer.large()
            lives.until_killed(0.25)
            offset = lives.offset()
            restarts.append((len(lives.records()), writer.durable(offset.sole.position)))
        last = writer.finish()
    lives.to_the_end()
    seen = ids(lives.records(), "c")
    assert set(seen) == set(range(1, last + 1))
    borders = [0, *(count for count, _ in restarts), len(seen)]
    highest = 0
    for number, (begin, end) in enumerate(zip(borders, borders[1:], strict=False)):
        life = seen[begin:end]
        # a life goes on without gaps, from what was durable, or later
        assert life == list(range(life[0], life[0] + len(life))) if life else True
        if life and number:
            durable = restarts[number - 1][1]
            assert durable < life[0] <= highest + 1, f"seed {SEED}, life {number}"
        highest = max([highest, *life[-1:]])


def test_killed_in_the_stream_the_change_log_has_every_row_once(database, tmp_path):
    """Large transactions come while in progress, and spill."""
    database.execute("CREATE TABLE t (id int PRIMARY KEY, v text)")
    database.execute(f"ALTER DATABASE \"{database.name}\" SET logical_decoding_work_mem = '64kB'")
    settings = {"pgoutput.streaming": "on", "waltap.spill.memory.bytes": 100_000}
    lives = Lives(database, tmp_path, **CHANGELOG, **settings)
    lives.to_the_end()
    with writing(database) as writer:
        for turn in range(4):
            if turn == 2:
                writer.large()
            lives.until_killed(0.4)
        last = writer.finish()
    lives.to_the_end()
    assert logged_ids(tmp_path / "log") == list(range(1, last + 1)), f"seed {SEED}"


@pytest.mark.parametrize("sink", [JSONL, CHANGELOG], ids=["jsonl", "changelog"])
def test_killed_in_the_snapshot_it_is_taken_anew_and_nothing_is_lost(database, tmp_path, sink):
    database.execute(
        "CREATE TABLE t (id int PRIMARY KEY, v text);"
        "INSERT INTO t SELECT -g, repeat('x', 200) FROM generate_series(1, 60000) g"
    )
    lives = Lives(database, tmp_path, **sink, **{"snapshot.fetch.size": 1000})
    with writing(database) as writer:
        for _ in range(2):
            lives.until_killed(0.15)
        last = writer.finish()
    lives.to_the_end()
    if sink is JSONL:
        written = lives.records()
        starts = [n for n, r in enumerate(written) if r["value"]["source"]["snapshot"] == "first"]
        read, streamed = (ids(written[starts[-1] :], op) for op in "rc")
        assert len(read) == len(set(read)), f"seed {SEED}"
        seen = read + sorted(set(streamed))  # what streamed since may come twice
    else:
        seen = logged_ids(tmp_path / "log")
    assert len(seen) == len(set(seen)), f"seed {SEED}"
    assert set(seen) == {*range(-60000, 0), *range(1, last + 1)}
    assert list(database.slots()) == [database.name]


def test_a_signal_whose_row_the_sink_has_and_the_offset_has_not_is_acted_on(database, tmp_path):
    """The sink commits the transaction of the signal, with its position; then the process is killed."""
    database.execute(
        "CREATE TABLE t (id int PRIMARY KEY, v text);"
        "INSERT INTO t SELECT g, 'old' FROM generate_series(1, 50) g;"
        "CREATE TABLE signals (id varchar(42) PRIMARY KEY, type varchar(32), data varchar(2048))"
    )
    settings = {"snapshot.mode": "no_data", "signal.data.collection": "public.signals"}
    target, sql = tmp_path / "t.db", {"sink.type": "sql", "sink.url": f"sqlite:///{tmp_path}/t.db"}
    lives = Lives(database, tmp_path, **sql, **settings, **{"offset.flush.interval.ms": 600_000})
    lives.to_the_end()

    def delivered() -> int:
        with sqlite3.connect(f"file:{target}?mode=ro", uri=True) as connection:
            made = connection.execute("SELECT 1 FROM sqlite_master WHERE name = 't'").fetchone()
            return connection.execute("SELECT count(*) FROM t").fetchone()[0] if made else 0

    process = lives.beginning()
    database.execute(
        "BEGIN; INSERT INTO t VALUES (51, 'new');"
        """INSERT INTO signals VALUES ('s', 'execute-snapshot', '{"data-collections": ["public.t"]}');"""
        "COMMIT"
    )
    until(lambda: target.exists() and delivered(), "the sink's commit")
    process.kill()
    process.communicate()
    process = lives.beginning()
    until(lambda: delivered() == 51, "the rows that the signal asks for")
    process.close()
