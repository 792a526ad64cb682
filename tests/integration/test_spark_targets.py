"""What tables are called in a catalogue, how their files are divided, columns that the source drops, shared targets."""

import zlib
from pathlib import Path
from typing import Any

import pytest
from tests.harness.changelog import relation
from tests.harness.spark import Died, Rig, dying

from waltap_spark.formats.choice import FormatChoice
from waltap_spark.formats.delta import DeltaFormat
from waltap_spark.read.live import LiveTables

# --- targets --------------------------------------------------------------------------------------

COLUMNS = [("id", "int4"), ("region", "text"), ("note", "text")]


def number(name: str) -> int:
    return 70_000 + zlib.crc32(name.encode()) % 10_000


def named(name: str) -> Any:
    return relation(f"targets.{name}", COLUMNS, numbers=(1, 2, 3), oid=number(name))


ORDERS, CHANGES, AUDIT = named("orders"), named("orders_changes"), named("order_audit")


def catalogue(**values: str) -> FormatChoice:
    own = {f"format.{name.replace('_', '.')}": value for name, value in values.items()}
    return FormatChoice("delta", {"format.catalog": "spark_catalog", **own})


def test_a_table_that_was_there_before_is_not_taken(delta, tmp_path):
    """A name of another program or another output is refused."""
    delta.sql("CREATE SCHEMA IF NOT EXISTS targets")
    delta.sql("CREATE TABLE targets.order_audit_changes (id int) USING delta")
    rig = Rig(tmp_path, delta, catalogue(), parallel=1)
    rig.insert(AUDIT, ["1", "eu", None])
    failed = rig.output.table(AUDIT.name).failed
    assert "WT-5246" in failed
    assert "is another program's" in failed
    assert delta.catalog.tableExists("targets.order_audit") is False


@pytest.mark.parametrize("choice", [FormatChoice("delta"), catalogue()], ids=["path", "catalogue"])
@pytest.mark.parametrize("listed", [200, 0], ids=["few keys", "more"])
def test_rows_that_stay_are_put_in_place_and_only_deletes_of_many_keys_need_a_merge(
    delta, tmp_path, monkeypatch, choice, listed
):
    """A key of two columns, names that want quoting; columns that came out of the table's order."""
    monkeypatch.setattr("waltap_spark.schema.expression.LISTED", listed)
    monkeypatch.setattr("waltap_spark.formats.delta.SMALL_TABLE", 0)  # else the driver writes them
    rig = Rig(tmp_path, delta, choice)
    columns = [("odd.na me", "text"), ("n", "int4"), ("note", "text")]
    numbers, key = (1, 2, 3), ("odd.na me", "n")
    name = f"targets.put_{choice.values and 1 or 0}_{listed}"
    table = relation(name, columns, numbers=numbers, key=key)
    rig.insert(table, ["a", "1", "x"], ["a", "2", "long"], ["`b", "1", None])
    more = relation(
        table.name, [*columns[::-1], ("more", "int4")], numbers=(3, 2, 1, 4), key=key, oid=table.oid
    )
    rig.db.rows[table.name] = [(*row[::-1], None) for row in rig.db.rows[table.name]]
    rig.db.update(more, ["a", "2"], unsent=["note"], more="7")
    rig.db.update(more, ["`b", "1"], note="y")
    rig.insert(more, ["new", "3", "c", None])
    rig.check(more)
    rig.db.delete(more, ["a", "1"])
    rig.update(more, ["c", "3"], note=None)
    rig.check(more)
    reported = rig.spark.sql(f"DESCRIBE HISTORY {rig.target(table).at}").collect()
    last, put = [row for row in reported if row["operation"] in ("MERGE", "WRITE")][:2]
    assert last["operation"] == ("WRITE" if listed else "MERGE")
    assert ("predicate" if listed else "replaceOnCond") in put["operationParameters"]
    assert put["operationMetrics"]["numDeletedRows"] == "2"


