"""Segments that are damaged or missing, and tables that are suspended: nothing is lost in silence, and each goes on when
somebody says how."""

import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from tests.harness.changelog import relation
from tests.harness.spark import Rig
from tests.integration.test_spark_applier import EVENTS, PEOPLE
from typer.testing import CliRunner

from waltap.changes.transactions.transaction import Batch
from waltap_sinks.changelog.errors import ChangeLogDamaged, ChangeLogExpired
from waltap_spark.apply import resume_requests
from waltap_spark.apply.maintenance import maintain
from waltap_spark.cli.commands import application
from waltap_spark.compact import small_sets
from waltap_spark.driver.follower import LogFollower
from waltap_spark.formats.choice import PARQUET
from waltap_spark.read.live import LiveTables

# --- tables that are suspended ----------------------------------------------------------------------

NUMBER = relation("public.odd", [("id", "int4"), ("v", "int4")])
TEXT = relation("public.odd", [("id", "int4"), ("v", "text")])


@pytest.fixture
def retyped(spark, tmp_path) -> Iterator[Rig]:
    """Tables of which one is suspended: a column of it has another type."""
    made = Rig(tmp_path, spark)
    made.db.insert(NUMBER, ["1", "5"])
    made.insert(PEOPLE, ["1", "Ann", None])
    for number in ("2", "3"):
        made.db.insert(TEXT, [number, "word"])
        made.insert(PEOPLE, [number, "x", None])
    return made


def said(retyped: Rig, *words: str) -> str:
    found = CliRunner().invoke(application, [words[0], str(retyped.folder / "out"), *words[1:]])
    assert found.exit_code == 0, found.output
    return " ".join(found.output.split())


def resume(retyped: Rig, *words: str, table: str = "public.odd") -> str:
    """Return what the command said, when it was answered."""
    reported = said(retyped, "resume", table, *words)
    requests = retyped.folder / "out" / "_waltap" / "requests"
    limit = time.monotonic() + 60
    while list(requests.iterdir()):
        assert time.monotonic() < limit, "nobody answers"
        retyped.apply()
    return reported


def test_it_is_listed_with_its_mark_and_goes_on_as_text(retyped):
    suspended = retyped.output.table("odd")
    assert suspended.log_position is not None
    reported = said(retyped, "status")
    assert f"is suspended at {suspended.log_position}" in reported
    assert "resume" in reported
    resume(retyped)
    assert retyped.output.table("odd").failed, "a mere try finds what it found"
    assert retyped.output.table("odd").log_position == suspended.log_position
    resume(retyped, "--cast-to-text")
    retyped.check(PEOPLE)
    assert retyped.current(TEXT) == [("1", "5"), ("2", "word"), ("3", "word")]
    assert "is not suspended" in said(retyped, "resume", "odd")
    retyped.reopen()
    retyped.insert(TEXT, ["4", "later"])
    assert retyped.current(TEXT)[-1] == ("4", "later")


def test_it_is_begun_anew_and_a_snapshot_brings_the_older_rows(retyped):
    reported = resume(retyped, "--full-refresh")
    assert (
        "rows from before come with a new snapshot: `waltap snapshot PROFILE public.odd --blocking`"
        in reported
    )
    retyped.check(PEOPLE)
    assert retyped.current(TEXT) == [("2", "word"), ("3", "word")]
    assert "needs a new snapshot" in said(retyped, "status")
    retyped.db.rows[TEXT.name] = [("1", "5"), ("2", "word"), ("3", "word")]
    retyped.snapshot(TEXT)
    retyped.apply()
    retyped.check(PEOPLE, TEXT)
    assert retyped.output.table("odd").stale == ()
    assert LiveTables(retyped.spark, retyped.output).changes("odd").count() == 2 + 3


