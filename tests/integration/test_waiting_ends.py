"""Waits for the server end: with a stop, wherever the thread waits, and over a link that passes nothing."""

import contextlib
import json
import os
import select
import signal
import socket
import threading
import time
from collections.abc import Callable, Iterator
from types import SimpleNamespace
from typing import Any, NamedTuple

import pytest
from tests.harness import command
from tests.harness.pipeline import Run, until
from tests.harness.proxy import Proxy
from tests.harness.servers.postgres import Database

from waltap.changes.transactions.transaction import Batch
from waltap.pipeline import Limits
from waltap_postgres.replication import stream, transport
from waltap_postgres.replication.stream import ReplicationStream
from waltap_postgres.snapshot import copy_pieces

STOP_S = 30.0


pytestmark = pytest.mark.pipeline(sql="CREATE TABLE t (id int PRIMARY KEY, v text)")


def waits(database: Database, role: str, *, event: str = "Lock") -> Callable[[], bool]:
    """Return what shows that our connection of this role waits in the server."""

    def waiting() -> bool:
        return bool(
            database.execute(
                "SELECT 1 FROM pg_stat_activity WHERE datname = current_database()"
                " AND application_name = %s AND wait_event_type = %s AND state = 'active'",
                f"waltap {role}",
                event,
            )
        )

    return waiting


def ours(database: Database) -> list[Any]:
    return database.execute(
        "SELECT application_name, query FROM pg_stat_activity"
        " WHERE datname = current_database() AND application_name LIKE 'waltap%'"
    )


def ends_soon(run: Run) -> None:
    run.engine.stop()
    until(lambda: run.ended, "the end", within=STOP_S)


def stops(run: Run) -> None:
    """Stop; it is a clean end, soon, and leaves nothing on the server that works for nobody."""
    ends_soon(run)
    run.raise_error()
    until(lambda: not ours(run.pipeline.database), "our connections to go")  # type: ignore[arg-type]


# --- a stop -----------------------------------------------------------------------------------------


OVERRIDE = "snapshot.select.statement.overrides"
SIGNAL_TABLE = {"signal.data.collection": "public.signals", "snapshot.mode": "no_data"}


class Wait(NamedTuple):
    """What others do, and keep doing, in a transaction; which of our connections then waits for what."""

    others: str
    role: str
    settings: dict[str, Any] = {}
    before: str = ""
    begun: bool = False
    event: str = "Lock"
    libpq: bool = False


COPY = Wait(
    "SELECT pg_advisory_lock(77)", "snapshot",
    {"snapshot.mode": "initial_only", OVERRIDE: "public.t",
     f"{OVERRIDE}.public.t": "SELECT t.* FROM t, pg_advisory_lock(77) WHERE t.id > 0"},
    before="INSERT INTO t VALUES (1)",
)  # fmt: skip
WAITS = {
    "a copy": COPY,
    "a copy through libpq": COPY._replace(libpq=True),
    "a snapshot that waits for a table": Wait(
        "LOCK TABLE t IN ACCESS EXCLUSIVE MODE", "snapshot", {"snapshot.mode": "initial_only"}
    ),
    "a SELECT of the snapshot": Wait(
        "", "snapshot", {OVERRIDE: "public.t", f"{OVERRIDE}.public.t": "SELECT 1 AS id, 'x' AS v FROM pg_sleep(600)"},
        event="Timeout",
    ),
    "CREATE PUBLICATION": Wait("LOCK TABLE t IN SHARE MODE", "catalogue"),
    "ALTER PUBLICATION": Wait(
        "LOCK TABLE u IN SHARE MODE", "catalogue", before="CREATE TABLE u (id int PRIMARY KEY)", begun=True
    ),
    "the slot in the making": Wait("INSERT INTO t VALUES (1)", "replication"),
    "a watermark": Wait(
        "LOCK TABLE signals IN SHARE MODE", "catalogue", SIGNAL_TABLE, begun=True,
        before="INSERT INTO t SELECT generate_series(1, 10);"
        """INSERT INTO signals VALUES ('a', 'execute-snapshot', '{"data-collections": ["public.t"]}')""",
    ),
    "a heartbeat's query": Wait(
        "", "catalogue", {"heartbeat.interval.ms": 20, "heartbeat.action.query": "SELECT pg_sleep(600) FROM t"},
        before="INSERT INTO t VALUES (1)", begun=True, event="Timeout",
    ),
}  # fmt: skip


def through_libpq(monkeypatch: pytest.MonkeyPatch) -> None:
    """Have streams and snapshots take the way of encrypted connections."""
    for module in (transport, copy_pieces):
        monkeypatch.setattr(module, "encrypted", lambda _: True)


