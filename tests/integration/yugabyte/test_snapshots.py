"""Scenarios of snapshots, on double A: ``yb_read_time`` shows the rows as of the slot's time.

Verified against a protocol double built from published sources; no YugabyteDB server was run.
"""

import pytest
from tests.harness.pipeline import until
from tests.harness.yugabyte.pipeline import YugabytePipeline, cell

from waltap.cli.profile_source import connected
from waltap.errors import WaltapError
from waltap_yugabyte.errors import ReadTimeRefused, TimeTooOld


@pytest.fixture
def filled(pipeline) -> YugabytePipeline:
    pipeline.server.database.execute("INSERT INTO t VALUES (1, 'a', 1), (2, 'b', 2), (3, NULL, 3)")
    return pipeline


def read_rows(pipeline: YugabytePipeline) -> list[int]:
    return [after["id"]["value"] for op, _, _, after in pipeline.events() if op == "r"]


def test_scenario_19_the_snapshot_is_as_of_the_slots_time(filled):
    server, database = filled.server, filled.server.database
    done: list[str] = []

    def meanwhile(_count: object = None) -> None:
        """Change rows between the making of the slot and the reading."""
        if not done:
            done.append("once")
            database.execute(
                "UPDATE t SET aura = 99; DELETE FROM t WHERE id = 2; INSERT INTO t VALUES (4)"
            )

    server.before_read_time = meanwhile
    with filled.running() as run:
        run.until(lambda: len(filled.events()) == 8, "rows and changes")
    events = filled.events()
    assert [event[0] for event in events] == ["r"] * 3 + ["u"] * 3 + ["d", "c"]
    assert events[0][3] == {"id": cell(1), "name": cell("a"), "aura": cell(1)}
    assert events[2][3] == {"id": cell(3), "name": cell(None), "aura": cell(3)}
    patterns = (
        "CREATE PUBLICATION", "^CREATE_REPLICATION_SLOT", "BEGIN ISOLATION LEVEL",
        "yb_disable_catalog_version_check", r"SET LOCAL yb_read_time TO '\d+ ht'", "^COPY",
        "^START_REPLICATION",
    )  # fmt: skip
    order = [server.said.index(server.asked(pattern)[0]) for pattern in patterns]
    assert order == sorted(order)
    # as Debezium's connector: first with an exported snapshot, which this release does not have
    made = f'CREATE_REPLICATION_SLOT "{filled.slot}" LOGICAL yboutput'
    assert server.asked("^CREATE_REPLICATION_SLOT") == [f"{made} EXPORT_SNAPSHOT", made]
    assert [source["txId"] for source in filled.sources()[:3]] == [2, 2, 2]
    assert server.refused == []


def test_newer_releases_export_a_snapshot_that_every_reader_imports(filled):
    """No right is needed for it: ``yb_read_time`` is never set."""
    server, database = filled.server, filled.server.database
    server.exports, server.superuser = True, False
    database.execute("INSERT INTO t SELECT n, 'x', n FROM generate_series(10, 3000) n")

    def all_readers(_count: int) -> None:
        """Have none of them read everything before the last has come."""
        until(lambda: len(server.asked("^SET TRANSACTION SNAPSHOT")) >= 3, "the readers")
        database.execute("DELETE FROM t WHERE id = 3000")

    server.after_copy = all_readers
    settings = {"snapshot.max.threads": 3, "snapshot.fetch.size": 50,
                "primary.key.hash.columns": "id", "slot.lsn.type": "HYBRID_TIME"}  # fmt: skip
    with filled.running(**settings) as run:
        run.until(lambda: any(event[0] == "d" for event in filled.events()), "the row that went")
    assert sorted(read_rows(filled)) == [1, 2, 3, *range(10, 3001)]
    made = server.asked("^CREATE_REPLICATION_SLOT")
    assert made == [
        f'CREATE_REPLICATION_SLOT "{filled.slot}" LOGICAL yboutput HYBRID_TIME EXPORT_SNAPSHOT'
    ]
    imported = server.asked("^SET TRANSACTION SNAPSHOT")
    assert len(imported) >= 3
    assert len(set(imported)) == 1
    assert server.asked("yb_read_time|set_yb_read_time") == []
    assert server.refused == []


def test_other_processes_read_a_snapshot_as_of_the_slots_time(filled):
    host, _ = filled.host()
    with connected(filled.profile(host), host) as (connector, _):
        chunks = connector.chunks(connector.prepare(None))
        filled.server.database.execute("UPDATE t SET aura = 99; INSERT INTO t VALUES (4)")
        read = [row for chunk in chunks for piece in chunk.read() for row in piece.rows]
        connector.undo()
    assert sorted(read) == [("1", "a", "1"), ("2", "b", "2"), ("3", None, "3")]


