"""What a registered reader has not read stays in the change log, and what ``waltap changelog`` shows and removes."""

import json
from pathlib import Path

import pytest
from click.testing import Result
from tests.harness.changelog import WrittenLog, relation
from typer.testing import CliRunner

from waltap.base.files.store import FileStore
from waltap_sinks.changelog import NOTHING, ChangeLog
from waltap_sinks.changelog.commands import application
from waltap_sinks.changelog.errors import ChangeLogDamaged, ChangeLogMissing, ReaderUnknown
from waltap_sinks.changelog.manifest import LogPosition
from waltap_sinks.changelog.reader import HOLD_S

PEOPLE = relation("public.people", [("id", "int4"), ("name", "text")])
FAR = "99991231T235"


@pytest.fixture
def log(tmp_path) -> ChangeLog:
    """A log of five manifests."""
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
