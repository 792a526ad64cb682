"""``kill -9`` of ``waltap run`` at random points, on a real server, again and again.

Nothing is lost, the order is kept, and what comes twice was not stored yet. The moments are drawn from
a seed that a failure names; ``WALTAP_TEST_SEED`` repeats it.
"""

import json
import os
import random
import signal
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import msgspec
import pytest
from tests.harness import command
from tests.harness.command import Command
from tests.harness.json_lines import records
from tests.harness.pipeline import until
from tests.harness.servers.postgres import Database

from waltap.changes.transactions.position import Position
from waltap.ports.offsets.offset import Offset
from waltap_sinks.changelog import ChangeLog

SEED = int(os.environ.get("WALTAP_TEST_SEED") or time.time_ns() % 1_000_000)
LARGE = 30_000
"""Rows of the one large transaction: several batches."""


class Runs:
    """The lives of one pipeline, each a process."""

    def __init__(self, database: Database, folder: Path, sink: str, **settings: Any) -> None:
        self.database, self.folder = database, folder
        self.random = random.Random(SEED)
        folder.mkdir(exist_ok=True)
        self._sink = sink
        self._properties: dict[str, Any] = {
            **database.properties(),
            "slot.name": database.name,
            "publication.name": database.name,
            "offset.flush.interval.ms": 20,
            "slot.retry.delay.ms": 1000,
        }
        self.configure(**settings)

    def configure(self, **settings: Any) -> None:
        """Write the profile for the lives that follow, with other values of these properties."""
        self._properties |= settings
        lines = [f"{json.dumps(k)} = {json.dumps(v)}" for k, v in self._properties.items()]
        text = "\n".join(["[source]", 'type = "postgres"', *lines, "[sink]", self._sink])
        (self.folder / "p.toml").write_text(text)

    def start(self, *options: object) -> Command:
        return command.start("run", "p.toml", *options, cwd=self.folder)

    def until_killed(self, patience: float) -> None:
        """Start, wait for signs of life, then kill a random moment later."""
        ready = self.folder / "ready"
        process = self.start("--ready-file", "ready")
        mark = self.written()
        ready.unlink(missing_ok=True)
        until(lambda: self.written() > mark or ready.exists() or process.poll() is not None, "life")
        time.sleep(self.random.random() * patience)  # the random moment itself
        assert process.poll() is None, process.communicate()[1]
        process.send_signal(signal.SIGKILL)
        process.communicate()

    def to_the_end(self) -> None:
        """Run until everything committed so far is delivered."""
        ((lsn,),) = self.database.execute("SELECT pg_current_wal_lsn()::text")
        process = self.start("--until-lsn", lsn)
        _, errors = process.communicate(timeout=180)
        assert process.returncode == 0, errors

    def written(self) -> int:
        """Return how much there is of output."""
        files = [p for p in self.folder.rglob("*") if p.suffix in {".jsonl", ".parquet", ".json"}]
        total = 0
        for path in files:
            try:
                total += path.stat().st_size
            except FileNotFoundError:  # it was being replaced
                continue
        return total

    def offset(self) -> Offset | None:
        path = self.folder / ".waltap" / "p" / "offset.json"
        return msgspec.json.decode(path.read_bytes(), type=Offset) if path.exists() else None

    def records(self) -> list[dict[str, Any]]:
        return records(self.folder / "out.jsonl")


class Writer(threading.Thread):
    """Inserts ids from 1 on, in transactions of different sizes, one of them large.

    ``commits`` holds (last id, end of WAL after the commit) of each transaction.
    """

    def __init__(self, database: Database) -> None:
        super().__init__(daemon=True)
        self._database = database
        self.commits: list[tuple[int, int]] = []
        self.large_from = 0
        self._stop_asked, self._large_asked = threading.Event(), threading.Event()

    def run(self) -> None:
        sizes = random.Random(SEED + 1)
        last = 0
        with self._database.connect() as connection:
            while not self._stop_asked.wait(0.002):
                count = sizes.choice((1, 1, 1, 2, 5, 50))
                if self._large_asked.is_set() and not self.large_from:
                    count, self.large_from = LARGE, last + 1
                connection.execute(
                    "INSERT INTO t SELECT g, repeat('x', g %% 40) FROM generate_series(%s::int, %s::int) g",
                    [last + 1, last + count],
                )
                last += count
                ((end,),) = connection.execute("SELECT (pg_current_wal_insert_lsn() - '0/0')::int8")
                self.commits.append((last, end))

    def large(self) -> None:
        """Make the next transaction the large one, and wait for its commit."""
        self._large_asked.set()
        until(lambda: self.large_from and self.commits[-1][0] > self.large_from, "it")

    def durable(self, position: Position) -> int:
        """Return the id up to which all rows lie before ``position``, at least."""
        whole = max((last for last, end in self.commits if end <= position.end_lsn), default=0)
        return whole + position.index

    def finish(self) -> int:
        self._stop_asked.set()
        self.join(90)
        return self.commits[-1][0]


