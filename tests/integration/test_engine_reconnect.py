"""Links that break or pass nothing, and waits for the server, on real servers: the engine comes back and loses nothing, and
a stop ends each wait."""

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

import psutil
import pytest
from tests.harness import command
from tests.harness.changelog import logged, logged_ids
from tests.harness.kafka import read_all
from tests.harness.pipeline import WAIT_S, PipelineRig, Run, until
from tests.harness.proxy import Proxy
from tests.harness.servers.own_server import own_server
from tests.harness.servers.postgres import Cluster, Database

from waltap.changes.transactions.transaction import Batch
from waltap.pipeline import Limits
from waltap.plugins.hookspecs import hookimpl
from waltap_postgres.replication import stream, transport
from waltap_postgres.replication.stream import ReplicationStream
from waltap_postgres.snapshot import copy_pieces

pytestmark = pytest.mark.pipeline(sql="CREATE TABLE t (id int PRIMARY KEY, v text)")


def terminate(pipeline: PipelineRig, role: str) -> None:
    """End our connection of this role, as an administrator or a failing network would. One that is ending
    may still be listed beside the one that took its place."""
    found = pipeline.database.execute(
        "SELECT pg_terminate_backend(pid) FROM pg_stat_activity"
        " WHERE datname = current_database() AND application_name = %s",
        f"waltap {role}",
    )
    assert (True,) in found


def reconnected(run: Run) -> bool:
    states = [state for state, _ in run.notices.states]
    return "reconnecting" in states and states[-1] == "streaming"


def test_a_catalogue_connection_that_ends_is_replaced_when_it_is_needed(pipeline, database):
    with pipeline.running() as run:
        database.execute("INSERT INTO t VALUES (1, 'x')")
        run.until(lambda: pipeline.destination.ids("t") == [1], "the first row")
        terminate(pipeline, "catalogue")
        database.execute("ALTER TABLE t ADD w int DEFAULT 7; INSERT INTO t VALUES (2, 'y')")
        run.until(lambda: reconnected(run), "the new connections")
        run.until(lambda: pipeline.destination.ids("t") == [1, 2], "the second row")
    assert pipeline.destination.of("t")[1].row == {"id": "2", "v": "y", "w": "7"}


def cut_inside(pipeline: PipelineRig) -> None:
    """Break the link inside a transaction with the ids 1 to 30,000; 0 and 30,001 are around it."""
    database, cut = pipeline.database, threading.Event()

    class Cutting:
        seen = 0

        @hookimpl
        def on_batch(self, batch: Batch) -> None:
            self.seen += batch.events
            if self.seen > 10_000 and not cut.is_set():
                cut.set()
                terminate(pipeline, "replication")

    with pipeline.running(Cutting()) as run:
        database.execute("INSERT INTO t VALUES (0, 'before')")
        database.execute(
            "SET logical_decoding_work_mem = '64kB';"
            "INSERT INTO t SELECT g, repeat('x', 100) FROM generate_series(1, 30000) g"
        )
        run.until(lambda: reconnected(run), "the new stream")
        database.execute("INSERT INTO t VALUES (30001, 'after')")
        end = database.wal_end()
        run.until(lambda: pipeline.slot_lsns()[0] >= end, "the end")


@pytest.mark.parametrize(
    ("sink", "streaming"), [("kept", "off"), ("kept", "on"), ("changelog", "off")]
)
def test_a_link_that_breaks_inside_a_large_transaction_goes_on_inside_it(
    pipeline, tmp_path, sink, streaming
):
    """Rows that were stored before the break do not come again, and none is missing. A change log has begun the
    transaction and is given it again from its start."""
    pipeline.settings |= {"pgoutput.streaming": streaming, "sink.type": sink}
    if sink == "changelog":
        pipeline.settings["sink.path"] = str(tmp_path / "log")
    cut_inside(pipeline)
    ids = pipeline.destination.ids("t")
    if sink == "changelog":
        ids = logged_ids(tmp_path / "log")
    assert ids == list(range(30_002))


def test_a_link_that_breaks_inside_a_large_transaction_doubles_none_of_it_in_kafka(pipeline, kafka):
    pipeline.settings |= {
        "sink.type": "kafka",
        "sink.bootstrap.servers": kafka.bootstrap,
        "sink.delivery.guarantee": "exactly_once",
        "topic.prefix": (prefix := kafka.topic_name()),
        "sink.transactional.id": prefix,
    }
    cut_inside(pipeline)
    keys = [record.key() for record in read_all(kafka.bootstrap, f"{prefix}.public.t")]
    assert (len(keys), len(set(keys))) == (30_002, 30_002)