def test_a_snapshot_that_broke_off_goes_by_the_slots_time_where_one_was_exported(filled):
    """What was exported went with its connection; the slot still has its time."""
    server, database = filled.server, filled.server.database
    server.exports = True
    server.after_copy = lambda count: server.cut() if count == 1 else None
    with filled.running() as run:
        database.execute("UPDATE t SET aura = -1 WHERE id = 1")
        run.until(lambda: any(event[0] == "u" for event in filled.events()), "the change")
    assert set(read_rows(filled)) == {1, 2, 3}
    assert len(server.asked("^CREATE_REPLICATION_SLOT")) == 1
    assert len(server.asked("^SET TRANSACTION SNAPSHOT")) == 1
    assert len(server.asked("yb_read_time")) == 1
    assert server.refused == []


def test_scenario_20_a_slot_that_is_there_gives_its_time_and_position(filled):
    server, database = filled.server, filled.server.database
    name = filled.settings["publication.name"]
    database.execute(f'CREATE PUBLICATION "{name}" FOR TABLE t')
    answer = server.create(f'CREATE_REPLICATION_SLOT "{filled.slot}" LOGICAL yboutput')
    assert answer[:1] == b"T"
    database.execute("UPDATE t SET aura = 99 WHERE id = 1")
    with filled.running(**{"slot.takeover": True}) as run:
        run.until(lambda: len(filled.events()) == 4, "rows and the change")
    assert [event[0] for event in filled.events()] == ["r", "r", "r", "u"]
    assert filled.events()[0][3]["aura"] == cell(1)
    ((commit_ht,),) = server.execute(
        "SELECT yb_restart_commit_ht FROM pg_replication_slots WHERE slot_name = %s", filled.slot
    )
    assert server.asked(f"yb_read_time TO '{commit_ht} ht'")
    assert [start.lsn for start in server.streams] == [2]


def test_scenario_21_a_role_that_is_no_superuser_calls_the_procedure(filled):
    filled.server.superuser, filled.server.procedures = False, True
    with filled.running() as run:
        run.until(lambda: len(filled.events()) == 3, "the rows")
    assert filled.server.asked(r"CALL set_yb_read_time\('\d+ ht'\)")


def test_scenario_21_without_one_nothing_is_called_complete(filled):
    filled.server.superuser = False
    with pytest.raises(ReadTimeRefused) as refused:
        filled.run()
    assert "CREATE PROCEDURE" in str(refused.value)
    assert filled.records() == []
    assert filled.offset() is None  # a start that comes to nothing leaves nothing behind


def test_a_snapshot_without_a_common_time_repeats_what_changed_meanwhile(filled):
    with filled.running(**{"yb.consistent.snapshot": False}) as run:
        run.until(lambda: len(filled.events()) == 3, "the rows")
    assert filled.server.asked("yb_read_time") == []


def test_scenario_22_a_crash_in_the_snapshot_and_one_after_it(filled, tmp_path):
    """In it: all rows again, of the same time and slot. After it: none."""
    server, database = filled.server, filled.server.database
    database.execute("INSERT INTO t SELECT n, 'x', n FROM generate_series(10, 400) n")
    settings = {"snapshot.fetch.size": 10, "offset.flush.interval.ms": 0}
    cuts: list[str] = []

    def cut_once(count: int) -> None:
        if count == 1 and not cuts:
            cuts.append("cut")
            server.cut()

    server.after_copy = cut_once
    with filled.running(**settings) as run:
        database.execute("UPDATE t SET aura = -1 WHERE id = 1")
        run.until(lambda: any(event[0] == "u" for event in filled.events()), "the change")
    assert cuts == ["cut"]
    assert set(read_rows(filled)) == {1, 2, 3, *range(10, 401)}
    before = len(read_rows(filled))
    assert len(server.asked("^CREATE_REPLICATION_SLOT.*LOGICAL yboutput$")) == 1
    with filled.running(**settings) as run:
        database.execute("UPDATE t SET aura = -2 WHERE id = 1")
        run.until(lambda: sum(event[0] == "u" for event in filled.events()) == 2, "the next")
    assert len(read_rows(filled)) == before


def test_errors_of_the_read_time_that_is_too_old(filled):
    filled.server.forget_snapshots = True
    with pytest.raises(WaltapError) as refused:
        filled.run(**{"errors.max.retries": 0})
    assert isinstance(refused.value, TimeTooOld)
