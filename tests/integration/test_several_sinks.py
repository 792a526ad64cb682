"""Several sinks of one pipeline: each gets everything once, whatever the others do; and a target that takes no more and says
nothing: the pipeline says so, and a stop ends it."""

import re
import signal
import socket
import subprocess
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import msgspec
import psycopg
import pytest
from tests.harness.changelog import logged_ids
from tests.harness.json_lines import records
from tests.harness.pipeline import Destination, PipelineRig, until
from tests.harness.proxy import Proxy
from tests.harness.servers.ports import free_ports
from tests.harness.servers.postgres import Database
from tests.harness.servers.s3 import ANYBODY, REGION, S3Server
from tests.harness.shop import Shop
from tests.harness.simulated import raising
from tests.harness.sql import replica

from waltap.changes.decode.message import Insert
from waltap.changes.transactions.transaction import Batch, SnapshotRows, TransactionPart, events_in
from waltap.errors import ConfigurationError, RetryVerdict, SinkError
from waltap.pipeline.delivery.fan_out import SinkPausedTooLong
from waltap.plugins.hookspecs import hookimpl
from waltap.ports.offsets.gaps import GapCertificates
from waltap.ports.sink.stored_position import DestinationBehind
from waltap.ports.specs import TransformSpec
from waltap_postgres.connector import PostgresConnector


class Unwell(SinkError):
    code = "WT-5901"


class Shaken(SinkError):
    code = "WT-5902"
    retry = RetryVerdict.SAME_BATCH


@pytest.fixture
def two(database, tmp_path) -> PipelineRig:
    database.execute("CREATE TABLE t (id int PRIMARY KEY)")
    made = PipelineRig(database, tmp_path)
    made.others["other"] = Destination()
    made.branches = [{"type": "kept"}, {"type": "other"}]
    return made


@pytest.fixture
def pausing(two) -> PipelineRig:
    """A pipeline whose second sink may be paused, and is tried again at once."""
    two.branches[1] |= {"on.failure": "pause", "pause.retry.ms": 100}
    return two


def both(two: PipelineRig) -> Iterator[Destination]:
    yield two.destination
    yield two.others["other"]


def test_each_sink_has_its_filter_format_and_place(database, tmp_path):
    database.psql(
        "CREATE TABLE a (id int PRIMARY KEY, v text); CREATE TABLE b (id int PRIMARY KEY);"
        "INSERT INTO a VALUES (1, 'x'); INSERT INTO b VALUES (1)"
    )
    two = PipelineRig(database, tmp_path)
    two.branches = [
        {"name": "lake", "type": "changelog", "path": str(tmp_path / "lake")},
        {
            "name": "some",
            "type": "jsonl",
            "path": str(tmp_path / "some.jsonl"),
            "transforms": [{"type": "filter", "tables": "public.b"}],
        },
        {
            "name": "schemas",
            "type": "jsonl",
            "path": str(tmp_path / "all.jsonl"),
            "format": {"type": "json", "value.converter.schemas.enable": True},
        },
    ]
    two.catch_up()
    database.psql("INSERT INTO a VALUES (2, 'y'); INSERT INTO b VALUES (2)")
    two.catch_up()
    some, every = records(tmp_path / "some.jsonl"), records(tmp_path / "all.jsonl")
    assert {each["value"]["source"]["table"] for each in some} == {"a"}
    assert [each["value"]["payload"]["source"]["table"] for each in every] == ["a", "b", "a", "b"]
    assert [each["value"]["after"]["id"] for each in some] == [1, 2]
    assert [logged_ids(tmp_path / "lake", table) for table in "ab"] == [[1, 2]] * 2


class InPlace:
    """A transform that changes the parts that it is given."""

    @hookimpl
    def register_transforms(self):
        return [TransformSpec(name="marks", summary="s", factory=lambda _properties: self.mark)]

    @staticmethod
    def mark(batch: Batch) -> Batch:
        for part in batch.parts:
            if isinstance(part, SnapshotRows):
                part.rows = [(row[0], f"{row[1]}!") for row in part.rows]
            elif isinstance(part, TransactionPart):
                part.changes[:] = [
                    msgspec.structs.replace(change, new=(change.new[0], f"{change.new[1]}!"))
                    for change in part.changes
                    if isinstance(change, Insert)
                ]
        batch.events = events_in(batch.parts)
        return batch