@contextmanager
def writing(database: Database) -> Iterator[Writer]:
    writer = Writer(database)
    writer.start()
    until(lambda: writer.commits, "the first commit")
    try:
        yield writer
    finally:
        writer.finish()


def ids(records: list[dict[str, Any]], *ops: str) -> list[int]:
    return [r["value"]["after"]["id"] for r in records if r["value"]["op"] in ops]


def test_killed_in_the_stream_nothing_is_lost_and_only_what_was_not_stored_comes_twice(
    database: Database, tmp_path: Path
) -> None:
    print(f"WALTAP_TEST_SEED={SEED}")
    database.execute("CREATE TABLE t (id int PRIMARY KEY, v text)")
    runs = Runs(database, tmp_path, 'type = "jsonl"\npath = "out.jsonl"')
    runs.to_the_end()
    restarts: list[tuple[int, int]] = []  # (records so far, id that was durable then)
    with writing(database) as writer:
        for turn in range(6):
            if turn == 3:
                writer.large()
            runs.until_killed(0.25)
            offset = runs.offset()
            assert offset is not None
            restarts.append((len(runs.records()), writer.durable(offset.sole.position)))
        last = writer.finish()
    runs.to_the_end()
    seen = ids(runs.records(), "c")
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
    twice = len(seen) - last
    print(f"{last} rows, {twice} of them twice")


def test_killed_in_the_stream_the_change_log_has_every_row_once(
    database: Database, tmp_path: Path
) -> None:
    """Large transactions come while in progress, and spill."""
    print(f"WALTAP_TEST_SEED={SEED}")
    database.execute("CREATE TABLE t (id int PRIMARY KEY, v text)")
    database.execute(f"ALTER DATABASE \"{database.name}\" SET logical_decoding_work_mem = '64kB'")
    settings = {"pgoutput.streaming": "on", "waltap.spill.memory.bytes": 100_000}
    runs = Runs(database, tmp_path, 'type = "changelog"\npath = "log"', **settings)
    runs.to_the_end()
    with writing(database) as writer:
        for turn in range(6):
            if turn == 3:
                writer.large()
            runs.until_killed(0.4)
        last = writer.finish()
    runs.to_the_end()
    tables = ChangeLog(str(tmp_path / "log")).rows("public", "t")
    seen = [i for table in tables for i in table.column("id").to_pylist()]
    assert seen == list(range(1, last + 1)), f"seed {SEED}"


@pytest.mark.parametrize("sink", ["jsonl", "changelog"])
def test_killed_in_the_snapshot_it_is_taken_anew_and_nothing_is_lost(
    database: Database, tmp_path: Path, sink: str
) -> None:
    print(f"WALTAP_TEST_SEED={SEED}")
    database.execute(
        "CREATE TABLE t (id int PRIMARY KEY, v text);"
        "INSERT INTO t SELECT -g, repeat('x', 200) FROM generate_series(1, 60000) g"
    )
    place = "out.jsonl" if sink == "jsonl" else "log"
    runs = Runs(
        database,
        tmp_path,
        f'type = "{sink}"\npath = "{place}"',
        **{"snapshot.fetch.size": 1000},
    )
    with writing(database) as writer:
        for _ in range(3):
            runs.until_killed(0.15)
        last = writer.finish()
    runs.to_the_end()
    if sink == "jsonl":
        written = runs.records()
        starts = [n for n, r in enumerate(written) if r["value"]["source"]["snapshot"] == "first"]
        read, streamed = (ids(written[starts[-1] :], op) for op in "rc")
        assert len(read) == len(set(read)), f"seed {SEED}"
        seen = read + sorted(set(streamed))  # what streamed since may come twice
    else:
        tables = ChangeLog(str(tmp_path / "log")).rows("public", "t")
        seen = [i for table in tables for i in table.column("id").to_pylist()]
    assert len(seen) == len(set(seen)), f"seed {SEED}"
    assert set(seen) == {*range(-60000, 0), *range(1, last + 1)}
    assert list(database.slots()) == [database.name]


