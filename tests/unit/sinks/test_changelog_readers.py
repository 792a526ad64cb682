"""Around a change log: its manifests, its readers, stretches without a hole, and types that grow."""

import datetime as dt
import json
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, Self

import msgspec
import pytest
from click.testing import Result
from hypothesis import given
from hypothesis import strategies as st
from tests.harness.changelog import ALL, WrittenLog, relation
from typer.testing import CliRunner

from waltap.base.files.store import FileStore
from waltap.changes.capture.capture import CaptureRules
from waltap.changes.capture.properties import CaptureProperties
from waltap.changes.decode.relation import DataType, Relation, TypeKind
from waltap.changes.mapping.type_mapping import TypeOptions
from waltap.changes.mapping.type_registry import TypeRegistry
from waltap.changes.transactions.position import Position
from waltap.changes.transactions.transaction import Batch, SnapshotRows
from waltap.ports.source.connector import PublicationCompleteness
from waltap_postgres.types import TYPE_SPECS
from waltap_sinks.changelog import ChangeLog
from waltap_sinks.changelog import sink as sink_module
from waltap_sinks.changelog.commands import application
from waltap_sinks.changelog.errors import (
    ChangeLogDamaged,
    ChangeLogExpired,
    ChangeLogMissing,
    ReaderUnknown,
)
from waltap_sinks.changelog.manifest import (
    NOTHING,
    VERSION,
    ColumnEntry,
    LogPosition,
    Manifest,
    Segment,
    SnapshotPart,
    TableEntry,
    bucket_of,
    log_position_of_name,
    manifest_name,
    next_bucket,
    parse_manifest,
    written_before,
    written_in,
)
from waltap_sinks.changelog.reader import HOLD_S

# --- manifests: one order, names that sort as they do, and nothing lost in writing ----------------


def entry(name: str = "t", snapshot_id: int | None = None, complete: bool = False) -> TableEntry:
    return TableEntry(
        schema="public",
        table=name,
        oid=1,
        identity="d",
        key=("id",),
        fingerprint="f",
        columns=(ColumnEntry(name="id", type="integer", arrow="int32", nullable=False),),
        segments=(Segment(path="segments/x", rows=1, bytes=2),),
        rows=1,
        operations={"c": 1},
        snapshot_id=snapshot_id,
        complete=complete,
    )


def manifest(*tables: TableEntry, snapshot: SnapshotPart | None = None) -> Manifest:
    return Manifest(
        version=VERSION,
        log_position=LogPosition(1, 5, 0),
        previous=NOTHING,
        bucket="20261120T091",
        rows=1,
        tables=tables,
        snapshot=snapshot,
    )


def test_a_manifest_is_one_line_and_reads_back_equal():
    made = manifest(entry(), snapshot=SnapshotPart(snapshot_id=1, lsn=7, complete=True))
    data = made.encode()
    assert data.count(b"\n") == 1
    read = parse_manifest(data, "where it was")
    assert read.path == "where it was"
    assert read.encode() == data
    assert read.tables == made.tables


@pytest.mark.parametrize(
    "data", [b"", b"{", b"[]", b'{"version": 1}', b"\xff", b'{"bucket": "\xff"}']
)
def test_damage_is_named(data):
    with pytest.raises(ChangeLogDamaged, match=r"WT-5102 some/path is not a manifest"):
        parse_manifest(data, "some/path")


def test_what_was_changed_since_it_was_written_is_named():
    data = manifest(entry()).encode()
    changed = data.replace(b'"end_lsn":5', b'"end_lsn":7')
    assert changed != data
    for text in (changed, changed.decode().rstrip("\n")):
        with pytest.raises(ChangeLogDamaged, match=r"WT-5102 p is not as it was written"):
            parse_manifest(text, "p")