def test_a_transform_that_works_in_place_works_once_for_each_sink(two):
    two.database.psql("CREATE TABLE u (id int PRIMARY KEY, v text); INSERT INTO u VALUES (1, 'a')")
    two.tables["transforms"] = [{"type": "marks"}]
    for statement in ("", "INSERT INTO u VALUES (2, 'b'); UPDATE u SET v = 'c' WHERE id = 2"):
        with two.running(InPlace()) as run:
            two.database.psql(statement or "SELECT 1")
            count = 2 if statement else 1
            run.until(lambda n=count: all(len(d.of("u")) == n for d in both(two)), "the rows")
    for destination in both(two):
        assert [event.row["v"] for event in destination.of("u")] == ["a!", "b!"]


def test_what_one_sink_refuses_the_other_has_once(two):
    """The first has the batch when the second fails; it is not given to the first again."""
    other, fails = two.others["other"], [Shaken("no"), Shaken("no")]
    two.catch_up()

    def refuse(_batch: object) -> None:
        if fails:
            raise fails.pop()

    other.before_write = refuse
    with two.running() as run:
        two.database.execute("INSERT INTO t VALUES (1)")
        run.until(lambda: other.ids("t") == [1], "the third try")
    for destination in both(two):
        assert destination.ids("t") == [1]


def test_within_a_large_transaction_the_faster_sink_leaves_out_what_it_has(two):
    """The second fails in the middle: the pipeline's position is its position, the first is ahead."""
    other, database = two.others["other"], two.database
    two.catch_up()
    batches: list[object] = []

    def fail_third(batch: object) -> None:
        batches.append(batch)
        if len(batches) == 3:
            raise Unwell("no")

    other.before_write = fail_third
    with pytest.raises(Unwell), two.running(**{"max.batch.size": 10}) as run:
        database.execute("INSERT INTO t SELECT generate_series(1, 100)")
        run.join()
    other.before_write = lambda _batch: None
    database.execute("INSERT INTO t VALUES (101)")
    two.catch_up(**{"max.batch.size": 7})
    for destination in both(two):
        assert destination.ids("t") == [*range(1, 102)]


@pytest.mark.parametrize("retries", [-1, 0])
def test_a_paused_sink_gets_what_it_missed_and_the_others_nothing_twice(pausing, retries):
    other, database = pausing.others["other"], pausing.database
    pausing.settings["errors.max.retries"] = retries
    pausing.catch_up()
    broken = [True]

    def fail(*_arguments: object) -> None:
        if broken:
            raise Unwell("no")

    other.before_write = other.before_open = fail
    with pausing.running() as run:
        database.execute("INSERT INTO t VALUES (1)")
        run.until(lambda: pausing.destination.ids("t") == [1], "the first sink")
        database.execute("INSERT INTO t VALUES (2)")
        run.until(lambda: pausing.destination.ids("t") == [1, 2], "the first sink again")
        confirmed = pausing.slot_lsns()[0]
        assert other.ids("t") == []
        broken.clear()
        run.until(lambda: other.ids("t") == [1, 2], "the return of the second")
        run.until(lambda: pausing.slot_lsns()[0] > confirmed, "what it has is confirmed")
        database.execute("INSERT INTO t VALUES (3)")
        run.until(lambda: other.ids("t") == [1, 2, 3], "both")
        broken.append(True)
        database.execute("INSERT INTO t VALUES (4)")
        run.until(lambda: pausing.destination.ids("t") == [1, 2, 3, 4], "the first sink alone")
    broken.clear()
    pausing.catch_up()  # what it lacks is held over a restart
    for destination in both(pausing):
        assert destination.ids("t") == [1, 2, 3, 4]