@pytest.mark.pipeline(
    sql="CREATE TABLE signals (id text PRIMARY KEY, type text, data text)",
    settings={"table.include.list": r"public\.(t|u|signals)"},
)
@pytest.mark.parametrize("what", WAITS)
def test_a_stop_ends_what_waits_in_the_server(pipeline, monkeypatch, what):
    database, wait = pipeline.database, WAITS[what]
    pipeline.settings |= wait.settings
    if wait.libpq:  # the server has no certificate: the way through libpq is asked for
        through_libpq(monkeypatch)
    if wait.begun:
        pipeline.catch_up(**{"heartbeat.interval.ms": 0})
    slots = database.slots()
    if wait.before:
        database.execute(wait.before)
    with database.connect() as other:
        other.execute(f"BEGIN; {wait.others}")
        with pipeline.running(ready=False) as run:
            run.until(waits(database, wait.role, event=wait.event), f"{what} to wait")
            stops(run)
    assert wait.role == "snapshot" or database.slots() == slots
    pipeline.run(limits=Limits(until_idle=0.1), **{"heartbeat.interval.ms": 0, f"{OVERRIDE}.public.t": "SELECT * FROM t"})  # fmt: skip


def test_a_stop_ends_a_connection_to_a_black_hole(pipeline):
    with socket.create_server(("127.0.0.1", 0)) as hole:
        hole.settimeout(30)
        settings = {"database.hostname": "127.0.0.1", "database.port": hole.getsockname()[1]}
        with pipeline.running(ready=False, **settings) as run:
            connection, _ = hole.accept()
            with connection:
                ends_soon(run)


@pytest.fixture
def proxy(database) -> Iterator[Proxy]:
    server = database.server
    with Proxy(server.host, server.port) as made:
        yield made


def through(proxy: Proxy) -> dict[str, Any]:
    return {"database.hostname": "127.0.0.1", "database.port": proxy.port}


def test_a_stop_ends_the_wait_for_a_name_server(pipeline, monkeypatch):
    """The system's resolver blocks whoever asks it while name servers do not answer."""
    asked, answer = threading.Event(), threading.Event()

    def silent(*_arguments: Any, **_options: Any) -> Any:
        asked.set()
        answer.wait(120)
        raise socket.gaierror(-3, "Temporary failure in name resolution")

    monkeypatch.setattr(socket, "getaddrinfo", silent)
    settings = {"database.hostname": "db.example.com"}
    try:
        with pipeline.running(ready=False, **settings) as run:
            run.until(asked.is_set, "the resolver to be asked")
            ends_soon(run)
    finally:
        answer.set()


def test_a_stop_ends_queries_over_a_link_that_passes_nothing(pipeline, database, proxy):
    settings = {"heartbeat.interval.ms": 20, "heartbeat.action.query": "SELECT 1", **through(proxy)}
    with pipeline.running(**settings) as run:
        database.execute("INSERT INTO t VALUES (1)")
        run.until(lambda: pipeline.destination.ids("t") == [1], "the row")
        proxy.swallow(all_of_them=True)
        ends_soon(run)


def test_a_slot_is_dropped_whose_walsender_does_not_see_that_it_was_left(pipeline, database, proxy):
    """Until wal_sender_timeout it holds the slot; so does one that decodes a large transaction."""
    with pipeline.running(**{"slot.drop.on.stop": "true", **through(proxy)}) as run:
        ((port,),) = database.execute(
            "SELECT client_port FROM pg_stat_replication JOIN pg_replication_slots ON pid = active_pid"
            " WHERE slot_name = %s",
            pipeline.slot,
        )
        proxy.swallow(only=port)
        ends_soon(run)
    assert database.slots() == {}


def test_a_signal_ends_a_run_whose_reader_has_stopped(pipeline):
    """A pipe is full: the write waits in the kernel. Nothing of it was confirmed."""
    database, folder = pipeline.database, pipeline.folder
    pipeline.catch_up()
    database.execute("INSERT INTO t SELECT g, repeat('x', 500) FROM generate_series(1, 5000) g")
    path = pipeline.file(**{"sink.type": "jsonl"})
    reading, writing = os.pipe()
    with os.fdopen(writing, "wb") as out:
        process = command.start("run", path, cwd=folder, out=out)
        until(lambda: not select.select([], [out], [], 0)[1], "the pipe to be full")
    try:
        process.send_signal(signal.SIGINT)
        _, errors = process.communicate(timeout=STOP_S)
        with os.fdopen(reading, "rb", closefd=False) as pipe:
            taken = [
                json.loads(line)["value"]["after"]["id"] for line in pipe.read().split(b"\n")[:-1]
            ]
    finally:
        process.kill()
        process.communicate()
        os.close(reading)
    assert process.returncode == 0, errors
    pipeline.catch_up()
    rest = pipeline.destination.ids("t", "c")
    assert rest == list(range(rest[0], 5001))
    assert taken == list(range(1, len(taken) + 1))
    assert rest[0] <= len(taken) + 1


# --- a link that passes nothing ---------------------------------------------------------------------

SHORT = {"waltap.receive.timeout.ms": 2000}


