"""Tables in Apache Iceberg: schemas that change, versions, and foreign hands; shared targets, S3, what a commit costs."""

from collections.abc import Iterator
from typing import Final

import pytest
from tests.harness.changelog import relation
from tests.harness.servers import spark_jars
from tests.harness.servers.iceberg import CONF
from tests.harness.shared_outputs import write_one_target
from tests.harness.spark import Rig
from tests.harness.spark_cost import cost, filled
from tests.harness.unreported_columns import a_dropped_column
from tests.integration.test_spark_s3 import conf, tables_follow

from waltap.changes.decode.relation import Relation
from waltap_spark.cli.status import stored_rows
from waltap_spark.errors import SessionTaken
from waltap_spark.formats import iceberg as iceberg_format
from waltap_spark.formats import merging
from waltap_spark.formats.choice import FormatChoice
from waltap_spark.read.live import LiveTables

__all__ = ["conf"]

PEOPLE = relation("public.people", [("id", "int4"), ("name", "text"), ("note", "text")])
LEFT = relation("public.left", [("id", "int4"), ("amount", "int8"), ("note", "text")])


@pytest.fixture
def rig(iceberg, tmp_path) -> Rig:
    return Rig(tmp_path, iceberg, "iceberg", parallel=1)


def test_columns_come_go_grow_and_change_their_names_and_types(rig):
    odd = "we. ird,;{}()=`\n"
    first = relation(
        "we.ird.`wi/de", [("id", "int4"), ("n", "int4"), (odd, "text"), ("t", "time"), ("s", "int2")],
        numbers=(1, 2, 3, 4, 5),
    )  # fmt: skip
    taken = relation("public.taken", [("id", "int4"), ("_deleted", "bool")])
    rig.db.insert(first, ["1", "5", "kept", "10:20:30.123456", "7"], ["2", "6", None, None, None])
    rig.db.insert(taken, ["1", "t"])
    rig.follow()
    assert "WT-5234" in rig.output.table("taken").failed
    frame = LiveTables(rig.spark, rig.output).current("`wi/de").orderBy("id")
    assert [str(row["t"]) for row in frame.collect()] == ["10:20:30.123456", "None"]
    assert {f.name: f.dataType.simpleString() for f in frame.schema}["s"] == "smallint"
    rig.db.update(first, ["2"], n="7")
    rig.update(first, ["1"], unsent=[odd], n="6")
    now = relation(
        "we.ird.`wi/de",
        [("id", "int8"), ("s", "text"), ("calm", "text"), ("t", "text"), ("more", "int4")],
        numbers=(1, 5, 3, 6, 7),
        more={"more": {"default": "7", "missing": "7"}},
    )
    rig.reopen(type_change="string", parallel=1)
    rig.insert(now, ["30000000000", "seven", "new", "text", "8"])
    state = rig.output.table("`wi/de")
    assert state.failed == ""
    assert rig.applier.format.estimated_rows(rig.spark, state) == 3
    assert stored_rows(rig.output, state, "iceberg") == 3
    frame = LiveTables(rig.spark, rig.output, allow_stale=True).current("`wi/de").orderBy("id")
    kinds = {field.name: field.dataType.simpleString() for field in frame.schema}
    assert kinds["id"] == "bigint"
    assert kinds["s"] == kinds["calm"] == kinds["t"] == "string"
    found = [(r["id"], r["n"], r["s"], r["calm"], r["t"], r["more"]) for r in frame.collect()]
    assert found == [
        (1, 6, "7", "kept", None, 7),
        (2, 7, None, None, None, 7),
        (30000000000, None, "seven", "new", "text", 8),
    ]
    changes = LiveTables(rig.spark, rig.output, allow_stale=True).changes("`wi/de")
    assert {tuple(row["_unchanged"] or ()) for row in changes.collect()} == {(), ("calm",)}
    then = (
        LiveTables(rig.spark, rig.output, allow_stale=True)
        .at(rig.db.history[0][0])
        .current("`wi/de")
    )
    assert sorted(row[odd] or "" for row in then.collect()) == ["", "kept"]


