"""Scenarios of positions, on double B: a scripted walsender that speaks YugabyteDB's LSN words.

The catalogue behind it is that of double A's database. Bytes are written from the published layout.
Verified against a protocol double built from published sources; no YugabyteDB server was run.
"""

import dataclasses
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest
from tests.harness import pgoutput_wire as wire
from tests.harness.command import waltap
from tests.harness.json_lines import records
from tests.harness.pipeline import WAIT_S, profile_text
from tests.harness.servers.postgres import Database
from tests.harness.yugabyte.server import SETTINGS, through_double
from tests.harness.yugabyte.wire import FLUSHED

from waltap.changes.transactions.position import parse_lsn
from waltap_testing.walsender import (
    READS,
    Answer,
    AwaitConfirmed,
    CutConnection,
    QueryForwarder,
    ReceivedQuery,
    ScriptedWalsender,
    SendHalf,
    SendKeepalive,
    ServerError,
    XLogData,
)

SLOT = "scripted"
INT4, TEXT = 23, 25


class Stage:
    """A slot that the catalogue knows, and an engine that runs against a script."""

    def __init__(self, database: Database, folder: Path) -> None:
        self.database, self.folder, self.out = database, folder, folder / "out.jsonl"
        schema = Path(__file__).parents[2] / "harness" / "yugabyte" / "schema.sql"
        database.execute(schema.read_text())
        database.execute("CREATE TABLE t (id int PRIMARY KEY, name text, aura int)")
        self.oid = int(database.execute("SELECT 't'::regclass::oid::int8")[0][0])
        database.execute("CREATE PUBLICATION scripted FOR TABLE t")
        self.slot = f"{SLOT}_{database.name}"[:63]
        database.execute("SELECT pg_create_logical_replication_slot(%s, 'yboutput')", self.slot)
        self.state(confirmed=2)

    def state(self, *, confirmed: int, lsn_type: str = "SEQUENCE") -> None:
        """Let the catalogue show the slot there."""
        self.database.execute("DELETE FROM yb_double.slots")
        self.database.execute(
            "INSERT INTO yb_double.slots VALUES (%s, 'stream', %s, 1, '', %s, false, '{}')",
            self.slot, lsn_type, confirmed,
        )  # fmt: skip

    # --- frames ---

    def relation(self) -> XLogData:
        columns = [("id", INT4, -1, True), ("name", TEXT, -1, False), ("aura", INT4, -1, False)]
        return XLogData(wire.relation(self.oid, "public", "t", columns, "c"))

    def insert(self, lsn: int, *values: object) -> XLogData:
        return XLogData(wire.insert(self.oid, values), lsn)

    def transaction(
        self, first: int, xid: int, rows: Sequence[XLogData], *, between: Sequence[XLogData] = ()
    ) -> list[XLogData]:
        """Return a transaction of a SEQUENCE slot: its BEGIN has the number before its first row's."""
        commit = first + 1 + len(rows)
        begin = XLogData(wire.begin(commit, 0, xid), first + 1)
        end = XLogData(wire.commit(commit, commit + 1), commit + 1)
        return [begin, *between, *rows, end]

    # --- the engine ---

    def run(self, server: ScriptedWalsender, *options: str, **settings: Any) -> str:
        """Run, to a good end where there are ``options`` for one; return what it said."""
        source = {
            "type": "yugabyte", **self.database.properties(), "database.port": server.port,
            "database.sslmode": "disable", "slot.name": self.slot, "slot.takeover": True,
            "publication.name": "scripted", "publication.autocreate.mode": "disabled",
            "snapshot.mode": "no_data", "topic.prefix": "s", "yb.event.form": "cells",
            "retriable.restart.connector.wait.ms": 50, "offset.flush.interval.ms": 0,
            "waltap.state.dir": str(self.folder / "state"), **settings,
        }  # fmt: skip
        profile, sink = self.folder / "profile.toml", {"type": "jsonl", "path": str(self.out)}
        profile.write_text(profile_text(self.slot, source, sink))
        ran = waltap("run", profile, "--max-seconds", "240", *options)
        assert (ran.returncode == 0) is bool(options), ran.stderr
        return str(ran.stderr)

    def values(self) -> list[dict[str, Any]]:
        return [record["value"] for record in records(self.out)]

    def ids(self) -> list[int]:
        return [value["after"]["id"]["value"] for value in self.values()]


@pytest.fixture
def stage(yb_database, tmp_path) -> Stage:
    return Stage(yb_database, tmp_path)


@pytest.fixture
def scripted(stage, walsender) -> Iterator[Callable[..., ScriptedWalsender]]:
    """Return a factory of walsenders whose catalogue is the double's."""
    dsn = f"{stage.database.dsn}?options={SETTINGS.replace(' ', '%20').replace('=', '%3D')}"
    with QueryForwarder(dsn) as catalogue:

        def answer(query: ReceivedQuery) -> Answer:
            return catalogue(dataclasses.replace(query, text=through_double(query.text)))

        yield lambda *scripts, **options: walsender(
            *scripts, answers={READS: answer}, database=stage.database.name, **options
        )


def starts(server: ScriptedWalsender) -> list[int]:
    asked = [query for query in server.queries if query.startswith("START_REPLICATION")]
    return [parse_lsn(query.split("LOGICAL ")[1].split()[0]) for query in asked]


