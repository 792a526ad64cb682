"""Links that break, on real servers: the engine comes back, goes on, and loses nothing."""

import os
import socket
import threading
from collections.abc import Iterator

import psutil
import pytest
from tests.harness.pipeline import WAIT_S, PipelineRig, Run, until
from tests.harness.servers.own_server import own_server
from tests.harness.servers.postgres import Cluster

from waltap.changes.transactions.transaction import Batch
from waltap.plugins.hookspecs import hookimpl
from waltap_sinks.changelog import ChangeLog

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


def reconnected(run: Run, times: int = 1) -> bool:
    states = [state for state, _ in run.notices.states]
    return states.count("reconnecting") >= times and states[-1] == "streaming"


def test_a_catalogue_connection_that_ends_is_replaced_when_it_is_needed(pipeline, database):
    with pipeline.running() as run:
        database.execute("INSERT INTO t VALUES (1, 'x')")
        run.until(lambda: pipeline.destination.ids("t") == [1], "the first row")
        terminate(pipeline, "catalogue")
        database.execute("ALTER TABLE t ADD w int DEFAULT 7; INSERT INTO t VALUES (2, 'y')")
        run.until(lambda: reconnected(run), "the new connections")
        run.until(lambda: pipeline.destination.ids("t") == [1, 2], "the second row")
    assert pipeline.destination.of("t")[1].row == {"id": "2", "v": "y", "w": "7"}


@pytest.mark.parametrize(
    ("sink", "streaming"), [("kept", "off"), ("kept", "on"), ("changelog", "off")]
)
def test_a_link_that_breaks_inside_a_large_transaction_goes_on_inside_it(
    pipeline, tmp_path, sink, streaming
):
    """Rows that were stored before the break do not come again, and none is missing. A change log has begun the
    transaction and is given it again from its start."""
    database, cut = pipeline.database, threading.Event()

    class Cutting:
        seen = 0

        @hookimpl
        def on_batch(self, batch: Batch) -> None:
            self.seen += batch.events
            if self.seen > 10_000 and not cut.is_set():
                cut.set()
                terminate(pipeline, "replication")

    pipeline.settings |= {"pgoutput.streaming": streaming, "sink.type": sink}
    if sink == "changelog":
        pipeline.settings["sink.path"] = str(tmp_path / "log")
    with pipeline.running(Cutting()) as run:
        database.execute("INSERT INTO t VALUES (0, 'before')")
        database.execute(
            "SET logical_decoding_work_mem = '64kB';"
            "INSERT INTO t SELECT g, repeat('x', 100) FROM generate_series(1, 30000) g"
        )
        run.until(lambda: reconnected(run), "the new stream")
        database.execute("INSERT INTO t VALUES (30001, 'after')")
    pipeline.catch_up()
    ids = pipeline.destination.ids("t")
    if sink == "changelog":
        tables = ChangeLog(str(tmp_path / "log")).rows("public", "t")
        ids = [number for table in tables for number in table.column("id").to_pylist()]
    assert ids == list(range(30_002))


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
        log = ChangeLog(str(tmp_path / "log"))
        rows = [row for part in log.rows("public", "t") for row in part.to_pylist()]
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
