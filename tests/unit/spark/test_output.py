"""What an output keeps of its tables: commits, versions of the past, files that nobody names, folded sets."""

import datetime as dt
import math
import random
import time
from pathlib import Path
from typing import Any

import msgspec
import pytest

from waltap_sinks.changelog.manifest import LogPosition
from waltap_spark.apply.compaction_worker import CompactionResult, grafted
from waltap_spark.errors import OutputDamaged, VersionGone
from waltap_spark.formats.iceberg import KEY, needed_since
from waltap_spark.formats.small_files.iceberg import TableSnapshot
from waltap_spark.formats.stepwise import CommitNote
from waltap_spark.state.commit_files import COMMITS, MAX_COMMITS, STEPS, changed, difference
from waltap_spark.state.modes import TableMode
from waltap_spark.state.output import (
    FOLDER,
    BasePart,
    ChangeSet,
    OutputState,
    SparkOutput,
    StagedSegment,
    StoredTable,
    TableState,
    TargetTable,
)
from waltap_spark.state.version_maps import CUTS_MOST, noted, state_at

replace = msgspec.structs.replace


def sets(*paths: str) -> tuple[ChangeSet, ...]:
    return tuple(ChangeSet(path=path, fingerprint="f", rows=1) for path in paths)


# --- commits ----------------------------------------------------------------------------------------


def random_table(chance: random.Random, before: TableState) -> TableState:
    """One of the things that happen to a table: sets come, are merged, are folded; columns come."""
    number = str(chance.random())
    one = ChangeSet(path=f"c{number}", fingerprint="f", rows=3, operations={"u": 3})
    kind = chance.randrange(6)
    if kind == 0:
        return replace(before, changes=(), pending=(), base=())
    if kind == 1 and len(before.changes) > 2:
        at = chance.randrange(len(before.changes) - 1)
        return replace(before, changes=(*before.changes[:at], one, *before.changes[at + 2 :]))
    if kind == 2:
        part = BasePart(path=f"b{number}", rows=7, columns=before.columns, epoch=1, ids={"a": 1})
        return replace(before, base=(part,), pending=())
    if kind == 3:
        return replace(
            before,
            columns={**before.columns, number: '"long"'},
            streamed=None if before.streamed else ("a", "b"),
            log_position=None if before.log_position else LogPosition(1, 2, 3),
        )
    if kind == 4:
        wait = StagedSegment(snapshot_id=1, path=number, fingerprint="f", rows=1, key=("a",))
        return replace(before, staged=(*before.staged, wait))
    return replace(before, changes=(*before.changes, one), pending=(*before.pending, one))


def test_a_difference_names_fields_as_the_files_do():
    """Older files have a table's mode as ``kept_as``."""
    table = TableState(schema="s", table="t")
    then = replace(table, mode=TableMode(name="append"))
    made = difference(table, then)
    assert list(made.values) == ["kept_as"]
    assert changed(table, made) == then


def commits(folder: Path, count: int) -> tuple[SparkOutput, list[OutputState]]:
    output, chance = SparkOutput(str(folder)), random.Random(4711)
    state, states = output.open("log", "id"), []
    for number in range(1, count + 1):
        tables = dict(state.tables)
        for name in chance.sample("abcdefgh", 3):
            before = tables.get(f"s.{name}", TableState(schema="s", table=name))
            tables[f"s.{name}"] = random_table(chance, before)
        if number % 9 == 0:
            tables.pop(next(iter(tables)))
        log_position = LogPosition(1, number, 0)
        state = replace(
            state, number=number, log_position=log_position, tables=tables, rows_applied=number
        )
        output.commit(state)
        states.append(state)
    output.close()
    return output, states


@pytest.mark.parametrize("count", [1, STEPS + 1, 3 * STEPS])
def test_the_newest_commit_and_those_that_are_kept_are_read_as_they_were_written(tmp_path, count):
    """A successor goes on from them."""
    _written, states = commits(tmp_path, count)
    found = SparkOutput(str(tmp_path))
    assert found.state() == states[-1]
    assert found.readable_states() == states[-10:]
    for _driver in range(2):
        output = SparkOutput(str(tmp_path))
        assert output.open("log", "id") == states[-1]
        states.append(replace(states[-1], number=states[-1].number + 1))
        output.commit(states[-1])
        output.close()
    assert SparkOutput(str(tmp_path)).readable_states() == states[-10:]
    assert len(list((tmp_path / COMMITS).iterdir())) <= 10 + STEPS


