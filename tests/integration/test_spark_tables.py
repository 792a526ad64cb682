"""Spark tables follow their source, whatever becomes of it: what failed once, by name, and scripts at random."""

import zlib
from collections.abc import Sequence
from itertools import product
from pathlib import Path
from typing import Any, Final

import pytest
from hypothesis import HealthCheck, Phase, given, seed, settings
from tests.harness.shared_outputs import sources_keep_to_themselves, write_one_target
from tests.harness.spark_machine import ENGINES, Machine, playground
from tests.harness.spark_steps import (
    SCRIPTS,
    Add,
    Again,
    Apply,
    Commit,
    Delete,
    Drop,
    Gap,
    Insert,
    Move,
    Recreate,
    Rename,
    Reopen,
    Replace,
    Reread,
    Rotate,
    SetSchema,
    Snapshot,
    Step,
    Truncate,
    Update,
    Widen,
)

from waltap_spark.formats.choice import FormatChoice

GROUPS: Final = {
    "rows": ("plain", "bare", "versions"),
    "past": ("whole", "soft", "logged"),
    "alone": ("alone", "kept", "plain"),
}
"""Tables of one machine; all kinds together take as long as three machines."""
AT_RANDOM: Final = {**GROUPS, "alone": ("alone", "plain")}
"""A kept row does not show that it was deleted: rows that meet it are not followed (decision 30)."""
FILLED: Final = Commit((Insert(1), Insert(2), Insert(3, "b", None), Insert(4)))

