"""Every position of the past leads to the versions that the tables had then, however many commits ago."""

import datetime as dt
from collections.abc import ItemsView
from pathlib import Path

import msgspec
import pytest

from waltap_sinks.changelog.manifest import LogPosition
from waltap_spark.errors import VersionGone
from waltap_spark.output import OutputState, SparkOutput, StoredTable, TableState, TargetTable
from waltap_spark.version_maps import CUTS_MOST, noted, state_at

COMMITS = 2 * CUTS_MOST + 40
SECOND = 1_700_000_000


def after(output: SparkOutput, before: OutputState, number: int, days: int = 0) -> OutputState:
    """Commit ``number`` moves table a; every tenth b, too, which there is from 20 on."""
    tables = dict(before.tables)
    for name in ("a", "b"):
        if name == "a" or (number % 10 == 0 and number >= 20):
            held = StoredTable(targets={"current": TargetTable(at=name, version=number)})
            tables[f"s.{name}"] = TableState(schema="s", table=name, held=held)
    state = msgspec.structs.replace(
        before,
        number=number,
        mark=LogPosition(1, number * 100, 0),
        committed_at=SECOND + number + 0.5 + days * 86_400,
        last_commit_ts=(SECOND + number) * 1_000_000,
        tables=tables,
    )
    return noted(output, state, before)


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> tuple[SparkOutput, OutputState]:
    output = SparkOutput(str(tmp_path_factory.mktemp("out")))
    state = OutputState(
        version=1,
        number=0,
        mark=LogPosition(0, 0, 0),
        changelog="",
        committed_at=0.0,
        format="delta",
    )
    for number in range(1, COMMITS + 1):
        state = after(output, state, number)
    return output, state


def versions(state: OutputState) -> dict[str, int | None]:
    found = {}
    for name, table in state.tables.items():
        found[name] = None if table.held is None else table.held.targets["current"].version
    return found


@pytest.mark.parametrize("number", [1, 19, 20, 255, 256, 257, 300, 512, 513, COMMITS])
def test_a_position_between_two_commits_is_that_of_the_first(
    made: tuple[SparkOutput, OutputState], number: int
) -> None:
    output, state = made
    wanted = {"s.a": number, "s.b": number // 10 * 10 if number >= 20 else None}
    moments = [LogPosition(1, number * 100, 0), number * 100]
    if number < COMMITS:
        moments += [number * 100 + 99, LogPosition(1, number * 100 + 1, 0)]
    found = [state_at(output, state, each) for each in moments]
    found.append(state_at(output, state, dt.datetime.fromtimestamp(SECOND + number + 0.9, dt.UTC)))
    assert [versions(each) for each in found] == [wanted] * len(found)
    assert {each.number for each in found} == {number}


def test_the_commit_file_does_not_grow_with_the_past(made: tuple[SparkOutput, OutputState]) -> None:
    _output, state = made
    assert len(state.cuts) <= CUTS_MOST


class Counted(dict[str, TableState]):
    """Tables that count how often all of them are looked at."""

    walks = 0

    def items(self) -> ItemsView[str, TableState]:
        self.walks += 1
        return super().items()


def test_the_tables_before_are_looked_at_once_however_many_there_are(
    made: tuple[SparkOutput, OutputState],
) -> None:
    output, state = made
    counted = Counted(state.tables)
    before = msgspec.structs.replace(state, tables=counted)
    assert noted(output, state, before).cuts[-1].versions == {}
    assert counted.walks == 1


def test_what_was_never_or_not_yet_is_refused_with_what_there_is(
    made: tuple[SparkOutput, OutputState],
) -> None:
    output, state = made
    oldest, newest = str(LogPosition(1, 100, 0)), str(state.mark)
    for moment in (99, COMMITS * 100 + 1, dt.datetime(2001, 1, 1, tzinfo=dt.UTC)):
        with pytest.raises(VersionGone, match=f"from {oldest} to {newest}"):
            state_at(output, state, moment)


def test_a_time_behind_a_transaction_is_found_that_was_applied_long_after_a_snapshot(
    tmp_path: Path,
) -> None:
    """Commits 1 and 2 are of a snapshot alone; there was a backlog."""
    output = SparkOutput(str(tmp_path))
    state = OutputState(
        version=1,
        number=0,
        mark=LogPosition(0, 0, 0),
        changelog="",
        committed_at=0.0,
        format="delta",
    )
    for number in range(1, 5):
        state = after(output, state, number, days=1)
    cuts = [
        msgspec.structs.replace(cut, last_commit_ts=None if cut.number <= 2 else cut.last_commit_ts)
        for cut in state.cuts
    ]
    cuts[0] = msgspec.structs.replace(cuts[0], versions={**cuts[0].versions, "s.c": {"current": 7}})
    state = msgspec.structs.replace(state, cuts=tuple(cuts))
    held = StoredTable(targets={"current": TargetTable(at="c", version=9)})
    tables = {**state.tables, "s.c": TableState(schema="s", table="c", held=held)}
    state = msgspec.structs.replace(state, tables=tables)

    def at(seconds: float) -> OutputState:
        return state_at(output, state, dt.datetime.fromtimestamp(SECOND + seconds, dt.UTC))

    assert versions(at(3.5)) == {"s.a": 3, "s.c": 7}, "with what the snapshot moved"
    assert versions(at(4.5)) == {"s.a": 4, "s.c": 7}
    with pytest.raises(VersionGone):
        at(2.5)
    assert versions(state_at(output, state, 100)) == {"s.a": 1, "s.c": 7}


def test_files_of_cuts_go_when_they_are_old(tmp_path: Path) -> None:
    output = SparkOutput(str(tmp_path))
    state = OutputState(
        version=1,
        number=0,
        mark=LogPosition(0, 0, 0),
        changelog="",
        committed_at=0.0,
        format="delta",
    )
    for number in range(1, 3 * CUTS_MOST + 2):
        days = 40 if number > 2 * CUTS_MOST else 0
        state = after(output, state, number, days)
    assert output.store.names("_waltap/cuts") == [f"{2 * CUTS_MOST + 1:012d}.json"]
    with pytest.raises(VersionGone):
        state_at(output, state, 100)
    assert versions(state_at(output, state, (2 * CUTS_MOST + 1) * 100)) == {
        "s.a": 2 * CUTS_MOST + 1,
        "s.b": 510,
    }