def test_foreign_rows_stop_one_table_until_rolled_back_and_maintenance_changes_no_row(
    rig, monkeypatch
):
    monkeypatch.setattr(merging, "COMPACT_STEPS", 4)
    monkeypatch.setattr(merging, "VACUUM_S", 0.0)
    for number in range(6):
        rig.db.insert(PEOPLE, [str(number), "Ann", "x"])
        if number == 4:
            rig.db.update(PEOPLE, ["1"], name="Bob", unsent=["note"])
        rig.follow()
    rig.insert(LEFT, ["1", "5", None])
    rig.check(PEOPLE, LEFT)
    stored_table = rig.output.table("people").stored_table
    target = stored_table.targets["current"]
    found = rig.spark.sql(f"SELECT operation FROM {target.at}.snapshots").collect()
    assert "replace" in {row["operation"] for row in found}
    rig.spark.sql(f"DELETE FROM {target.at} WHERE id = 1")
    rig.check(PEOPLE, LEFT)  # read as of the commit
    rig.reopen()
    for table in (PEOPLE, LEFT):
        rig.db.insert(table, ["20", "2", "y"])
    rig.follow(LEFT)
    failed = rig.output.table("people").failed
    assert "WT-5235" in failed
    assert "rollback_to_snapshot" in failed
    catalog, _, name = target.at.partition(".")
    rig.spark.sql(f"CALL {catalog}.system.rollback_to_snapshot('{name}', {target.version})")
    rig.reopen()
    rig.apply(PEOPLE, LEFT)
    rig.spark.sql(f"DROP TABLE {target.at}")
    rig.insert(PEOPLE, ["30", "Cid", "z"])
    assert "WT-5235" in rig.output.table("people").failed


def test_names_divisions_and_dropped_columns_in_a_catalogue(iceberg, tmp_path, monkeypatch):
    """A JDBC catalogue in SQLite, which shows case; a table that is called as another's history."""
    monkeypatch.setattr(merging, "COMPACT_STEPS", 4)
    values = {
        "format.catalog": "lake",
        "format.names": r"shop\.(orders_changes):own.$1",
        "format.partition.by": r"shop\.orders:region,bucket(4, id);.*/changes:days(_commit_ts)",
        "format.cluster.by": r"shop\.orders:note",
    }
    columns = [("id", "int4"), ("region", "text"), ("note", "text"), ("more", "text")]
    names = ("shop.orders", "shop.orders_changes", "shop.Orders")
    tables = [
        relation(name, columns, numbers=(1, 2, 3, 4), oid=90_000 + n)
        for n, name in enumerate(names)
    ]
    rig = Rig(tmp_path, iceberg, FormatChoice("iceberg", values), parallel=2, dropped=("drop",))
    for table in tables:
        rig.db.insert(table, ["1", "eu", table.name, "x"], ["2", "us", "b", "y"])
    rig.follow()
    for table in tables:
        rig.db.update(table, ["1"], unsent=["note"], region="us")
        rig.db.delete(table, ["2"])
    rig.follow(*tables)
    orders = rig.output.table(names[0]).stored_table
    made = rig.spark.sql(f"SHOW CREATE TABLE {orders.targets['current'].at}").collect()[0][0]
    assert "PARTITIONED BY (region, bucket(4, id))" in made
    assert "'sort-order' = 'note ASC NULLS FIRST'" in made
    history = rig.spark.sql(f"SHOW CREATE TABLE {orders.targets['changes'].at}").collect()[0][0]
    assert "days(_commit_ts)" in history
    less = [
        relation(table.name, [columns[0], columns[2]], numbers=(1, 3), oid=table.oid)
        for table in tables
    ]
    for table in less:
        rig.db.rows[table.name] = [(row[0], row[2]) for row in rig.db.rows[table.name]]
        rig.db.insert(table, ["3", "c"])
    rig.follow(*less)
    reader = LiveTables(rig.spark, rig.output)
    assert set(reader.current(names[0]).columns) == {"id", "note", "region"}  # divided by region
    assert reader.current(names[1]).columns == ["id", "note"]
    at = rig.output.table(names[1]).stored_table
    assert at.targets["changes"].at == "`lake`.`own`.`orders_changes_changes`"


def test_a_column_that_orders_files_gets_another_type_and_one_that_partitions_them_is_named(
    iceberg, tmp_path
):
    rules = {
        "format.partition.by": r"public\.parted:bucket(4, n)",
        "format.cluster.by": r"public\.ordered:n,id",
    }
    rig = Rig(tmp_path, iceberg, FormatChoice("iceberg", rules), parallel=2)

    def tables(kind: str) -> list[Relation]:
        columns = [("id", "int4"), ("n", kind)]
        names = ("ordered", "parted")
        return [
            relation(f"public.{name}", columns, numbers=(1, 2), oid=91_000 + at)
            for at, name in enumerate(names)
        ]

    for table in tables("numeric(10,2)"):
        rig.db.insert(table, ["1", "1.25"], ["2", None])
    rig.follow()
    ordered, parted = tables("numeric(12,4)")
    for table in (ordered, parted):
        rig.db.rows[table.name] = [("1", "1.2500"), ("2", None)]
        rig.db.insert(table, ["3", "0.0001"])
        rig.db.update(table, ["1"], n="1.2345")
    rig.follow(ordered)
    made = rig.spark.sql(f"SHOW CREATE TABLE {rig.target(ordered).at}").collect()[0][0]
    assert "'sort-order' = 'n ASC NULLS FIRST, id ASC NULLS FIRST'" in made
    failed = rig.output.table(parted.name).failed
    assert failed.startswith("WT-5234 n partitions ")


