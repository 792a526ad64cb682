"""A table with any name that PostgreSQL allows is queried and compared, and so are others beside it."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import pytest
from click.testing import Result
from tests.harness.changelog import relation
from tests.harness.spark import Rig
from typer.testing import CliRunner

from waltap_spark import session
from waltap_spark.commands import application
from waltap_spark.errors import SparkRefused
from waltap_spark.live import LiveTables
from waltap_spark.prompt import sql_words
from waltap_spark.verify import compare

ODD = 'Odd.Na me`"'
COLUMN = "we`ird.col umn"
COLUMNS = [("id", "int4"), (COLUMN, "text")]
PLAIN = relation("public.plain", COLUMNS)
STRANGE = msgspec.structs.replace(
    relation("public.odd", COLUMNS), schema="public", table=ODD, oid=PLAIN.oid + 1
)


@pytest.fixture
def rig(spark: Any, tmp_path: Path) -> Rig:
    made = Rig(tmp_path, spark)
    for table in (PLAIN, STRANGE):
        made.db.insert(table, ["1", "one"], ["2", "two"])
        made.commit()
        made.db.update(table, ["2"], **{COLUMN: "zwei"})
        made.commit()
    made.apply()
    made.applier.close()
    made.sink.close()
    return made


@pytest.fixture
def asked(rig: Rig, monkeypatch: pytest.MonkeyPatch) -> Callable[..., Result]:
    """Return what runs `waltap spark sql` in the session of the tests, which it does not stop."""

    class Shared:
        def __getattr__(self, name: str) -> Any:
            return getattr(rig.spark, name)

        def stop(self) -> None:
            pass

    def ask(*query: str, typed: str | None = None) -> Result:
        return CliRunner().invoke(
            application, ["sql", str(rig.folder / "out"), *query], input=typed
        )

    monkeypatch.setattr(session, "start_session", lambda *_, **__: Shared())
    monkeypatch.setenv("XDG_STATE_HOME", str(rig.folder / "state"))
    return ask


def test_every_table_can_be_asked_for_in_sql(rig: Rig, asked: Callable[..., Result]) -> None:
    for view in ("plain", '`Odd.Na me``"`'):
        found = asked(f"SELECT `we``ird.col umn` FROM {view} WHERE id = 2")
        assert found.exit_code == 0, found.output
        assert "zwei" in found.output
        assert "plain" in found.output
        assert '`Odd.Na me``"`' in found.output, "as a query must write it"
    assert {"SELECT", "count", "date_trunc"} <= set(sql_words(rig.spark))
    typed = "SELECT nothing FROM plain;\n\\d plain\nSELECT `we``ird.col umn`\nFROM plain WHERE id = 2;\n"
    found = asked(typed=typed)
    assert found.exit_code == 0, found.output
    assert "UNRESOLVED_COLUMN" in found.output, "and it goes on"
    assert "id\n`we``ird.col umn`" in found.output
    assert "zwei" in found.output
    history = LiveTables(rig.spark, rig.output)
    history.register()
    frame = rig.spark.sql('SELECT count(*) FROM `Odd.Na me`"_changes`'.replace('`"', '``"'))
    assert frame.first()[0] == 3


def test_values_are_shown_as_they_are(asked: Callable[..., Result]) -> None:
    found = asked("SELECT '[bold]a[/red]' AS `[/b]` FROM plain WHERE id = 1")
    assert found.exit_code == 0, found.output
    assert "[bold]a[/red]" in found.output
    assert "[/b]" in found.output


def test_what_spark_refuses_has_a_code(asked: Callable[..., Result]) -> None:
    found = asked("SELECT raise_error('[/no] such thing') FROM plain")
    assert isinstance(found.exception, SparkRefused), found.output
    assert "WT-5268" in str(found.exception)
    assert "[/no] such thing" in str(found.exception)
    refused = asked("SELECT nothing FROM plain")
    assert refused.exit_code == 2
    assert "UNRESOLVED_COLUMN" in refused.output


def test_status_shows_what_stands_still_as_it_was_told(rig: Rig) -> None:
    state = rig.output.state()
    assert state is not None
    table = rig.output.table("plain", state)
    still = msgspec.structs.replace(table, failed="WT-5268 [/lake] is [full]", mark=state.mark)
    rig.output.commit(
        msgspec.structs.replace(
            state, number=state.number + 1, tables={**state.tables, table.name: still}
        )
    )
    found = CliRunner().invoke(application, ["status", str(rig.folder / "out")])
    assert found.exit_code == 0, found.exception
    assert "WT-5268 [/lake] is [full]" in found.output


def test_every_table_is_compared(rig: Rig, database: Any) -> None:
    with database.connect() as connection:
        for table in ('"Odd.Na me`"""', "plain"):
            connection.execute(f'CREATE TABLE {table} (id int PRIMARY KEY, "{COLUMN}" text)')
            connection.execute(f"INSERT INTO {table} VALUES (1, 'one'), (2, 'zwei')")
        results = compare(connection, LiveTables(rig.spark, rig.output))
    assert [(each.table, each.equal) for each in results] == [
        (f"public.{ODD}", True),
        ("public.plain", True),
    ]
