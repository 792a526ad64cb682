"""Profiles as files: TOML, Java properties, Debezium's JSON."""

import json
from pathlib import Path

import pytest
from waltap.config.layers import RawProfile, load, read_tables
from waltap.errors import ConfigurationError


def written(tmp_path: Path, name: str, text: str | bytes) -> RawProfile:
    path = tmp_path / name
    path.write_bytes(text.encode() if isinstance(text, str) else text)
    return load(path)


def values(raw: RawProfile) -> dict[str, object]:
    return {name: setting.value for name, setting in raw.settings.items()}


TOML = """
name = "shop"
[source]
type = "postgres"
database.port = 5432
table.include.list = ["public.a", "public.b"]
"snapshot.mode.custom.name" = "mine"
snapshot.mode = "custom"
[engine]
max.batch.size = 10
[sink]
type = "jsonl"
path = "x.jsonl"
[[transforms]]
type = "first"
a.b = true
[[transforms]]
type = "second"
[labels]
team = "data"
"""


def test_dotted_keys_of_toml_are_property_names(tmp_path: Path) -> None:
    raw = written(tmp_path, "p.toml", TOML)
    assert values(raw) == {
        "name": "shop",
        "database.port": 5432,
        "table.include.list": ["public.a", "public.b"],
        "snapshot.mode": "custom",
        "snapshot.mode.custom.name": "mine",
        "max.batch.size": 10,
    }
    assert {section: setting.value for section, setting in raw.types.items()} == {
        "source": "postgres",
        "sink": "jsonl",
    }
    assert raw.sink["path"].value == "x.jsonl"
    assert [{n: s.value for n, s in t.items()} for t in raw.transforms] == [
        {"type": "first", "a.b": True},
        {"type": "second"},
    ]
    assert raw.labels == {"team": "data"}
    assert raw.settings["max.batch.size"].origin.endswith("p.toml [engine]")
    assert (raw.debezium, raw.problems, raw.folder) == (False, [], tmp_path)


def test_a_property_in_two_sections_with_two_values_is_a_problem() -> None:
    raw = read_tables({"source": {"a": 1, "b": 2}, "engine": {"a": 1, "b": 3}})
    assert [str(p) for p in raw.problems] == [
        "b: is given twice, in profile [source] and in profile [engine]"
    ]


def test_an_unknown_section_is_a_problem_that_lists_the_known() -> None:
    raw = read_tables({"sources": {"a": 1}, "transforms": ["x"], "source": "postgres"})
    assert [p.property for p in raw.problems] == ["sources", "transforms", "source"]
    assert "[source], [sink]" in str(raw.problems[0])


def test_one_name_continuing_another_gets_advice(tmp_path: Path) -> None:
    text = '[source]\nsnapshot.mode = "custom"\nsnapshot.mode.custom.name = "x"\n'
    with pytest.raises(ConfigurationError, match="must be quoted"):
        written(tmp_path, "p.toml", text)


DEBEZIUM = {
    "connector.class": "io.debezium.connector.postgresql.PostgresConnector",
    "database.port": "5432",
    "waltap.sink.type": "jsonl",
    "waltap.sink.path": "x.jsonl",
    "transforms": "a, b",
    "transforms.a.type": "A",
    "transforms.a.x.y": "1",
    "transforms.b.type": "B",
}


@pytest.mark.parametrize(
    ("name", "text"),
    [
        pytest.param(
            "c.properties", "\n".join(f"{k}={v}" for k, v in DEBEZIUM.items()), id="properties"
        ),
        pytest.param("c.json", json.dumps({**DEBEZIUM, "database.port": 5432}), id="plain-json"),
        pytest.param("c.json", json.dumps({"config": {**DEBEZIUM, "x": None}}), id="rest-json"),
        pytest.param("connector", json.dumps(DEBEZIUM), id="json-without-suffix"),
    ],
)
def test_every_form_of_a_debezium_connector_gives_the_same(
    tmp_path: Path, name: str, text: str
) -> None:
    raw = written(tmp_path, name, text)
    assert raw.debezium
    assert values(raw) == {
        "connector.class": "io.debezium.connector.postgresql.PostgresConnector",
        "database.port": "5432",
    }
    assert raw.types["sink"].value == "jsonl"
    assert raw.sink["path"].value == "x.jsonl"
    assert [{n: s.value for n, s in t.items()} for t in raw.transforms] == [
        {"type": "A", "x.y": "1"},
        {"type": "B"},
    ]


def test_the_name_beside_config_is_the_pipelines(tmp_path: Path) -> None:
    raw = written(tmp_path, "c.json", '{"name": "orders", "config": {"a": true, "b": 1.5}}')
    assert values(raw) == {"name": "orders", "a": "true", "b": "1.5"}


def test_properties_may_be_latin_1_or_utf_8(tmp_path: Path) -> None:
    assert values(written(tmp_path, "u.properties", "a=é".encode())) == {"a": "é"}
    assert values(written(tmp_path, "l.properties", "a=é".encode("latin-1"))) == {"a": "é"}


@pytest.mark.parametrize(
    ("name", "text", "words"),
    [
        pytest.param("p.toml", "[source\n", ["cannot be parsed", "line 1"], id="toml"),
        pytest.param("c.json", '{"a": ', ["cannot be parsed", "line 1"], id="json"),
        pytest.param("c.json", "[1]", ["a connector is a JSON object"], id="json-list"),
        pytest.param("c.json", '{"a": {"b": 1}}', ["are flat; 'a' is not"], id="json-nested"),
        pytest.param("c.properties", "a=\\uXY", ["line 1", "hexadecimal"], id="properties"),
        pytest.param("p.toml", b"\xff\xfe", ["not UTF-8"], id="binary"),
    ],
)
def test_a_file_that_cannot_be_read_says_where(
    tmp_path: Path, name: str, text: str | bytes, words: list[str]
) -> None:
    with pytest.raises(ConfigurationError) as error:
        written(tmp_path, name, text)
    for word in (name, *words):
        assert word in str(error.value)


def test_a_file_that_is_not_there_is_a_configuration_error(tmp_path: Path) -> None:
    with pytest.raises(
        ConfigurationError, match=r"absent\.toml: cannot be read: No such .*waltap init"
    ):
        load(tmp_path / "absent.toml")
    with pytest.raises(ConfigurationError, match="cannot be read: Is a directory"):
        load(tmp_path)