@pytest.mark.parametrize("step", ["before_open", "before_write", "before_flush"])
def test_a_sink_that_lost_something_is_not_paused(pausing, step):
    other, database = pausing.others["other"], pausing.database
    pausing.catch_up()
    setattr(other, step, raising(DestinationBehind("it was emptied", replay="")))
    with pytest.raises(DestinationBehind), pausing.running(ready=False) as run:
        database.execute("INSERT INTO t VALUES (1)")
        run.join()
    (gap,) = GapCertificates(pausing.offset_file.parent).open()
    assert gap.code == DestinationBehind.code


def test_a_pause_ends_the_pipeline_when_the_server_keeps_too_much(pausing):
    other, database = pausing.others["other"], pausing.database
    pausing.branches[1] |= {"pause.max.bytes": 1000, "pause.retry.ms": 3_600_000}
    pausing.catch_up()
    other.before_write = raising(Unwell("the disk is away"))
    with pytest.raises(SinkPausedTooLong, match=r"other.*the disk is away"):
        with pausing.running() as run:
            database.execute("INSERT INTO t SELECT generate_series(1, 1000)")
            run.join()
    other.before_write = lambda _batch: None
    pausing.catch_up()
    for destination in both(pausing):
        assert destination.ids("t") == [*range(1, 1001)]


@pytest.mark.parametrize("kind", ["incremental", "blocking"])
@pytest.mark.parametrize("asked", ["before", "in the pause"])
def test_a_requested_snapshot_waits_while_a_sink_is_paused(pausing, kind, asked, caplog):
    other, database = pausing.others["other"], pausing.database
    pausing.catch_up()

    data = {"data-collections": ["public.t"], "type": kind}
    with pausing.running(**{"read.only": "true"}) as run:
        other.before_write = other.before_open = raising(Shaken("the service is down"))
        if asked == "before":  # rows that were read meet the pause
            held, release = pausing.destination.hold()
            database.execute("INSERT INTO t VALUES (0)")
            assert held.wait(120)
            future = run.engine.signal("execute-snapshot", data)
            database.execute("INSERT INTO t VALUES (1)")
            release.set()
            assert future.result(120).accepted
        else:
            database.execute("INSERT INTO t VALUES (1)")
            run.until(lambda: pausing.destination.ids("t") == [1], "the first sink")
            assert run.engine.signal("execute-snapshot", data).result(120).accepted
        run.until(lambda: "waits for the sink that is paused" in caplog.text, "the reason")
        other.before_write = other.before_open = lambda *_arguments: None
        run.until(lambda: 1 in other.ids("t", "r"), "the rows")
    for destination in both(pausing):
        assert set(destination.ids("t", "r")) == set(destination.ids("t", "c"))


def test_a_failure_in_the_snapshot_stops_whatever_the_policy(pausing):
    other, database = pausing.others["other"], pausing.database
    database.execute("INSERT INTO t VALUES (1)")
    other.before_write = raising(Unwell("no"))
    with pytest.raises(Unwell):
        pausing.catch_up()
    other.before_write = lambda _batch: None
    pausing.catch_up()
    assert other.table("t") == pausing.destination.table("t")
    assert len(other.table("t")) == 1


@pytest.mark.parametrize(
    ("branches", "named"),
    [
        ([{"type": "kept"}, {"type": "kept"}], "two of them are called kept"),
        ([{"type": "kept", "on.failure": "ignore"}], "on.failure"),
        ([{"path": "x"}], "type"),
        ([{"type": "jsonl", "pth": "x", "path": "x"}], "pth"),
        (
            [{"name": name, "type": "jsonl", "path": "same.jsonl"} for name in ("a", "b")],
            "two of them write to .*same.jsonl",
        ),
    ],
)
def test_mistakes_are_reported_by_their_place(two, branches, named):
    two.branches = branches
    host, _ = two.host()
    with pytest.raises(ConfigurationError, match=named):
        two.profile(host)


def test_doctor_and_explain_look_at_every_sink(database, tmp_path):
    database.execute("CREATE TABLE t (id int PRIMARY KEY)")
    (tmp_path / "folder").write_text("in the way")
    shop = Shop(tmp_path, database)
    shop.sinks = [
        {"name": "first", "type": "null"},
        {"name": "second", "type": "jsonl", "path": "folder/x.jsonl"},
    ]
    shop.variables = {"COLUMNS": "200"}
    assert "folder/x.jsonl" in shop.says("doctor FILE", code=1)
    explained = shop.says("explain FILE")
    assert "first, second" in explained
    assert "sinks[second].path" in explained
    assert "No sink is given" not in explained


