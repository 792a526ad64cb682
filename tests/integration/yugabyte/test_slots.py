"""Who reads a slot, when it may be dropped, and what a connection manager leaves of a session. Double A.

Verified against a protocol double built from published sources; no YugabyteDB server was run.
"""

import pytest
from tests.harness.yugabyte.pipeline import YugabytePipeline
from tests.integration.yugabyte.test_operations import ids

from waltap.errors import WaltapError
from waltap_postgres.errors import PositionGap
from waltap_yugabyte.errors import SlotRead, SlotStillActive

AT_ONCE = {"slot.max.retries": 0, "errors.max.retries": 0}


def test_a_second_process_on_a_slot_is_refused_until_the_first_is_gone(pipeline, tmp_path):
    """The cluster refuses none: each would get every change, and confirm what the other has not kept."""
    database = pipeline.server.database
    database.execute("INSERT INTO t VALUES (1, 'a', 1)")
    other = YugabytePipeline(pipeline.server, tmp_path / "other")
    taken = {"slot.takeover": True, "snapshot.mode": "no_data"}
    with pipeline.running() as run:
        run.until(lambda: ids(pipeline) == [1], "the row")
        with pytest.raises(WaltapError) as refused:
            other.run(**taken, **AT_ONCE)
        assert isinstance(refused.value, SlotRead)
        assert "waltap catalogue from 127.0.0.1" in refused.value.advice()
        database.execute("INSERT INTO t VALUES (2, 'b', 2)")
        run.until(lambda: ids(pipeline) == [1, 2], "the next row")
    with other.running(**taken) as run:  # which waits for the session that ends
        database.execute("INSERT INTO t VALUES (3, 'c', 3)")
        run.until(lambda: 3 in ids(other), "the row after")


def test_the_reader_that_is_left_over_is_ended_by_what_the_error_says(pipeline):
    server = pipeline.server
    with pipeline.running():
        pass
    with server.connect() as held:
        held.execute("SET application_name = 'left over'")
        ((key,),) = held.execute(
            "SELECT ('x' || substr(encode(sha256(convert_to(%s, 'UTF8')), 'hex'), 1, 16))::bit(64)::int8",
            [f"waltap slot {pipeline.slot}"],
        ).fetchall()
        held.execute("SELECT pg_advisory_lock(%s)", [key])
        with pytest.raises(SlotRead) as refused:
            pipeline.run(**AT_ONCE)
        ending = refused.value.advice().partition("SELECT ")[2].partition(" ends it")[0]
        server.database.execute(f"SELECT {ending}")
    with pipeline.running() as run:
        server.database.execute("INSERT INTO t VALUES (1, 'a', 1)")
        run.until(lambda: ids(pipeline) == [1], "the row")


def test_a_release_without_advisory_locks_is_read_all_the_same(pipeline):
    pipeline.server.locks = False
    with pipeline.running() as run:
        pipeline.server.database.execute("INSERT INTO t VALUES (1, 'a', 1)")
        run.until(lambda: ids(pipeline) == [1], "the row")


def test_a_slot_is_dropped_minutes_after_its_last_reader_and_its_name_begins_anew(pipeline):
    server, database = pipeline.server, pipeline.server.database
    server.stays_active = True
    database.execute("INSERT INTO t VALUES (1, 'a', 1)")
    with (
        pytest.raises(SlotStillActive) as refused,
        pipeline.running(**{"slot.drop.on.stop": True}) as run,
    ):
        run.until(lambda: ids(pipeline) == [1], "the row")
    assert refused.value.code == "WT-2154"
    assert "Try again later" in refused.value.advice()
    database.execute("INSERT INTO t VALUES (2, 'b', 2)")
    with pipeline.running() as run:  # nothing is lost: the slot is there, and so is the position
        run.until(lambda: ids(pipeline) == [1, 2], "the next row")
    server.quiet()
    assert server.execute("SELECT pg_drop_replication_slot(%s)", pipeline.slot)
    server.create(f'CREATE_REPLICATION_SLOT "{pipeline.slot}" LOGICAL yboutput')
    with pytest.raises(PositionGap, match="created again"):  # the name alone says nothing
        pipeline.run()


def test_settings_arrive_through_a_connection_manager(pipeline):
    """It drops the options of a start packet: values would be written as the role has them."""
    server, database = pipeline.server, pipeline.server.database
    server.managed = True
    for setting in ("DateStyle = 'SQL, DMY'", "bytea_output = 'escape'", "TimeZone = 'Asia/Tokyo'"):
        database.execute(f'ALTER DATABASE "{database.name}" SET {setting}')
    database.execute("CREATE TABLE v (id int PRIMARY KEY, day date, raw bytea, at timestamptz)")
    values = "'2001-02-03', '\\x00ff', '2001-02-03 04:05:06+00'"
    database.execute(f"INSERT INTO v VALUES (1, {values})")
    with pipeline.running() as run:
        run.until(lambda: len(pipeline.events("v")) == 1, "the row that is read")
        database.execute(f"INSERT INTO v VALUES (2, {values})")
        run.until(lambda: len(pipeline.events("v")) == 2, "the row that is streamed")
    (read, streamed) = (after for _, _, _, after in pipeline.events("v"))
    assert read["day"]["value"] == 11356
    assert read["raw"]["value"] == "AP8="
    assert read["at"]["value"] == "2001-02-03T04:05:06.000000Z"
    assert {n: v for n, v in read.items() if n != "id"} == {
        n: v for n, v in streamed.items() if n != "id"
    }
