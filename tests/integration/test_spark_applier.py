"""Tables kept by Spark equal the source's tables after every commit, whatever happened to them."""

import random
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from tests.harness.changelog import Database, batch, context, relation
from tests.harness.remade_tables import COURSES as REMADE
from tests.harness.spark import Died, Rig

from waltap.mapping.type_mapping import TypeOptions
from waltap.mapping.type_registry import TypeRegistry
from waltap_postgres.types import TYPE_SPECS
from waltap_sinks.changelog import ChangeLog, ChangeLogProperties, ChangeLogSink
from waltap_sinks.changelog.manifest import NOTHING
from waltap_spark.applier import OutputApplier
from waltap_spark.errors import (
    OutputDamaged,
    OutputInUse,
    OutputMismatch,
    TablesStandStill,
    TableUnknown,
)
from waltap_spark.follower import LogFollower
from waltap_spark.live import LiveTables
from waltap_spark.output import SparkOutput

PEOPLE = relation("public.people", [("id", "int4"), ("name", "text"), ("note", "text")])
EVENTS = relation("public.events", [("kind", "text"), ("n", "float8")], key=(), identity="f")
PAIRS = relation("public.pairs", [("a", "int4"), ("b", "text"), ("v", "int8")], key=("a", "b"))
DATA_PAGE_V2 = b"\x15\x06"


@pytest.fixture
def rig(spark: Any, tmp_path: Path) -> Any:
    made = Rig(tmp_path, spark)
    yield made
    made.applier.close()
    made.sink.close()


@pytest.mark.parametrize("course", REMADE, ids=lambda course: course.__name__)
def test_a_table_that_is_made_anew(rig: Rig, course: Callable[[Rig], None]) -> None:
    course(rig)


def test_inserts_updates_deletes_and_key_changes_leave_the_sources_rows(rig: Rig) -> None:
    rig.db.insert(PEOPLE, ["1", "Ann", "x"], ["2", "Bob", None], ["3", "Cy", "z"])
    rig.db.insert(EVENTS, ["a", "1.5"], ["a", "1.5"], ["b", None])
    rig.commit()
    rig.apply()
    rig.check(PEOPLE, EVENTS)
    rig.db.update(PEOPLE, ["1"], name="Anne")
    rig.db.update(PEOPLE, ["2"], id="20")
    rig.db.delete(PEOPLE, ["3"])
    rig.db.insert(PEOPLE, ["3", "Dee", None])
    rig.db.delete(EVENTS, ["a", "1.5"])
    rig.db.update(EVENTS, ["b", None], n="2.5")
    rig.commit()
    rig.apply()
    rig.check(PEOPLE, EVENTS)
    history = LiveTables(rig.spark, rig.output).changes("public.people")
    assert history.count() == 3 + 5
    types = {field.name: field.dataType.simpleString() for field in history.schema}
    assert (types["id"], types["name"], types["_commit_ts"]) == ("int", "string", "timestamp")


def test_unsent_values_stay_as_they_were(rig: Rig) -> None:
    """TOAST: known from the base, from earlier in the same batch, and through a key change."""
    rig.db.insert(PEOPLE, ["1", "a", "base"], ["2", "b", "base two"], ["3", "c", "base three"])
    rig.commit()
    rig.apply()
    rig.reopen(fold_rows=0)
    rig.db.update(PEOPLE, ["1"], name="a2", unsent=["note"])
    rig.db.insert(PEOPLE, ["4", "d", "in batch"])
    rig.db.update(PEOPLE, ["4"], name="d2", unsent=["note"])
    rig.db.update(PEOPLE, ["2"], note="newer")
    rig.db.update(PEOPLE, ["2"], name="b2", unsent=["note"])
    rig.commit()
    rig.apply()
    rig.check(PEOPLE)
    rig.db.update(PEOPLE, ["1"], id="10", unsent=["note"])
    rig.db.update(PEOPLE, ["10"], id="100", unsent=["note"])
    rig.db.insert(PEOPLE, ["1", "reused", "other"])
    rig.db.update(PEOPLE, ["4"], note="moved on")
    rig.db.update(PEOPLE, ["4"], name="d3", unsent=["note"])
    rig.db.update(PEOPLE, ["4"], id="40", unsent=["note"])
    rig.db.update(PEOPLE, ["40"], name="d4", unsent=["note"])
    rig.db.update(PEOPLE, ["3"], note=None)
    rig.db.update(PEOPLE, ["3"], id="30", unsent=["note"])
    rig.commit()
    rig.apply()
    rig.check(PEOPLE)


