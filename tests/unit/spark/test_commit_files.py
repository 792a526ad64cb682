"""Commits say what they changed; readers put them together again."""

import random
from pathlib import Path

import msgspec
import pytest

from waltap_sinks.changelog.manifest import LogPosition
from waltap_spark.commit_files import COMMITS, KEPT, STEPS, changed, difference
from waltap_spark.errors import OutputDamaged
from waltap_spark.output import (
    BasePart,
    ChangeSet,
    OutputState,
    SparkOutput,
    StagedSegment,
    TableState,
)


def random_table(chance: random.Random, before: TableState) -> TableState:
    """One of the things that happen to a table: sets come, are merged, are folded; columns come."""
    number = str(chance.random())
    one = ChangeSet(path=f"c{number}", fingerprint="f", rows=3, operations={"u": 3})
    kind = chance.randrange(6)
    if kind == 0:
        return msgspec.structs.replace(before, changes=(), pending=(), base=())
    if kind == 1 and len(before.changes) > 2:
        at = chance.randrange(len(before.changes) - 1)
        merged = (*before.changes[:at], one, *before.changes[at + 2 :])
        return msgspec.structs.replace(before, changes=merged)
    if kind == 2:
        part = BasePart(path=f"b{number}", rows=7, columns=before.columns, epoch=1, ids={"a": 1})
        return msgspec.structs.replace(before, base=(part,), pending=())
    if kind == 3:
        return msgspec.structs.replace(
            before,
            columns={**before.columns, number: '"long"'},
            streamed=None if before.streamed else ("a", "b"),
            mark=None if before.mark else LogPosition(1, 2, 3),
        )
    if kind == 4:
        wait = StagedSegment(generation=1, path=number, fingerprint="f", rows=1, key=("a",))
        return msgspec.structs.replace(before, staged=(*before.staged, wait))
    return msgspec.structs.replace(
        before, changes=(*before.changes, one), pending=(*before.pending, one)
    )


def test_a_difference_leads_from_one_to_the_other() -> None:
    chance = random.Random(20130101)
    table = TableState(schema="s", table="t")
    for _each in range(300):
        then = random_table(chance, table)
        stored = msgspec.json.decode(
            msgspec.json.encode(difference(table, then)), type=type(difference(table, then))
        )
        assert changed(table, stored) == then
        table = then


def commits(folder: Path, count: int) -> tuple[SparkOutput, list[OutputState]]:
    output, chance = SparkOutput(str(folder)), random.Random(4711)
    state = output.open("log", "id")
    states = []
    for number in range(1, count + 1):
        tables = dict(state.tables)
        for name in chance.sample("abcdefgh", 3):
            key = f"s.{name}"
            before = tables.get(key, TableState(schema="s", table=name))
            tables[key] = random_table(chance, before)
        if number % 9 == 0:
            tables.pop(next(iter(tables)))
        state = msgspec.structs.replace(
            state, number=number, mark=LogPosition(1, number, 0), tables=tables, rows_applied=number
        )
        output.commit(state)
        states.append(state)
    output.close()
    return output, states


@pytest.mark.parametrize("count", [1, 2, STEPS, STEPS + 1, STEPS + 2, 3 * STEPS])
def test_the_newest_commit_and_those_that_are_kept_are_read_as_they_were_written(
    tmp_path: Path, count: int
) -> None:
    written, states = commits(tmp_path, count)
    found = SparkOutput(str(tmp_path))
    assert found.state() == states[-1]
    assert found.kept_states() == states[-10:]
    assert len(list((tmp_path / COMMITS).iterdir())) <= 10 + STEPS


def test_a_successor_goes_on_from_the_last_commit(tmp_path: Path) -> None:
    output, states = commits(tmp_path, 5)
    for number in (6, 7):
        output = SparkOutput(str(tmp_path))
        state = output.open("log", "id")
        assert state == states[-1]
        states.append(msgspec.structs.replace(state, number=number))
        output.commit(states[-1])
        output.close()
    assert SparkOutput(str(tmp_path)).kept_states() == states


def test_the_file_that_is_damaged_or_missing_is_named_and_without_it_the_tables_go_on(
    tmp_path: Path,
) -> None:
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
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    _written, states = commits(tmp_path, 3)
    reader, writer = SparkOutput(str(tmp_path)), SparkOutput(str(tmp_path))
    state, listed = writer.open("log", "id"), reader.store.names

    def overtaken(folder: str) -> list[str]:
        nonlocal state
        names = listed(folder)
        if folder == COMMITS and state.number < 10 * STEPS:
            for _each in range(2 * STEPS + KEPT):
                state = msgspec.structs.replace(state, number=state.number + 1)
                writer.commit(state)
                states.append(state)
        return names

    monkeypatch.setattr(reader.store, "names", overtaken)
    assert reader.kept_states() == states[-KEPT:]
    writer.close()


def test_what_a_commit_writes_does_not_grow_with_the_history(tmp_path: Path) -> None:
    """Nor with the tables that it does not touch."""
    output = SparkOutput(str(tmp_path))
    state = output.open("log", "id")
    tables = {f"s.{n}": TableState(schema="s", table=str(n)) for n in range(50)}
    sizes = []
    for number in range(1, 100):
        one = ChangeSet(path=f"tables/s/1/changes/{number}", fingerprint="f", rows=1)
        changes = (*tables["s.1"].changes, one)
        tables = {**tables, "s.1": msgspec.structs.replace(tables["s.1"], changes=changes)}
        state = msgspec.structs.replace(state, number=number, tables=tables)
        output.commit(state)
        newest = max((tmp_path / COMMITS).iterdir(), key=lambda path: path.name)
        if "-" in newest.name:
            sizes.append(newest.stat().st_size)
    assert len(sizes) > 80
    assert max(sizes) < 2 * min(sizes)
    output.close()
