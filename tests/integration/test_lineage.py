"""OpenLineage events of a pipeline that runs: to a file, and to a server."""

import importlib
import json
import pkgutil
from enum import Enum
from functools import cache
from pathlib import Path
from types import NoneType, UnionType
from typing import Any, Union, get_args, get_origin, get_type_hints
from urllib.parse import urlsplit

import attr
import pytest
from tests.harness.http_receiver import Receiver
from tests.harness.pipeline import Run, until

from waltap.errors import SourceError
from waltap.services.telemetry.observers import observed


@cache  # its import takes a second of every worker that only collects the tests
def facet_classes() -> dict[str, type]:
    """Return the classes of facets that OpenLineage's own client has, which are made from its JSON schemas,
    by the address of the schema that each stands for."""
    from openlineage.client import generated
    from openlineage.client.generated.base import BaseFacet

    found = {}
    for module in pkgutil.iter_modules(generated.__path__):
        for each in vars(importlib.import_module(f"{generated.__name__}.{module.name}")).values():
            if isinstance(each, type) and issubclass(each, BaseFacet):
                found[each._get_schema()] = each
    return found


def holds(kind: Any, value: Any) -> None:
    """Hold a document against a class of OpenLineage's client: it has the fields that the standard has, all that
    are required, and no others, of the types it says; the class validates what it can."""
    from openlineage.client.generated.base import BaseFacet

    kinds = [each for each in get_args(kind) if each is not NoneType]
    if get_origin(kind) in (Union, UnionType):
        if value is not None and len(kinds) == 1:
            holds(kinds[0], value)
    elif get_origin(kind) is list:
        for each in value:
            holds(kinds[0], each)
    elif get_origin(kind) is dict:
        for each in value.values():
            holds(kinds[1], each)
    elif isinstance(kind, type) and issubclass(kind, Enum):
        kind(value)
    elif attr.has(kind):
        if issubclass(kind, BaseFacet):
            assert urlsplit(value["_producer"]).scheme
            kind = facet_classes()[value["_schemaURL"]]
        reported = {
            n: each for n, each in value.items() if not n.startswith("_") and n != "schemaURL"
        }
        known = {each.alias: each for each in attr.fields(kind) if each.init}
        assert reported.keys() <= known.keys(), f"{kind.__name__} has no such fields"
        required = {name for name, each in known.items() if each.default is attr.NOTHING}
        assert required <= {name for name, each in reported.items() if each is not None}
        types = get_type_hints(kind)
        for name, each in reported.items():
            holds(types[known[name].name], each)
        kind(**reported)
    elif kind in (str, bool):
        assert isinstance(value, kind)


def conforms(event: dict[str, Any]) -> None:
    assert "/2-0-2/OpenLineage.json#/$defs/RunEvent" in event["schemaURL"]
    from openlineage.client.generated.base import RunEvent

    holds(RunEvent, event)
    datasets = event["inputs"] + event["outputs"]
    assert all(each["namespace"] for each in datasets)


def lines(file: Path) -> list[dict[str, Any]]:
    if not file.exists():
        return []
    whole, _newline, _begun = file.read_text().rpartition("\n")
    found = [json.loads(line) for line in whole.splitlines()]
    for each in found:
        conforms(each)
    return found


@pytest.fixture(autouse=True)
def patience(monkeypatch) -> None:
    """A busy machine is waited for: what came too late would come again, or not at all."""
    monkeypatch.setattr("waltap.services.telemetry.lineage.END_S", 90.0)
    monkeypatch.setattr("waltap.services.telemetry.lineage.TIMEOUT_S", 90.0)


pytestmark = pytest.mark.pipeline(
    sql="CREATE TABLE t (id int PRIMARY KEY, v text, secret text); CREATE TABLE other (id int PRIMARY KEY);"
    "INSERT INTO t VALUES (1, 'a', 'hidden-77')",
    settings={"column.mask.hash.SHA-256.with.salt.x": "public.t.secret"},
)


def test_a_run_shows_its_tables_and_their_columns(pipeline, tmp_path):
    file = tmp_path / "lineage.jsonl"
    pipeline.branches = [{"type": "jsonl", "name": "lines", "path": str(tmp_path / "events")}]
    run = Run(pipeline, limits=None, settings={"waltap.openlineage.to": str(file)})
    with observed(run.engine, run.host):
        with run:
            run.until(lambda: run.engine.state == "streaming", "streaming")
            pipeline.database.execute("INSERT INTO t VALUES (2, 'b', 'hidden-77')")
            pipeline.database.execute("INSERT INTO other VALUES (1)")
            run.until(lambda: file.exists() and ".other" in file.read_text(), "the tables")
            pipeline.database.execute("ALTER TABLE t ADD COLUMN w numeric(8,2)")
            pipeline.database.execute("INSERT INTO t VALUES (3, 'c', 'hidden-77', 1)")
            run.until(lambda: "numeric" in file.read_text(), "the new column")
    events = lines(file)
    kinds = [each["eventType"] for each in events]
    assert (kinds[0], kinds[-1], set(kinds[1:-1])) == ("START", "COMPLETE", {"RUNNING"})
    assert len({each["run"]["runId"] for each in events}) == 1
    assert events[0]["job"]["name"] == "p"
    assert (events[0]["inputs"], events[-1]["inputs"]) == ([], [])
    named = [each["name"].rpartition(".")[2] for event in events for each in event["inputs"]]
    assert sorted(named) == ["other", "t", "t"], "a table is reported once, and with its new column"
    (taken,), (given,) = events[-2]["inputs"], events[-2]["outputs"]
    assert taken["namespace"].startswith("postgres://")
    assert taken["name"] == f"{pipeline.database.name}.public.t"
    fields = [each["name"] for each in taken["facets"]["schema"]["fields"]]
    assert fields == ["id", "v", "secret", "w"]
    assert given["namespace"] == f"file:{tmp_path / 'events'}"
    came = given["facets"]["columnLineage"]["fields"]
    assert set(came) == set(fields)
    assert came["v"]["inputFields"][0]["field"] == "v"
    masked = {
        name: each["inputFields"][0]["transformations"][0]["masking"] for name, each in came.items()
    }
    assert masked == {"id": False, "v": False, "secret": True, "w": False}
    assert "hidden-77" not in file.read_text()


def test_a_run_that_fails_says_so_to_a_server(pipeline):
    with Receiver() as server:
        settings = {
            "waltap.openlineage.to": server.url,
            "database.password": "wrong-88",
            "database.port": 1,
        }
        run = Run(pipeline, limits=None, settings=settings)
        with observed(run.engine, run.host), pytest.raises(SourceError), run:
            run.join()
        until(lambda: len(server.taken) == 2, "both events")
    reported = [json.loads(body) for _, body in server.taken]
    for each in reported:
        conforms(each)
    assert [each["eventType"] for each in reported] == ["START", "FAIL"]
    assert "WT-2" in reported[1]["run"]["facets"]["errorMessage"]["message"]
    assert "wrong-88" not in json.dumps(reported)