def test_a_truncate_takes_only_what_was_before_it(rig: Rig) -> None:
    rig.db.insert(PEOPLE, ["1", "old", None], ["2", "old", None])
    rig.db.insert(EVENTS, ["a", "1.5"])
    rig.commit()
    rig.apply()
    rig.db.insert(PEOPLE, ["3", "old", None])
    rig.db.truncate(PEOPLE, EVENTS)
    rig.db.insert(PEOPLE, ["2", "new", None])
    rig.db.insert(EVENTS, ["b", "2.5"])
    rig.commit()
    rig.apply()
    rig.check(PEOPLE, EVENTS)
    rig.db.truncate(PEOPLE)
    rig.commit()
    rig.apply()
    rig.check(PEOPLE)


def test_a_snapshot_is_seen_whole_and_replaces_what_was_there(rig: Rig) -> None:
    rig.db.insert(PEOPLE, *[[str(n), "x", None] for n in range(7)])
    rig.db.insert(PAIRS, ["1", "a", "5"])
    rig.db.insert(EVENTS, ["never", "1.5"])
    rig.db.delete(EVENTS, ["never", "1.5"])
    rig.db.commit()
    parts = rig.db.snapshot(PEOPLE, PAIRS, EVENTS)
    for part in parts[:2]:
        rig.sink.write(part)
        rig.sink.flush()
    rig.apply()
    assert LiveTables(rig.spark, rig.output).names == []
    for part in parts[2:]:
        rig.sink.write(part)
        rig.sink.flush()
    rig.apply()
    rig.check(PEOPLE, PAIRS, EVENTS)
    rig.db.insert(PEOPLE, ["100", "streamed", None])
    rig.commit()
    rig.apply()
    # rows that the stream never mentioned go and come while nobody looks: a new snapshot
    rig.db.rows[PEOPLE.name] = [("1", "again", None), ("200", "again", "y")]
    rig.db._changes.clear()
    for part in rig.db.snapshot(PEOPLE, PAIRS, EVENTS):
        rig.sink.write(part)
    rig.sink.flush()
    rig.db.update(PEOPLE, ["1"], name="after")
    rig.commit()
    rig.apply()
    rig.check(PEOPLE, PAIRS, EVENTS)


def test_columns_come_go_and_widen(rig: Rig) -> None:
    narrow = relation("public.wide", [("id", "int4"), ("n", "int4"), ("gone", "text")])
    wide = relation("public.wide", [("id", "int8"), ("n", "numeric(10,2)"), ("extra", "bool")])
    rig.db.insert(narrow, ["1", "5", "g"], ["2", "6", "h"])
    rig.commit()
    rig.apply()
    rig.db.rows["public.wide"] = [("1", "5.00", None), ("2", "6.00", None)]
    rig.db.insert(wide, ["30000000000", "7.25", "t"])
    rig.commit()
    rig.apply()
    frame = LiveTables(rig.spark, rig.output).current("wide")
    types = {field.name: field.dataType.simpleString() for field in frame.schema}
    assert types == {"id": "bigint", "n": "decimal(12,2)", "gone": "string", "extra": "boolean"}
    rows = {row["id"]: row for row in frame.collect()}
    assert (rows[1]["n"], rows[1]["gone"], rows[1]["extra"]) == (5, "g", None)
    assert (rows[30000000000]["gone"], rows[30000000000]["extra"]) == (None, True)


def test_a_type_that_does_not_fit_is_refused_or_becomes_text(rig: Rig) -> None:
    number = relation("public.odd", [("id", "int4"), ("v", "int4")])
    text = relation("public.odd", [("id", "int4"), ("v", "text")])
    rig.db.insert(number, ["1", "5"])
    rig.commit()
    rig.apply()
    rig.db.insert(text, ["2", "five"])
    rig.db.insert(PEOPLE, ["1", "other tables", "go on"])
    rig.commit()
    rig.apply()
    rig.db.insert(text, ["3", "six"])
    rig.db.insert(PEOPLE, ["2", "and", "on"])
    rig.commit()
    rig.apply()
    rig.check(PEOPLE)
    assert rig.current(text) == [("1", "5")]
    standing = rig.output.table("odd")
    assert "column v of public.odd changed from integer to string" in standing.failed
    assert "type.change = string" in standing.failed, "the last words are there"
    assert standing.mark is not None
    assert standing.mark < rig.applier.state.mark
    follower = LogFollower(rig.log, rig.applier)
    with pytest.raises(TablesStandStill, match=r"public\.odd: WT-5205"):
        follower.follow(lambda: True)
    rig.reopen(type_change="string")
    rig.apply()
    rig.check(PEOPLE)
    assert rig.current(text) == [("1", "5"), ("2", "five"), ("3", "six")]
    assert rig.output.table("odd").failed == ""
    assert LiveTables(rig.spark, rig.output).changes("odd").count() == 3
    LogFollower(rig.log, rig.applier).follow(lambda: True)


