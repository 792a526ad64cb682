"""Many plain changes settled by leaving superseded rows out come to what Spark's own settling does."""

import datetime as dt
import random
from collections.abc import Callable
from decimal import Decimal
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from tests.harness.changelog import relation
from tests.harness.spark import Rig
from tests.property.test_move_origins import Action, Source

from waltap.files.store import FileStore
from waltap_sinks.changelog.manifest import Segment
from waltap_spark import compact_in_memory, drop_overwritten
from waltap_spark.drop_overwritten import last_rows
from waltap_spark.formats.table_format import GroupRows
from waltap_spark.log_rows import logged, with_epoch
from waltap_spark.modes import TableMode
from waltap_spark.output import TableState
from waltap_spark.plan import SegmentGroup
from waltap_spark.schema import struct_of
from waltap_spark.session import make_active, prepare
from waltap_spark.small_sets import stored_types
from waltap_spark.temp_columns import GONE

pytestmark = pytest.mark.usefixtures("quick_plans")

EPOCH = 1
LOG = pa.schema(
    {
        "_op": pa.string(), "_commit_lsn": pa.int64(), "_seq": pa.int32(), "_sub": pa.int8(),
        "_lsn": pa.int64(), "_commit_ts": pa.timestamp("us", "UTC"), "_xid": pa.int64(),
        "_unchanged": pa.list_(pa.string()),
    }
)  # fmt: skip
THEN = dt.datetime(2026, 1, 2, tzinfo=dt.UTC)


class Segments:
    """Rows of one table, in segments; ``rows``: values of ``own``, operation, and position."""

    def __init__(
        self,
        folder: Path,
        own: pa.Schema,
        key: tuple[str, ...],
        parts: list[list[Any]],
        *,
        dictionaries: bool = False,
    ) -> None:
        self.store, schema = FileStore(str(folder)), pa.schema([*own, *LOG])
        self.group = SegmentGroup("f", EPOCH, key, (), oid=0)
        for number, rows in enumerate(parts):
            path = f"{number}.parquet"
            listed = [(*own_values, op, *place, 0, THEN, 1, None) for own_values, op, place in rows]
            arrays = [
                pa.array([row[n] for row in listed], kind) for n, kind in enumerate(schema.types)
            ]
            pq.write_table(
                pa.table(arrays, schema=schema), folder / path, use_dictionary=dictionaries
            )
            self.group.segments.append(path)
            self.group.known[path] = Segment(path=path, rows=len(rows), bytes=1, unpacked=1)
            self.group.rows += len(rows)
            self.group.operations.update(op for _own, op, _place in rows)
        types = stored_types(self.store, "0.parquet")
        self.table = TableState(
            schema="public", table="many", key=key, columns=types, versions={"f": types},
            kept_as=TableMode(extra=("_seq",)),
        )  # fmt: skip

    def brought(self, spark: Any) -> GroupRows:
        types = self.table.versions["f"]
        return GroupRows(
            group=self.group,
            read=lambda: with_epoch(logged(spark, self.store, self.group, types), EPOCH),
            files=self.store,
        )


@pytest.fixture
def session(spark: Any) -> Any:
    session = prepare(spark)
    make_active(session)
    return session


def plan_of(frame: Any) -> str:
    return str(frame._jdf.queryExecution().optimizedPlan().toString())


# --- one row for each key ---------------------------------------------------------------------------

AT = dt.datetime(1500, 1, 1, 0, 0, 0, 1)
"""Before the calendar changed."""

VALUES: dict[pa.DataType, list[Any]] = {
    pa.bool_(): [True, False],
    pa.int8(): [-128, -1, 0, 127],
    pa.int16(): [-1, 0, 255],
    pa.int32(): [-1, 0, 2**31 - 1],
    pa.int64(): [-1, 0, 2**32, 2**53, 2**53 + 1],
    pa.string(): ["", " ", "a", "A", "a ", "é", "e\u0301", "\0", "a\0", "ß", "ss"],
    pa.binary(): [b"", b"\0", b"\0\0", b"\xff", b"a"],
    pa.date32(): [dt.date(1582, 10, 4), dt.date(1582, 10, 15), dt.date(2026, 1, 1)],
    pa.timestamp("us"): [AT, AT + dt.timedelta(microseconds=1), dt.datetime(2026, 3, 29, 2, 30)],
    pa.timestamp("us", "UTC"): [
        each.replace(tzinfo=dt.UTC) for each in (AT, AT + dt.timedelta(microseconds=1))
    ],
    pa.decimal128(10, 2): [Decimal("1.10"), Decimal("-1.10"), Decimal("0"), Decimal("11.00")],
    pa.decimal128(38, 0): [Decimal(10**37), Decimal(10**37 + 1), Decimal(-1)],
}
APART = [pa.float32(), pa.float64(), pa.time64("us"), pa.list_(pa.int32())]


