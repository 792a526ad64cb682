"""Sets go when a commit has dropped them, and no sooner."""

from pathlib import Path

import msgspec
import pytest

from waltap_sinks.changelog.manifest import LogPosition
from waltap_spark.orphan_files import FOLDER
from waltap_spark.output import ChangeSet, OutputState, SparkOutput, TableState

SET = "tables/s/t/changes/one"


def opened(folder: Path) -> tuple[SparkOutput, OutputState]:
    """An output whose first commit names a set."""
    output = SparkOutput(str(folder))
    state = output.open("log", "id")
    output.store.put(f"{SET}/part.parquet", b"rows")
    table = TableState(
        schema="s", table="t", changes=(ChangeSet(path=SET, fingerprint="f", rows=1),)
    )
    state = msgspec.structs.replace(
        state, number=1, mark=LogPosition(1, 1, 0), tables={"s.t": table}
    )
    output.commit(state)
    return output, state


def test_what_a_failed_attempt_was_to_drop_stays_while_a_commit_names_it(tmp_path: Path) -> None:
    output, state = opened(tmp_path)
    output.garbage.note(2, {SET})  # and the commit failed
    assert output.collect(0.0) == 0
    output.garbage.note(2, ())  # made again, it drops nothing
    state = msgspec.structs.replace(state, number=2)
    output.commit(state)
    assert output.collect(0.0) == 0
    assert (tmp_path / SET / "part.parquet").exists()
    output.close()


@pytest.mark.parametrize("again", [False, True])
def test_what_a_commit_dropped_goes(tmp_path: Path, again: bool) -> None:
    """By who committed it, or by a successor."""
    output, state = opened(tmp_path)
    output.garbage.note(2, {SET})
    output.commit(msgspec.structs.replace(state, number=2, tables={}))
    if again:
        output.close()
        output = SparkOutput(str(tmp_path))
        output.open("log", "id")
    assert output.collect(3600.0) == 0
    assert output.collect(0.0) == 1
    assert not (tmp_path / SET).exists()
    output.close()


@pytest.mark.parametrize("local", [True, False])
def test_what_no_commit_names_goes_at_the_start(tmp_path: Path, local: bool) -> None:
    """But, where no lock keeps another machine's driver out, what it may be about to name."""
    output, _ = opened(tmp_path)
    output.close()
    earlier, next_one = (f"tables/s/t/changes/{number:012d}-attempt-0" for number in (1, 2))
    again = SparkOutput(str(tmp_path))
    again.store.local = local
    for path in (earlier, next_one):
        again.store.put(f"{path}/part.parquet", b"rows")
    again.open("log", "id")
    assert not (tmp_path / earlier).exists()
    assert (tmp_path / next_one).exists() is not local
    assert (tmp_path / SET).exists()
    again.close()


def test_what_a_driver_collects_while_somebody_reads_is_left_out(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    output, state = opened(tmp_path)
    output.garbage.note(2, {SET})
    output.commit(msgspec.structs.replace(state, number=2, tables={}))
    reader = SparkOutput(str(tmp_path))
    listed = reader.store.names

    def overtaken(folder: str) -> list[str]:
        names = listed(folder)
        if folder == FOLDER:
            output.collect(0.0)
        return names

    monkeypatch.setattr(reader.store, "names", overtaken)
    assert reader.garbage.paths() == set()
    output.close()