def test_numbers_beyond_38_digits_stop_nothing(spark: Any, tmp_path: Path) -> None:
    """Text in Spark; also from a log that has wide decimals, as earlier versions wrote them."""
    wide = relation("public.wide", [("id", "int4"), ("n", "numeric(60,10)"), ("u", "numeric")])
    number = "9" * 40 + "." + "1" * 10
    rig = Rig(tmp_path, spark)
    rig.db.insert(wide, ["1", number, "1" * 50 + ".5"])
    rig.db.insert(PEOPLE, ["1", "a", None])
    rig.commit()
    rig.apply()
    rig.check(wide, PEOPLE)
    rig.applier.close()
    rig.sink.close()
    other = tmp_path / "other"
    rig = Rig(other, spark)
    rig.sink.close()
    options = TypeOptions(arrow_unconstrained_numeric="decimal256")
    settings = replace(context(other, resumes=True), types=TypeRegistry(TYPE_SPECS, options))
    rig.sink = ChangeLogSink(ChangeLogProperties(path=str(other / "log")), settings)
    rig.sink.open()
    rig.db.insert(wide, ["1", number, None])
    rig.db.insert(PEOPLE, ["1", "a", None])
    rig.commit()
    rig.db.update(wide, ["1"], n="-" + number)
    rig.commit()
    rig.apply()
    rig.check(wide, PEOPLE)
    rig.applier.close()
    rig.sink.close()


def test_names_of_every_kind_are_kept(rig: Rig) -> None:
    odd = relation(
        'we.ird."Ta ble" `ü`',
        [("Id", "int4"), ("id", "text"), ("a.b", "text"), ("we ird,;{}()=`\n", "text")],
        key=("Id", "a.b"),
    )
    rig.db.insert(odd, ["1", "x", "k", "v"], ["2", "y", "k", None])
    rig.commit()
    rig.apply()
    rig.db.update(odd, ["1", "k"], id="changed", unsent=["we ird,;{}()=`\n"])
    rig.db.update(odd, ["2", "k"], **{"a.b": "other"}, unsent=["id"])
    rig.commit()
    rig.apply()
    frame = LiveTables(rig.spark, rig.output).current(odd.name)
    assert sorted(tuple(row) for row in frame.collect()) == [
        (1, "changed", "k", "v"),
        (2, "y", "other", None),
    ]


def test_many_small_commits_are_folded_and_merged(spark: Any, tmp_path: Path) -> None:
    rig = Rig(tmp_path, spark, fold_sets=3, merge_sets=4, grace_s=0.0)
    random.seed(20130101)
    alive: list[str] = []
    for number in range(14):
        rig.db.insert(PEOPLE, [str(number), "x", str(number)])
        alive.append(str(number))
        if number % 3 == 2:
            rig.db.update(PEOPLE, [random.choice(alive)], name="y", unsent=["note"])
        rig.commit()
        rig.apply()
    rig.check(PEOPLE)
    table = rig.output.table("people")
    assert max(change.level for change in table.changes) == 1
    assert len(table.changes) < 10
    assert sum(change.rows for change in table.changes) == 14 + 4
    assert LiveTables(rig.spark, rig.output).changes("people").count() == 14 + 4
    kept = {path.name for path in (tmp_path / "out" / table.folder / "changes").iterdir()}
    assert {change.path.rpartition("/")[2] for change in table.changes} <= kept
    assert len(kept) <= len(table.changes) + 4  # what the last commit dropped goes with the next
    rig.applier.close()
    rig.sink.close()