@pytest.mark.parametrize("name", ["REPLACE_ON", "OPTIONS"])
def test_a_delta_that_is_not_known_to_replace_rows_gets_a_merge(delta, tmp_path, monkeypatch, name):
    """A Delta that leaves the option out would overwrite the whole table."""
    monkeypatch.setattr(f"waltap_spark.formats.delta.{name}", "org.apache.spark.OfAnotherRelease")
    monkeypatch.setattr("waltap_spark.schema.expression.LISTED", 0)
    monkeypatch.setattr("waltap_spark.formats.delta.SMALL_TABLE", 0)  # else the driver writes them
    rig = Rig(tmp_path, delta, "delta")
    rig.insert(ORDERS, ["1", "eu", "x"], ["2", "eu", "y"])
    rig.update(ORDERS, ["2"], region="us")
    rig.check(ORDERS)
    reported = rig.spark.sql(f"DESCRIBE HISTORY {rig.target(ORDERS).at}").collect()
    assert reported[0]["operation"] == "MERGE"


def test_files_are_divided_as_the_profile_says_also_after_a_rewrite(delta, tmp_path):
    """In a session that overwrites only what gets rows, if nobody shows it otherwise."""
    divided = FormatChoice(
        "delta",
        {
            "format.partition.by": r"targets\.by_region:region;targets\.lacks:absent",
            "format.cluster.by": r"targets\.by_note:region,id;.*/changes:_op",
        },
    )
    mode = "spark.sql.sources.partitionOverwriteMode"
    delta.conf.set(mode, "dynamic")
    rig = Rig(tmp_path, delta, divided, parallel=2, type_change="string")
    delta.conf.unset(mode)
    by_region, by_note, lacks = named("by_region"), named("by_note"), named("lacks")
    for table in (by_region, by_note, lacks):
        rig.db.insert(table, ["1", "eu", "x"], ["2", "us", "y"])
    rig.follow()
    failed = rig.output.table(lacks.name).failed
    assert "WT-5273" in failed
    assert "names absent, which it does not have" in failed
    for table in (by_region, by_note):
        rig.db.update(table, ["1"], unsent=["note"], region="us")
    rig.follow(by_region, by_note)
    rig.db.truncate(by_region)
    rig.insert(by_region, ["3", "eu", "z"])
    rig.check(by_region)
    text = relation(
        by_region.name, [("id", "text"), *COLUMNS[1:]], numbers=(1, 2, 3), oid=by_region.oid
    )
    rig.insert(text, ["three", "eu", None])
    rig.check(text)

    def detail(name: str, what: str) -> tuple[list[str], list[str]]:
        stored_table = rig.output.table(name).stored_table
        row = rig.spark.sql(f"DESCRIBE DETAIL {stored_table.targets[what].at}").collect()[0]
        return row["partitionColumns"], row["clusteringColumns"]

    assert detail(by_region.name, "current") == (["region"], [])
    assert detail(by_region.name, "changes") == ([], ["_op"])
    assert detail(by_note.name, "current") == ([], ["region", "id"])


def test_values_that_delta_changes_where_they_partition_files_are_refused(delta, tmp_path):
    """Empty text became null there: a row of such a key came again with each change."""
    rules = {"format.partition.by": r"targets\.by_region:region;targets\.raw:region"}
    rig = Rig(tmp_path, delta, FormatChoice("delta", rules), parallel=2)
    table = relation("targets.by_region", COLUMNS, key=("id", "region"))
    raw = relation("targets.raw", [("id", "int4"), ("region", "bytea")])
    rig.db.insert(
        table, *([str(n), text, "x"] for n, text in enumerate(["eu", "a/b=", " ", "é%41"]))
    )
    rig.db.insert(raw, ["1", "\\xff"])
    rig.follow(table)
    assert "WT-5273 the profile partitions targets.raw by region" in rig.output.table("raw").failed
    rig.update(table, ["0", "eu"], region="us", note="y")
    rig.check(table)
    rig.insert(table, ["9", "", "x"])
    failed = rig.output.table(table.name).failed
    assert "WT-5234 Delta Lake has null for empty text in the partition column `region`" in failed