def test_manifests_without_a_checksum_are_read():
    """Those of earlier versions, and those that somebody wrote anew."""
    made = manifest(entry())
    whole = json.loads(made.encode())
    assert len(whole.pop("crc32")) == 8
    for data in (json.dumps(whole), json.dumps(whole, separators=(",", ":")) + "\n"):
        assert parse_manifest(data, "p").tables == made.tables


def test_another_version_is_refused():
    data = manifest(entry()).encode().replace(b'"version":1', b'"version":3')
    with pytest.raises(ChangeLogDamaged, match="has version 3"):
        parse_manifest(data, "p")


STEPS = st.lists(st.tuples(st.integers(0, 3), st.booleans()), min_size=1, max_size=30)


@given(STEPS)
def test_names_of_an_epoch_sort_in_the_order_of_the_log(steps):
    """A step moves the LSN on, or stays at it with the next ordinal, as the sink does."""
    log_positions = [LogPosition(1, 0, 0)]
    names = [manifest_name(NOTHING, log_positions[0])]
    for distance, _again in steps:
        last = log_positions[-1]
        log_position = (
            LogPosition(1, last.end_lsn + distance, 0)
            if distance
            else LogPosition(1, last.end_lsn, last.ordinal + 1)
        )
        names.append(manifest_name(last, log_position))
        log_positions.append(log_position)
    assert names == sorted(names)
    assert [log_position_of_name(1, name) for name in names] == log_positions
    assert log_positions == sorted(log_positions)


def test_a_clock_that_was_ahead_holds_no_folder_back():
    days = [dt.datetime(2026 + years, 3, 1, tzinfo=dt.UTC) for years in (0, 60, 0, 1, 90, 1)]
    names = [""]
    for day in days:
        names.append(next_bucket(names[-1], day))
    names = names[1:]
    assert names == sorted(set(names)), "in the log's order"
    assert list(map(written_in, names)) == list(map(bucket_of, days))
    assert written_before(names, bucket_of(days[0])) == []
    assert written_before(names, bucket_of(days[3])) == names[:3], "with the first of the future"
    assert written_before(names, "9") == names


# --- what a registered reader has not read stays, and what ``waltap changelog`` shows and removes ---


PEOPLE = relation("public.people", [("id", "int4"), ("name", "text")])
FAR = "99991231T235"


@pytest.fixture
def log(tmp_path, monkeypatch) -> ChangeLog:
    """A log of five manifests in one folder, also where ten minutes end meanwhile."""
    now = dt.datetime.now(dt.UTC)
    monkeypatch.setattr(sink_module, "next_bucket", lambda last, _now: next_bucket(last, now))
    written = WrittenLog(tmp_path)
    with written.open():
        for number in range(5):
            written.insert(PEOPLE, [str(number), "x"])
    return written.log


@pytest.fixture
def log_positions(log) -> list[LogPosition]:
    return [step.log_position for step in log.manifests()]


def run(*words: str) -> Result:
    return CliRunner().invoke(application, words)


class GrowingStore(FileStore):
    """A folder that is written to while it is listed: the first listing of manifests lacks the one before
    the last, as a listing of the system may."""

    def __init__(self, location: str) -> None:
        super().__init__(location)
        self.listings = 0

    def names(self, folder: str) -> list[str]:
        found = super().names(folder)
        self.listings += folder.startswith("manifests/")
        if folder.startswith("manifests/") and self.listings == 1:
            del found[-2]
        return found


def test_a_manifest_that_a_listing_missed_is_read_by_the_next(log, log_positions):
    store = GrowingStore(log.store.location)
    assert [step.log_position for step in ChangeLog(store).manifests()] == log_positions
    assert store.listings > 1


class ExpiringStore(FileStore):
    """A folder whose oldest manifests retention removes as soon as they are listed."""

    def names(self, folder: str) -> list[str]:
        found = super().names(folder)
        if folder.startswith("manifests/"):
            expired = ChangeLog(self.location)
            expired.expire(expired.newest(2)[0].log_position, FAR)
        return found