NAMED: Final[dict[str, tuple[str, list[Step]]]] = {
    "keys that are taken from one another, and what passes through them": ("past spark", [
        FILLED, Apply(),
        Commit((Rotate(3), Insert(9), Move(9, 8), Delete(8))),
        Commit((Rotate(2, sent=True), Replace(1), Move(2, 7), Move(7, 6), Insert(2), Delete(2))),
        Apply(),
        Commit((Delete(1), Insert(1, "next", "new"), Move(1, 20), Rotate(2, to=30))),
    ]),
    "a key that came and moved in one transaction, behind two truncates": ("rows here", [
        FILLED, Apply(),
        Commit((Move(3, 5), Update(4), Truncate())),
        Commit((Insert(8), Truncate(), Insert(1, "c", "new"), Move(1, 2), Insert(3))),
    ]),
    "columns that come, go, take the names of others, and widen": ("past here", [
        FILLED, Apply(),
        Commit((Add(0), Update(1), Rename(1, 2), Update(2), Delete(3))),
        Apply(),
        Commit((Drop(2), Update(4), Add(2), Move(1, 7))),
        Commit((Widen(0), Insert(9), Rename(0, 0), Update(9))),
    ]),
    "rows of a snapshot that breaks off, in every way in which it goes on": ("past spark", [
        FILLED, Apply(),
        Snapshot((Delete(1), Insert(8), Update(2)), 2, "anew"),
        Commit((Update(2), Delete(3))),
        Snapshot((Delete(4),), 1, "goes on after a start"),
        Commit((Insert(4),)),
        Snapshot((Insert(1),), 1, "restarts"),
    ]),
    "transactions that come again in a new epoch": ("alone here", [
        FILLED, Apply(),
        Commit((Update(1), Delete(2), Insert(6))),
        Commit((Move(3, 5),)),
        Apply(), Again(2),
        Commit((Update(1, "z"), Insert(2))),
    ]),
    "a transaction in parts, of which one comes again; rows that are read beside the stream": ("rows here", [
        Commit((Insert(1), Insert(2), Insert(3), Update(1), Update(2)), 3, breaks=True), Apply(),
        Commit((Gap(1),)),
        Reread("incremental", (1, 2), (Insert(30),)),
        Reread("blocking", (1,), (), (40,)),
        Commit((Update(1),)),
    ]),
    "a table that is created again under its name, and files made few": ("past here", [
        FILLED, Apply(2),
        Commit((Update(1), Recreate(2), Update(2), Insert(3))),
        Apply(5), Reopen(maintains=True),
        Commit((Delete(2), Insert(1), Update(3))),
    ]),
    "keys of rows that were deleted, taken again and passed through": ("alone here, alone spark", [
        FILLED, Apply(),
        Commit((Delete(1), Delete(4))), Apply(),
        Commit((Insert(1, "next", "new"), Move(1, 30), Rotate(2, to=9), Insert(4, "again", None), Update(4))),
        Apply(),
        Commit((Move(4, 20), Move(3, 4))),
    ]),
    "a first snapshot that is applied before all of it was read": ("rows last rows, past here", [
        Snapshot((*map(Insert, range(1, 8)), Update(7)), 2),
        Commit((Insert(100), Update(1), Delete(2))),
    ]),
    "columns that come and go within a transaction": ("rows here", [
        FILLED, Apply(),
        Commit((Update(1), Update(2), Add(1), Update(1, "mid"), Update(2, "mid"), Drop(2), Update(1, "new"), Delete(2))),
        Apply(),
        Commit((Update(1), Update(3), Insert(9), Add(1), Update(1), Delete(3), Delete(9))),
        Apply(),
        Commit((Update(1), Add(4), Update(1, "mid"), Drop(3), Truncate(), Insert(1, "new"))),
    ]),
    "tables without a row, read and emptied": ("rows spark", [
        Snapshot(), Apply(),
        Commit((Truncate(),)), Apply(),
        Commit((Insert(1),)), Apply(),
        Commit((Truncate(),)), Apply(),
        Snapshot(),
    ]),
    "rows that a blocking snapshot reads before the stream brings them": ("rows here", [
        Reread("blocking", (), (), (2,)), Apply(),
        Commit((Insert(3),)), Apply(),
        Reread("blocking", (2, 3), bare=True), Apply(),
        Snapshot(), Commit((Insert(5),)), Reopen(), Apply(),
    ]),
    "tables that go to other schemas and back, with drivers that die": ("rows here, alone here, past here", [
        FILLED, Apply(),
        Commit((SetSchema(1), Update(1), Delete(2))), Apply(3),
        Commit((Update(3), SetSchema(1), Add(1))), Apply(5), Reopen(maintains=True),
        Commit((Insert(9), SetSchema(1))), Commit((SetSchema(1),)), Commit((Recreate(2), SetSchema(1))), Apply(2),
        Again(3), Apply(),
        Snapshot((SetSchema(1), Insert(11)), 2), Apply(4),
        Commit((Move(1, 40), Truncate(), Insert(3), SetSchema(2))),
        Commit((Widen(0), Update(3), SetSchema(1), Update(20), SetSchema(2))),
    ]),
    "what comes again lacks a column that was added": ("alone here", [
        FILLED, Apply(),
        Commit((Add(0), Insert(9), Move(9, 10))), Apply(),
        Again(2), Apply(),
        Commit((Update(10), Insert(9))),
    ]),
}  # fmt: skip
"""Name → with which tables and ways to compact changes `make test` plays it, and its steps."""


def part_of(script: str, *numbers: int) -> list[Step]:
    (steps,) = (steps for name, (_played, steps) in NAMED.items() if name.startswith(script))
    return [steps[number] for number in numbers]


PIECES: Final[dict[str, tuple[str, list[Step]]]] = {
    "keys that are taken from one another": ("rows here", part_of("keys that are", 0, 1, 2, 3)),
    "columns that come and take the names of others": (
        "alone here", part_of("columns that come, go", 0, 1, 2),
    ),
    "rows of a snapshot that breaks off and restarts": (
        "rows here", part_of("rows of a snap", 0, 1, 6),
    ),
    "transactions that were applied together come again": (
        "rows spark", part_of("transactions that come", 0, 2, 3, 4, 5, 6),
    ),
}  # fmt: skip
"""Pieces of the longest scripts above, with other tables: so much takes a third of the time in one test."""


@pytest.fixture
def engine(request, monkeypatch) -> str:
    for place, size in ENGINES[request.param].items():
        monkeypatch.setattr(place, size)
    return str(request.param)


