"""``waltap changelog``: what it shows and removes, and what bad arguments get."""

from pathlib import Path

import pytest
from typer.testing import CliRunner
from waltap_sinks.changelog import ChangeLog, ChangeLogProperties, ChangeLogSink
from waltap_sinks.changelog.commands import application
from waltap_sinks.changelog.errors import ChangeLogMissing

from tests.harness.changelog import Database, batch, context, relation

PEOPLE = relation("public.people", [("id", "int4"), ("name", "text")])


@pytest.fixture
def log(tmp_path: Path) -> Path:
    path = tmp_path / "log"
    sink, db = ChangeLogSink(ChangeLogProperties(path=str(path)), context(tmp_path)), Database()
    sink.open()
    for number in range(3):
        db.insert(PEOPLE, [str(number), "x"])
        sink.write(batch(db.commit()))
        sink.flush()
    sink.close()
    return path


def test_list_shows_the_newest_manifests(log: Path) -> None:
    shown = CliRunner().invoke(application, ["list", str(log), "--last", "2"])
    assert shown.exit_code == 0
    marks = [str(step.mark) for step in ChangeLog(str(log)).manifests()]
    assert marks[0] not in shown.output
    assert marks[1] in shown.output
    assert marks[2] in shown.output
    assert "public.people 1" in shown.output


def test_retire_removes_what_was_applied(log: Path) -> None:
    marks = [str(step.mark) for step in ChangeLog(str(log)).manifests()]
    kept = CliRunner().invoke(application, ["retire", str(log), "--applied", marks[1]])
    assert "0 manifests removed" in kept.output, "they are younger than a day"
    assert len(list(ChangeLog(str(log)).manifests())) == 3


def test_a_wrong_mark_is_named(log: Path) -> None:
    wrong = CliRunner().invoke(application, ["retire", str(log), "--applied", "nonsense"])
    assert wrong.exit_code == 2
    assert "is not a mark" in wrong.output


def test_sweep_of_a_clean_log_removes_nothing(log: Path) -> None:
    swept = CliRunner().invoke(application, ["sweep", str(log), "--older-than-hours", "0"])
    assert "0 segments removed" in swept.output


@pytest.mark.parametrize(
    "arguments",
    [["list"], ["retire", "--applied", "1-2-3"], ["sweep"]],
    ids=["list", "retire", "sweep"],
)
@pytest.mark.parametrize("made", [True, False], ids=["a-folder", "nothing"])
def test_what_is_no_change_log_is_told(tmp_path: Path, arguments: list[str], made: bool) -> None:
    folder = tmp_path / "folder"
    if made:
        (folder / "other").mkdir(parents=True)
    command, *rest = arguments
    answer = CliRunner().invoke(application, [command, str(folder), *rest])
    assert isinstance(answer.exception, ChangeLogMissing)
    assert str(folder) in answer.exception.problem
    assert not answer.output
    assert folder.exists() is made


def test_a_change_log_without_changes_is_one(tmp_path: Path) -> None:
    path = tmp_path / "log"
    sink, db = ChangeLogSink(ChangeLogProperties(path=str(path)), context(tmp_path)), Database()
    sink.open()
    db.insert(PEOPLE, ["1", "x"])
    sink.write(batch(db.commit()))
    assert CliRunner().invoke(application, ["list", str(path)]).exit_code == 0
    sink.close()