def test_rows_that_are_only_added_are_never_written_again(spark: Any, tmp_path: Path) -> None:
    """Their change sets are the base, merged with others as the history is."""
    rig = Rig(tmp_path, spark, fold_rows=0, fold_sets=1, merge_sets=3, grace_s=0.0)
    for number in range(5):
        rig.db.insert(PEOPLE, [str(number), "x", None])
        rig.db.insert(EVENTS, ["a", "1.5"])
        rig.commit()
        rig.apply()
    rig.check(PEOPLE, EVENTS)
    for name in ("people", "events"):
        table = rig.output.table(name)
        assert [part.path for part in table.base] == [change.path for change in table.changes]
        assert sorted(part.rows for part in table.base) == [1, 1, 3]
    assert not list((tmp_path / "out").glob("tables/*/*/current/*"))
    rig.db.update(PEOPLE, ["2"], name="y")
    rig.commit()
    rig.apply()
    rig.check(PEOPLE, EVENTS)
    rig.applier.close()
    rig.sink.close()


def test_rows_that_a_new_epoch_brings_again_are_not_doubled(rig: Rig) -> None:
    """A pipeline that lost its offset delivers what its slot still holds a second time."""
    rig.db.insert(PEOPLE, ["1", "x", None])
    part = rig.db.commit()
    for _run in range(2):
        rig.sink.write(batch(part))
        rig.sink.flush()
        rig.apply()
        rig.sink.close()
        settings = ChangeLogProperties(path=str(rig.folder / "log"))
        rig.sink = ChangeLogSink(settings, context(rig.folder, resumes=False))
        rig.sink.open()
    rig.check(PEOPLE)
    assert LiveTables(rig.spark, rig.output).changes("people").count() == 1


def test_many_random_transactions_end_equal(spark: Any, tmp_path: Path) -> None:
    """Several transactions per commit, all operations mixed, keys reused: the model decides."""
    rig = Rig(tmp_path, spark, fold_rows=20, fold_sets=4)
    chance = random.Random(4711)
    for _round in range(6):
        for _transaction in range(5):
            for _change in range(chance.randint(1, 8)):
                _random_change(rig.db, chance)
            rig.commit()
        rig.apply()
        rig.check(*(t for t in (PEOPLE, EVENTS, PAIRS) if t.name in rig.db.rows))
    rig.applier.close()
    rig.sink.close()


def _random_change(db: Database, chance: random.Random) -> None:
    people, events = db.rows.get(PEOPLE.name, []), db.rows.get(EVENTS.name, [])
    pairs = db.rows.get(PAIRS.name, [])
    free = [str(n) for n in range(12) if all(row[0] != str(n) for row in people)]
    kind = chance.randint(0, 9)
    if kind <= 1 and free:
        db.insert(PEOPLE, [chance.choice(free), "n", f"note {db.lsn}"])
    elif kind == 2 and people:
        unsent = chance.choice([[], ["note"]])
        db.update(PEOPLE, [chance.choice(people)[0]], name=f"n{db.lsn}", unsent=unsent)
    elif kind == 3 and people and free:
        unsent = chance.choice([[], ["note"]])
        db.update(PEOPLE, [chance.choice(people)[0]], id=chance.choice(free), unsent=unsent)
    elif kind == 4 and people:
        db.delete(PEOPLE, [chance.choice(people)[0]])
    elif kind == 5:
        db.insert(EVENTS, [chance.choice("ab"), chance.choice(["1.5", "-0.0", "0.0", "NaN", None])])
    elif kind == 6 and events:
        db.delete(EVENTS, chance.choice(events))
    elif kind == 7 and events:
        db.update(EVENTS, chance.choice(events), kind=chance.choice("abc"))
    elif kind == 8 and len(pairs) < 20:
        key = [str(chance.randint(0, 30)), chance.choice("xyz")]
        if all(list(row[:2]) != key for row in pairs):
            db.insert(PAIRS, [*key, str(db.lsn)])
    elif kind == 9 and chance.random() < 0.1:
        db.truncate(chance.choice([PEOPLE, PAIRS]))
    else:
        db.insert(EVENTS, ["z", "2.5"])


# --- crashes and company ------------------------------------------------------------------------------