def test_a_dead_link_is_noticed_by_the_kernel(pipeline):
    """Nothing reports a network that swallows packets but the lack of acknowledgements."""
    pipeline.database.server.forget_session()
    with pipeline.running():
        descriptors = [
            c.fd
            for c in psutil.Process().net_connections("tcp")
            if c.raddr and c.raddr.port == pipeline.database.server.port
        ]  # type: ignore[union-attr]
        assert descriptors
        for descriptor in descriptors:
            probe = socket.socket(fileno=os.dup(descriptor))
            with probe:
                assert probe.getsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE) == 1
                idle = probe.getsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPIDLE)
                assert idle == 30
                assert probe.getsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT) == 60_000


class Cutting:
    """Ends connections when the first snapshot has got so far, a number of times."""

    def __init__(
        self, pipeline: PipelineRig, when: str, roles: tuple[str, ...], times: int = 1
    ) -> None:
        self._pipeline, self._when, self._roles, self.left = pipeline, when, roles, times

    def _reached(self, stage: str) -> None:
        if stage == self._when and self.left:
            self.left -= 1
            for role in self._roles:
                terminate(self._pipeline, role)

    @hookimpl
    def on_slot(self, event: str) -> None:
        self._reached(event)

    @hookimpl
    def on_snapshot(self, event: str, table: str) -> None:
        self._reached(f"{event} {table}".strip())


ALL_ROLES = ("catalogue", "replication")


@pytest.mark.parametrize(
    ("when", "roles", "sink", "mode"),
    [
        ("created", ALL_ROLES, "kept", "initial"),
        ("created", ALL_ROLES, "changelog", "always"),
        ("started", ("catalogue",), "kept", "always"),
        ("table_started public.t", ("snapshot",), "changelog", "initial"),
        ("table_completed public.t", ("snapshot", *ALL_ROLES), "kept", "always"),
        ("table_completed public.t", ("snapshot", *ALL_ROLES), "changelog", "initial"),
    ],
)
def test_a_first_snapshot_that_is_cut_is_taken_anew_by_itself(
    pipeline, database, tmp_path, when, roles, sink, mode
):
    """Nothing was delivered yet, or part of it; it happens twice in a row, but for a change log that has
    the table: the snapshot goes on, and the table is not completed again."""
    database.execute(
        "INSERT INTO t SELECT g, repeat('x', 1000) FROM generate_series(1, 20000) g;"
        "CREATE TABLE u (id int PRIMARY KEY, v text);"
        "INSERT INTO u SELECT g, repeat('x', 1000) FROM generate_series(1, 5000) g"
    )
    settings = {"snapshot.fetch.size": 1000, "snapshot.mode": mode}
    if sink == "changelog":
        settings |= {"sink.type": "changelog", "sink.path": str(tmp_path / "log")}
    cutting = Cutting(pipeline, when, roles, times=2)
    with pipeline.running(cutting, **settings) as run:
        again = [state for state, _ in run.notices.states].count("reconnecting")
        assert again == 2 - cutting.left
        database.execute("INSERT INTO t VALUES (40000, 'new')")
        run.until(lambda: database.slots(), "the slot")
    assert cutting.left == 0 or (sink == "changelog" and again and when.startswith("table_comp"))
    pipeline.catch_up(**{**settings, "snapshot.mode": "initial"})
    assert list(database.slots()) == [pipeline.slot]
    if sink == "changelog":
        rows = logged(tmp_path / "log")
        newest = max(row["_generation"] or 0 for row in rows)
        ids = [r["id"] for r in rows if r["_generation"] in {newest, None}]
        assert ids == [*range(1, 20001), 40000]
    else:
        assert pipeline.destination.ids("t")[-20001:] == [*range(1, 20001), 40000]
        assert pipeline.destination.ids("u")[-5000:] == list(range(1, 5001))


def test_a_link_that_breaks_while_the_slot_is_made_leaves_no_slot_in_the_way(pipeline, database):
    """The walsender still waits for a transaction when we come back, and holds the slot."""
    with database.connect(autocommit=False) as writer:
        writer.execute("INSERT INTO t VALUES (1, 'x')")
        with pipeline.running(ready=False) as run:
            run.until(lambda: database.slots(), "the slot in the making")
            terminate(pipeline, "catalogue")
            run.until(lambda: run.notices.failures, "the broken link")
            writer.commit()
            run.until(lambda: run.engine.state == "streaming", "streaming")
    assert pipeline.destination.ids("t") == [1]
    assert list(database.slots()) == [pipeline.slot]