def test_manifests_that_expire_while_they_are_read_are_no_trouble_with_files(log, log_positions):
    going = log.manifests()
    assert next(going).log_position == log_positions[0]
    expiring = ChangeLog(ExpiringStore(log.store.location))
    with pytest.raises(ChangeLogExpired):
        list(expiring.manifests())
    with pytest.raises(ChangeLogExpired, match="reaches back"):
        list(going)


def test_manifests_that_expire_while_a_gap_is_examined_are_no_damage(
    log, log_positions, monkeypatch
):
    going, examine, retention = log.manifests(), log.first, ChangeLog(log.store.location)
    next(going)
    retention.expire(log_positions[1], FAR)

    def first() -> Manifest | None:
        retention.expire(log_positions[2], FAR)
        return examine()

    monkeypatch.setattr(log, "first", first)
    with pytest.raises(ChangeLogExpired, match="reaches back"):
        list(going)


@pytest.mark.parametrize("damaged", [False, True])
def test_what_remains_of_manifests_that_expire_meanwhile_is_read(log, log_positions, *, damaged):
    expiring = ChangeLog(ExpiringStore(log.store.location))
    if damaged:
        assert list(expiring.damages(9)) == []
    else:
        assert [each.log_position for each in expiring.newest(5)] == log_positions[4:]
    assert expiring.first() == log.first()
    assert log.begin == log_positions[3]


def test_the_slowest_reader_holds_what_it_has_not_read(log, log_positions):
    log.readers.register("slow", log_positions[0])
    log.readers.register("a/b c.", log_positions[2])
    assert log.expire(log_positions[3], FAR) == 1
    assert [step.log_position for step in log.manifests(log_positions[0])] == log_positions[1:]
    log.readers.advance("slow", log_positions[4])
    assert log.expire(log_positions[3], FAR) == 2, "the other one has read three"
    log.readers.forget("a/b c.")
    assert log.expire(log_positions[3], FAR) == 1
    assert [step.log_position for step in log.manifests(log_positions[3])] == log_positions[4:]


def test_a_reader_that_says_nothing_is_passed_over(log, log_positions, caplog):
    log.readers.register("gone", hold_s=3600)
    assert log.expire(log_positions[3], FAR) == 0
    path = Path(log.store.path("readers/gone.json"))
    path.write_text(json.dumps({**json.loads(path.read_text()), "seen": 0.0}))
    assert log.expire(log_positions[1], FAR) == 2
    assert log.expire(log_positions[3], FAR) == 2
    (reported,) = [each.getMessage() for each in caplog.records]
    assert "no longer waits for its reader gone" in reported


def test_a_reader_goes_on_where_it_was_and_never_back(log, log_positions):
    assert log.readers.register("it").log_position == NOTHING
    log.readers.advance("it", log_positions[2])
    assert log.readers.advance("it", log_positions[1]).log_position == log_positions[2]
    assert log.readers.register("it", log_positions[4]).log_position == log_positions[2]
    with pytest.raises(ReaderUnknown, match="WT-5111 .* 'other'"):
        log.readers.advance("other", log_positions[1])
    Path(log.store.path("readers/it.json")).write_text("{")
    with pytest.raises(ChangeLogDamaged):
        log.expire(log_positions[3], FAR)


def test_readers_are_seen_made_and_forgotten_by_command(log, log_positions):
    path = log.store.path("")
    shown = run("readers", path, "--register", "night", "--at", str(log_positions[1]))
    assert shown.exit_code == 0, shown.output
    assert str(log_positions[1]) in shown.output
    assert run("readers", path, "--register", "now").exit_code == 0
    found = [(each.name, each.log_position) for each in log.readers.all()]
    assert found == [("night", log_positions[1]), ("now", log_positions[4])]
    assert run("readers", path, "--forget", "night").exit_code == 0
    assert "3 days" in run("readers", path).output
    (left,) = json.loads(run("readers", path, "--json").stdout)
    assert (left["reader"], left["position"]) == ("now", str(log_positions[4]))
    assert 0 < left["waits_s"] <= HOLD_S
    assert [each.name for each in log.readers.all()] == ["now"]
    assert isinstance(run("readers", path, "--forget", "night").exception, ReaderUnknown)
    assert "no reader is registered" in run("readers", path, "--forget", "now").output


