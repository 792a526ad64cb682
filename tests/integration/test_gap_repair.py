"""Gaps: what is certified where positions are lost, what `waltap repair` makes of it, and remedies of several steps, carried
out as they are printed."""

import subprocess
from collections.abc import Iterator
from datetime import UTC, datetime
from functools import partial

import pytest
from tests.harness.pipeline import SIGNALS, PipelineRig
from tests.harness.servers.postgres import queries
from tests.harness.sql import pipeline as to_replica

from waltap.changes.transactions.position import parse_lsn
from waltap.pipeline.api.repair import RepairIncomplete
from waltap.pipeline.runtime.lock import PipelineRunning
from waltap.ports.offsets.gaps import CaptureGap, GapCertificates, GapEnd
from waltap_postgres.errors import PositionGap, SlotMissing


@pytest.fixture
def pipeline(database, tmp_path) -> Iterator[PipelineRig]:
    database.psql(
        "CREATE TABLE t (id int PRIMARY KEY, v text); INSERT INTO t VALUES (1, 'a'), (2, 'b'), (3, 'c');"
        "CREATE TABLE u (id int PRIMARY KEY); INSERT INTO u VALUES (1)"
    )
    made = PipelineRig(database, tmp_path)
    made.catch_up()
    yield made


def gaps(pipeline: PipelineRig) -> GapCertificates:
    return GapCertificates(pipeline.folder / "state" / "p")


def lose(pipeline: PipelineRig) -> None:
    pipeline.database.execute("SELECT pg_drop_replication_slot(%s)", pipeline.slot)
    pipeline.database.psql(
        "UPDATE t SET v = 'B' WHERE id = 2; INSERT INTO t VALUES (4, 'd'); INSERT INTO u VALUES (2)"
    )


def rows(pipeline: PipelineRig, table: str) -> dict[int, str]:
    found = pipeline.destination.table(table).values()
    return {int(row["id"]): str(row.get("v")) for row in found}


def test_what_a_gap_left_out_is_read_anew(pipeline):
    lose(pipeline)
    before = datetime.now(UTC).isoformat()
    with pytest.raises(SlotMissing):
        pipeline.run()
    (gap,) = gaps(pipeline).open()
    assert (gap.code, gap.tables) == ("WT-2103", ("public.t", "public.u"))
    assert parse_lsn(gap.begin.lsn) < parse_lsn(gap.end.lsn)
    assert gap.begin.time < before < gap.end.time
    assert rows(pipeline, "t") == {1: "a", 2: "b", 3: "c"}
    found = pipeline.repair()
    assert {name: each.rows for name, each in found.items()} == {"public.t": 4, "public.u": 2}
    assert rows(pipeline, "t") == {1: "a", 2: "B", 3: "c", 4: "d"}
    (closed,) = gaps(pipeline).all()
    assert (closed.open, closed.by, closed.reread) == (False, "repair", found)
    assert "waltap verify FILE" in closed.remark
    pipeline.deliver("INSERT INTO t VALUES (5, 'e')")
    assert rows(pipeline, "t") == {1: "a", 2: "B", 3: "c", 4: "d", 5: "e"}


def test_a_snapshot_closes_the_gaps_of_the_tables_that_it_reads(pipeline):
    lose(pipeline)
    needed = {"snapshot.mode": "when_needed"}
    pipeline.catch_up(**needed, **{"snapshot.include.collection.list": r"public\.t"})
    assert rows(pipeline, "t") == {1: "a", 2: "B", 3: "c", 4: "d"}
    (gap,) = gaps(pipeline).open()
    assert gap.tables == ("public.t", "public.u")
    pipeline.repair()
    assert sorted(rows(pipeline, "u")) == [1, 2]
    pipeline.database.execute("SELECT pg_drop_replication_slot(%s)", pipeline.slot)
    pipeline.catch_up(**needed)
    assert [each.by for each in gaps(pipeline).all()] == ["repair", "snapshot"]


def test_writers_beside_the_repair_lose_nothing(pipeline):
    lose(pipeline)
    database = pipeline.database
    database.execute("INSERT INTO t SELECT g, 'x' FROM generate_series(100, 400) g")
    pipeline.settings["incremental.snapshot.chunk.size"] = 20
    at: list[int] = []

    def write(_batch: object) -> None:
        if len(at) < 40:
            at.append(len(at))
            database.execute("UPDATE t SET v = 'y' WHERE id = %s", 100 + 7 * len(at))
            database.execute("INSERT INTO t VALUES (%s, 'z')", 1000 + len(at))

    pipeline.destination.before_write = write
    pipeline.repair()
    pipeline.destination.before_write = lambda _batch: None
    pipeline.catch_up()
    wanted = dict(database.execute("SELECT id, v FROM t"))
    assert rows(pipeline, "t") == wanted
    assert len(at) > 5