@pytest.mark.exhaustive
def test_keepalives_are_answered_while_the_sink_blocks(pipeline, database):
    """The sink blocks for twice as long as the server waits for a sign of life."""
    database.execute(f"ALTER DATABASE \"{database.name}\" SET wal_sender_timeout = '12s'")
    blocked, release = pipeline.destination.hold(lambda batch: batch.events)
    with pipeline.running(**{"status.update.interval.ms": 60_000}) as run:
        database.execute("INSERT INTO t VALUES (1, 'x')")
        assert blocked.wait(WAIT_S)
        # more than the socket holds: the walsender blocks in its write, and must hear us there too
        database.execute(
            "INSERT INTO t SELECT g, repeat('x', 1000) FROM generate_series(2, 20000) g"
        )
        ((begun,),) = database.execute("SELECT clock_timestamp()")
        try:
            until(
                lambda: database.execute("SELECT clock_timestamp() > %s + interval '24.1s'", begun)[0][0],
                "two timeouts",
            )  # fmt: skip
        finally:
            release.set()
        run.until(lambda: len(pipeline.destination.ids("t")) == 20_000, "all rows")
        assert [state for state, _ in run.notices.states][-1] == "streaming"
        assert run.notices.failures == []


# --- a server of one's own ---------------------------------------------------------------------------


@pytest.fixture(scope="module")
def cluster() -> Iterator[Cluster]:
    with own_server() as made:
        yield made


def test_a_server_that_dies_and_comes_back_is_followed(cluster, tmp_path):
    database = cluster.create_database("died")
    database.execute("CREATE TABLE t (id int PRIMARY KEY, v text)")
    pipeline = PipelineRig(database, tmp_path)
    with pipeline.running() as run:
        database.execute("INSERT INTO t SELECT g, 'x' FROM generate_series(1, 500) g")
        cluster.kill()
        cluster.start()
        database.execute("INSERT INTO t SELECT g, 'x' FROM generate_series(501, 1000) g")
        run.until(lambda: len(pipeline.destination.ids("t")) >= 1000, "all rows")
        assert reconnected(run)
    assert pipeline.destination.ids("t") == list(range(1, 1001))
    database.drop()


def test_a_server_that_shuts_down_is_not_kept_waiting(cluster, tmp_path):
    """It ends when everything it has sent is confirmed: also what was sent of tables not captured."""
    database = cluster.create_database("down")
    database.execute("CREATE TABLE t (id int PRIMARY KEY); CREATE TABLE busy (id int)")
    pipeline = PipelineRig(
        database,
        tmp_path,
        # a server that waits for the next status does not stop in time, which fails
        {"status.update.interval.ms": 3_600_000, "table.include.list": "public.t"},
    )
    with pipeline.running() as run:
        database.execute("INSERT INTO busy SELECT generate_series(1, 1000)")
        cluster.stop()
        cluster.start()
        run.until(lambda: reconnected(run), "the new stream")


# --- waits end with a stop, wherever the thread waits --------------------------------------------------


STOP_S = 55.0


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


def ends_soon(run: Run) -> None:
    run.engine.stop()
    until(lambda: run.ended, "the end", within=STOP_S)


def stops(run: Run) -> None:
    """Stop; it is a clean end, soon, and leaves nothing on the server that works for nobody."""
    ends_soon(run)
    run.raise_error()
    ours = (
        "SELECT 1 FROM pg_stat_activity"
        " WHERE datname = current_database() AND application_name LIKE 'waltap%'"
    )
    until(lambda: not run.pipeline.database.execute(ours), "our connections to go")


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
    slots = list(database.slots())
    if wait.before:
        database.execute(wait.before)
    with database.connect() as other:
        other.execute(f"BEGIN; {wait.others}")
        with pipeline.running(ready=False) as run:
            run.until(waits(database, wait.role, event=wait.event), f"{what} to wait")
            stops(run)
    assert wait.role == "snapshot" or list(database.slots()) == slots
    pipeline.run(limits=Limits(until_idle=0.1), **{"heartbeat.interval.ms": 0, f"{OVERRIDE}.public.t": "SELECT * FROM t"})  # fmt: skip


def test_a_stop_ends_a_connection_to_a_black_hole(pipeline):
    with socket.create_server(("127.0.0.1", 0)) as hole:
        hole.settimeout(WAIT_S)
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
