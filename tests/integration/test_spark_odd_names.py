"""A table with any name that PostgreSQL allows is queried and compared, and so are others beside it."""

from pathlib import Path
from typing import Any

import msgspec
import pytest
from typer.testing import CliRunner
from waltap_spark import session
from waltap_spark.commands import application
from waltap_spark.live import LiveTables
from waltap_spark.verify import compare

from tests.rigs.changelog import relation
from tests.rigs.spark import Rig

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


def test_every_table_can_be_asked_for_in_sql(rig: Rig, monkeypatch: pytest.MonkeyPatch) -> None:
    class Shared:
        """The session of the tests in place of one of the command's own, which it stops."""

        def __getattr__(self, name: str) -> Any:
            return getattr(rig.spark, name)

        def stop(self) -> None:
            pass

    monkeypatch.setattr(session, "start_session", lambda *_, **__: Shared())
    for view in ("plain", '`Odd.Na me``"`'):
        query = f"SELECT `we``ird.col umn` FROM {view} WHERE id = 2"
        found = CliRunner().invoke(application, ["sql", str(rig.folder / "out"), query])
        assert found.exit_code == 0, found.output
        assert "zwei" in found.output
        assert "plain" in found.output
        assert '`Odd.Na me``"`' in found.output, "as a query must write it"
    monkeypatch.setenv("XDG_STATE_HOME", str(rig.folder / "state"))
    typed = "SELECT nothing FROM plain;\n\\d plain\nSELECT `we``ird.col umn`\nFROM plain WHERE id = 2;\n"
    asked = CliRunner().invoke(application, ["sql", str(rig.folder / "out")], input=typed)
    assert asked.exit_code == 0, asked.output
    assert "UNRESOLVED_COLUMN" in asked.output, "and it goes on"
    assert "id\n`we``ird.col umn`" in asked.output
    assert "zwei" in asked.output
    history = LiveTables(rig.spark, rig.output)
    history.register()
    frame = rig.spark.sql('SELECT count(*) FROM `Odd.Na me`"_changes`'.replace('`"', '``"'))
    assert frame.first()[0] == 3


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