def test_a_slot_that_was_made_anew_by_hand_is_gone_on_with(pipeline):
    lose(pipeline)
    database = pipeline.database
    database.execute("SELECT pg_create_logical_replication_slot(%s, 'pgoutput')", pipeline.slot)
    database.execute("INSERT INTO t VALUES (5, 'e')")
    with pytest.raises(PositionGap):
        pipeline.run()
    (gap,) = gaps(pipeline).open()
    assert gap.code == "WT-6101"
    pipeline.repair()
    assert rows(pipeline, "t") == {1: "a", 2: "B", 3: "c", 4: "d", 5: "e"}


def test_a_table_that_cannot_be_read_keeps_the_gap_open(pipeline):
    lose(pipeline)
    pipeline.database.psql(
        "CREATE TABLE keyless (v text); ALTER TABLE keyless REPLICA IDENTITY FULL"
    )
    with pytest.raises(SlotMissing):
        pipeline.run()
    with pytest.raises(RepairIncomplete, match=r"public\.keyless was not read: it has no key"):
        pipeline.repair()
    assert len(gaps(pipeline).open()) == 1
    assert rows(pipeline, "t") == {1: "a", 2: "B", 3: "c", 4: "d"}  # what could be read is there


REFUSED = (
    "CREATE FUNCTION no() RETURNS trigger LANGUAGE plpgsql AS"
    " $$BEGIN RAISE insufficient_privilege USING MESSAGE = 'not you'; END$$;"
    "CREATE TRIGGER no BEFORE INSERT ON signals FOR EACH ROW EXECUTE FUNCTION no()"
)


@pytest.mark.parametrize("why", ["nothing may be written there", "stopped"])
def test_a_reading_that_ends_early_keeps_the_gap_open(pipeline, why):
    lose(pipeline)
    with pytest.raises(SlotMissing):
        pipeline.run()
    pipeline.database.psql(f"{SIGNALS}; {REFUSED if why != 'stopped' else ''}")
    pipeline.settings |= {
        "signal.data.collection": "public.signals",
        "incremental.snapshot.chunk.size": 1,
    }

    def write(_batch: object) -> None:
        if why == "stopped" and len(pipeline.destination.pieces()) == before:
            pipeline.signal("stop-snapshot", type="incremental")

    before = len(pipeline.destination.pieces())
    pipeline.destination.before_write = write
    with pytest.raises(RepairIncomplete, match=r"public\.u was not read: its reading was stopped"):
        pipeline.repair()
    assert len(gaps(pipeline).open()) == 1


@pytest.mark.parametrize("gone", [["public.u"], ["public.t", "public.u"]], ids=["one", "all"])
def test_a_table_that_is_gone_needs_no_repair(pipeline, gone):
    lose(pipeline)
    with pytest.raises(SlotMissing):
        pipeline.run()
    pipeline.database.execute(f"DROP TABLE {', '.join(gone)}")
    assert set(pipeline.repair()) == {"public.t", "public.u"}.difference(gone)
    (closed,) = gaps(pipeline).all()
    assert f"No longer captured, and not read: {', '.join(gone)}." in closed.remark


def test_a_repair_beside_the_pipeline_is_refused(pipeline):
    with pipeline.running(), pytest.raises(PipelineRunning):
        pipeline.repair()


def test_only_what_differs_at_a_destination_that_can_be_read_is_read_anew(database, tmp_path):
    database.psql(
        "CREATE TABLE t (id int PRIMARY KEY, v text); INSERT INTO t VALUES (1, 'a'), (2, 'b'), (3, 'c');"
        "CREATE TABLE u (id int PRIMARY KEY); INSERT INTO u SELECT generate_series(1, 50)"
    )
    pipeline = to_replica(database, tmp_path)
    pipeline.catch_up()
    database.execute("SELECT pg_drop_replication_slot(%s)", pipeline.slot)
    database.psql("UPDATE t SET v = 'B' WHERE id = 2; INSERT INTO t VALUES (4, 'd')")
    found = pipeline.repair()
    assert {name: (each.rows, each.compared) for name, each in found.items()} == {
        "public.t": (4, True),
        "public.u": (0, True),
    }
    there = database.execute("SELECT id, v FROM replica.t ORDER BY id")
    assert there == database.execute("SELECT id, v FROM t ORDER BY id")
    database.execute("SELECT pg_drop_replication_slot(%s)", pipeline.slot)
    database.execute("DELETE FROM t WHERE id = 3")
    with pytest.raises(RepairIncomplete, match=r"public\.t was read.*\(id=3\).*\.sql names all"):
        pipeline.repair()
    assert len(gaps(pipeline).open()) == 1
    database.execute("DELETE FROM replica.t WHERE id = 3")
    assert {each.rows for each in pipeline.repair().values()} == {0}
    assert gaps(pipeline).open() == []