def test_commands_show_the_newest_manifests_and_remove_nothing_of_today(log):
    path, log_positions = log.store.path(""), [str(step.log_position) for step in log.manifests()]
    listed = json.loads(run("list", path, "--last", "2", "--json").stdout)
    newest = [str(step.log_position) for step in log.newest(2)]
    assert [entry["position"] for entry in listed] == newest
    assert {type(entry["rows"]) for entry in listed} == {int}
    shown = run("list", path, "--last", "2")
    assert shown.exit_code == 0
    there = [log_position in shown.output for log_position in log_positions]
    assert there == [False] * 3 + [True] * 2
    assert "public.people 1" in shown.output
    assert "0 manifests removed" in run("expire", path, "--applied", log_positions[1]).output
    assert "0 segments removed" in run("vacuum", path, "--older-than-hours", "0").output
    assert len(list(log.manifests())) == 5
    wrong = run("expire", path, "--applied", "nonsense")
    assert (wrong.exit_code, "is not a position" in wrong.output) == (2, True)


@pytest.mark.parametrize("place", ["{}", "{}/", "file://{}"], ids=["path", "slash", "uri"])
def test_the_only_change_log_in_a_folder_is_found(tmp_path, place):
    """As people give the folder of the spark sink, with the log beside the tables."""
    (tmp_path / "lake/tables/public").mkdir(parents=True)
    with WrittenLog(tmp_path, str(tmp_path / "lake/changelog")).open() as log:
        log.insert(PEOPLE, ["1", "x"])
    for command in (["list"], ["readers", "--register", "night"], ["vacuum"]):
        answer = run(command[0], place.format(tmp_path / "lake"), *command[1:])
        assert answer.exit_code == 0, answer.exception
    (listed,) = json.loads(run("list", place.format(tmp_path / "lake"), "--json").stdout)
    assert listed["position"] == str(log.newest.log_position)
    assert [each.name for each in log.log.readers.all()] == ["night"]


def test_of_several_change_logs_in_a_folder_none_is_chosen(tmp_path):
    for name in ("first", "second"):
        with WrittenLog(tmp_path / f"of {name}", str(tmp_path / "logs" / name)).open() as log:
            log.insert(PEOPLE, ["1", "x"])
    answer = run("list", str(tmp_path / "logs"))
    assert isinstance(answer.exception, ChangeLogMissing)
    assert answer.exception.problem == (
        f"{tmp_path}/logs has several change logs: {tmp_path}/logs/first, {tmp_path}/logs/second"
    )


def test_a_log_has_its_id_before_readers_find_it(tmp_path, monkeypatch):
    """A query takes the id as soon as there is a log: without it another log would pass for this one."""
    make, ids = FileStore.make_folder, list[str]()

    def made(store: FileStore, folder: str) -> None:
        make(store, folder)
        if ChangeLog(store).exists():
            ids.append(ChangeLog(store).identity())

    monkeypatch.setattr(FileStore, "make_folder", made)
    with WrittenLog(tmp_path).open():
        pass
    assert ids
    assert all(ids)


# --- between which entries of a table no change is missing ----------------------------------------


PLACES = relation("public.places", [("id", "int4"), ("name", "text")])


class Log(WrittenLog):
    """A change log whose runs know which changes of the source are complete."""

    keys = 0

    def begin(self, completeness: PublicationCompleteness | None, **more: Any) -> Self:
        self.open(**{"has_offset": True, "gets_every_change": True, **more})
        if completeness is not None:
            self.sink.begins(completeness)
        return self

    def run(
        self, completeness: PublicationCompleteness | None = ALL, *tables: Any, **more: Any
    ) -> None:
        with self.begin(completeness, **more):
            for table in tables:
                self.row(table)

    def row(self, table: Any) -> None:
        self.keys += 1
        self.insert(table, [str(self.keys), "x"])

    def continuity(self, name: str = PEOPLE.name) -> Sequence[str]:
        return [e.continuity_id for m in self.manifests() for e in m.tables if e.name == name]