# --- a target that takes no more -----------------------------------------------------------------------


LOCKED = "LOCK TABLE replica.t IN ACCESS EXCLUSIVE MODE"


def run(
    database: Database, folder: Path, port: int, sink: dict[str, str], stop_ms: int = 120_000
) -> AbstractContextManager[subprocess.Popen[str]]:
    shop = Shop(folder, database)
    shop.source |= {
        "schema.include.list": "public", "status.update.interval.ms": 200, "waltap.stall.ms": 500,
        "waltap.stop.timeout.ms": stop_ms, "offset.flush.interval.ms": 0,
    }  # fmt: skip
    shop.sink = sink
    return shop.process(f"run FILE --http=127.0.0.1:{port}")


def ready(port: int) -> int:
    try:
        with urllib.request.urlopen(f"http://127.0.0.1:{port}/readyz", timeout=120) as answer:
            return int(answer.status)
    except urllib.error.HTTPError as error:
        return error.code
    except OSError:
        return 0


def metric(port: int, name: str) -> float:
    with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=120) as answer:
        found = re.findall(rf"^{name}(?:{{.*}})? (\S+)$", answer.read().decode(), re.MULTILINE)
    return max(map(float, found), default=-1.0)


def reported_and_stopped(process: subprocess.Popen[str], port: int, log: Path, kind: str) -> None:
    """See what is reported of a sink that hangs, and a stop end the process."""
    until(lambda: ready(port) == 503, "readiness to be withdrawn")
    until(lambda: metric(port, "waltap_write_in_flight_seconds") > 1, "the age of the write")
    reported = f"sink {kind} has not come to an end with"
    until(lambda: reported in log.read_text(), "a line of the log")
    process.send_signal(signal.SIGTERM)
    assert process.wait(120) == 1
    assert "WT-5004" in log.read_text()


def test_a_target_that_hangs_is_reported_and_does_not_hold_a_stop(database, tmp_path):
    database.psql(
        "CREATE SCHEMA replica; CREATE TABLE t (id int PRIMARY KEY, v text);"
        "INSERT INTO t SELECT generate_series(1, 5)"
    )
    (port,) = free_ports(1)
    sink = replica(database)

    def rows() -> int:
        made = database.execute("SELECT to_regclass('replica.t') IS NOT NULL")[0][0]
        return database.execute("SELECT count(*) FROM replica.t")[0][0] if made else 0

    with run(database, tmp_path, port, sink, 1000) as process:
        until(lambda: ready(port) == 200, "streaming")
        until(lambda: rows() == 5, "the snapshot")
        with psycopg.connect(database.dsn) as holder:
            holder.execute(LOCKED)
            database.psql(
                "INSERT INTO t SELECT i, repeat('x', 100) FROM generate_series(6, 2000) i"
            )
            until(lambda: metric(port, "waltap_lag_bytes") > 100_000, "the lag in bytes")
            until(lambda: metric(port, "waltap_lag_seconds") > 1, "the lag in seconds")
            reported_and_stopped(process, port, tmp_path / "stderr", "sql")
        assert rows() == 5
    with run(database, tmp_path, port, sink) as process:
        until(lambda: rows() == 2000, "what was not durable comes again")
        process.send_signal(signal.SIGTERM)
        assert process.wait(120) == 0


def in_s3(kind: str, s3: S3Server, bucket: str, url: str, folder: Path) -> dict[str, str]:
    """Return a sink whose tables or files are in a bucket of the server at ``url``."""
    place = f"s3://{bucket}/orders"
    if kind in {"files", "changelog"}:
        often = {"file.max.age.ms": "500"} if kind == "files" else {}  # a minute otherwise
        return {"type": kind, "path": place, **often, **s3.properties(url=url)}
    key, secret = ANYBODY.key, ANYBODY.secret
    if kind == "delta":
        storage = {
            "aws_endpoint": url, "aws_allow_http": "true", "aws_region": REGION,
            "aws_access_key_id": key, "aws_secret_access_key": secret,
            "aws_s3_allow_unsafe_rename": "true",
        }  # fmt: skip
        return {"type": kind, "path": place, **{f"storage.{n}": v for n, v in storage.items()}}
    catalog = {
        "type": "sql", "uri": f"sqlite:///{folder / 'catalog.db'}", "warehouse": place,
        "s3.endpoint": url, "s3.region": REGION, "s3.access-key-id": key,
        "s3.secret-access-key": secret,
    }  # fmt: skip
    return {"type": kind, **{f"catalog.{name}": value for name, value in catalog.items()}}


