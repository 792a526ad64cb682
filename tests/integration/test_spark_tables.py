"""Spark tables follow their source, whatever becomes of it: scripts of what may happen to one, by name."""

from pathlib import Path
from typing import Any, Final

import pytest
from tests.harness.spark_machine import Machine
from tests.harness.spark_steps import (
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
    Snapshot,
    Step,
    Truncate,
    Update,
    Widen,
)

pytestmark = pytest.mark.usefixtures("quick_plans")

GROUPS: Final = {
    "rows": ("plain", "bare", "versions"),
    "past": ("whole", "soft", "logged"),
    "alone": ("alone", "kept", "plain"),
}
"""Tables of one machine; all kinds together take as long as three machines."""
FILLED: Final = Commit((Insert(1), Insert(2), Insert(3, "b", None), Insert(4)))

NAMED: Final[dict[str, list[Step]]] = {
    "keys that are taken from one another, and what passes through them": [
        FILLED, Apply(),
        Commit((Rotate(3), Insert(9), Move(9, 8), Delete(8))),
        Commit((Rotate(2, sent=True), Replace(1), Move(2, 7), Move(7, 6), Insert(2), Delete(2))),
        Apply(),
        Commit((Delete(1), Insert(1, "next", "new"), Move(1, 20), Rotate(2, to=30))),
    ],
    "a key that came and moved in one transaction, behind a truncate": [
        FILLED, Apply(),
        Commit((Move(3, 5), Update(4), Truncate())),
        Commit((Insert(1, "c", "new"), Move(1, 2), Insert(3))),
    ],
    "columns that come, go, take the names of others, and widen": [
        FILLED, Apply(),
        Commit((Add(0), Update(1), Rename(1, 2), Update(2), Delete(3))),
        Apply(),
        Commit((Drop(2), Update(4), Add(2), Move(1, 7))),
        Commit((Widen(0), Insert(9), Rename(0, 0), Update(9))),
    ],
    "rows of a snapshot that breaks off, in every way in which it goes on": [
        FILLED, Apply(),
        Snapshot((Delete(1), Insert(8), Update(2)), 2, "anew"),
        Commit((Update(2), Delete(3))),
        Snapshot((Delete(4),), 1, "goes on after a start"),
        Commit((Insert(4),)),
        Snapshot((Insert(1),), 1, "restarts"),
    ],
    "transactions that come again in a new epoch": [
        FILLED, Apply(),
        Commit((Update(1), Delete(2), Insert(6))),
        Commit((Move(3, 5),)),
        Apply(), Again(2),
        Commit((Update(1, "z"), Insert(2))),
    ],
    "a transaction in parts, of which one comes again; rows that are read beside the stream": [
        Commit((Insert(1), Insert(2), Insert(3), Update(1), Update(2)), 3, breaks=True), Apply(),
        Commit((Gap(1),)),
        Reread("incremental", (1, 2), (Insert(30),)),
        Reread("blocking", (1,), (), (40,)),
        Commit((Update(1),)),
    ],
    "a table that is made anew under its name, and files made few": [
        FILLED, Apply(2),
        Commit((Update(1), Recreate(2), Update(2), Insert(3))),
        Apply(5), Reopen(tends=True),
        Commit((Delete(2), Insert(1), Update(3))),
    ],
}  # fmt: skip


def play(
    folder: Path,
    spark: Any,
    kinds: tuple[str, ...],
    script: list[Step],
) -> None:
    machine = Machine(folder, spark, kinds=kinds)
    try:
        machine.run(script)
    finally:
        machine.close()


@pytest.mark.parametrize("group", GROUPS)
@pytest.mark.parametrize("script", NAMED)
def test_tables_follow_their_source(spark: Any, tmp_path: Path, script: str, group: str) -> None:
    play(tmp_path, spark, GROUPS[group], NAMED[script])