def test_it_alone_needs_manifests_that_are_gone_and_is_begun_where_the_log_begins(retyped, caplog):
    """Damaged ones, too; another output of the log does not wait for it."""
    first = list(retyped.log.manifests())[1]
    file = retyped.folder / "log" / first.path
    whole = file.read_bytes()
    file.write_bytes(b"{")
    retyped.reopen()
    retyped.insert(PEOPLE, ["4", "y", None])
    retyped.check(PEOPLE)
    assert "WT-5102" in retyped.output.table("odd").failed
    resume(retyped, "--full-refresh")
    assert retyped.current(NUMBER) == [("1", "5")], "its rows stay while none could replace them"
    file.write_bytes(whole)
    retyped.log.expire(retyped.applier.state.log_position, before="99991231T00")
    retyped.reopen()
    retyped.db.insert(PEOPLE, ["5", "z", None])
    retyped.insert(TEXT, ["4", "late"])
    retyped.check(PEOPLE)
    reason = retyped.output.table("odd").failed
    assert "WT-5106" in reason
    assert "--full-refresh" in said(retyped, "status")
    retyped.log.expire(
        list(retyped.log.manifests(retyped.log.begin))[0].log_position, "99991231T00"
    )
    retyped.reopen()
    caplog.clear()
    retyped.insert(PEOPLE, ["6", "w", None])
    assert retyped.output.table("odd").failed != reason, "the log begins later"
    assert "is suspended" not in caplog.text
    retyped.check(PEOPLE)
    resume(retyped, "--full-refresh")
    assert retyped.current(TEXT) == [("4", "late")]
    retyped.snapshot(TEXT)
    retyped.apply(PEOPLE, TEXT)
    assert retyped.output.table("odd").stale == ()


def test_it_gets_no_part_of_a_snapshot_whose_beginning_is_gone(retyped):
    pieces = retyped.db.snapshot(TEXT, rows_each=1)
    for piece in pieces:
        retyped.sink.write(piece)
        retyped.sink.flush()
    parts = [each.log_position for each in retyped.log.manifests() if each.snapshot is not None]
    assert len(parts) > 1
    retyped.apply()
    retyped.log.expire(parts[0], before="99991231T00")
    resume(retyped, "--full-refresh")
    assert not retyped.output.table("odd").failed
    assert retyped.output.table("odd").stale
    retyped.snapshot(TEXT)
    retyped.apply(TEXT)


def test_it_waits_for_the_end_of_a_snapshot_with_which_the_log_begins(retyped, caplog, monkeypatch):
    monkeypatch.setattr(resume_requests, "POLL_S", 0.0)
    first, second, *others = retyped.db.snapshot(TEXT, rows_each=1)
    end = retyped.log.end

    def take(piece: Batch) -> None:
        retyped.sink.write(piece)
        retyped.sink.flush()
        retyped.apply()

    take(first)
    retyped.log.expire(end, before="99991231T00")
    said(retyped, "resume", "public.odd", "--full-refresh")
    retyped.reopen()
    caplog.set_level("INFO")
    take(second)
    retyped.apply()
    assert retyped.output.table("odd").failed
    assert caplog.text.count("waits for the end of the snapshot") == 1
    for piece in others:
        take(piece)
    resume(retyped, "--full-refresh")
    assert not retyped.output.table("odd").failed


def test_a_step_of_a_dead_driver_is_found_again_when_its_manifests_are_restored(delta, tmp_path):
    made = Rig(tmp_path, delta, "delta")
    made.insert(NUMBER, ["1", "5"])
    made.insert(TEXT, ["2", "word"])
    made.insert(TEXT, ["3", "word"])
    assert made.output.table("odd").failed
    said(made, "resume", "public.odd", "--cast-to-text")
    made.reopen()
    made.write(PEOPLE, ["1", "Ann", None])
    made.apply_and_die()
    file = made.folder / "log" / list(made.log.manifests())[1].path
    whole = file.read_bytes()
    file.write_bytes(b"{")
    made.apply()
    assert "WT-5102" in made.output.table("odd").failed
    file.write_bytes(whole)
    made.write(TEXT, ["4", "later"])
    resume(made)
    assert not made.output.table("odd").failed
    assert made.current(TEXT) == [("1", "5"), ("2", "word"), ("3", "word"), ("4", "later")]