@pytest.mark.parametrize("kind", ["files", "changelog", "delta", "iceberg"])
def test_an_object_store_that_hangs_is_reported_and_does_not_hold_a_stop(
    database, tmp_path, s3, bucket, kind
):
    database.psql("CREATE TABLE t (id int PRIMARY KEY)")
    (port,) = free_ports(1)
    log, address = tmp_path / "stderr", urlsplit(s3.url)
    confirmed = (
        "SELECT confirmed_flush_lsn >= %s::pg_lsn FROM pg_replication_slots WHERE slot_name = %s"
    )

    def durable() -> bool:
        return database.execute(confirmed, end, database.name[:60]) == [(True,)]

    with Proxy(address.hostname or "", address.port or 0) as proxy:
        sink = in_s3(kind, s3, bucket, f"http://127.0.0.1:{proxy.port}", tmp_path)
        with run(database, tmp_path, port, sink, 1000) as process:
            until(lambda: ready(port) == 200, "streaming")
            database.psql("INSERT INTO t VALUES (1)")
            ((end,),) = database.execute("SELECT pg_current_wal_lsn()::text")
            until(durable, "the first change")
            proxy.swallow(all_of_them=True)
            database.psql("INSERT INTO t SELECT generate_series(2, 2000)")
            reported_and_stopped(process, port, log, kind)
        # the checks of a sink come first; a library that keeps the interpreter's lock would hold all
        with run(database, tmp_path, port, sink, 1000) as process:
            reported = f"sink {kind} has not come to an end with"
            until(lambda: reported in log.read_text(), "a line of the log")
            until(lambda: ready(port) == 503, "an answer")
            process.send_signal(signal.SIGTERM)
            process.wait(120)
        proxy.pass_again()
        ((end,),) = database.execute("SELECT pg_current_wal_lsn()::text")
        with run(database, tmp_path, port, sink) as process:
            until(durable, "what was not durable")
            process.send_signal(signal.SIGTERM)
            assert process.wait(120) == 0


def test_a_source_that_hangs_in_the_checks_is_named(pipeline, caplog, monkeypatch):
    check = PostgresConnector.check

    def late(*given: Any) -> Any:
        until(lambda: "the pipeline waits for it" in caplog.text, "a line of the log")
        return check(*given)

    pipeline.settings["waltap.stall.ms"] = 500
    monkeypatch.setattr(PostgresConnector, "check", late)
    pipeline.catch_up()
    assert "the source has not answered for " in caplog.text


@pytest.mark.pipeline(sql="CREATE TABLE t (id int PRIMARY KEY)")
def test_a_registry_that_hangs_is_named_without_its_login(pipeline, caplog):
    """It is what the pipeline waits for, not the sink; a stop ends the wait."""
    with socket.create_server(("127.0.0.1", 0)) as deaf:
        url = f"http://127.0.0.1:{deaf.getsockname()[1]}"
        pipeline.settings |= {
            "sink.type": "null", "key.converter": "json", "value.converter": "avro",
            "waltap.stall.ms": 500,
            "value.converter.schema.registry.url": url.replace("//", "//user:secret-of-registry@"),
        }  # fmt: skip
        with pipeline.running() as run:
            caplog.clear()  # of checks that took longer on a busy machine
            pipeline.database.execute("INSERT INTO t VALUES (1)")
            words = f"the schema registry {url} has not answered for "
            run.until(lambda: words in caplog.text, "a line of the log")
            assert run.engine.status().stalled
    assert "has not come to an end" not in caplog.text
    assert "secret-of-registry" not in caplog.text
