"""Names: columns by rules, names as they are made beside them, and any that PostgreSQL allows."""

import json
import shutil
from collections.abc import Callable
from functools import partial
from pathlib import Path

import msgspec
import pytest
from click.testing import Result
from tests.harness.changelog import relation
from tests.harness.command import waltap
from tests.harness.spark import Rig
from typer.testing import CliRunner

from waltap_spark.cli.commands import application
from waltap_spark.cli.prompt import sql_words
from waltap_spark.compact import small_sets
from waltap_spark.config.column_names import ColumnNames
from waltap_spark.errors import SparkRefused
from waltap_spark.read.live import LiveTables
from waltap_spark.session import session
from waltap_spark.state.modes import ModeRules
from waltap_spark.state.output import SparkOutput

# --- columns by rules -----------------------------------------------------------------------------

NAMES = ColumnNames(("snake",), (r"public\..*\.Note__c:remark",))
RULES = ModeRules(modes=(r"public\.versions:scd2", "scd1"))
COLUMNS = [("OrderID", "int4"), ("Full Name", "text"), ("Note__c", "text")]


@pytest.mark.parametrize(("table_format", "most"), [("parquet", 20_000), ("delta", 0)])
def test_columns_are_called_by_rules_through_all_that_becomes_of_a_table(
    delta, tmp_path, monkeypatch, table_format, most
):
    """Few rows are written by this process or by Spark, which both have to call columns so."""
    monkeypatch.setattr(small_sets, "SMALL_ROWS", most)
    rig = Rig(tmp_path, delta, table_format, modes=RULES, names=NAMES, compact_rows=0)
    tables = [
        relation(f"public.{name}", COLUMNS, numbers=(1, 2, 3), key=("OrderID",))
        for name in ("plain", "versions")
    ]
    clash = relation("public.clash", [("id", "int4"), ("userID", "text"), ("user_id", "text")])
    taken = relation("public.taken", [("id", "int4"), ("CommitLsn", "text"), ("_Op", "text")])
    rig.db.insert(clash, ["1", "a", "b"])
    rig.db.insert(taken, ["1", "a", "b"])
    for table in tables:
        rig.db.insert(table, ["1", "Ann", "long"], ["2", "Bob", "far"], ["3", "Eve", None])
    rig.follow()
    for table in tables:
        rig.db.update(table, ["1"], ["Note__c"], **{"Full Name": "Anna"})
        rig.db.update(table, ["2"], ["Note__c"], OrderID="20")
        rig.db.delete(table, ["3"])
    rig.follow()
    later = [("OrderID", "int8"), ("LastName", "text"), ("Note__c", "text")]
    for table in tables:  # ALTER TABLE … RENAME "Full Name" TO "LastName", and a wider key
        now = relation(table.name, later, numbers=(1, 2, 3), key=("OrderID",))
        rig.db.update(now, ["20"], ["Note__c"], LastName="Bobby")
    rig.follow()
    failed = {each.table: each.failed for each in rig.applier.state.tables.values() if each.failed}
    assert set(failed) == {"clash", "taken"}
    assert "WT-5259" in failed["clash"]
    assert "userID and user_id of public.clash would both be called user_id" in failed["clash"]
    assert "column _Op of public.taken" in failed["taken"]
    live = LiveTables(rig.spark, rig.output, allow_stale=True)
    for table in tables:
        frame = live.live_rows(table.name).select("order_id", "last_name", "remark")
        rows = sorted(tuple(row) for row in frame.collect())
        assert rows == [(1, "Anna", "long"), (20, "Bobby", "far")], table.name
        reported = live.changes(table.name).where("size(_unchanged) > 0").selectExpr("_unchanged")
        assert {name for row in reported.collect() for name in row[0]} == {"remark"}
    assert rig.output.table("plain").key == ("order_id",)


# --- odd names ------------------------------------------------------------------------------------

ODD = 'Odd.Na me`"'
COLUMN = "we`ird.col umn ${x}"
ODD_COLUMNS = [("id", "int4"), (COLUMN, "text")]
PLAIN = relation("public.plain", ODD_COLUMNS)
STRANGE = msgspec.structs.replace(
    relation("public.odd", ODD_COLUMNS), schema="public", table=ODD, oid=PLAIN.oid + 1
)


@pytest.fixture(scope="module")
def rig(spark, tmp_path_factory) -> Rig:
    """Tables that tests only read."""
    made = Rig(tmp_path_factory.mktemp("odd"), spark)
    for table in (PLAIN, STRANGE):
        made.write(table, ["1", "one"], ["2", "two"])
        made.db.update(table, ["2"], **{COLUMN: "zwei"})
        made.commit()
    made.apply()
    made.applier.close()
    made.sink.close()
    return made


@pytest.fixture
def asked(rig, spark_sql) -> Callable[..., Result]:
    return partial(spark_sql, rig.folder / "out")