def test_maintenance_leaves_a_request_to_the_next_try(retyped):
    retyped.update(PEOPLE, ["1"], name="Eve")
    said(retyped, "resume", "public.odd", "--cast-to-text")
    retyped.applier.close()
    before = retyped.applier.state.number
    list(maintain(retyped.spark, retyped.output))
    retyped.reopen()
    assert retyped.applier.state.number > before
    assert not retyped.output.table("odd").as_text
    retyped.apply()
    retyped.check(TEXT)


# --- a damaged change log -------------------------------------------------------------------------


@pytest.fixture
def rig(spark, tmp_path) -> Iterator[Rig]:
    """Two tables with rows, and changes of both that were not applied yet."""
    made = Rig(tmp_path, spark)
    made.db.insert(PEOPLE, ["1", "Ann", "x" * 3000], ["2", "Bob", None])
    made.insert(EVENTS, ["a", "1.5"])
    made.db.update(PEOPLE, ["1"], name="Eve", unsent=["note"])
    made.db.insert(EVENTS, ["b", None])
    made.commit()
    made.db.delete(PEOPLE, ["2"])
    made.db.insert(EVENTS, ["c", None])
    made.commit()
    return made


def segment(rig: Rig, table: str, manifest: int = -1) -> Path:
    entry = next(e for e in list(rig.log.manifests())[manifest].tables if e.name == table)
    return rig.folder / "log" / entry.segments[0].path


def flipped(path: Path) -> None:
    data = bytearray(path.read_bytes())
    data[data.index(b"PAR1") + 60] ^= 1
    path.write_bytes(data)


DAMAGES: dict[str, tuple[Callable[[Path], object], str]] = {
    "missing": (lambda path: path.unlink(), "is missing"),
    "short": (lambda path: path.write_bytes(path.read_bytes()[:-9]), "bytes, and should have"),
    "flipped": (flipped, "cannot be read"),
}


@pytest.mark.parametrize(
    ("kind", "way"),
    [("missing", "alone"), ("short", "spark"), ("flipped", "alone"), ("flipped", "spark")],
)
def test_its_table_stands_before_it_and_goes_on_when_it_is_restored(rig, kind, way, monkeypatch):
    if way == "spark":
        monkeypatch.setattr(small_sets, "SMALL_ROWS", 0)
    harm, words = DAMAGES[kind]
    file = segment(rig, PEOPLE.name, 1)
    whole = file.read_bytes()
    before, suspended = rig.current(PEOPLE), rig.applier.state.log_position
    harm(file)
    rig.apply(EVENTS)
    assert rig.current(PEOPLE) == before, "nothing of it is half applied"
    stands = rig.output.table("people")
    assert stands.log_position == suspended
    assert file.name in stands.failed
    assert words in stands.failed
    assert "WT-5211" in stands.failed
    assert "waltap snapshot PROFILE TABLE --blocking" in stands.failed
    reported = said(rig, "status")
    assert "people is suspended" in reported
    assert "--skip-damaged" in reported
    file.write_bytes(whole)
    resume(rig, table=PEOPLE.name)
    rig.check(PEOPLE, EVENTS)


def test_a_session_that_passes_over_corrupt_files_loses_no_rows(delta, tmp_path):
    name = "spark.sql.files.ignoreCorruptFiles"
    before = delta.conf.get(name)
    delta.conf.set(name, "true")
    try:
        made = Rig(tmp_path, delta, "delta")
    finally:
        delta.conf.set(name, before)
    made.db.insert(EVENTS, ["a", "1.5"])
    made.commit()
    flipped(segment(made, EVENTS.name))
    made.apply()
    assert "WT-5211" in made.output.table("events").failed