@pytest.mark.parametrize("kind", VALUES, ids=str)
def test_values_are_one_key_here_where_they_are_for_spark(
    session: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: pa.DataType
) -> None:
    chance = random.Random(3)
    values = [*VALUES[kind], None]
    rows = [
        ((chance.choice(values), chance.choice(values), n), "d" if n % 7 == 0 else "u", (10, n, 0))
        for n in range(30)
    ]
    own = pa.schema({"one": kind, "two": kind, "n": pa.int64()})
    segments = Segments(tmp_path, own, ("one", "two"), [rows[:20], rows[20:]])
    brought, found = segments.brought(session), {}
    monkeypatch.setattr(compact_in_memory, "FEW", 0)
    for most in (drop_overwritten.MOST, 0):
        monkeypatch.setattr(drop_overwritten, "MOST", most)
        frame = brought.settled(
            segments.table, session.createDataFrame([], struct_of(segments.table.columns))
        )
        assert ("Aggregate" in plan_of(frame)) == (not most)
        assert frame.columns == ["one", "two", "n", "_seq", GONE]
        found[most] = sorted(tuple(row) for row in frame.select("n", "_seq", GONE).collect())
    one, other = found.values()
    assert one == other
    assert len(one) < len(rows)


@pytest.mark.parametrize("kind", APART, ids=str)
def test_values_that_may_be_one_key_for_spark_alone_are_left_to_it(
    session: Any, tmp_path: Path, kind: pa.DataType
) -> None:
    own = pa.schema({"one": kind, "n": pa.int64()})
    segments = Segments(tmp_path, own, ("one",), [[((None, 1), "c", (10, 0, 0))]])
    rows = segments.brought(session).log(segments.table)
    assert last_rows(segments.table, segments.group, segments.store, rows) is None


def test_what_is_not_plain_is_left_to_spark(session: Any, tmp_path: Path) -> None:
    rows = [((n % 3, n), "u", (10, n, 0)) for n in range(9)]
    own = pa.schema({"id": pa.int64(), "n": pa.int64()})

    def told(change: Callable[[Segments], object], name: str, rows: list[Any] = rows) -> bool:
        (tmp_path / name).mkdir()
        made = Segments(tmp_path / name, own, ("id",), [rows])
        frame = made.brought(session).log(made.table)
        change(made)
        return last_rows(made.table, made.group, made.store, frame) is not None

    assert told(lambda made: None, "plain")
    assert not told(lambda made: made.group.unchanged.update(n=None), "unsent")
    assert not told(lambda made: setattr(made.group, "crossed", True), "crossed")
    assert not told(lambda made: made.group.operations.update("t"), "truncate")
    assert not told(lambda made: made.group.converted.append("elsewhere"), "converted")
    assert not told(lambda made: setattr(made.group, "rows", 10), "fewer than said")
    assert not told(lambda made: (tmp_path / "gone" / "0.parquet").unlink(), "gone")
    at_one_place = [((n % 3, n), "r", (10, -1, 0)) for n in range(9)]
    assert not told(lambda made: None, "at one place", at_one_place)
    assert told(lambda made: None, "of different keys", at_one_place[:3])
    (tmp_path / "dictionaries").mkdir()
    made = Segments(tmp_path / "dictionaries", own, ("id",), [rows], dictionaries=True)
    frame = made.brought(session).log(made.table)
    hidden = last_rows(made.table, made.group, made.store, frame)
    assert hidden is None, "nobody knows how much they hold"


