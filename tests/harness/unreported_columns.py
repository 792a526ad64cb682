"""Courses of tables without a key whose rows have columns of which no change shows."""

from collections.abc import Callable
from typing import Final

from tests.harness.changelog import relation
from tests.harness.spark import Rig

from waltap.changes.decode.relation import Relation
from waltap_spark.read.live import LiveTables

WIDE = relation("public.k", [("a", "int4"), ("b", "text")], numbers=(1, 2), key=(), identity="f")
NARROW = relation("public.k", [("a", "int4")], numbers=(1,), key=(), identity="f")
COMPUTED = relation(
    "public.k", [("a", "int4"), ("b", "text")], numbers=(1, 2), key=(), identity="f",
    more={"b": {"generated": True}},
)  # fmt: skip


def _narrowed(rig: Rig) -> None:
    rig.db.rows[WIDE.name] = [row[:1] for row in rig.db.rows[WIDE.name]]


def _applied(rig: Rig, shown: Relation) -> None:
    rig.follow(shown)


def _changed(rig: Rig) -> None:
    """Of rows 1, 1, 2 and 3 one 1 becomes 9, and 2 goes; then the other 1, and what came since."""
    rig.db.update(NARROW, ["1"], a="9")
    rig.db.delete(NARROW, ["2"])
    _applied(rig, NARROW)
    rig.db.delete(NARROW, ["1"])
    rig.db.delete(NARROW, ["9"])
    rig.db.insert(NARROW, ["5"], ["5"])
    _applied(rig, NARROW)
    rig.db.delete(NARROW, ["5"])
    _applied(rig, NARROW)


def a_dropped_column(rig: Rig) -> None:
    """What is left keeps what it had in the dropped column."""
    rig.db.insert(WIDE, ["1", "x"], ["1", "x"], ["2", "y"], ["3", "z"])
    _applied(rig, WIDE)
    rig.db.update(WIDE, ["3", "z"], b="zz")
    _applied(rig, WIDE)
    _narrowed(rig)
    _changed(rig)
    rows = LiveTables(rig.spark, rig.output).current("public.k").collect()
    assert sorted((row["a"], row["b"]) for row in rows) == [(3, "zz"), (5, None)]


def a_computed_column(rig: Rig) -> None:
    """The snapshot reads it, and the server does not send it."""
    rig.db.rows[COMPUTED.name] = [("1", "x"), ("1", "x"), ("2", "y"), ("3", "z")]
    rig.snapshot(COMPUTED)
    rig.apply()
    _narrowed(rig)
    _changed(rig)


def a_column_left_out_for_a_while(rig: Rig) -> None:
    """What was changed by fewer columns is done before those come that show more."""
    rig.db.insert(WIDE, ["1", None], ["1", None], ["2", None], ["3", None])
    _applied(rig, WIDE)
    _narrowed(rig)
    _changed(rig)
    rig.db.rows[WIDE.name] = [(*row, None) for row in rig.db.rows[WIDE.name]]
    rig.db.update(WIDE, ["5", None], b="new")
    rig.db.delete(WIDE, ["3", None])
    _applied(rig, WIDE)


COURSES: Final[tuple[Callable[[Rig], None], ...]] = (
    a_dropped_column,
    a_computed_column,
    a_column_left_out_for_a_while,
)
