"""What a type gets while it is captured, a label or an attribute: the schema has it from the first row on."""

from pathlib import Path
from typing import Any

import pytest

from tests.harness.json_lines import records
from tests.harness.pipeline import PipelineRig
from tests.harness.servers.postgres import Database


def rig(database: Database, tmp_path: Path, plugin: str) -> tuple[PipelineRig, Path]:
    out = tmp_path / "out"
    settings = {
        "plugin.name": plugin,
        "sink.type": "jsonl",
        "sink.path": str(out),
        "topic.prefix": "x",
        "value.converter.schemas.enable": "true",
    }
    return PipelineRig(database, tmp_path, settings), out


def seen(out: Path) -> list[tuple[str, Any, str]]:
    """Return (operation, value, allowed labels) of each event of the column ``m``."""
    found = []
    for record in records(out):
        value = record["value"]
        if value is None:
            continue
        (field,) = [f for f in value["schema"]["fields"][1]["fields"] if f["field"] == "m"]
        row = value["payload"]["after"] or value["payload"]["before"]
        labels = field.get("items", field)["parameters"]["allowed"]
        found.append((value["payload"]["op"], row["m"], labels))
    return found


@pytest.mark.parametrize("plugin", ["pgoutput", "wal2json", "decoderbufs"])
def test_a_label_is_known_from_its_first_row_on(
    database: Database, tmp_path: Path, plugin: str
) -> None:
    database.execute(
        "CREATE TYPE mood AS ENUM ('sad', 'ok'); CREATE TABLE t (id int PRIMARY KEY, m mood)"
    )
    pipeline, out = rig(database, tmp_path, plugin)
    with pipeline.running() as run:
        database.execute("INSERT INTO t VALUES (1, 'ok')")
        run.until(lambda: len(seen(out)) == 1, "the first row")
        database.execute("ALTER TYPE mood ADD VALUE 'glad'")
        database.execute("INSERT INTO t VALUES (2, 'glad')")
        database.execute("ALTER TYPE mood ADD VALUE 'mad' BEFORE 'sad'")
        database.execute("UPDATE t SET m = 'mad' WHERE id = 1")
        run.until(lambda: len(seen(out)) == 3, "all rows")
        database.execute("INSERT INTO t VALUES (3, 'sad')")
        run.until(lambda: len(seen(out)) == 4, "one more")
    rows = seen(out)
    assert rows[0] == ("c", "ok", "sad,ok")
    assert [(op, value) for op, value, _ in rows] == [
        ("c", "ok"), ("c", "glad"), ("u", "mad"), ("c", "sad"),
    ]  # fmt: skip
    assert "glad" in rows[1][2].split(",")
    assert {allowed for _, _, allowed in rows[2:]} == {"mad,sad,ok,glad"}


@pytest.mark.parametrize("plugin", ["pgoutput", "wal2json"])
def test_a_label_in_an_array_is_known_from_its_first_row_on(
    database: Database, tmp_path: Path, plugin: str
) -> None:
    database.execute(
        "CREATE TYPE mood AS ENUM ('sad', 'ok'); CREATE DOMAIN moods AS mood[];"
        "CREATE TABLE t (id int PRIMARY KEY, m mood[], d moods)"
    )
    pipeline, out = rig(database, tmp_path, plugin)
    with pipeline.running() as run:
        database.execute("INSERT INTO t VALUES (1, '{ok,sad}')")
        run.until(lambda: len(seen(out)) == 1, "the first row")
        database.execute("ALTER TYPE mood ADD VALUE 'so so' BEFORE 'ok'")
        database.execute("INSERT INTO t VALUES (2, '{ok,\"so so\"}')")
        run.until(lambda: len(seen(out)) == 2, "the second row")
        database.execute("ALTER TYPE mood ADD VALUE 'glad'")
        database.execute("INSERT INTO t VALUES (3, NULL, '{glad}'), (4, '{}', NULL)")
        run.until(lambda: len(seen(out)) == 4, "all rows")
    assert seen(out) == [
        ("c", ["ok", "sad"], "sad,ok"),
        ("c", ["ok", "so so"], "sad,so so,ok"),
        ("c", None, "sad,so so,ok,glad"),
        ("c", [], "sad,so so,ok,glad"),
    ]


def test_a_label_that_is_called_otherwise_by_now_is_written_as_it_was(
    database: Database, tmp_path: Path
) -> None:
    """The type does not have it any more; asking again for each row would not help."""
    database.execute(
        "CREATE TYPE mood AS ENUM ('sad', 'ok'); CREATE TABLE t (id int PRIMARY KEY, m mood)"
    )
    pipeline, out = rig(database, tmp_path, "pgoutput")
    pipeline.catch_up()
    database.execute(
        "INSERT INTO t SELECT g, CASE g % 2 WHEN 1 THEN 'ok' ELSE 'sad' END::mood"
        " FROM generate_series(1, 100) g"
    )
    database.execute("ALTER TYPE mood RENAME VALUE 'ok' TO 'fine'")
    pipeline.catch_up()
    assert [value for _, value, _ in seen(out)] == ["ok", "sad"] * 50


def test_an_attribute_of_a_composite_type_is_known_from_its_first_row_on(
    database: Database, tmp_path: Path
) -> None:
    """Also of a type within another, in an array; older values, and those without it, have null."""
    database.execute(
        "CREATE TYPE size AS (w int); CREATE TYPE crate AS (label text, sizes size[]);"
        "CREATE TABLE t (id int PRIMARY KEY, m crate)"
    )
    pipeline, out = rig(database, tmp_path, "pgoutput")
    pipeline.settings["waltap.composite.types"] = "struct"

    def told() -> list[tuple[Any, list[str]]]:
        values = [record["value"] for record in records(out)]
        found = []
        for value in values:
            (field,) = [f for f in value["schema"]["fields"][1]["fields"] if f["field"] == "m"]
            found.append((value["payload"]["after"]["m"], [f["field"] for f in field["fields"]]))
        return found

    with pipeline.running() as run:
        database.execute("INSERT INTO t VALUES (1, ('a', ARRAY[ROW(1)::size]))")
        run.until(lambda: len(told()) == 1, "the first row")
        database.execute("ALTER TYPE crate ADD ATTRIBUTE colour text")
        database.execute("INSERT INTO t VALUES (2, ('b', '{}', 'red'))")
        run.until(lambda: len(told()) == 2, "one with another attribute")
        database.execute("ALTER TYPE size ADD ATTRIBUTE h int")
        database.execute("UPDATE t SET m = ('c', ARRAY[ROW(1, 2)::size], NULL) WHERE id = 1")
        database.execute("INSERT INTO t VALUES (3, ('d', NULL, 'blue'))")
        run.until(lambda: len(told()) == 4, "all rows")
    assert told() == [
        ({"label": "a", "sizes": [{"w": 1}]}, ["label", "sizes"]),
        ({"label": "b", "sizes": [], "colour": "red"}, ["label", "sizes", "colour"]),
        ({"label": "c", "sizes": [{"w": 1, "h": 2}], "colour": None}, ["label", "sizes", "colour"]),
        ({"label": "d", "sizes": None, "colour": "blue"}, ["label", "sizes", "colour"]),
    ]