def test_sixty_tables_settle_three_ways_to_what_they_hold(
    session: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    chance = random.Random(5)
    does = ("insert", "insert", "delete", "update", "update", "move")
    rows: list[Any] = []
    sources = {
        world: Source(rows={k: k for k in range(chance.randint(0, 5))}) for world in range(60)
    }
    before = {(w, k): v for w, source in sources.items() for k, v in source.rows.items()}
    for world, source in sources.items():
        for lsn in (10, 20, 30, 40):
            actions: list[Action] = [
                (chance.choice(does), chance.randint(0, 7), chance.randint(0, 6), True)
                for _action in range(chance.randint(0, 4))
            ]
            source.does(lsn, actions, world * 40)
        for event in source.events:
            value = None if event.op == "d" else source.brought[event.place, event.key]
            rows.append(((world, event.key, value), event.op, event.place[1:]))
    own = pa.schema({"world": pa.int32(), "_id": pa.int64(), "large": pa.int64()})
    chance.shuffle(rows)
    segments = Segments(tmp_path, own, ("world", "_id"), [rows[:99], rows[99:]])
    base = session.createDataFrame(
        [(*key, value, 0) for key, value in before.items()],
        struct_of({**segments.table.columns, "_seq": '"integer"'}),
    )
    after = {(w, k): v for w, source in sources.items() for k, v in source.rows.items()}
    for most, many in (
        (compact_in_memory.FEW, drop_overwritten.MOST),
        (0, drop_overwritten.MOST),
        (0, 0),
    ):
        monkeypatch.setattr(compact_in_memory, "FEW", most)
        monkeypatch.setattr(drop_overwritten, "MOST", many)
        settled = segments.brought(session).settled(segments.table, base)
        assert ("Aggregate" in plan_of(settled)) == (not most and not many)
        found = settled.collect()
        held = dict(before)
        for row in found:
            held.pop((row["world"], row["_id"]), None)
        kept = {(row["world"], row["_id"]): row["large"] for row in found if not row[GONE]}
        assert len({(row["world"], row["_id"]) for row in found}) == len(found)
        now = {**held, **kept}
        wrong = {k for k in {*now, *after} if now.get(k) != after.get(k)}
        assert not wrong, (most, many, wrong)


# --- a table of Delta Lake --------------------------------------------------------------------------


@pytest.mark.parametrize("hot", [False, True])
def test_a_table_in_delta_follows_through_renamed_keys_and_wider_types(
    delta: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, hot: bool
) -> None:
    """``hot``: most rows are superseded, and it is the others that Spark is told."""
    monkeypatch.setattr(compact_in_memory, "FEW", 0)
    plans: list[str] = []

    def noted(*given: Any) -> Any:
        found = last_rows(*given)
        plans.append("none" if found is None else plan_of(found))
        return found

    monkeypatch.setattr("waltap_spark.formats.table_format.last_rows", noted)
    rig, chance = Rig(tmp_path, delta, "delta"), random.Random(hot)
    keys, oid = 4 if hot else 60, 99
    columns = [("id", "int4"), ("code", "text"), ("large", "text")]
    shapes = [
        relation("public.t", columns, numbers=(1, 2, 3), key=("id", "code"), oid=oid),
        relation(
            "public.t", [("nr", "int4"), *columns[1:]], numbers=(1, 2, 3), key=("nr", "code"), oid=oid
        ),
        relation(
            "public.t", [("nr", "int8"), *columns[1:]], numbers=(1, 2, 3), key=("nr", "code"), oid=oid
        ),
    ]  # fmt: skip
    rig.db.insert(shapes[0], *((str(n), "x", "old") for n in range(keys)))
    rig.commit()
    rig.apply()
    plans.clear()
    for shape in shapes:
        for transaction in range(4):
            for number in range(12):
                there = rig.db.rows["public.t"]
                row, spare = chance.choice(there), str(chance.randrange(1000, 100_000))
                if number < 11:
                    rig.db.update(shape, row[:2], large=spare)
                elif transaction % 2 or len(there) < 3:
                    rig.db.update(shape, row[:2], code=spare)
                else:
                    rig.db.delete(shape, row[:2])
            rig.commit()
        rig.apply()
        assert rig.output.table("public.t").failed == ""
        rig.check(shape)
    assert len(plans) == len(shapes)
    for plan in plans:
        assert f"Left{'Semi' if hot else 'Anti'}" in plan
        assert "Aggregate" not in plan
    rig.db.update(shapes[-1], rig.db.rows["public.t"][0][:2], large="once")
    rig.commit()
    rig.apply()
    assert "Join" not in plans[-1]
    rig.check(shapes[-1])
    rig.applier.close()
    rig.sink.close()
