"""Transforms of events and of records in a pipeline: on JSON lines they are applied, on the change log refused."""

import functools
import json
from pathlib import Path

import pytest
from tests.harness import command
from tests.harness.servers.postgres import Database

ROUTER = "org.apache.kafka.connect.transforms.RegexRouter"


waltap = functools.partial(command.waltap, COLUMNS="300")


def connector(database: Database, folder: Path, sink: str, **more: str) -> Path:
    config = {
        "connector.class": "io.debezium.connector.postgresql.PostgresConnector",
        "plugin.name": "pgoutput",
        "topic.prefix": "shop",
        "waltap.sink.type": sink,
        "waltap.sink.path": "out",
        **database.properties(),
        **{name.replace("__", "."): value for name, value in more.items()},
    }
    path = folder / f"{database.name}.json"
    path.write_text(json.dumps({"name": database.name, "config": config}))
    return path


PROFILE = """
[source]
{source}
[sink]
type = "{sink}"
path = "out"
[[transforms]]
type = "filter"
tables = 'public\\.other'
[[transforms]]
type = "fields"
tables = 'public\\.items'
exclude = "secret"
renames = "name:title"
"""


def profile(database: Database, folder: Path, sink: str) -> Path:
    source = {"type": "postgres", **database.properties()}
    lines = "\n".join(f'"{name}" = {json.dumps(value)}' for name, value in source.items())
    path = folder / f"{database.name}.toml"
    path.write_text(PROFILE.format(source=lines, sink=sink))
    return path


ROUTED = {
    "transforms": "route",
    "transforms__route__type": ROUTER,
    "transforms__route__regex": r"shop\.public\.(.*)",
    "transforms__route__replacement": "to.$1",
    "transforms__route__predicate": "items",
    "predicates": "items",
    "predicates__items__type": "org.apache.kafka.connect.transforms.predicates.TopicNameMatches",
    "predicates__items__pattern": r"shop\.public\.items",
}


@pytest.fixture
def shop(database: Database) -> Database:
    database.psql(
        "CREATE TABLE items (id int PRIMARY KEY, name text, secret text);"
        "CREATE TABLE other (id int PRIMARY KEY);"
        "INSERT INTO items VALUES (1, 'bolt', 'x'); INSERT INTO other VALUES (1)"
    )
    return database


def lines(folder: Path) -> list[dict[str, object]]:
    return [json.loads(line) for line in (folder / "out").read_text().splitlines()]


def test_fields_are_left_out_and_renamed_in_snapshot_and_stream(
    shop: Database, tmp_path: Path
) -> None:
    path = profile(shop, tmp_path, "jsonl")
    first = waltap("run", path, "--until-idle", "1", cwd=tmp_path)
    assert first.returncode == 0, first.stderr
    shop.psql("UPDATE items SET name = 'nut'; DELETE FROM items")
    again = waltap("run", path, "--until-idle", "1", cwd=tmp_path)
    assert again.returncode == 0, again.stderr
    parts = ("op", "before", "after")
    found = [
        (line["key"], line["value"] and [line["value"][part] for part in parts])
        for line in lines(tmp_path)
    ]
    key = {"id": 1}
    assert found == [
        (key, ["r", None, {"id": 1, "title": "bolt"}]),
        (key, ["u", None, {"id": 1, "title": "nut"}]),
        (key, ["d", {"id": 1, "title": None}, None]),
        (key, None),
    ]


def test_a_connectors_file_routes_snapshot_and_stream(shop: Database, tmp_path: Path) -> None:
    path = connector(shop, tmp_path, "jsonl", **ROUTED)
    for change in (
        "",
        "UPDATE items SET name = 'nut'; DELETE FROM items; INSERT INTO other VALUES (2)",
    ):
        if change:
            shop.psql(change)
        done = waltap("run", path, "--until-idle", "1", cwd=tmp_path)
        assert done.returncode == 0, done.stderr
    found = [
        (line["topic"], line["value"] and line["value"]["payload"]["op"])
        for line in lines(tmp_path)
    ]
    assert sorted(found[:2]) == [("shop.public.other", "r"), ("to.items", "r")]
    assert found[2:] == [
        ("to.items", "u"),
        ("to.items", "d"),
        ("to.items", None),
        ("shop.public.other", "c"),
    ]