def test_scenario_23_numbers_and_no_duplicate_after_a_reconnect(stage, scripted):
    first = stage.transaction(2, 2, [stage.insert(3, 1, "a", 10)], between=[stage.relation()])
    second = stage.transaction(5, 3, [stage.insert(6, 2, "b", 20)], between=[stage.relation()])
    server = scripted(
        [*first, AwaitConfirmed(5, WAIT_S), second[0], SendHalf(second[2], 17), CutConnection()],
        [*second, AwaitConfirmed(8, WAIT_S)],
    )
    stage.run(server, "--max-records", "2")
    assert [(v["source"]["lsn"], v["source"]["txId"]) for v in stage.values()] == [(3, 2), (6, 3)]
    assert starts(server) == [2, 5]
    assert {update.flushed for update in server.feedback} <= {2, 5, 8}
    assert not [query for query in server.queries if "IDENTIFY_SYSTEM" in query]


@pytest.mark.parametrize("reset", [False, True], ids=["closed", "reset"])
def test_scenario_23_what_comes_again_is_left_out(stage, scripted, reset):
    """The acknowledgement was lost with the link: the server sends the first transaction again."""
    first = stage.transaction(2, 2, [stage.insert(3, 1, "a", 10)], between=[stage.relation()])
    second = stage.transaction(5, 3, [stage.insert(6, 2, "b", 20)])
    server = scripted(
        [*first, AwaitConfirmed(5, WAIT_S), CutConnection(reset=reset)],
        [*first, *second, AwaitConfirmed(8, WAIT_S)],
    )
    stage.run(server, "--max-records", "2")
    assert stage.ids() == [1, 2]


def test_scenario_24_a_transaction_that_comes_whole_is_taken_up_inside(stage, scripted):
    """The run ends inside a transaction of 6 to 8; the next one gets it whole."""
    rows = [stage.insert(6, 1, "a", 1), stage.insert(7, 2, "b", 2)]
    whole = stage.transaction(5, 3, rows, between=[stage.relation()])
    stage.state(confirmed=5)
    server = scripted([*whole[:3]], [*whole, AwaitConfirmed(9, WAIT_S)])
    stage.run(server, "--max-records", "1")
    assert stage.ids() == [1]
    assert all(update.flushed <= 5 for update in server.feedback)
    stage.run(server, "--max-records", "1")
    assert stage.ids() == [1, 2]


def test_scenario_25_commit_times(stage, scripted):
    """All records of a transaction have one LSN; what is acknowledged lies before the last commit."""
    stage.state(confirmed=2, lsn_type="HYBRID_TIME")
    times = [parse_lsn(text) for text in ("62D63024/0", "62D63025/5462E000", "62D63026/1000")]

    def at(number: int, *rows: int) -> list[XLogData]:
        time = times[number]
        listed = [XLogData(wire.insert(stage.oid, (n, "x", n)), time) for n in rows]
        begin = XLogData(wire.begin(time, 0, number + 2), time)
        return [begin, stage.relation(), *listed, XLogData(wire.commit(time, time + 1), time + 1)]

    middle = at(1, 2, 3, 4)
    server = scripted(
        [*at(0, 1), *middle[:4], CutConnection()],  # a cut between rows
        [
            *at(0, 1),
            *middle,
            AwaitConfirmed(times[0], WAIT_S),
            *at(2, 5),
            AwaitConfirmed(times[1], WAIT_S),
        ],
        [*middle, *at(2, 5)],
    )
    stage.run(server, "--max-records", "5")
    assert stage.ids() == [1, 2, 3, 4, 5]
    assert {v["source"]["lsn"] for v in stage.values()[1:4]} == {times[1]}
    assert {update.flushed for update in server.feedback} <= {0, 2, *times[:2]}
    stage.run(server, "--until-idle", "1")
    assert stage.ids() == [1, 2, 3, 4, 5]
    # the bound is inclusive: the commit behind which it goes on is asked for, and left out
    first, again, last = starts(server)
    assert first == 2
    assert again in {2, times[0]}
    assert last in times[1:]


def test_scenario_33_origins_and_keepalives_with_the_highest_position(stage, scripted):
    origin = XLogData(wire.origin(9, "elsewhere"), 3)
    first = stage.transaction(
        2, 2, [stage.insert(3, 1, "a", 10)], between=[origin, stage.relation()]
    )
    second = stage.transaction(5, 3, [stage.insert(6, 2, "b", 20)])
    high = [SendKeepalive(FLUSHED), SendKeepalive(FLUSHED, reply=True)]
    confirmed = [AwaitConfirmed(end, WAIT_S) for end in (5, 8)]
    script = [*high, *first, *high, confirmed[0], *high, *second, *high, confirmed[1], *high]
    server = scripted(script, high)
    for end in (("--until-lsn", "0/8"), ("--until-idle", "0.5")):
        stage.run(server, *end, **{"status.update.interval.ms": 20})
    assert (stage.ids(), starts(server)) == ([1, 2], [2, 8])
    assert {update.flushed for update in server.feedback} <= {2, 5, 8}


def test_errors_of_a_stream_that_pass_are_tried_again_and_final_ones_are_not(stage, scripted):
    first = stage.transaction(2, 2, [stage.insert(3, 1, "a", 10)], between=[stage.relation()])
    passing = "Catalog Version Mismatch: A DDL occurred while processing this query. Try again."
    final = ServerError("42704", 'publication "scripted" does not exist')
    server = scripted(
        [ServerError("XX000", passing)],
        [ServerError("57P01", "terminating connection", severity="FATAL")],
        [*first, AwaitConfirmed(5, WAIT_S), final],
    )
    assert "WT-2113" in stage.run(server, **{"errors.max.retries": 3})
    assert (stage.ids(), server.streams) == ([1], 3)