@contextlib.contextmanager
def reconnecting(run: Run) -> Iterator[None]:
    """Expect that the link is found dead in this block, and made anew."""
    known = len(run.notices.failures)
    yield
    run.until(lambda: len(run.notices.failures) > known, "the dead link to be noticed")
    assert run.notices.failures[known][0].code in {"WT-2001", "WT-2002"}
    assert run.notices.failures[known][1]


@pytest.mark.parametrize("tls", [False, True], ids=["socket", "libpq"])
def test_a_stream_that_passes_nothing_is_made_anew(pipeline, database, proxy, tls, monkeypatch):
    if tls:
        through_libpq(monkeypatch)
    with pipeline.running(**SHORT, **through(proxy)) as run:
        database.execute("INSERT INTO t VALUES (1)")
        run.until(lambda: pipeline.destination.ids("t") == [1], "the row")
        with reconnecting(run):
            proxy.swallow()
            database.execute("INSERT INTO t VALUES (2)")
        # the server must notice the end of the old connection before its slot is free
        run.until(lambda: pipeline.destination.ids("t") == [1, 2], "the next row")


def test_a_quiet_stream_is_no_dead_link(pipeline, monkeypatch):
    """The server answers when it is asked: for several timeouts nothing happens, and nothing breaks."""
    silent: list[ReplicationStream] = []
    listen, jumped = ReplicationStream._listen, 0

    def now() -> float:
        return time.monotonic() + jumped

    def listens(made: ReplicationStream) -> None:
        silent[:] = [made]
        listen(made)

    monkeypatch.setattr(ReplicationStream, "_listen", listens)
    monkeypatch.setattr(stream, "time", SimpleNamespace(monotonic=now, time_ns=time.time_ns))
    quiet = {"waltap.receive.timeout.ms": 300_000, "status.update.interval.ms": 3_600_000}
    with pipeline.running(**quiet) as run:
        run.until(lambda: silent, "silence")
        for _ in range(4):
            jumped += 200  # an answer is asked for after 150 s
            run.until(lambda: now() - silent[0]._heard < 140, "the answer")
        pipeline.database.execute("INSERT INTO t VALUES (1)")
        run.until(lambda: pipeline.destination.ids("t") == [1], "the row")
        assert run.notices.failures == []


def test_a_query_that_waits_longer_than_the_timeout_is_no_dead_link(
    pipeline, database, proxy, monkeypatch
):
    """The server is asked, and is busy: it waits for a lock."""
    monkeypatch.setattr("waltap_postgres.connection.MIN_ASK_S", 30.0)  # the machine is, too
    with database.connect() as locking:
        locking.execute("BEGIN; LOCK TABLE t IN SHARE MODE")
        settings = {"waltap.receive.timeout.ms": 1000, "snapshot.lock.timeout.ms": 600_000}
        with pipeline.running(ready=False, **settings, **through(proxy)) as run:
            run.until(waits(database, "catalogue"), "CREATE PUBLICATION to wait")
            known = proxy.accepted
            run.until(lambda: proxy.accepted >= known + 3, "three questions")
            locking.execute("COMMIT")
            run.until(lambda: run.engine.state == "streaming", "the stream")
            assert run.notices.failures == []


def test_a_query_over_a_link_that_passes_nothing_ends(pipeline, database, proxy):
    settings = {
        "heartbeat.interval.ms": 20,
        "heartbeat.action.query": "INSERT INTO beats VALUES (clock_timestamp())",
        **SHORT,
        **through(proxy),
    }
    database.execute("CREATE TABLE beats (at timestamptz PRIMARY KEY)")
    with pipeline.running(**settings) as run:
        database.execute("INSERT INTO t VALUES (1)")
        run.until(lambda: database.execute("SELECT count(*) FROM beats")[0][0], "a heartbeat")
        with reconnecting(run):
            proxy.swallow()
        ((before,),) = database.execute("SELECT count(*) FROM beats")
        run.until(lambda: database.execute("SELECT count(*) FROM beats")[0][0] > before, "more")


@pytest.mark.parametrize("tls", [False, True], ids=["socket", "libpq"])
def test_a_copy_over_a_link_that_passes_nothing_ends(pipeline, database, proxy, tls, monkeypatch):
    if tls:
        through_libpq(monkeypatch)
    database.execute("INSERT INTO t SELECT g, repeat('x', 2000) FROM generate_series(1, 20000) g")
    swallowed = threading.Event()

    def swallow(_batch: Batch) -> None:
        if not swallowed.is_set():
            swallowed.set()
            proxy.swallow()

    pipeline.destination.before_write = swallow
    with pipeline.running(ready=False, **SHORT, **through(proxy)) as run:
        with reconnecting(run):
            run.until(swallowed.is_set, "the first rows")
        run.until(lambda: run.engine.state == "streaming", "the stream", within=300)
    assert len(pipeline.destination.table("t")) == 20_000