@pytest.mark.parametrize("kind", ["records", "events"])
def test_a_sink_of_changes_is_refused_before_anything_is_made(
    shop: Database, tmp_path: Path, kind: str
) -> None:
    path, told = connector(shop, tmp_path, "changelog", **ROUTED), "WT-3205"
    if kind == "events":
        path, told = profile(shop, tmp_path, "changelog"), "take the transform fields out of"
    for command in ("doctor", "run"):
        found = waltap(command, path, cwd=tmp_path)
        said = f"{found.stdout}{found.stderr}"
        assert found.returncode != 0
        assert "the sink changelog takes the changes themselves" in said
        assert told in said or (command == "doctor" and kind == "records")
        assert "Traceback" not in said
    assert list(shop.slots()) == []
    assert not (tmp_path / "out").exists()


def test_a_transform_that_fails_confirms_nothing_and_a_predicate_lets_it_go_on(
    shop: Database, tmp_path: Path
) -> None:
    key = {
        "transforms": "key",
        "transforms__key__type": "org.apache.kafka.connect.transforms.ValueToKey",
        "transforms__key__fields": "op",
    }
    first = waltap(
        "run", connector(shop, tmp_path, "jsonl", **key), "--until-idle", "1", cwd=tmp_path
    )
    assert first.returncode == 0, first.stderr
    delivered = lines(tmp_path)
    assert [line["key"]["payload"] for line in delivered] == [{"op": "r"}, {"op": "r"}]

    shop.psql("INSERT INTO items VALUES (2, 'nut'); DELETE FROM items WHERE id = 1")  # a tombstone
    failed = waltap(
        "run", connector(shop, tmp_path, "jsonl", **key), "--until-idle", "1", cwd=tmp_path
    )
    told = " ".join(failed.stderr.replace("│", " ").split())
    assert failed.returncode != 0
    assert "WT-3204" in told
    assert "transform key (value-to-key)" in told
    assert "topic shop.public.items" in told
    assert '{"id":1}' in told
    assert "RecordIsTombstone" in told
    assert "Traceback" not in told

    live = {
        "transforms__key__predicate": "dead",
        "transforms__key__negate": "true",
        "predicates": "dead",
        "predicates__dead__type": "RecordIsTombstone",
    }
    path = connector(shop, tmp_path, "jsonl", **key, **live)
    done = waltap("run", path, "--until-idle", "1", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    found = [line["key"]["payload"] for line in lines(tmp_path)[len(delivered) :]]
    assert {"op": "c"} in found
    assert found[-2:] == [{"op": "d"}, {"id": 1}]


def test_rows_without_their_event_are_no_cloudevents(shop: Database, tmp_path: Path) -> None:
    """Debezium sends null for each, which deletes the row wherever topics are compacted."""
    unwrap = {
        "value__converter": "io.debezium.converters.CloudEventsConverter",
        "transforms": "unwrap",
        "transforms__unwrap__type": "io.debezium.transforms.ExtractNewRecordState",
    }
    done = waltap("run", connector(shop, tmp_path, "jsonl", **unwrap), cwd=tmp_path)
    assert (done.returncode, shop.slots()) == (2, {})
    assert "transform unwrap" in done.stderr
    assert "writes change events" in done.stderr
    # of some records only: the profile does not show which
    some = {
        "transforms__unwrap__predicate": "items",
        "predicates": "items",
        "predicates__items__type": "org.apache.kafka.connect.transforms.predicates.TopicNameMatches",
        "predicates__items__pattern": ".*items",
    }
    path = connector(shop, tmp_path, "jsonl", **unwrap, **some)
    done = waltap("run", path, "--until-idle", "1", cwd=tmp_path)
    assert done.returncode == 1
    assert "cloudevents writes change events" in done.stderr
    assert not (tmp_path / "out").exists() or not (tmp_path / "out").read_text()
