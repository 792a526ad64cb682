"""Tables know their change log by its id, wherever both lie; those of earlier versions are brought along."""

import json
from pathlib import Path
from typing import Any

import pytest
from tests.harness.changelog import Database, batch, context, relation
from tests.harness.spark import Rig
from typer.testing import CliRunner

from waltap_sinks.changelog import ChangeLog, ChangeLogProperties, ChangeLogSink
from waltap_sinks.changelog.errors import ChangeLogOlder, ChangeLogRetired
from waltap_spark.applier import OutputApplier
from waltap_spark.commands import application
from waltap_spark.errors import OutputMismatch
from waltap_spark.live import LiveTables
from waltap_spark.output import SparkOutput

PEOPLE = relation("public.people", [("id", "int4"), ("name", "text")])


@pytest.fixture
def lake(spark: Any, tmp_path: Path) -> Rig:
    (tmp_path / "lake").mkdir()
    made = Rig(tmp_path / "lake", spark)
    made.db.insert(PEOPLE, ["1", "Ann"])
    made.commit()
    made.apply()
    made.db.insert(PEOPLE, ["2", "Bob"])
    made.commit()
    made.applier.close()
    made.sink.close()
    return made


def moved(lake: Rig) -> Path:
    there = lake.folder.with_name("moved")
    lake.folder.rename(there)
    return there


def goes_on(lake: Rig, log: str, output: str) -> None:
    applier = OutputApplier(lake.spark, ChangeLog(log), SparkOutput(output))
    applier.open()
    applier.apply(list(ChangeLog(log).manifests(applier.state.mark)))
    applier.close()
    rows = LiveTables(lake.spark, SparkOutput(output)).current("people").collect()
    assert sorted((str(row[0]), row[1]) for row in rows) == sorted(lake.db.rows[PEOPLE.name])


def of_an_earlier_version(folder: Path) -> None:
    """What 0.1 left: a log without id, and commits that know its path alone."""
    (folder / "log" / "log.json").unlink()
    for path in (folder / "out" / "_waltap" / "commits").iterdir():
        state = json.loads(path.read_text())
        del state["log_id"]
        path.write_text(json.dumps(state))


def test_a_lake_that_was_moved_goes_on(lake: Rig) -> None:
    there = moved(lake)
    goes_on(lake, f"{there}/log/", f"{there}/out/")
    state = SparkOutput(f"{there}/out").state()
    assert state is not None
    assert state.changelog == f"{there}/log/"


def test_another_log_in_the_place_of_the_old_one_is_refused(lake: Rig) -> None:
    (lake.folder / "log").rename(lake.folder / "old")
    sink = ChangeLogSink(
        ChangeLogProperties(path=str(lake.folder / "log")), context(lake.folder / "state")
    )
    sink.open()
    sink.close()
    applier = OutputApplier(lake.spark, ChangeLog(str(lake.folder / "log")), lake.output)
    with pytest.raises(OutputMismatch, match="WT-5206"):
        applier.open()
    applier.close()


def test_tables_of_an_earlier_version_take_the_id_where_they_lie(lake: Rig) -> None:
    of_an_earlier_version(lake.folder)
    goes_on(lake, f"{lake.folder}/log/", f"{lake.folder}/out")
    sink = ChangeLogSink(
        ChangeLogProperties(path=str(lake.folder / "log")), context(lake.folder, resumes=True)
    )
    sink.open()  # the engine's next start gives the log an id
    lake.db.insert(PEOPLE, ["3", "Cid"])
    sink.write(batch(lake.db.commit()))
    sink.flush()
    sink.close()
    goes_on(lake, f"{lake.folder}/log", f"{lake.folder}/out")
    there = moved(lake)
    goes_on(lake, f"{there}/log", f"{there}/out")


def test_tables_of_an_earlier_version_that_were_moved_are_adopted(lake: Rig) -> None:
    of_an_earlier_version(lake.folder)
    there = moved(lake)
    applier = OutputApplier(lake.spark, ChangeLog(f"{there}/log"), SparkOutput(f"{there}/out"))
    with pytest.raises(OutputMismatch, match=r"`waltap spark adopt .*/moved/out --changelog"):
        applier.open()
    applier.close()
    said = CliRunner().invoke(application, ["adopt", f"{there}/out", "--changelog", f"{there}/log"])
    assert said.exit_code == 0, said.output
    goes_on(lake, f"{there}/log", f"{there}/out")


def test_a_log_that_does_not_go_on_where_the_tables_stand_is_not_adopted(
    lake: Rig, tmp_path: Path
) -> None:
    of_an_earlier_version(lake.folder)
    there = moved(lake)
    db = Database()
    other = ChangeLogSink(
        ChangeLogProperties(path=str(tmp_path / "other")), context(tmp_path / "state")
    )
    other.open()
    arguments = ["adopt", f"{there}/out", "--changelog", str(tmp_path / "other")]
    assert isinstance(CliRunner().invoke(application, arguments).exception, ChangeLogOlder)
    for number in range(4):
        db.insert(
            PEOPLE,
            [
                str(number),
                "other",
            ],
        )
        db.insert(PEOPLE, [str(number + 10), "other"])
        other.write(batch(db.commit()))
    other.flush()
    other.close()
    assert isinstance(CliRunner().invoke(application, arguments).exception, ChangeLogRetired)
