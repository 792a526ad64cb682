"""A stream is recorded, and runs again without its server: the same changes arrive."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import msgspec
import pytest
from tests.harness import command
from tests.harness.command import Command, waltap
from tests.harness.json_lines import records
from tests.harness.pipeline import WAIT_S, Destination, Event, PipelineRig, until
from tests.harness.servers.postgres import Database

from waltap.changes.decode.decoder import ServerInfo
from waltap.pipeline import Engine, Limits
from waltap.services.recording.connector import RecordingHead
from waltap.services.recording.file import (
    Entry,
    RecordedAnswer,
    RecordedFrames,
    RecordingDamaged,
    RecordingHeader,
    RecordingMark,
    RecordingUnfit,
    RecordingWriter,
    entries,
)
from waltap.services.recording.recorder import recording, replaying

WORK = """
CREATE TYPE mood AS ENUM ('low', 'high');
CREATE TABLE a (id int PRIMARY KEY, v text, m mood, big text);
ALTER TABLE a ALTER big SET STORAGE EXTERNAL;
CREATE TABLE b (id int, note text);
ALTER TABLE b REPLICA IDENTITY FULL;
INSERT INTO a SELECT i, 'v' || i, 'low', repeat('x', 9000) FROM generate_series(1, 20) i;
UPDATE a SET v = 'w' WHERE id < 5;
INSERT INTO b VALUES (1, 'n'), (2, NULL);
ALTER TABLE a ADD COLUMN added numeric(8, 2) DEFAULT 1.5;
ALTER TYPE mood ADD VALUE 'middle' BEFORE 'high';
UPDATE a SET m = 'middle', id = id + 100 WHERE id = 7;
DELETE FROM b;
TRUNCATE b;
ALTER TABLE b RENAME TO c;
INSERT INTO c VALUES (3, 'after');
SELECT pg_logical_emit_message(true, 'p', 'said');
DROP TABLE a;
CREATE TABLE a (id bigint PRIMARY KEY, other jsonb);
INSERT INTO a VALUES (1, '{"k": 1}');
"""


HEADER = RecordingHeader(
    identifier="recording_1",
    version="0",
    decoder="pgoutput",
    options={},
    publications=(),
    server=ServerInfo(
        version_num=150000,
        version="",
        system_id="1",
        timeline=1,
        two_phase_slot=False,
        encoding="UTF8",
    ),
    asks=(),
)


def recorded_run(pipeline: PipelineRig, path: Path, decoder: str) -> None:
    """Run the workload through a pipeline that records its stream."""
    database = pipeline.database
    host, _ = pipeline.host()
    settings = {
        "plugin.name": decoder,
        "snapshot.mode": "no_data",
        "publication.autocreate.mode": "all_tables",
    }
    with RecordingWriter(path) as writer:
        pipeline.catch_up(**settings)
        database.psql(WORK)
        limits = Limits(until_lsn=database.wal_end())
        profile = recording(pipeline.profile(host, **settings), writer, "recording_1")
        Engine(profile, host, limits=limits).run()


def replayed(pipeline: PipelineRig, path: Path, folder: Path) -> list[Event]:
    """Return what the same profile delivers of the recording."""
    destination = pipeline.destination = Destination()
    host, _ = pipeline.host()
    made = RecordingHead(path)
    profile = replaying(pipeline.profile(host), made, host, folder)
    Engine(profile, host, limits=Limits(until_lsn=made.end)).run()
    return destination.events


@pytest.mark.parametrize("decoder", ["pgoutput", "wal2json", "decoderbufs"])
def test_a_recording_gives_the_same_changes_and_ends_where_it_was_cut_off(
    database, tmp_path, decoder
):
    pipeline = PipelineRig(database, tmp_path)
    path = tmp_path / "stream.recording"
    recorded_run(pipeline, path, decoder)
    live = pipeline.destination.events
    assert len(live) > 25
    database.psql("DROP TABLE a, c")
    assert replayed(pipeline, path, tmp_path / "again") == live
    assert replayed(pipeline, path, tmp_path / "once more") == live
    data = path.read_bytes()
    path.write_bytes(data[: len(data) * 2 // 3])
    try:
        found = replayed(pipeline, path, tmp_path / "cut")
    except RecordingDamaged:
        return
    assert found == live[: len(found)]


@contextmanager
def recorder(database: Database, folder: Path, *options: str) -> Iterator[Command]:
    """Record the database's transactions in a process while the block lasts."""
    words = ("record", database.dsn, "s.recording", "--ready-file", "ready", *options)
    process = command.start(*words, cwd=folder)
    try:
        until(lambda: (folder / "ready").exists() or process.poll() is not None, "the recorder")
        assert process.poll() is None, process.errors()
        yield process
    finally:
        process.kill()
        process.wait(WAIT_S)