@pytest.fixture
def lives(tmp_path) -> Log:
    return Log(tmp_path)


def without_people() -> CaptureRules:
    given = {"topic.prefix": "server", "table.exclude.list": "public.people"}
    return CaptureRules(CaptureProperties.model_validate(given))


HOLES: dict[str, Callable[[Log], None]] = {
    "a position is lost": lambda lives: lives.run(replace(ALL, continuous=False)),
    "the publication is another": lambda lives: lives.run(replace(ALL, others="less")),
    "nobody knows what comes": lambda lives: lives.run(PublicationCompleteness()),
    "something filters": lambda lives: lives.run(None, gets_every_change=False),
    "the table is left out": lambda lives: lives.run(ALL, capture=without_people()),
    "another history begins": lambda lives: lives.run(ALL, has_offset=False),
}


@pytest.mark.parametrize("hole", HOLES)
def test_a_run_in_which_changes_may_be_missing_ends_it_and_need_write_nothing(lives, hole):
    lives.run(ALL, PEOPLE)
    HOLES[hole](lives)
    lives.run(ALL, PEOPLE)
    lives.run(ALL, PEOPLE)
    before, behind, last = lives.continuity()
    assert before
    assert behind == last != ""
    assert before != behind


def test_it_begins_where_what_the_source_says_holds(lives):
    """What committed before may have been published otherwise; in one flush, too."""
    parts = []
    since = lives.db.lsn + 200
    for key in range(1, 9):
        parts.append(lives.db.inserted(PEOPLE, [str(key), "x"]))
    with lives.begin(replace(ALL, since=since)):
        lives.flush(*parts)
    early, late = lives.continuity()
    assert early == ""
    assert late
    lives.run(replace(ALL, since=2**40), PEOPLE)
    assert lives.continuity()[-1] == late, "it had begun, and goes on"


def test_a_link_that_is_made_again_ends_it_where_something_was_lost_meanwhile(lives):
    with lives.begin(None):
        for completeness in (ALL, ALL, replace(ALL, continuous=False)):
            lives.sink.begins(completeness)
            lives.row(PEOPLE)
    first, second, third = lives.continuity()
    assert first == second
    assert third not in {"", first}


@pytest.mark.parametrize("at_once", [True, False])
def test_rows_of_a_blocking_snapshot_stand_between_stretches(lives, at_once):
    """What was inserted between their position and the reading comes again; in one flush, too."""
    piece = SnapshotRows(relation=PEOPLE, rows=[("9", "x")], ts=0, lsn=1, xid=1, kind="blocking")
    with lives.begin(ALL):
        for number in range(4):
            for table in (PEOPLE, PLACES):
                lives.write(lives.db.inserted(table, [str(number), "x"]))
            for _piece in range(2 if number == 1 else 0):
                position = Position(lives.db.lsn)
                lives.write(Batch(parts=[piece], position=position, events=1, snapshot=True))
            if not at_once:
                lives.flush()
        lives.flush()
    found = list(dict.fromkeys(lives.continuity()))
    assert len(found) == 3, found
    assert found[1] == ""
    assert "" not in {found[0], found[2]}
    assert len(set(lives.continuity(PLACES.name))) == 1


