"""The whole engine against a scripted walsender: faults of the stream that a real server rarely shows.

The frames are real: recorded from a slot of a real server, which also answers the catalogue queries.
The engine runs in a process of its own.
"""

import pytest
from tests.harness.scripted_run import records_of, run_scripted
from tests.harness.servers.postgres import Database

from waltap.changes.transactions.position import parse_lsn
from waltap_testing.recording import frames_of_slot
from waltap_testing.walsender import (
    READS,
    AwaitConfirmed,
    CutConnection,
    QueryForwarder,
    SendHalf,
    ServerError,
    StreamScript,
    XLogData,
)

SLOT = "scripted"


class Stage:
    """A database with changes in a slot, their frames, and the engine to run on them."""

    def __init__(self, database: Database, folder):
        self.database, self.folder = database, folder
        database.execute("CREATE TABLE t (id int PRIMARY KEY, a text)")
        database.execute("CREATE PUBLICATION scripted FOR TABLE t")
        database.execute(
            "SELECT pg_create_logical_replication_slot(%s, 'pgoutput')",
            f"{SLOT}_{database.name}"[:63],
        )
        self.slot = f"{SLOT}_{database.name}"[:63]
        for number in range(3):
            database.execute(
                f"INSERT INTO t SELECT g, 'row ' || g FROM generate_series({number}1, {number}5) g"
            )
        options = {"proto_version": "1", "publication_names": "scripted"}
        with database.connect() as connection:
            self.frames = [
                XLogData(payload, lsn)
                for lsn, payload in frames_of_slot(
                    lambda sql: connection.execute(sql.encode()), self.slot, options
                )
            ]
        commits = [n for n, frame in enumerate(self.frames) if frame.payload[:1] == b"C"]
        self.first_commit = commits[0]
        self.end = self.frames[commits[-1]].lsn
        self.first_end = self.frames[self.first_commit].lsn

    def run(self, server, *options):
        ran = run_scripted(
            "postgres", self.database, self.slot, server.port, self.folder, *options,
            **{"pgoutput.proto_version": 1, "pgoutput.messages": False},
        )  # fmt: skip
        return ran, [value["after"]["id"] for value in records_of(self.folder)]


@pytest.fixture
def stage(database: Database, tmp_path):
    return Stage(database, tmp_path)


@pytest.fixture
def scripted(stage, walsender):
    """Return a factory of walsenders whose catalogue is the real server's."""
    with QueryForwarder(stage.database.dsn) as catalogue:
        yield lambda *scripts, **options: walsender(
            *scripts, answers={READS: catalogue}, database=stage.database.name, **options
        )


ALL = [*range(1, 6), *range(11, 16), *range(21, 26)]


def test_a_cut_in_the_middle_of_a_transaction_loses_and_doubles_nothing(stage, scripted):
    """Half a frame, then nothing: the engine comes back and asks from the last whole transaction."""
    middle = stage.first_commit + 4
    broken = [
        *stage.frames[:middle],
        AwaitConfirmed(stage.first_end),
        SendHalf(stage.frames[middle], 17),
        CutConnection(),
    ]
    begin, *rest = stage.frames[stage.first_commit + 1 :]
    relation = stage.frames[1]  # a new session announces it anew
    server = scripted(broken, [begin, relation, *rest, AwaitConfirmed(stage.end)])
    ran, ids = stage.run(server, "--max-records", "15")
    assert ran.returncode == 0, ran.stderr
    assert ids == ALL
    assert server.streams == 2
    starts = [query for query in server.queries if query.startswith("START_REPLICATION")]
    assert parse_lsn(starts[1].split("LOGICAL ")[1].split()[0]) == stage.first_end


@pytest.mark.parametrize(
    "cut", [CutConnection(), CutConnection(reset=True)], ids=["closed", "reset"]
)
def test_what_was_delivered_and_not_confirmed_comes_again_and_is_not_doubled(stage, scripted, cut):
    """The server sends the first transaction again, as after a crash of its own."""
    server = scripted(
        [*stage.frames[: stage.first_commit + 1], AwaitConfirmed(stage.first_end), cut],
        [*stage.frames, AwaitConfirmed(stage.end)],
    )
    ran, ids = stage.run(server, "--max-records", "15")
    assert ran.returncode == 0, ran.stderr
    assert ids == ALL


def test_an_error_of_the_plugin_ends_the_run_with_its_text(stage, scripted):
    error = ServerError(
        "42704",
        'publication "scripted" does not exist',
        context='slot "s", output plugin "pgoutput", in the change callback',
    )
    server = scripted([*stage.frames[: stage.first_commit + 1], error])
    ran, ids = stage.run(server)
    assert ran.returncode in (1, 2, 3)
    assert "publication" in ran.stderr
    assert ids == ALL[: len(ids)]
    assert server.streams == 1


def test_a_slot_that_is_active_elsewhere_is_tried_again(stage, walsender):
    active = ServerError("55006", f'replication slot "{stage.slot}" is active for PID 4712')
    with QueryForwarder(stage.database.dsn) as catalogue:
        server = walsender(
            StreamScript((*stage.frames, AwaitConfirmed(stage.end)), matches="LOGICAL"),
            answers={"^START_REPLICATION": [active, active, None], READS: catalogue},
            database=stage.database.name,
        )
        ran, ids = stage.run(server, "--max-records", "15", "--set", "slot.retry.delay.ms=50")
    assert ran.returncode == 0, ran.stderr
    assert ids == ALL
