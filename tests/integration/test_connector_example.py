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


def run(folder: Path, plugin: ModuleType) -> None:
    profile: dict[str, Any] = {
        "name": "shop",
        "source": {
            "type": "journal",
            "journal.path": str(folder / "journal.jsonl"),
            "waltap.state.dir": str(folder / "state"),
        },
        "sink": {"type": "jsonl", "path": str(folder / "out.jsonl")},
    }
    waltap.Pipeline(profile, plugins=(plugin,)).run(waltap.Limits(until_idle=0.2))


def change(op: str, **row: str | None) -> dict[str, Any]:
    return {"op": op, "table": "orders", "row": row}


def write(folder: Path, *transactions: list[dict[str, Any]]) -> None:
    with (folder / "journal.jsonl").open("a") as file:
        file.writelines(json.dumps({"changes": each}) + "\n" for each in transactions)


def seen(folder: Path) -> list[tuple[str, Any]]:
    values = [line["value"] for line in records(folder / "out.jsonl") if line["value"]]
    return [(value["op"], value["after"] or value["before"]) for value in values]


def test_a_pipeline_goes_on_where_it_stopped_also_at_half_a_line_and_with_a_new_column(
    tmp_path, plugin
):
    with pytest.raises(WaltapError, match="is not there"):
        run(tmp_path, plugin)
    write(tmp_path, [change("c", id="1", total="19.90")], [change("u", id="1", total=None)])
    run(tmp_path, plugin)
    journal = tmp_path / "journal.jsonl"
    write(tmp_path, [change("c", id="2", note="new"), change("d", id="1", total=None)])
    whole = journal.read_text()
    journal.write_text(whole + '{"changes": [{"op"')
    run(tmp_path, plugin)
    wanted = [
        ("c", {"id": "1", "total": "19.90"}),
        ("u", {"id": "1", "total": None}),
        ("c", {"id": "2", "note": "new"}),
        ("d", {"id": "1", "total": None}),
    ]
    assert seen(tmp_path) == wanted
    journal.write_text(whole)
    write(tmp_path, [change("c", id="3")])
    run(tmp_path, plugin)
    assert seen(tmp_path) == [*wanted, ("c", {"id": "3"})]