@pytest.mark.parametrize("covered", [True, False])
def test_a_table_that_a_blocking_snapshot_reads_whole_is_a_generation_of_its_own(lives, covered):
    """Its rows are between the changes before and after it, also in one flush; a reading that broke off leaves
    nothing."""

    def piece(*rows: str, first: bool = False, last: bool = False) -> None:
        part = SnapshotRows(
            relation=PEOPLE, rows=[(each, "x") for each in rows], ts=0, lsn=1, xid=1,
            kind="blocking", all_rows=True, restarts=first, complete=last,
        )  # fmt: skip
        lives.write(Batch(parts=[part], position=Position(lives.db.lsn), events=1))

    def insert(number: str) -> None:
        lives.write(lives.db.inserted(PEOPLE, [number, "x"]))

    with lives.begin(ALL if covered else None):
        insert("1")
        piece("7", first=True)
        lives.flush()
        piece("8", first=True)
        piece("9", last=True)
        insert("2")
        lives.flush()
        piece(first=True, last=True)
        lives.flush()
    entries = [each for manifest in lives.log.manifests() for each in manifest.tables]
    reported = [(each.snapshot_id is not None, each.complete, each.rows) for each in entries]
    assert reported == [(False, False, 1), (True, True, 2), (False, False, 1), (True, True, 0)]
    assert entries[1].snapshot_id != entries[3].snapshot_id
    live = lives.log.rows("public", "people", skip_replaced=True)
    assert sum(each.num_rows for each in live) == 0


# --- a composite type gets an attribute while the log is written ----------------------------------


INT = DataType(oid=23, schema="pg_catalog", name="int4")


def with_place(table: Relation, *attributes: str) -> Relation:
    made = DataType(
        oid=70_000, schema="public", name="place", kind=TypeKind.COMPOSITE,
        attributes=tuple((name, INT, -1) for name in attributes),
    )  # fmt: skip
    key, at = table.columns
    return msgspec.structs.replace(
        table, columns=(key, msgspec.structs.replace(at, data_type=made, type_text="place"))
    )


def written(
    folder: Path, types_then: Sequence[tuple[str, ...]], *batches: Sequence[str]
) -> tuple[list[object], int]:
    """Return what the log has of the values in ``batches``, and how often the types were asked for anew;
    ``types_then``: the attributes that there are when it is asked, the last ever after."""
    table = with_place(relation("public.t", [("id", "text"), ("at", "text")]), "x", "y")
    asked: list[Relation] = []

    def renew(described: Relation) -> Relation:
        now, known = (
            types_then[min(len(asked), len(types_then) - 1)],
            described.columns[1].data_type,
        )
        asked.append(described)
        same = now == tuple(name for name, _type, _typmod in known.attributes)
        return described if same else with_place(described, *now)

    types = TypeRegistry(TYPE_SPECS, TypeOptions(composite_types="struct"))
    log = WrittenLog(folder)
    with log.open(types=types, renew=renew):
        for values in batches:
            parts = []
            for value in values:
                parts.append(log.db.inserted(table, [value, value]))
            log.write(*parts)
        log.flush()
    return [row["at"] for row in log.rows("t")], len(asked)


def test_values_that_never_fit_are_null_and_ask_once_a_batch(tmp_path):
    values = ["(1,2)", "(3,4,5)", "(6,7,8)", "(9,)"], ["(3,4,5)", "(6,7,8)"], ["(1,2)"]
    found, asked = written(tmp_path, [("x", "y")], *values)
    fits, short = {"x": 1, "y": 2}, {"x": 9, "y": None}
    assert (found, asked) == ([fits, None, None, short, None, None, fits], 2)


def test_a_type_that_grows_after_a_value_that_did_not_fit_is_asked_for_again(tmp_path):
    """Another value did not fit before: of a type that had lost an attribute when it was asked for."""
    then = [("x", "y"), ("x", "y", "w")]
    found, asked = written(tmp_path, then, ["(1,2)", "(3,4,5)"], ["(6,7,8)"], ["(9,1,2)"])
    assert found[:2] == [{"x": 1, "y": 2}, None]
    assert found[2:] == [{"x": 6, "y": 7, "w": 8}, {"x": 9, "y": 1, "w": 2}]
    assert asked == 2