@pytest.mark.parametrize(
    ("first", "second", "wanted"),
    [
        (["public.a"], ["public.b"], ("public.a", "public.b")),
        ([], ["public.b"], ()),
        (["public.a"], [], ("public.a",)),
        (["public.a"], None, ()),
    ],
    ids=["named", "of all tables", "then of none", "then of all tables"],
)
def test_the_same_gap_is_kept_once_up_to_its_later_end(tmp_path, first, second, wanted):
    def gap(identifier: str, end: str, *tables: str) -> CaptureGap:
        ends = [GapEnd(lsn=lsn, timeline=1, system_id="7") for lsn in ("0/10", end)]
        return CaptureGap(
            identifier=identifier, pipeline="p", database="d", slot="s", code="WT-2103", why="gone",
            begin=ends[0], end=ends[1], found="now", tables=tables,
        )  # fmt: skip

    found = GapCertificates(tmp_path)
    found.note(gap("1", "0/20", *first))
    found.note(gap("2", "0/30", *(second or ())), every_table=second is None)
    (kept,) = found.all()
    assert (kept.identifier, kept.end.lsn, kept.tables) == ("1", "0/30", wanted)


def test_the_command(pipeline, tmp_path):
    out = tmp_path / "out.jsonl"

    def waltap(word: str) -> subprocess.CompletedProcess[str]:
        return pipeline.command(word, **{"sink.type": "jsonl", "sink.path": str(out)})

    nothing = waltap("repair")
    assert (nothing.returncode, "has no gap" in nothing.stdout) == (0, True)
    lose(pipeline)
    refused = waltap("run")
    assert refused.returncode == 1
    assert "waltap repair FILE" in refused.stderr
    assert "changes may be missing" in " ".join(waltap("doctor").stdout.split())
    done = waltap("repair")
    assert done.returncode == 0, done.stderr
    assert "public.t: 4 rows were read again" in done.stdout
    assert out.read_text().count('"op":"r"') == 6
    assert waltap("doctor").returncode == 0


# --- remedies of several steps -------------------------------------------------------------------------


COPY = "SELECT pg_copy_logical_replication_slot(%s, %s)"


@pytest.fixture
def copied(database, tmp_path) -> PipelineRig:
    database.execute("CREATE SCHEMA replica; CREATE TABLE t (id int PRIMARY KEY)")
    database.execute("INSERT INTO t VALUES (1), (2)")
    return to_replica(database, tmp_path)


def done(copied: PipelineRig, *words: str) -> str:
    found = copied.command(*words)
    assert found.returncode == 0, found.stderr
    return found.stderr


def test_changes_are_streamed_again_where_the_slot_was_restored_with_the_destination(copied):
    database, slot, then = copied.database, copied.slot, f"{copied.slot[:50]}_then"
    copied.catch_up()
    database.execute(COPY, slot, then)
    # A checkpoint moves the slot's restart LSN, so the copy has an older one.
    for row in 96, 97, 98:
        database.execute("CHECKPOINT")
        database.execute("INSERT INTO t VALUES (%s)", row)
        copied.catch_up()
    database.execute("CREATE TABLE replica.then AS SELECT * FROM replica.waltap_position")
    database.execute("INSERT INTO t VALUES (99)")
    copied.catch_up()
    database.execute(
        "DELETE FROM replica.t WHERE id = 99; TRUNCATE replica.waltap_position;"
        "INSERT INTO replica.waltap_position SELECT * FROM replica.then"
    )
    database.execute("SELECT pg_drop_replication_slot(%s)", slot)
    database.execute(COPY, then, slot)
    database.execute("SELECT pg_drop_replication_slot(%s)", then)
    assert "WT-6105" in copied.command("run", "FILE", "--until-idle", "0.3").stderr
    copied.settings["offset.mismatch.strategy"] = "trust_offset"  # as its remedy says
    refused = copied.command("run", "FILE", "--until-idle", "0.3")
    assert refused.returncode != 0
    words = " ".join(refused.stderr.replace("│", " ").split())
    assert "WT-5003" in words
    lsn = words.partition("`waltap offsets set FILE ")[2].partition("`")[0]
    done(copied, "offsets", "set", "FILE", lsn, "--yes")
    copied.catch_up()
    assert database.execute("SELECT 1 FROM replica.t WHERE id = 99")


def test_a_writer_keeps_a_table_from_being_added_and_is_named(copied):
    copied.settings["snapshot.lock.timeout.ms"] = 100
    copied.catch_up()
    copied.database.execute("CREATE TABLE fresh (id int PRIMARY KEY)")
    copied.database.execute("CREATE TABLE other (id int PRIMARY KEY)")
    add = "tables", "add", "FILE", "public.fresh"
    connect = partial(copied.database.connect, autocommit=False)
    with connect() as writer, connect() as bystander:
        writer.execute("INSERT INTO fresh VALUES (1)")
        bystander.execute("INSERT INTO other VALUES (1)")
        refused = copied.command(*add)
        assert refused.returncode != 0
        words = " ".join(refused.stderr.replace("│", " ").split())
        assert "WT-2024" in words
        (query,) = queries(words)
        assert [pid for pid, _ in copied.database.execute(query)] == [writer.info.backend_pid]
        writer.commit()
    done(copied, *add)
