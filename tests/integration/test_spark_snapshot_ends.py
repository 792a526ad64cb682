"""What a snapshot ends of rows whose past is kept: those that it lacks, at its place and its time."""

from pathlib import Path
from typing import Any

import msgspec
import pytest
from tests.harness.changelog import COMMIT_TS, relation
from tests.harness.empty_tables import OPTIONS, tables_without_rows_follow
from tests.harness.spark import Rig
from tests.harness.versions import versions

from waltap_spark.live import LiveTables
from waltap_spark.modes import ModeRules

pytestmark = pytest.mark.usefixtures("quick_plans")

RULES = ModeRules(modes=(r".*\.versions:scd2", "scd1"), deletes=(r".*\.soft:soft", "hard"))
BOTH = ("public.versions", "public.soft")
NARROW = [relation(name, [("id", "int4"), ("v", "text")], numbers=(1, 2)) for name in BOTH]
WIDE = [
    relation(name, [("id", "int4"), ("v", "text"), ("more", "text")], numbers=(1, 2, 3))
    for name in BOTH
]


@pytest.fixture(params=["parquet", "delta"])
def rig(request: Any, delta: Any, tmp_path: Path) -> Any:
    made = Rig(tmp_path, delta, request.param, fold_rows=0, modes=RULES)
    yield made
    made.applier.close()
    made.sink.close()


def select(rig: Rig, table: str, what: str, *columns: str) -> list[tuple[Any, ...]]:
    reader = LiveTables(rig.spark, rig.output)
    assert rig.output.table(table).failed == ""
    frame = reader.current(table) if what == "current" else reader.changes(table)
    return sorted((tuple(row) for row in frame.selectExpr(*columns).collect()), key=str)


def test_rows_end_where_and_when_the_snapshot_found_their_table_empty(rig: Rig) -> None:
    """One commit has the snapshot, and what was inserted behind it."""
    for table in NARROW:
        rig.db.insert(table, ["1", "a"])
    rig.commit()
    rig.apply()
    for table in NARROW:
        rig.db.rows[table.name] = []
    rig.db.lsn += 64
    found_empty, seconds = rig.db.lsn, 7_000_000
    for each in rig.db.snapshot(*NARROW):
        for part in each.parts:
            part.ts += seconds  # type: ignore[union-attr]
        rig.sink.write(each)
    rig.sink.flush()
    for _turn in range(2):
        for table in NARROW:
            rig.db.insert(table, [str(len(rig.db.rows[table.name]) + 1), "b"])
        rig.commit()
    rig.apply()
    when = f"unix_micros(_valid_to) - {COMMIT_TS}"
    ended, *standing = select(rig, "versions", "current", "id", "v", "_to_lsn", when, "_from_lsn")
    assert ended[:4] == (1, "a", found_empty, seconds)
    assert [row[:4] for row in standing] == [(1, "b", None, None), (2, "b", None, None)]
    assert all(row[4] > found_empty for row in standing)
    for table in ("versions", "soft"):
        ops = select(rig, table, "changes", "_commit_lsn", "_op")
        assert [op for _lsn, op in sorted(ops)] == ["c", "t", "c", "c"]
    assert select(rig, "soft", "current", "id", "v", "_deleted") == [
        (1, "b", False),
        (2, "b", False),
    ]


@pytest.mark.parametrize("table_format", ["parquet", "delta"])
def test_tables_without_rows_follow(delta: Any, tmp_path: Path, table_format: str) -> None:
    made = Rig(tmp_path, delta, table_format, **OPTIONS)
    tables_without_rows_follow(made)
    made.applier.close()
    made.sink.close()


def snapshot_under_two_schemas(rig: Rig) -> None:
    """Write a snapshot of each table whose first piece is narrow and whose second is wide."""
    for each in rig.db.snapshot(*WIDE):
        for part in each.parts:
            if part.chunk == 0:  # type: ignore[union-attr]
                narrow = next(r for r in NARROW if r.name == part.relation.name)  # type: ignore[union-attr]
                cut = [row[:2] for row in part.rows]  # type: ignore[union-attr]
                each.parts = [msgspec.structs.replace(part, relation=narrow, rows=cut)]
        rig.sink.write(each)
    rig.sink.flush()


def test_a_snapshot_under_two_schemas_ends_what_is_in_neither_part_of_it(rig: Rig) -> None:
    """A column came while it was read: rows of its second part were there all the time."""
    for table in NARROW:
        rig.db.insert(table, *([str(n), f"v{n}"] for n in range(1, 8)))
    rig.commit()
    rig.apply()
    for table in NARROW:  # 2 and 6 go, 3 and 7 change, 8 and 9 come
        rig.db.rows[table.name] = [
            (str(n), "w" if n in {3, 7} else f"v{n}", None) for n in (1, 3, 8, 4, 5, 7, 9)
        ]
    rig.db.lsn += 64
    snapshot_under_two_schemas(rig)
    rig.apply()
    names = ["id", "v", "more"]
    told = select(
        rig, "versions", "current", *(f"cast({name} as string)" for name in names),
        "struct(_from_epoch, _from_lsn)", "struct(_to_epoch, _to_lsn)",
    )  # fmt: skip
    made = [(row[:3], tuple(row[3]), None if row[4][0] is None else tuple(row[4])) for row in told]
    assert sorted(made, key=str) == versions(rig.log, "public.versions", ("id",), names)
    assert select(rig, "soft", "current", "id", "v", "_deleted", "_deleted_at is null") == [
        (n, "w" if n in {3, 7} else f"v{n}", n in {2, 6}, n not in {2, 6}) for n in range(1, 10)
    ]