def test_every_table_can_be_asked_for_in_sql(rig, asked):
    """Values are shown as they are."""
    for view in ("plain", '`Odd.Na me``"`'):
        found = asked(
            f"SELECT `we``ird.col umn ${{x}}`, '[bold]a[/red]' AS `[/b]` FROM {view} WHERE id = 2"
        )
        assert found.exit_code == 0, found.output
        for shown in ("zwei", "[bold]a[/red]", "[/b]"):
            assert shown in found.output
        for name in ("plain", '`Odd.Na me``"`'):
            assert name in found.output, "as a query must write it"
    LiveTables(rig.spark, rig.output).register()
    assert rig.spark.sql('SELECT count(*) FROM `Odd.Na me``"_changes`').first()[0] == 3


@pytest.fixture
def compiled(monkeypatch) -> None:
    """Have expressions compiled, which a list of tables takes."""
    monkeypatch.setitem(session.REQUIRED, "spark.sql.codegen.factoryMode", "FALLBACK")


@pytest.mark.usefixtures("compiled")
def test_statements_that_are_typed_are_answered(asked):
    typed = "SELECT nothing FROM plain;\n\\d plain\nSELECT `we``ird.col umn ${x}`\nFROM plain WHERE id = 2;\n"
    found = asked(typed=typed)
    assert found.exit_code == 0, found.output
    assert "UNRESOLVED_COLUMN" in found.output, "and it goes on"
    assert "id\n`we``ird.col umn ${x}`" in found.output
    assert "zwei" in found.output


def test_keywords_and_functions_are_completed(spark):
    assert {"SELECT", "count", "date_trunc"} <= set(sql_words(spark))


@pytest.mark.parametrize("process", ["this", "its own"])
def test_values_are_written_as_json(rig, asked, process):
    values = "double('NaN') n, date'0001-01-01' d, x'00ff' b, 1.50 p, cast(null as int) z, 1 z"
    query = f"select count(*) c, timestamp'2020-01-01 00:00:00.000001Z' t, {values} from plain"
    if process == "this":
        written = asked("--json", query).stdout
    else:
        written = waltap("spark", "sql", rig.folder / "out", "--json", query).stdout
    (row,) = json.loads(written, object_pairs_hook=list)
    assert row == [
        ("c", 2), ("t", "2020-01-01T00:00:00.000001Z"), ("n", "NaN"), ("d", "0001-01-01"),
        ("b", "AP8="), ("p", 1.5), ("z", None), ("z", 1),
    ]  # fmt: skip


def test_what_spark_refuses_has_a_code(asked):
    found = asked("SELECT raise_error('[/no] such thing') FROM plain")
    assert isinstance(found.exception, SparkRefused), found.output
    assert "WT-5268" in str(found.exception)
    assert "[/no] such thing" in str(found.exception)
    refused = asked("SELECT nothing FROM plain")
    assert refused.exit_code == 2
    assert "UNRESOLVED_COLUMN" in refused.output


def test_status_shows_what_stands_still_as_it_was_reported(rig, tmp_path):
    output = SparkOutput(str(shutil.copytree(rig.folder / "out", tmp_path / "out")))
    state = output.state()
    table = output.table("plain", state)
    still = msgspec.structs.replace(
        table, failed="WT-5268 [/lake] is [full]", log_position=state.log_position
    )
    tables = {**state.tables, table.name: still}
    output.commit(msgspec.structs.replace(state, number=state.number + 1, tables=tables))
    assert "WT-5268 [/lake] is [full]" in status(tmp_path)


# --- ``waltap spark status``: rows of tables in formats that are written in place, as text and --------

ITEMS = relation("public.items", [("id", "int4"), ("v", "text")], numbers=(1, 2))
QUIET = relation("public.quiet", [("id", "int4")], numbers=(1,))


def status(folder: Path, *words: str) -> str:
    found = CliRunner().invoke(application, ["status", str(folder / "out"), *words])
    assert found.exit_code == 0, found.exception
    return found.stdout


@pytest.mark.parametrize(("table_format", "commits"), [("parquet", 4), ("delta", 12)])
def test_status_counts_the_rows_of_each_table_and_prints_them_as_json(
    delta, tmp_path, table_format, commits
):
    """Also where Delta's log has a checkpoint, and rows of files were deleted."""
    rig = Rig(tmp_path, delta, table_format, parallel=1)
    rig.db.insert(QUIET, ["1"], ["2"])
    for number in range(commits):
        rig.db.insert(ITEMS, *[[str(number * 3 + each), "new"] for each in range(3)])
        if number % 4 == 3:
            rig.db.update(ITEMS, [str(number)], v="changed")
            rig.db.delete(ITEMS, [str(number + 1)])
        rig.follow()
    reported = json.loads(status(tmp_path, "--json"))
    tables = {each["table"]: each for each in reported["tables"]}
    live = LiveTables(rig.spark, rig.output)
    for name, each in tables.items():
        assert each["rows"] + each["pending"] >= live.current(name).count()
        assert each["position"] == reported["position"] == str(rig.applier.state.log_position)
        assert (each["suspended"], each["stale"]) == ("", [])
    if table_format == "delta":
        assert {name: each["rows"] for name, each in tables.items()} == {
            "public.items": live.current("public.items").count(),
            "public.quiet": 2,
        }
        drawn = status(tmp_path)
        assert "version" not in drawn
        assert f" {tables['public.items']['rows']} " in drawn