def test_the_file_that_is_damaged_or_missing_is_named_and_without_it_the_tables_go_on(tmp_path):
    output, states = commits(tmp_path, 5)
    broken = tmp_path / COMMITS / "000000000003-000000000001.json"
    whole = broken.read_bytes()
    for damaged in (whole[: len(whole) // 2], whole.replace(b"s.", b"\xff.", 1)):
        broken.write_bytes(damaged)
        with pytest.raises(OutputDamaged, match=r"000000000003-000000000001\.json is not a commit"):
            output.state()
    broken.unlink()
    with pytest.raises(OutputDamaged, match=r"000000000003-000000000001\.json is missing"):
        output.state()
    for number in (4, 5):  # as the remedy says
        (tmp_path / COMMITS / f"{number:012d}-000000000001.json").unlink()
    assert SparkOutput(str(tmp_path)).state() == states[1]


def test_commits_that_a_driver_removes_while_somebody_reads_them_are_looked_for_anew(
    tmp_path, monkeypatch
):
    _written, states = commits(tmp_path, 3)
    reader, writer = SparkOutput(str(tmp_path)), SparkOutput(str(tmp_path))
    listed = reader.store.names
    writer.open("log", "id")

    def overtaken(folder: str) -> list[str]:
        names = listed(folder)
        if folder == COMMITS and states[-1].number < 10 * STEPS:
            for _each in range(2 * STEPS + MAX_COMMITS):
                states.append(replace(states[-1], number=states[-1].number + 1))
                writer.commit(states[-1])
        return names

    monkeypatch.setattr(reader.store, "names", overtaken)
    assert reader.readable_states() == states[-MAX_COMMITS:]
    writer.close()


def test_what_a_commit_writes_does_not_grow_with_the_history(tmp_path):
    """Nor with the tables that it does not touch."""
    output = SparkOutput(str(tmp_path))
    state = output.open("log", "id")
    tables = {f"s.{n}": TableState(schema="s", table=str(n)) for n in range(50)}
    sizes = []
    for number in range(1, 100):
        changes = (*tables["s.1"].changes, *sets(f"tables/s/1/changes/{number}"))
        tables = {**tables, "s.1": replace(tables["s.1"], changes=changes)}
        state = replace(state, number=number, tables=tables)
        output.commit(state)
        newest = max((tmp_path / COMMITS).iterdir(), key=lambda path: path.name)
        if "-" in newest.name:
            sizes.append(newest.stat().st_size)
    assert len(sizes) > 80
    assert max(sizes) < 2 * min(sizes)
    output.close()


# --- versions of the past: every position leads to them, however many commits ago ----------------------

MANY = 2 * CUTS_MOST + 40
SECOND = 1_700_000_000
START = OutputState(
    version=1,
    number=0,
    log_position=LogPosition(0, 0, 0),
    changelog="",
    committed_at=0.0,
    format="delta",
)


def stored_table(name: str, version: int) -> TableState:
    target = TargetTable(at=name, version=version)
    return TableState(schema="s", table=name, stored_table=StoredTable(targets={"current": target}))


def after(output: SparkOutput, before: OutputState, number: int, days: int = 0) -> OutputState:
    """Commit ``number`` moves table a; every tenth b, too, which there is from 20 on."""
    tables = before.tables | {"s.a": stored_table("a", number)}
    if number % 10 == 0 and number >= 20:
        tables["s.b"] = stored_table("b", number)
    state = replace(
        before,
        number=number,
        log_position=LogPosition(1, number * 100, 0),
        committed_at=SECOND + number + 0.5 + days * 86_400,
        last_commit_ts=(SECOND + number) * 1_000_000,
        tables=tables,
    )
    return noted(output, state, before)


@pytest.fixture(scope="module")
def made(tmp_path_factory) -> tuple[SparkOutput, OutputState]:
    output, state = SparkOutput(str(tmp_path_factory.mktemp("out"))), START
    for number in range(1, MANY + 1):
        state = after(output, state, number)
    return output, state


def versions(state: OutputState) -> dict[str, int | None]:
    return {
        name: table.stored_table.targets["current"].version if table.stored_table.targets else None
        for name, table in state.tables.items()
    }


def moment(seconds: float) -> dt.datetime:
    return dt.datetime.fromtimestamp(SECOND + seconds, dt.UTC)


@pytest.mark.parametrize("number", [1, 20, 256, 257, MANY])
def test_a_position_between_two_commits_is_that_of_the_first(made, number):
    wanted = {"s.a": number, "s.b": number // 10 * 10 if number >= 20 else None}
    moments = [LogPosition(1, number * 100, 0), number * 100, moment(number + 0.9)]
    if number < MANY:
        moments += [number * 100 + 99, LogPosition(1, number * 100 + 1, 0)]
    for each in moments:
        found = state_at(*made, each)
        assert (versions(found), found.number) == (wanted, number)


def test_what_was_never_or_not_yet_is_refused_with_what_there_is(made):
    reported = f"from {LogPosition(1, 100, 0)} to {made[1].log_position}"
    for each in (99, MANY * 100 + 1, dt.datetime(2001, 1, 1, tzinfo=dt.UTC)):
        with pytest.raises(VersionGone, match=reported):
            state_at(*made, each)


def test_a_time_behind_a_transaction_is_found_that_was_applied_long_after_a_snapshot(tmp_path):
    """Commits 1 and 2 are of a snapshot alone; there was a backlog."""
    output, state = SparkOutput(str(tmp_path)), START
    for number in range(1, 5):
        state = after(output, state, number, days=1)
    first, second, *rest = state.cuts
    first = replace(first, versions={**first.versions, "s.c": {"current": 7}}, last_commit_ts=None)
    cuts = (first, replace(second, last_commit_ts=None), *rest)
    state = replace(state, cuts=cuts, tables={**state.tables, "s.c": stored_table("c", 9)})
    assert versions(state_at(output, state, moment(3.5))) == {"s.a": 3, "s.c": 7}
    assert versions(state_at(output, state, moment(4.5))) == {"s.a": 4, "s.c": 7}
    with pytest.raises(VersionGone):
        state_at(output, state, moment(2.5))
    assert versions(state_at(output, state, 100)) == {"s.a": 1, "s.c": 7}


def test_files_of_cuts_go_when_they_are_old(tmp_path):
    output, state, old = SparkOutput(str(tmp_path)), START, 2 * CUTS_MOST
    for number in range(1, 3 * CUTS_MOST + 2):
        state = after(output, state, number, days=40 if number > old else 0)
    assert output.store.names("_waltap/cuts") == [f"{old + 1:012d}.json"]
    with pytest.raises(VersionGone):
        state_at(output, state, 100)
    assert versions(state_at(output, state, (old + 1) * 100)) == {"s.a": old + 1, "s.b": 510}


# --- versions of a shared target that must stay -------------------------------------------------------


def version(
    number: int, output: str = "", table: str = "t", named_version: int = -1
) -> TableSnapshot:
    note = CommitNote(waltap=output, step=1, table=table, named_version=named_version)
    summary = {KEY: msgspec.json.encode(note).decode()} if output else {}
    return TableSnapshot(snapshot_id=number, timestamp_ms=number * 1000, summary=summary)


SILENT = (version(1), version(2, "other", named_version=1), version(3, "own"))


@pytest.mark.parametrize(
    ("there", "names", "silent_ms", "since"),
    [
        ((version(1), version(2, "own"), version(3, "own")), (2, 3), 0, 2000),
        ((version(1), version(2, "own")), (), 0, math.inf),
        ((*SILENT, version(4, "other", named_version=2)), (3,), 0, 2000),
        (
            (*map(version, range(1, 5)), version(5, "other", "one", 4), version(6, "other", "two", 2)),
            (), 0, 2000,
        ),
        (
            (version(1), version(2, "other"), version(3, "own"), version(4, "other"), version(5, "own")),
            (), 0, 2000,
        ),
        (SILENT, (3,), 2000, 3000),
        (SILENT, (3,), 1999, 1000),
        ((version(3, "own"), version(4, "other", named_version=1), version(5, "own")), (), 0, 4000),
    ],
    ids=[
        "what the own tables stand at, and what came after it", "nothing is named",
        "the last commit of another output, and its steps since", "each table of another output",
        "all steps of a table of which nothing was committed", "who is silent is not waited for",
        "who was not silent for long is", "a version that is gone keeps what came after it",
    ],
)  # fmt: skip
def test_versions_that_somebody_needs_stay(there, names, silent_ms, since):
    assert needed_since(reversed(there), names, "own", silent_ms) == since


# --- files that nobody names ----------------------------------------------------------------------------

SET = "tables/s/t/changes/one"


def opened(folder: Path) -> tuple[SparkOutput, OutputState]:
    """An output whose first commit names a set."""
    output = SparkOutput(str(folder))
    state = output.open("log", "id")
    output.store.put(f"{SET}/part.parquet", b"rows")
    tables = {"s.t": TableState(schema="s", table="t", changes=sets(SET))}
    state = replace(state, number=1, log_position=LogPosition(1, 1, 0), tables=tables)
    output.commit(state)
    return output, state


def test_what_a_failed_attempt_was_to_drop_stays_while_a_commit_names_it(tmp_path):
    output, state = opened(tmp_path)
    output.garbage.note(2, {SET})  # and the commit failed
    assert output.collect(0.0) == 0
    output.garbage.note(2, ())  # made again, it drops nothing
    output.commit(replace(state, number=2))
    assert output.collect(0.0) == 0
    assert (tmp_path / SET / "part.parquet").exists()
    output.close()


def test_what_a_driver_that_died_was_to_drop_is_forgotten_by_its_successor(tmp_path):
    output, _state = opened(tmp_path)
    output.garbage.note(2, {SET})
    output.close()
    successor = SparkOutput(str(tmp_path))
    assert successor.garbage.paths() == {SET}
    successor.open("log", "id")
    assert successor.garbage.paths() == set()
    assert (tmp_path / SET / "part.parquet").exists()
    successor.close()


def test_what_was_dropped_by_a_clock_that_was_ahead_goes_before_what_was_dropped_later(
    tmp_path, monkeypatch
):
    output, state = opened(tmp_path)
    ahead = time.time() + 40 * 86_400
    with monkeypatch.context() as patch:
        patch.setattr("waltap_spark.state.output.time.time", lambda: ahead)
        output.garbage.note(2, {SET})
    output.commit(replace(state, number=2, tables={}))
    assert output.collect(0.0) == 0
    output.garbage.note(3, {f"{SET}-later"})
    output.commit(replace(state, number=3, tables={}))
    assert output.collect(3600.0) == 0
    assert output.collect(0.0) == 2
    assert not (tmp_path / SET).exists()
    output.close()


@pytest.mark.parametrize("local", [True, False])
def test_what_no_commit_names_goes_at_the_start(tmp_path, local):
    """But, where no lock keeps another machine's driver out, what it may be about to name."""
    opened(tmp_path)[0].close()
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


def test_what_a_driver_collects_while_somebody_reads_is_left_out(tmp_path, monkeypatch):
    output, state = opened(tmp_path)
    output.garbage.note(2, {SET})
    output.commit(replace(state, number=2, tables={}))
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


# --- what was folded or merged beside the commits ------------------------------------------------------


def table(parts: str, pending: str, changes: str = "", **more: Any) -> TableState:
    """Return a table of these parts, sets that wait, and sets: those that wait behind one, unless given."""
    base = tuple(BasePart(path=name, rows=9, columns={}, epoch=1) for name in parts.split())
    return TableState(
        schema="s",
        table="t",
        base=base,
        pending=sets(*pending.split()),
        changes=sets(*(changes or f"0 {pending}").split()),
        **{"key": ("id",), **more},
    )


BEFORE = table("b", "1 2")
FOLDED = replace(BEFORE, base=table("b2", "").base, pending=())


@pytest.mark.parametrize(
    ("before", "after", "now", "found"),
    [
        (BEFORE, FOLDED, table("b", "1 2 3"), table("b2", "3", "0 1 2 3")),
        (BEFORE, FOLDED, table("new", "1 2 3"), None),
        (BEFORE, FOLDED, table("", ""), None),
        (BEFORE, FOLDED, table("b", "3"), None),
        (BEFORE, FOLDED, table("b", "1 2", key=("other",)), None),
        (table("b", "1 2 3"), table("b", "m 3"), table("b", "1 2 3 4"), table("b", "m 3 4")),
        (
            table("1 2", "", "1 2"), table("m", "", "m"),
            table("1 2 3", "", "1 2 3", columns={"more": '"long"'}),
            table("m 3", "", "m 3", columns={"more": '"long"'}),
        ),
    ],
    ids=[
        "changes that came meanwhile stay pending", "by a snapshot", "by a truncate", "other sets",
        "by another key", "merged sets stand where those were", "a base that grew keeps its rows",
    ],
)  # fmt: skip
def test_what_was_compacted_takes_its_place_unless_the_table_got_another_base_or_key(
    before, after, now, found
):
    assert grafted(now, CompactionResult(before, after)) == found