def test_killed_in_an_incremental_snapshot_it_goes_on(database: Database, tmp_path: Path) -> None:
    print(f"WALTAP_TEST_SEED={SEED}")
    database.execute(
        "CREATE TABLE signals (id varchar(64) PRIMARY KEY, type varchar(32), data text);"
        "CREATE TABLE old (id int PRIMARY KEY, v text); CREATE TABLE t (id int PRIMARY KEY, v text);"
        "INSERT INTO old SELECT g, 'v' FROM generate_series(1, 4000) g"
    )
    runs = Runs(
        database,
        tmp_path,
        'type = "jsonl"\npath = "out.jsonl"',
        **{
            "signal.data.collection": "public.signals",
            "snapshot.mode": "no_data",
            "incremental.snapshot.chunk.size": 20,
        },
    )
    runs.to_the_end()
    database.execute(
        """INSERT INTO signals VALUES ('s', 'execute-snapshot', '{"data-collections": ["public.old"]}')"""
    )
    ((asked,),) = database.execute("SELECT (pg_current_wal_lsn() - '0/0')::int8")
    stop = threading.Event()

    def change() -> None:
        turns = random.Random(SEED + 2)
        with database.connect() as connection:
            while not stop.wait(0.002):
                one, other = turns.randrange(1, 4001), turns.randrange(1, 4001)
                connection.execute("UPDATE old SET v = v || '+' WHERE id = %s", [one])
                connection.execute("DELETE FROM old WHERE id = %s", [other])

    thread = threading.Thread(target=change, daemon=True)
    thread.start()
    try:
        for _ in range(4):
            runs.until_killed(0.25)
    finally:
        stop.set()
        thread.join(90)

    def read_to_the_end() -> bool:
        offset = runs.offset()
        assert offset is not None
        begun = offset.sole.position.end_lsn >= asked  # the kills may all have come before it
        return begun and not offset.signals.get("queue")

    process = runs.start()
    try:
        until(read_to_the_end, "the end of the snapshot", 300)
    finally:
        process.terminate()
        process.communicate(timeout=90)
    runs.to_the_end()
    rows: dict[int, str] = {}
    for record in runs.records():
        value = record["value"]
        if value is None or value["source"]["table"] != "old":
            continue
        if value["op"] == "d":
            rows.pop(value["before"]["id"], None)
        else:
            rows[value["after"]["id"]] = value["after"]["v"]
    assert rows == dict(database.execute("SELECT id, v FROM old")), f"seed {SEED}"
    read = [r for r in runs.records() if r["value"] and r["value"]["op"] == "r"]
    assert len(read) <= 4000 + 4 * 2 * 20  # no chunk is read more than once for each kill, or so


PLAIN_KEY = "CREATE TABLE t (id int PRIMARY KEY, v text)"
ADOPTED = (
    f"{PLAIN_KEY}; CREATE PUBLICATION NAME FOR ALL TABLES; "
    "SELECT pg_create_logical_replication_slot('NAME', 'pgoutput'); "
    "INSERT INTO t SELECT -g, 'reported by the slot and read' FROM generate_series(20001, 21000) g"
)
DEFERRABLE_KEY = "CREATE TABLE t (id int PRIMARY KEY DEFERRABLE INITIALLY DEFERRED, v text)"