def test_a_change_without_a_key_means_a_row_by_the_columns_that_it_shows(rig):
    a_dropped_column(rig)


def test_two_outputs_in_one_session_are_never_taken_for_each_other(iceberg, tmp_path):
    """Both have a table of one name in a catalogue of one name; the second says what to do."""
    session = iceberg.newSession()
    rigs = []
    for number in range(2):
        rig = Rig(tmp_path / str(number), session, "iceberg", parallel=2)
        rig.insert(PEOPLE, [str(number), "a", None])
        rig.write(PEOPLE, [str(number + 10), "b", None])
        rig.apply()  # by sessions that were reported the first one's catalogue
        rigs.append(rig)
        if not number:
            LiveTables(session, rig.output).current(PEOPLE.name).collect()
    for rig in rigs:
        assert rig.output.table(PEOPLE.name).failed == ""
    with pytest.raises(SessionTaken) as refused:
        LiveTables(session, rigs[1].output).current(PEOPLE.name)
    assert "newSession" in str(refused.value)
    for rig in rigs:
        found = LiveTables(session.newSession(), rig.output).current(PEOPLE.name).count()
        assert found == 2
        rig.applier.close()
        rig.sink.close()
    assert LiveTables(session, rigs[0].output).current(PEOPLE.name).count() == 2


@pytest.mark.parametrize("kind", ["rest", "jdbc"])
def test_a_catalogue_that_cannot_be_reached_is_named_and_nothing_is_half_written(
    iceberg, tmp_path, kind
):
    """Nobody listens at the port; the folder of the database is not there yet."""
    session, setting = iceberg.newSession(), "spark.sql.catalog.gone"
    place = tmp_path / "catalogue"
    uris = {"rest": "http://127.0.0.1:1", "jdbc": f"jdbc:sqlite:{place}/c.db"}
    conf = {".type": kind, ".uri": uris[kind], ".warehouse": f"file://{tmp_path}/lake"}
    conf |= {"": "org.apache.iceberg.spark.SparkCatalog", ".cache-enabled": "false"}
    for name, value in conf.items():
        session.conf.set(setting + name, value)
    rig = Rig(tmp_path, session, FormatChoice("iceberg", {"format.catalog": "gone"}), parallel=1)
    rig.insert(PEOPLE, ["1", "Ann", None])
    stands = rig.output.table(PEOPLE.name)
    assert stands.failed.startswith("WT-5245 the catalogue gone cannot be loaded: ")
    assert "The profile's settings spark.sql.catalog.gone and" in stands.failed
    assert not stands.stored_table.targets
    assert not (tmp_path / "lake").exists()
    if kind == "jdbc":
        place.mkdir()
        rig.reopen()
        rig.apply(PEOPLE)


def test_pipelines_share_targets_of_a_catalogue(iceberg, tmp_path, monkeypatch):
    """Each removes old versions as often as it can."""
    monkeypatch.setattr(iceberg_format, "MIN_SNAPSHOTS", 1)
    monkeypatch.setattr(merging, "VACUUM_S", 0.0)
    values = {"format.catalog": "lake", "format.retention.hours": "0"}
    choice = FormatChoice("iceberg", values)
    write_one_target(tmp_path, iceberg, choice, "lake.`all`.{}", monkeypatch)


@pytest.mark.parametrize("catalogue", [True, False])
def test_tables_follow_a_change_log_in_s3(s3, bucket, conf, tmp_path, java, catalogue):
    """Named in a catalogue in a database, and by their paths alone."""
    conf["spark.jars"] += f",{spark_jars.iceberg()}"
    if catalogue:
        conf |= CONF
        conf["spark.sql.catalog.lake.uri"] = f"jdbc:sqlite:{tmp_path}/catalog.db?busy_timeout=60000"
        conf["spark.sql.catalog.lake.warehouse"] = f"s3a://{bucket}/warehouse"
    tables_follow(s3, bucket, conf, tmp_path, "iceberg", "lake" if catalogue else "")


# change → the most calls, round trips and jobs of its commit: a job reads values that were not sent, and the driver writes.
BUDGETS: Final = {
    "insert": (309, 105, 0),
    "update": (365, 149, 0),
    "update, note unsent": (376, 143, 1),
    "key change, note unsent": (396, 143, 1),
    "delete": (351, 113, 0),
}


@pytest.fixture(scope="module")
def few_rows(iceberg, tmp_path_factory) -> Iterator[Rig]:
    with filled(iceberg, tmp_path_factory.mktemp("budget"), "iceberg") as made:
        yield made


@pytest.mark.parametrize(("change", "most"), BUDGETS.items())
def test_a_commit_of_one_change_is_within_its_budget(few_rows, change, most):
    found = cost(few_rows, change)
    assert all(each <= limit for each, limit in zip(found, most, strict=True)), found
