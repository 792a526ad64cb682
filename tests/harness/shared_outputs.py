"""Tables of several sources in one target: of one pipeline, and of two that write it at the same time."""

from collections.abc import Sequence
from itertools import zip_longest
from pathlib import Path
from typing import Any, Final

import pytest
from tests.harness.meanwhile import in_background
from tests.harness.spark_machine import Machine, playground
from tests.harness.spark_steps import (
    Add,
    Apply,
    Commit,
    Delete,
    Insert,
    Move,
    Rename,
    Snapshot,
    Step,
    Truncate,
    Update,
    Widen,
)

from waltap_spark.apply import applier
from waltap_spark.config.shared_targets import TargetMappings, sharers
from waltap_spark.formats.choice import FormatChoice
from waltap_spark.read.live import LiveTables

INTO: Final = TargetMappings((r"t(\d)\.(.*):all.$2@tenant $1",))
KINDS: Final = ("alone", "versions", "logged", "bare")
FILLED: Final = Commit((Insert(1), Insert(2), Insert(3, "b", None)))
COLUMNS_CHANGE: Final = Commit((Add(0), Widen(0), Rename(2, 0), Update(1)))

ONE: Final[Sequence[Step]] = (
    FILLED, Apply(), Commit((Update(1), Delete(2), Move(3, 9), Insert(7))), Apply(3),
    Commit((Truncate(), Insert(1))), Apply(), COLUMNS_CHANGE, Apply(),
)  # fmt: skip
"""Of a source whose columns become others than those of its neighbour."""
OTHER: Final[Sequence[Step]] = (
    FILLED, Apply(), Commit((Insert(6), Update(1, "z"))), Apply(),
    Snapshot((Insert(77), Delete(1))), Apply(2), Commit((Move(2, 1), Delete(3))), Apply(),
)  # fmt: skip
"""Of one that is read again."""


def sources_keep_to_themselves(folder: Path, spark: Any, table_format: str) -> None:
    """Play a script of each source, step by step, with the same keys in both."""
    rig = playground(folder, spark, table_format, places=INTO, parallel=3)
    machines = [Machine(rig, KINDS, f"t{number}") for number in (1, 2)]
    for steps in zip_longest(ONE, OTHER):
        for machine, step in zip(machines, steps, strict=True):
            if step is not None:
                machine.take(step)
    for machine in machines:
        machine.end_here()
    tables = LiveTables(rig.spark, rig.output)
    assert list(sharers(tables.states.values())) == sorted(f"all.{kind}" for kind in KINDS)
    for kind in KINDS:
        counts = _by_source(tables.current(f"all.{kind}"))
        own = {f"tenant {m.schema[1]}": tables.current(m.name(kind)).count() for m in machines}
        assert counts == {source: count for source, count in own.items() if count}, kind


def _by_source(rows: Any) -> dict[str, int]:
    return dict(map(tuple, rows.groupBy("_source").count().collect()))


def write_one_target(
    folder: Path, spark: Any, choice: FormatChoice, called: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Let two pipelines write at the same time, each with a change log and an output of its own. Then one rests,
    while the other writes, and whoever removes old versions does. ``called``: what SQL calls the target of a
    kind in the catalogue."""
    kinds, options = KINDS[:2], {"places": INTO, "parallel": 2}
    first, second = (playground(folder / tenant, spark, choice, **options) for tenant in "12")
    one, other = Machine(first, kinds, "t1"), Machine(second, kinds, "t2")
    for playing in [in_background(one.run, ONE), in_background(other.run, OTHER)]:
        playing.result()
    monkeypatch.setattr(applier, "REST_S", 0.0)
    for number in range(3):
        one.commit(Commit((Insert(20 + number), Update(1))))
        one.apply(Apply())
        second.apply()
    for machine in (one, other):
        machine.rig.reopen()
        machine.end_here()
    other.run([Commit((Insert(30), Update(1)))])
    for kind in kinds:
        counts = {
            f"tenant {m.schema[1]}": LiveTables(spark, m.rig.output).current(m.name(kind)).count()
            for m in (one, other)
        }
        assert _by_source(spark.table(called.format(kind))) == counts