def test_the_commands(database, tmp_path):
    """One process records, another replays with nothing but the file."""
    database.psql("CREATE TABLE t (id int PRIMARY KEY)")
    with recorder(database, tmp_path, "--max-records", "7") as process:
        # whole transactions are replayed: the record of the second comes when the first is whole
        database.psql("BEGIN; INSERT INTO t VALUES (1); UPDATE t SET id = 2; DELETE FROM t; COMMIT")
        database.psql("INSERT INTO t VALUES (3)")
        assert process.wait(WAIT_S) == 0
    done = waltap("replay", "s.recording", "--sink", "jsonl:out.jsonl", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    found = [each["value"] and each["value"]["op"] for each in records(tmp_path / "out.jsonl")]
    assert found[:6] == ["c", "d", None, "c", "d", None]


@pytest.mark.parametrize("end", ["killed", "cut off from the server"])
def test_a_recorder_that_ends_early_leaves_its_transactions(database, tmp_path, end):
    """A second connection cannot continue: the slot was temporary, and the error names that."""
    database.psql("CREATE TABLE t (id int PRIMARY KEY)")
    path = tmp_path / "s.recording"
    with recorder(database, tmp_path) as process:
        for number in (1, 2):
            database.psql(f"INSERT INTO t VALUES ({number})")
            until(lambda number=number: len(marks(path)) >= number, "the transaction")
        if end != "killed":
            database.execute(
                "SELECT pg_terminate_backend(active_pid) FROM pg_replication_slots"
                " WHERE database = current_database()"
            )
            assert "it was temporary" in process.communicate()[1]
    done = waltap("replay", "s.recording", "--sink", "jsonl:out.jsonl", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert [each["value"]["after"]["id"] for each in records(tmp_path / "out.jsonl")] == [1, 2]


def marks(path: Path) -> list[Entry]:
    try:
        return [entry for entry in entries(path) if type(entry) is RecordingMark]
    except RecordingDamaged:
        return []


def test_so_many_records_end_with_a_transaction(database, tmp_path):
    """They end in the middle of one that is too large to come at once."""
    pipeline, path = PipelineRig(database, tmp_path), tmp_path / "stream.recording"
    host, _ = pipeline.host()
    settings = {"snapshot.mode": "no_data", "publication.autocreate.mode": "all_tables"}
    database.psql("CREATE TABLE t (id int PRIMARY KEY, v text)")
    with RecordingWriter(path) as writer:
        pipeline.catch_up(**settings)
        database.psql("INSERT INTO t VALUES (0), (-1)")
        database.psql(
            "INSERT INTO t SELECT i, repeat(md5(i::text), 20) FROM generate_series(1, 20000) i"
        )
        profile = recording(pipeline.profile(host, **settings), writer, "recording_1")
        Engine(profile, host, limits=Limits(max_records=3, whole_transactions=True)).run()
    assert len(pipeline.destination.events) == 20_002
    assert len(replayed(pipeline, path, tmp_path / "again")) == 20_002


@pytest.mark.parametrize("step", [13, pytest.param(3, marks=pytest.mark.exhaustive)])
def test_damage_never_becomes_other_rows(tmp_path, step):
    """Every thirteenth, or third, byte of a recording in turn, in a file that is whole and in one that was cut off behind it:
    gzip's own checksum stands at the end, where the second file has none."""
    path = tmp_path / "stream.recording"
    with RecordingWriter(path) as writer:
        writer.put(HEADER)
        for number in range(20):
            row = bytes((number * 37 + i * i) % 251 for i in range(40))
            writer.put(RecordedFrames([(number, row)]))
            writer.put(RecordedAnswer("question", b"key", f"value {number}".encode()))
            writer.put(RecordingMark(number))
    written, data = list(entries(path)), path.read_bytes()
    assert len(written) == 61
    stopped = 0
    for place in range(0, len(data), step):
        for bits, end in ((0x01, len(data)), (0x10, len(data)), (0x01, -12), (0xFF, -12)):
            damaged = bytearray(data)
            damaged[place] ^= bits
            path.write_bytes(damaged[:end])
            found: list[Entry] = []
            try:
                for entry in entries(path):
                    found.append(entry)
            except RecordingDamaged:
                stopped += 1
            assert found == written[: len(found)], place
    assert stopped > len(data) / step


def test_a_recording_of_another_layout_names_its_waltap(tmp_path):
    path = tmp_path / "later.recording"
    with RecordingWriter(path) as writer:
        writer.put(msgspec.structs.replace(HEADER, layout=2))
    with pytest.raises(RecordingUnfit, match=r"with waltap 0"):
        list(entries(path))