@pytest.mark.parametrize("table_format", ["parquet", "delta"])
def test_a_column_that_the_source_drops_goes_where_it_is_said_and_comes_back_empty(
    delta, tmp_path, table_format
):
    """One that files are divided by stays, and takes another name when it comes back."""
    in_place = table_format == "delta"
    by_note = {"format.partition.by": r"targets\.divided:note"} if in_place else {}
    rules = (r"targets\.(forgets|divided):drop", "keep")
    rig = Rig(tmp_path, delta, FormatChoice(table_format, by_note), parallel=1, dropped=rules)
    names = ("forgets", "keeps", "divided") if in_place else ("forgets", "keeps")
    for name in names:
        rig.db.insert(named(name), ["1", "eu", "old"], ["2", "us", "older"])
    rig.follow()
    for name in names:
        rig.db.update(named(name), ["1"], unsent=["note"], region="us")
    rig.follow()
    for name in names:
        less = relation(f"targets.{name}", COLUMNS[:2], numbers=(1, 2), oid=number(name))
        rig.db.rows[less.name] = [row[:2] for row in rig.db.rows[less.name]]
        rig.db.insert(less, ["3", "eu"])
    rig.follow()
    tables = LiveTables(rig.spark, rig.output)
    assert tables.current("targets.forgets").columns == ["id", "region"]
    assert "note" not in tables.changes("targets.forgets").columns
    for name in names[1:]:
        assert "note" in tables.current(f"targets.{name}").columns
    rig.check(less)
    for name in names:
        anew = relation(
            f"targets.{name}",
            [*COLUMNS[:2], ("note", "int8")],
            numbers=(1, 2, 4),
            oid=number(name),
        )
        rig.db.rows[anew.name] = [(*row, None) for row in rig.db.rows[anew.name]]
        rig.db.insert(anew, ["4", "eu", "4000000000"])
    rig.follow()
    for name in names:
        assert rig.output.table(name).failed == ""
        table = LiveTables(rig.spark, rig.output).current(f"targets.{name}")
        found = {row["id"]: row["note"] for row in table.collect()}
        assert found == {1: None, 2: None, 3: None, 4: 4_000_000_000}


def test_a_catalogue_that_spark_does_not_have_is_reported_with_its_name(delta, tmp_path):
    """And once it is there, the table goes on."""
    elsewhere = named("elsewhere")
    rig = Rig(tmp_path, delta, FormatChoice("delta", {"format.catalog": "nowhere"}), parallel=2)
    rig.insert(elsewhere, ["1", "eu", "a"])
    stands = rig.output.table(elsewhere.name)
    assert stands.failed.startswith("WT-5268 "), stands.failed
    assert "nowhere" in stands.failed
    assert "spark.…" in stands.failed
    assert not stands.stored_table.targets
    assert not (tmp_path / "out" / "delta").exists()
    rig.choice = catalogue()
    rig.reopen()
    rig.apply(elsewhere)


@pytest.mark.parametrize("left", ["nothing", "our version", "another's version"])
def test_what_a_driver_left_that_died_as_it_made_a_table_is_removed(delta, tmp_path, left):
    """And a table that is not its own stays; the catalogue knows neither."""
    table = named(f"died_{left[:3]}")
    warehouse = delta.conf.get("spark.sql.warehouse.dir").removeprefix("file:")
    folder, away = Path(warehouse, "targets.db", table.table), tmp_path / "away"
    rig = Rig(tmp_path, delta, catalogue(), parallel=1)
    rig.write(table, ["1", "eu", "a"])
    if left == "our version":
        with pytest.raises(Died), dying((DeltaFormat, "_steps_of"), at=3):
            rig.apply()
        folder.rename(away)
        delta.sql(f"DROP TABLE targets.{table.table}")
        away.rename(folder)
        rig.reopen()
    elif left == "nothing":
        (folder / "_delta_log/_staged_commits").mkdir(parents=True)
    else:
        delta.sql(f"CREATE TABLE delta.`{folder}` (id int) USING delta")
    rig.apply()
    if left == "another's version":
        assert "NON_EMPTY_LOCATION" in rig.output.table(table.name).failed
        assert delta.read.format("delta").load(str(folder)).columns == ["id"]
    else:
        rig.check(table)


def test_a_name_that_the_catalogue_does_not_take_is_reported_and_a_rule_gives_another(
    delta, tmp_path
):
    odd = named("order items")
    rig = Rig(tmp_path, delta, catalogue(), parallel=2)
    rig.insert(odd, ["1", "eu", "a"])
    failed = rig.output.table(odd.name).failed
    assert failed.startswith("WT-5246 "), failed
    assert "takes no such name" in failed
    assert r"format.names = targets\.order items:NAME" in failed
    rig.choice = catalogue(names=r"targets\.order items:targets.order_items")
    rig.reopen()
    rig.apply(odd)