def play(
    folder: Path, spark: Any, kinds: Sequence[str], script: list[Step], table_format: str
) -> None:
    Machine(playground(folder, spark, table_format), kinds).run(script)


def chosen(played: bool) -> Any:
    return () if played else pytest.mark.exhaustive


UNDECIDED: Final = {("past", "columns that come and go within a transaction")}
"""A row that is updated, and deleted behind ALTER TABLE in the same transaction, keeps what the update made of it
where deletes are `soft` (decision 30)."""
UNDECIDED_IN_PLACE: Final = UNDECIDED | {
    ("past", "a table that is created again under its name, and files made few")
}
"""Behind DROP TABLE, too, in tables that are written in place."""
EVERY_WAY: Final = [
    pytest.param(
        name, group, engine, id=f"{group} {engine}: {name}",
        marks=chosen(f"{group} {engine}" in played.split(", ")),
    )
    for (name, (played, _steps)), group, engine in product(NAMED.items(), GROUPS, ENGINES)
    if (group, name) not in UNDECIDED
] + [
    pytest.param(name, *played.split(), id=f"{played}: {name}")
    for name, (played, _steps) in PIECES.items()
]  # fmt: skip
IN_DELTA: Final = {"rows": "a first snapshot"}
"""Group → the script that `make test` plays with it in Delta Lake."""


@pytest.mark.parametrize(("name", "group", "engine"), EVERY_WAY, indirect=["engine"])
def test_tables_follow_their_source(spark, tmp_path, name, group, engine):
    play(tmp_path, spark, GROUPS[group], (NAMED | PIECES)[name][1], "parquet")


@pytest.mark.parametrize(
    ("name", "group"),
    [
        pytest.param(name, group, marks=chosen(name.startswith(IN_DELTA.get(group, "none"))))
        for name, group in product(NAMED, GROUPS)
        if (group, name) not in UNDECIDED_IN_PLACE
    ],
)
def test_tables_that_are_written_in_place_follow_their_source(delta, tmp_path, name, group):
    play(tmp_path, delta, GROUPS[group], NAMED[name][1], "delta")


@pytest.mark.exhaustive
@pytest.mark.timeout(1800)
@pytest.mark.parametrize("table_format", ["parquet", "delta"])
@pytest.mark.parametrize("engine", ENGINES, indirect=True)
@pytest.mark.parametrize("group", AT_RANDOM)
def test_tables_follow_whatever_happens_to_their_source(
    delta, tmp_path_factory, group, engine, table_format
):
    @seed(zlib.crc32(f"{group} {engine} {table_format}".encode()))
    @settings(
        max_examples=15, phases=[Phase.generate], database=None,
        suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
    )  # fmt: skip
    @given(script=SCRIPTS)
    def follow(script: list[Step]) -> None:
        folder = tmp_path_factory.mktemp("machine")
        play(folder, delta, AT_RANDOM[group], script, table_format)

    follow()


@pytest.mark.exhaustive
def test_a_driver_that_dies_at_any_of_its_writes_leaves_no_trace(spark, tmp_path):
    script: list[Step] = [FILLED, Apply()]
    for moment in range(1, 14):
        script += [Commit((Update(1, str(moment)), Insert(10 + moment))), Apply(moment)]
    play(tmp_path, spark, GROUPS["rows"], script, "parquet")


@pytest.mark.exhaustive
def test_sources_of_one_target_keep_to_themselves(spark, tmp_path):
    sources_keep_to_themselves(tmp_path, spark, "parquet")


@pytest.mark.exhaustive
def test_so_they_do_where_the_target_is_one_table_of_delta_lake(delta, tmp_path):
    sources_keep_to_themselves(tmp_path, delta, "delta")


@pytest.mark.exhaustive
def test_pipelines_share_targets_of_a_catalogue(delta, tmp_path, monkeypatch):
    choice = FormatChoice("delta", {"format.catalog": "spark_catalog"})
    try:
        write_one_target(tmp_path, delta, choice, "spark_catalog.`all`.{}", monkeypatch)
    finally:
        delta.sql("DROP SCHEMA IF EXISTS spark_catalog.`all` CASCADE")
