"""The example of a connector, in a pipeline: it stops, goes on, and waits for half a line."""

import importlib.util
import json
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
from tests.harness.json_lines import records

import waltap
from waltap.errors import WaltapError

EXAMPLE = Path(__file__).parents[2] / "examples/plugins/waltap-connector-example"


@pytest.fixture(scope="module")
def plugin() -> ModuleType:
    spec = importlib.util.spec_from_file_location(
        "waltap_connector_example", EXAMPLE / "waltap_connector_example.py"
    )
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def pipeline(folder: Path, plugin: ModuleType) -> waltap.Pipeline:
    profile: dict[str, Any] = {
        "name": "shop",
        "source": {
            "type": "journal",
            "journal.path": str(folder / "journal.jsonl"),
            "waltap.state.dir": str(folder / "state"),
        },
        "sink": {"type": "jsonl", "path": str(folder / "out.jsonl")},
    }
    return waltap.Pipeline(profile, plugins=(plugin,))


def change(op: str, **row: str | None) -> dict[str, Any]:
    return {"op": op, "table": "orders", "row": row}


def write(folder: Path, *transactions: list[dict[str, Any]]) -> None:
    with (folder / "journal.jsonl").open("a") as file:
        file.writelines(json.dumps({"changes": each}) + "\n" for each in transactions)


def seen(folder: Path) -> list[tuple[str, Any]]:
    values = [line["value"] for line in records(folder / "out.jsonl") if line["value"]]
    return [(value["op"], value["after"] or value["before"]) for value in values]


def test_a_pipeline_goes_on_where_it_stopped(tmp_path, plugin):
    write(tmp_path, [change("c", id="1", total="19.90")], [change("u", id="1", total=None)])
    pipeline(tmp_path, plugin).run(waltap.Limits(until_idle=0.2))
    write(tmp_path, [change("c", id="2", total="1"), change("d", id="1", total=None)])
    pipeline(tmp_path, plugin).run(waltap.Limits(until_idle=0.2))
    assert seen(tmp_path) == [
        ("c", {"id": "1", "total": "19.90"}),
        ("u", {"id": "1", "total": None}),
        ("c", {"id": "2", "total": "1"}),
        ("d", {"id": "1", "total": None}),
    ]


def test_a_new_column_and_half_a_line(tmp_path, plugin):
    write(tmp_path, [change("c", id="1")], [change("c", id="2", note="new")])
    whole = (tmp_path / "journal.jsonl").read_text()
    with (tmp_path / "journal.jsonl").open("a") as file:
        file.write('{"changes": [{"op"')
    pipeline(tmp_path, plugin).run(waltap.Limits(until_idle=0.2))
    assert seen(tmp_path) == [("c", {"id": "1"}), ("c", {"id": "2", "note": "new"})]
    (tmp_path / "journal.jsonl").write_text(whole)
    write(tmp_path, [change("c", id="3")])
    pipeline(tmp_path, plugin).run(waltap.Limits(until_idle=0.2))
    assert seen(tmp_path)[2:] == [("c", {"id": "3"})]


def test_a_journal_that_is_not_there_is_reported(tmp_path, plugin):
    with pytest.raises(WaltapError, match="is not there"):
        pipeline(tmp_path, plugin).run()
