"""A table that another session locks does not stop the stream of the other tables."""

import itertools
from collections.abc import Iterator

import pytest
from tests.harness.pipeline import SIGNALS, PipelineRig, Run

from waltap.pipeline.stages import new_tables
from waltap.ports.source.published import PUBLISHED_SQL

SQL = (
    f"{SIGNALS}; CREATE TABLE u (id int PRIMARY KEY); CREATE TABLE beats (n int PRIMARY KEY);"
    "CREATE TABLE t (id int PRIMARY KEY, v text DEFAULT 'v'); INSERT INTO t SELECT generate_series(1, 20);"
    "CREATE TABLE p (id int PRIMARY KEY) PARTITION BY RANGE (id);"
    "CREATE TABLE p1 PARTITION OF p FOR VALUES FROM (0) TO (10)"
)
OURS = {"publication.autocreate.mode": "disabled"}
BEATS = {"heartbeat.interval.ms": 500, "heartbeat.action.query": "DELETE FROM public.beats"}


@pytest.fixture(params=["database", "newest_database"])
def rig(request, tmp_path) -> PipelineRig:
    database = request.getfixturevalue(request.param)
    database.psql(SQL)
    settings = {"snapshot.mode": "no_data", "signal.data.collection": "public.signals"}
    return PipelineRig(database, tmp_path, settings)


def publish(rig: PipelineRig, what: str) -> None:
    rig.database.execute(
        f'CREATE PUBLICATION "{rig.settings["publication.name"]}" FOR TABLE {what}'
    )


def streams(run: Run, numbers: Iterator[int], times: int = 10) -> None:
    for number in itertools.islice(numbers, times):
        run.pipeline.database.execute("INSERT INTO u VALUES (%s)", number)
        found = run.pipeline.destination
        run.until(lambda n=number: n in found.ids("u", "c"), "the stream")


@pytest.mark.parametrize(
    ("locked", "published", "settings"),
    [
        ("t", "", {}),
        ("t", "u, t WHERE (id > 5)", OURS),
        ("p", "u, p", OURS),
        ("beats", "u", OURS | BEATS),
    ],
    ids=["table", "row filter", "partitioned table", "heartbeat"],
)
def test_the_stream_goes_on_beside_a_locked_table(rig, locked, published, settings, monkeypatch):
    """What watches the publications waited for the lock."""
    monkeypatch.setattr(new_tables, "POLLS_PER_ANSWER", 1)
    if published:
        publish(rig, published)
    numbers = itertools.count()
    with rig.running(**settings) as run, rig.database.connect() as other:
        streams(run, numbers)
        other.execute(f"BEGIN; LOCK TABLE {locked} IN ACCESS EXCLUSIVE MODE")
        streams(run, numbers)


@pytest.mark.parametrize("kind", ["incremental", "blocking"])
@pytest.mark.parametrize(
    ("published", "settings", "rows"),
    [
        ("", {"snapshot.locking.mode": "shared"}, range(1, 21)),
        ("u, signals, t WHERE (id > 5)", OURS, range(6, 21)),
    ],
    ids=["locks", "row filter"],
)
def test_a_locked_table_is_read_after_the_lock(rig, kind, published, settings, rows):
    """A snapshot that a signal requests waits, and neither stops the stream nor is refused."""
    if published:
        publish(rig, published)
    numbers, found = itertools.count(), rig.destination
    with rig.running(**settings) as run, rig.database.connect() as other:
        streams(run, numbers, 1)
        other.execute("BEGIN; LOCK TABLE t IN ACCESS EXCLUSIVE MODE")
        rig.signal("execute-snapshot", "t", type=kind)
        streams(run, numbers)
        assert not found.of("t")
        other.execute("ROLLBACK")
        run.until(lambda: len(found.of("t")) == len(rows), "the snapshot")
    assert found.ids("t", "r") == list(rows)


def test_watermarks_wait_for_a_locked_signal_table(rig, caplog):
    numbers, found, database = itertools.count(), rig.destination, rig.database
    with rig.running() as run, database.connect() as other, database.connect() as third:
        other.execute("BEGIN; LOCK TABLE t IN ACCESS EXCLUSIVE MODE")
        rig.signal("execute-snapshot", "t", type="incremental")
        run.until(lambda: "locks public.t" in caplog.text, "the table's lock")
        third.execute("BEGIN; LOCK TABLE signals IN ACCESS EXCLUSIVE MODE")
        other.execute("ROLLBACK")
        run.until(lambda: 'locks "public"."signals"' in caplog.text, "the signal table's lock")
        database.execute("UPDATE t SET v = 'new' WHERE id = 7")
        streams(run, numbers)
        assert not found.ids("t", "r")
        third.execute("ROLLBACK")
        run.until(lambda: len(found.ids("t", "r")) >= 19, "the snapshot")
    assert found.ids("t", "r") == [n for n in range(1, 21) if n != 7], "7 was delivered as changed"


PUBLICATIONS = (
    "FOR ALL TABLES",
    "FOR ALL TABLES WITH (publish_via_partition_root)",
    "FOR TABLE t, p",
    "FOR TABLE t, p, p1 WITH (publish_via_partition_root)",
    "FOR TABLE a.inner, b.leaf WITH (publish_via_partition_root)",
    "FOR TABLES IN SCHEMA b, TABLE p",
    "FOR TABLES IN SCHEMA b WITH (publish_via_partition_root)",
    "FOR TABLES IN SCHEMA a, b, public WITH (publish_via_partition_root)",
    "FOR TABLES IN SCHEMA a, TABLE t WHERE (id > 5)",
    "",
)


def test_published_tables_are_those_of_the_view(rig):
    rig.database.psql(
        "CREATE SCHEMA a; CREATE SCHEMA b; CREATE UNLOGGED TABLE a.unlogged (n int);"
        "CREATE TABLE a.root (n int) PARTITION BY RANGE (n);"
        "CREATE TABLE a.inner PARTITION OF a.root FOR VALUES FROM (0) TO (9) PARTITION BY RANGE (n);"
        "CREATE TABLE b.leaf PARTITION OF a.inner FOR VALUES FROM (0) TO (5);"
        "CREATE TABLE b.child () INHERITS (public.t); CREATE VIEW b.seen AS SELECT * FROM t"
    )
    for number, what in enumerate(PUBLICATIONS):
        rig.database.execute(f"CREATE PUBLICATION p{number} {what}")
    names = "SELECT pubname, schemaname, tablename FROM {} t ORDER BY 1, 2, 3"
    found = rig.database.execute(names.format(PUBLISHED_SQL))
    assert found == rig.database.execute(names.format("pg_publication_tables"))


@pytest.mark.pipeline(sql="CREATE TABLE t (id int PRIMARY KEY); INSERT INTO t VALUES (1)")
def test_a_start_says_that_it_waits_for_a_lock(pipeline, caplog):
    with pipeline.database.connect() as other:
        other.execute("BEGIN; LOCK TABLE t IN ACCESS EXCLUSIVE MODE")
        words = f"waiting for a lock that another session holds (pid {other.info.backend_pid})"
        with pipeline.running(ready=False, **{"waltap.receive.timeout.ms": 2000}) as run:
            run.until(lambda: words in caplog.text, "the log")
            run.stop()
    assert not pipeline.destination.events