@pytest.mark.parametrize(
    ("made", "settings", "moves"),
    [
        pytest.param(PLAIN_KEY, {"snapshot.mode": "always"}, False, id="always"),
        pytest.param(
            PLAIN_KEY,
            {"snapshot.mode": "when_needed"},
            False,
            id="when needed",
            marks=pytest.mark.exhaustive,
        ),
        pytest.param(PLAIN_KEY, {}, True, id="profile and state moved"),
        pytest.param(ADOPTED, {"slot.takeover": True}, False, id="slot adopted"),
        pytest.param(
            DEFERRABLE_KEY,
            {
                "publication.autocreate.mode": "filtered",
                "publication.keyless.tables": "refuse",
                "table.include.list": "public.t",
            },
            False,
            id="deferrable key",
            marks=pytest.mark.exhaustive,
        ),
    ],
)
def test_killed_again_and_again_the_last_state_is_the_tables(
    database: Database, tmp_path: Path, made: str, settings: dict[str, Any], moves: bool
) -> None:
    """In the snapshot and in the stream, with updates and deletes: what an upserting reader has, who
    begins anew with each snapshot, since rows deleted before it are not reported."""
    print(f"WALTAP_TEST_SEED={SEED}")
    for statement in made.split("; "):
        database.execute(statement.replace("NAME", database.name))
    database.execute(
        "ALTER TABLE t REPLICA IDENTITY FULL;"
        "INSERT INTO t SELECT -g, 'old' FROM generate_series(1, 20000) g"
    )
    sink = 'type = "jsonl"\npath = "out.jsonl"'
    runs = Runs(database, tmp_path / "life", sink, **settings)
    with writing(database):
        for turn in range(4):
            runs.until_killed(0.4)
            database.execute(f"UPDATE t SET v = 'turn {turn}' WHERE id % 7 = {-turn}")
            database.execute(f"DELETE FROM t WHERE id < -100 AND id % 11 = {-turn}")
            if moves:
                runs.folder = runs.folder.rename(tmp_path / f"life {turn}")
    runs.to_the_end()
    rows: dict[int, str] = {}
    for record in runs.records():
        value = record["value"]
        if value is not None and value["source"]["snapshot"] == "first":
            rows.clear()
        if value is not None and value["op"] == "d":
            rows.pop(value["before"]["id"], None)
        elif value is not None:
            rows[value["after"]["id"]] = value["after"]["v"]
    assert rows == dict(database.execute("SELECT id, v FROM t"))


def test_killed_while_transactions_are_prepared_and_the_policy_changes_none_is_lost(
    database: Database, tmp_path: Path
) -> None:
    """Each life has either policy, and some transactions are decided only lives after their PREPARE."""
    print(f"WALTAP_TEST_SEED={SEED}")
    database.execute(
        "CREATE TABLE t (id int PRIMARY KEY, v text); CREATE TABLE p (id int PRIMARY KEY, v text)"
    )
    sink = 'type = "jsonl"\npath = "out.jsonl"'
    runs = Runs(database, tmp_path, sink, **{"pgoutput.two_phase": True})
    runs.to_the_end()
    undecided: dict[str, set[int]] = {}
    committed: set[int] = set()
    rolled_back: set[int] = set()
    last = 0

    def prepare(connection: Any) -> None:
        nonlocal last
        count = runs.random.choice((1, 3, 2000))
        gid = f"{database.name} {last}"
        undecided[gid] = set(range(last + 1, last + count + 1))
        connection.execute("BEGIN")
        connection.execute(
            f"INSERT INTO p SELECT g, 'v' FROM generate_series({last + 1}, {last + count}) g"
        )
        connection.execute(f"PREPARE TRANSACTION '{gid}'")
        last += count

    def decide(connection: Any, gid: str) -> None:
        commits = runs.random.random() < 0.7
        connection.execute(f"{'COMMIT' if commits else 'ROLLBACK'} PREPARED '{gid}'")
        (committed if commits else rolled_back).update(undecided.pop(gid))

    with database.connect(autocommit=True) as connection:
        try:
            with writing(database) as writer:
                for _ in range(6):
                    for _ in range(3):
                        prepare(connection)
                    runs.configure(
                        **{"two.phase.policy": runs.random.choice(("commit", "prepare"))}
                    )
                    runs.until_killed(0.4)
                    for gid in list(undecided):
                        if runs.random.random() < 0.5:
                            decide(connection, gid)
            for gid in list(undecided):
                decide(connection, gid)
        finally:
            for gid in undecided:
                connection.execute(f"ROLLBACK PREPARED '{gid}'")
    runs.to_the_end()
    reported: dict[str, list[int]] = {"t": [], "p": []}
    for record in runs.records():
        reported[record["value"]["source"]["table"]].append(record["value"]["after"]["id"])
    assert set(reported["t"]) == set(range(1, writer.commits[-1][0] + 1)), f"seed {SEED}"
    assert set(reported["p"]) - rolled_back == committed, f"seed {SEED}"