def test_a_driver_that_dies_at_any_write_leaves_no_trace(
    spark: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Before and after every folder it writes, and around the commit itself."""
    rig = Rig(tmp_path, spark, parallel=1, fold_rows=0, merge_sets=2)
    rig.db.insert(PEOPLE, *[[str(n), "x", "y"] for n in range(5)])
    rig.db.insert(EVENTS, ["a", "1.5"])
    rig.commit()
    rig.apply()
    died = 0
    for step in range(1, 40):
        rig.db.update(PEOPLE, [rig.db.rows[PEOPLE.name][0][0]], name=f"step {step}")
        rig.db.insert(EVENTS, ["b", "2.5"])
        rig.commit()
        seen = [0]

        def at_step(original: Any) -> Any:
            def call(*arguments: Any, **options: Any) -> Any:
                result = None
                for moment in ("before", "after"):
                    seen[0] += 1
                    if seen[0] == step:
                        raise Died
                    if moment == "before":
                        result = original(*arguments, **options)
                return result

            return call

        with monkeypatch.context() as patch:
            for name in ("sync", "collect"):
                patch.setattr(rig.output, name, at_step(getattr(rig.output, name)))
            patch.setattr(rig.output.store, "publish", at_step(rig.output.store.publish))
            try:
                rig.apply()
            except Died:
                died += 1
            else:
                break
        rig.reopen()
        assert rig.folders() == rig.named_folders(), "what no commit names is removed at the start"
        if rig.applier.state.mark < list(rig.log.manifests(NOTHING))[-1].mark:
            rig.apply()
        rig.check(PEOPLE, EVENTS)
        history = LiveTables(rig.spark, rig.output).changes("events")
        assert history.count() == 1 + step, "doubled or lost"
    assert died >= 10
    rig.applier.close()
    rig.sink.close()


def test_what_was_applied_already_is_not_applied_again(rig: Rig) -> None:
    rig.db.insert(EVENTS, ["a", "1.5"])
    rig.commit()
    rig.apply()
    rig.reopen()
    rig.apply()
    rig.check(EVENTS)


def test_readers_see_all_tables_at_one_point(rig: Rig) -> None:
    rig.db.insert(PEOPLE, ["1", "a", None])
    rig.commit()
    rig.apply()
    tables = LiveTables(rig.spark, rig.output)
    assert tables.register() == ["people"]
    rig.db.insert(PEOPLE, ["2", "b", None])
    rig.commit()
    rig.apply()
    assert rig.spark.sql("select count(*) from people").first()[0] == 1
    tables.refresh().register()
    assert rig.spark.sql("select count(*) from people").first()[0] == 2
    assert rig.spark.sql("select count(*) from people_changes").first()[0] == 2


def test_an_unknown_table_is_named_with_those_there_are(rig: Rig) -> None:
    rig.db.insert(PEOPLE, ["1", "a", None])
    rig.commit()
    rig.apply()
    with pytest.raises(TableUnknown, match=r"no table nope .* public\.people"):
        LiveTables(rig.spark, rig.output).current("nope")


def test_one_applier_at_a_time(rig: Rig) -> None:
    other = OutputApplier(rig.spark, rig.log, SparkOutput(str(rig.folder / "out")))
    with pytest.raises(OutputInUse, match="process"):
        other.open()


def test_an_output_belongs_to_one_change_log(rig: Rig) -> None:
    rig.db.insert(PEOPLE, ["1", "a", None])
    rig.commit()
    rig.apply()
    rig.applier.close()
    with pytest.raises(OutputMismatch):
        OutputApplier(rig.spark, ChangeLog(str(rig.folder / "other")), rig.output).open()


def test_a_damaged_commit_is_named(rig: Rig) -> None:
    rig.db.insert(PEOPLE, ["1", "a", None])
    rig.commit()
    rig.apply()
    (commit,) = (rig.folder / "out" / "_waltap" / "commits").iterdir()
    commit.write_text("{")
    with pytest.raises(OutputDamaged, match=r"WT-5204 .* is not a commit"):
        rig.output.state()


def first_page(file: Path) -> bytes:
    """Return how the header of the first data page begins: field 1, an integer, and the page's type."""
    from pyarrow import parquet

    column = parquet.read_metadata(file).row_group(0).column(0)
    return file.read_bytes()[column.data_page_offset :][:2]


def test_wide_rows_are_read(rig: Rig) -> None:
    """Their files have data pages of Parquet's second form."""
    wide = relation("public.wide", [("id", "int4"), ("a", "text"), ("b", "text")])
    texts = [chr(97 + n) * (n << 20) for n in (2, 3, 5)]
    rig.db.insert(wide, *[[str(n), text, None] for n, text in enumerate(texts)])
    rig.commit()
    assert first_page(next(rig.folder.glob("log/**/*.parquet"))) == DATA_PAGE_V2
    rig.apply()
    rig.check(wide)
    rig.db.update(wide, ["1"], unsent=["a"], b="é" * (2 << 20))
    rig.db.update(wide, ["2"], a="z")
    rig.db.delete(wide, ["0"])
    rig.commit()
    rig.apply()
    rig.check(wide)