def test_it_is_passed_over_and_a_snapshot_brings_what_its_rows_left(rig):
    segment(rig, PEOPLE.name, 1).unlink()
    rig.apply()
    reported = resume(rig, "--skip-damaged", table=PEOPLE.name)
    assert "`waltap snapshot PROFILE public.people --blocking`" in reported, "it shows what is gone"
    assert [row[:2] for row in rig.current(PEOPLE)] == [("1", "Ann")], "the later delete counts"
    reported = said(rig, "status")
    assert "needs a new snapshot" in reported
    assert "was skipped" in reported
    rig.snapshot(PEOPLE)
    rig.apply(PEOPLE, EVENTS)
    assert rig.output.table("people").stale == ()


def test_a_snapshot_that_lacks_a_segment_replaces_nothing(rig):
    rig.apply()
    stored_table = rig.current(PEOPLE)
    rig.db.rows[PEOPLE.name] = [("9", "new", None)]
    rig.snapshot(PEOPLE)
    marks = [each for each in rig.log.manifests() if each.tables and each.tables[0].snapshot_id]
    (rig.folder / "log" / marks[-1].tables[0].segments[0].path).unlink()
    rig.apply()
    assert rig.current(PEOPLE) == stored_table
    resume(rig, "--skip-damaged", table=PEOPLE.name)
    assert rig.current(PEOPLE) == stored_table
    assert rig.output.table("people").stale


def test_all_tables_stop_before_a_manifest_that_is_damaged(rig):
    """It does not show any more whose rows it has; what comes before it is applied."""
    manifests = list(rig.log.manifests())
    (rig.folder / "log" / manifests[-1].path).write_bytes(b"{")
    with pytest.raises(ChangeLogDamaged, match="is not a manifest"):
        LogFollower(rig.log, rig.applier).catch_up()
    assert rig.applier.state.log_position == manifests[-2].log_position
    assert [row[0] for row in rig.current(EVENTS)] == ["a", "b"]


@pytest.mark.parametrize("how", ["expired", "missing"])
def test_no_table_goes_on_where_the_log_does_not_reach_back_to_it(rig, how):
    """A snapshot in the same log is behind the gap, too; with what was removed put back they go on."""
    manifests, number = list(rig.log.manifests()), rig.applier.state.number
    before = [rig.current(table) for table in (PEOPLE, EVENTS)]
    kept = {path: path.read_bytes() for path in (rig.folder / "log").rglob("*") if path.is_file()}
    if how == "expired":
        rig.log.expire(manifests[1].log_position, before="99991231T00")
    else:
        (rig.folder / "log" / manifests[1].path).unlink()
    for _snapshot in range(2):
        reported = rf"WT-5106 .*back to {manifests[1].log_position} only, not to {manifests[0].log_position}\."
        with pytest.raises(ChangeLogExpired, match=rf"{reported}.*another sink\.path"):
            LogFollower(rig.log, rig.applier).catch_up()
        assert rig.applier.state.number == number
        assert [rig.current(table) for table in (PEOPLE, EVENTS)] == before
        rig.snapshot(PEOPLE, EVENTS)
    for path, data in kept.items():
        path.write_bytes(data)
    LogFollower(rig.log, rig.applier).catch_up()
    rig.check(PEOPLE, EVENTS)


@pytest.mark.parametrize("table_format", [PARQUET, "delta"])
def test_a_key_that_comes_again_behind_what_was_passed_over_stands_once(
    delta, tmp_path, table_format
):
    """What was passed over may have been its delete."""
    rig = Rig(tmp_path, delta, table_format)
    rig.insert(PEOPLE, ["1", "Ann", None], ["2", "Bob", None])
    rig.db.delete(PEOPLE, ["2"])
    rig.commit()
    segment(rig, PEOPLE.name).unlink()
    rig.apply()
    resume(rig, "--skip-damaged", table=PEOPLE.name)
    rig.insert(PEOPLE, ["2", "Eve", None])
    rig.check(PEOPLE)
