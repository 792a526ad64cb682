"""Profiles as files: TOML, Java properties, Debezium's JSON, Strimzi's YAML, the secrets they name, and where relative
paths start.
"""

import json
import logging
from pathlib import Path
from typing import Any

import pytest
import yaml
from tests.harness.examined import examine

from waltap import Pipeline
from waltap.base.java_properties import parse_properties
from waltap.base.placeholder import SecretMissing, fill, holds_placeholder
from waltap.base.redaction import hide, looks_secret, redacted, without
from waltap.cli.commands.offsets import _stages
from waltap.cli.commands.run import run
from waltap.config.layers import RawProfile, load, read_tables
from waltap.config.profile import Profile
from waltap.config.resolve import resolve, survey
from waltap.errors import ConfigurationError
from waltap.plugins.host import Host

EXAMPLES = Path(__file__).parents[3] / "examples" / "profiles"


def written(folder: Path, name: str, text: str | bytes) -> RawProfile:
    path = folder / name
    path.write_bytes(text.encode() if isinstance(text, str) else text)
    return load(path)


def values(raw: RawProfile) -> dict[str, object]:
    return {name: setting.value for name, setting in raw.settings.items()}


# --- TOML ------------------------------------------------------------------------------------------


def test_tables_that_cannot_be_taken_are_problems():
    raw = read_tables({"source": {"a": 1, "b": 2}, "engine": {"a": 1, "b": 3}})
    twice = "b: is given twice, in profile [source] and in profile [engine]"
    assert [str(each) for each in raw.problems] == [twice]
    raw = read_tables(
        {"sink": {"a.b": 1, "a": {"b": 2}}, "source": {"a": [{"password": "geheim"}]}}
    )
    twice = "a.b: is given twice, in profile [sink] and in profile [sink]"
    listed = "a: is a list of tables in profile [source]: no property is one"
    assert [str(each) for each in raw.problems] == [twice, listed]
    raw = read_tables({"sources": {"a": 1}, "transforms": ["x"], "source": "postgres"})
    assert [each.property for each in raw.problems] == ["sources", "transforms", "source"]
    assert "[source], [sink]" in str(raw.problems[0])
    (outside,) = read_tables({"waltap.state.dir": "/state"}).problems
    assert "is in no section: write it below [source]" in str(outside)
    for wrong in {"transform": [{"type": "x"}]}, {"nam": "shop"}:
        (outside,) = read_tables(wrong).problems
        assert "is not a section of a profile" in str(outside)


# --- Debezium's forms, and Strimzi's ---------------------------------------------------------------

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
        ("c.properties", "\n".join(f"{k}={v}" for k, v in DEBEZIUM.items())),
        ("c.json", json.dumps({**DEBEZIUM, "database.port": 5432})),
        ("c.json", json.dumps({"config": {**DEBEZIUM, "x": None}})),
        ("connector", json.dumps(DEBEZIUM)),
    ],
    ids=["properties", "plain-json", "rest-json", "json-without-suffix"],
)
def test_every_form_of_a_debezium_connector_gives_the_same(tmp_path, name, text):
    raw = written(tmp_path, name, text)
    assert raw.debezium
    assert values(raw) == {name: DEBEZIUM[name] for name in ("connector.class", "database.port")}
    assert (raw.types["sink"].value, raw.sink["path"].value) == ("jsonl", "x.jsonl")
    transforms = [{n: s.value for n, s in t.items()} for t in raw.transforms.values()]
    assert transforms == [{"type": "A", "x.y": "1"}, {"type": "B"}]


def test_names_and_encodings_of_connector_files(tmp_path):
    raw = written(tmp_path, "c.json", '{"name": "orders", "config": {"a": true, "b": 1.5}}')
    assert values(raw) == {"name": "orders", "a": "true", "b": "1.5"}
    for encoding in ("utf-8", "latin-1"):
        raw = written(tmp_path, f"{encoding}.Properties", "a=é".encode(encoding))
        assert values(raw) == {"a": "é"}


RESOURCE: dict[str, Any] = {
    "apiVersion": "kafka.strimzi.io/v1beta2",
    "kind": "KafkaConnector",
    "metadata": {"name": "inventory", "labels": {"strimzi.io/cluster": "connect"}},
    "spec": {
        "class": "io.debezium.connector.postgresql.PostgresConnector",
        "tasksMax": 1,
        "state": "stopped",
        "autoRestart": {"enabled": True},
        "config": {
            "database.hostname": "db",
            "database.port": 5433,
            "database.user": "u",
            "database.dbname": "d",
            "topic.prefix": "shop",
            "tombstones.on.delete": False,
        },
    },
}


@pytest.mark.parametrize("form", ["yml", "json"])
def test_a_connector_of_strimzi_is_a_profile(tmp_path, form):
    text = json.dumps(RESOURCE) if form == "json" else f"---\n{yaml.safe_dump(RESOURCE)}"
    raw = written(tmp_path, f"connector.{form}", text)
    found = examine(raw, Host(), sink="jsonl:lines")
    assert found.profile.name == "inventory"
    assert found.profile.connector.properties.port == 5433  # type: ignore[union-attr]
    assert not found.profile.capture.tombstones
    assert {"spec.state", "spec.autoRestart"} <= set(found.ignored)


def test_a_key_of_yaml_may_replace_a_merged_one(tmp_path):
    base = "kind: KafkaConnector\nx: {y: [{z: &more {<<: {a: 1}, a: 2}}]}\n"
    raw = written(tmp_path, "c.yaml", f"{base}spec: {{class: c, config: {{<<: *more, a: 3}}}}")
    assert raw.settings["a"].value == "3"


@pytest.mark.parametrize(
    ("spec", "runs"),
    [({"state": "running"}, True), ({"state": "paused"}, False), ({"state": "stopped"}, False)]
    + [({"pause": True}, False), ({"pause": False}, True)],
)
def test_a_connector_that_strimzi_does_not_run_is_not_run(tmp_path, spec, runs, caplog):
    caplog.set_level(logging.WARNING)  # `run` sets another, which ends with the test
    config = RESOURCE["spec"] | {"state": "running"} | spec
    raw = written(tmp_path, "c.yaml", yaml.safe_dump(RESOURCE | {"spec": config}))
    assert examine(raw, Host(), sink="jsonl:lines").profile is not None  # other commands read it
    if runs:
        raw.require_running()
        return
    with pytest.raises(ConfigurationError, match=f"spec.{next(iter(spec))}"):
        raw.require_running()
    with pytest.raises(ConfigurationError, match="keeps this connector from running"):
        run(str(tmp_path / "c.yaml"), sink="jsonl:lines")
    with pytest.raises(ConfigurationError, match="keeps this connector from running"):
        Pipeline(tmp_path / "c.yaml")


NESTED = '[source]\nsnapshot.mode = "custom"\nsnapshot.mode.custom.name = "x"\n'


@pytest.mark.parametrize(
    ("name", "text", "words"),
    [
        ("p.toml", "[source\n", "cannot be parsed … line 1"),
        ("p.toml", NESTED, "must be quoted"),
        ("p.toml", b"\xff\xfe", "not UTF-8"),
        ("c.json", '{"a": ', "cannot be parsed … line 1"),
        ("c.json", '{"a": 1, "config": {"a": 1, "a": 2}}', "a is given twice"),
        ("c.json", "[1]", "a connector is a JSON object"),
        ("c.json", '{"a": {"b": 1}}', "are flat; 'a' is not"),
        ("c.properties", "a=\\uXY", "line 1 … hexadecimal"),
        ("c.conf", "slot.name=x", "another suffix: .properties, .json"),
        ("c.yaml", "kind: KafkaConnector\nspec: {class: x}", "spec.config"),
        ("c.yaml", "kind: KafkaTopic", "here are 0"),
        ("c.yaml", "kind: KafkaConnector\nspec: {config: {a: 1, a: 2}}", "a is given twice"),
        ("c.yaml", "a: [", "cannot be parsed"),
        ("c.yaml", "kind: KafkaConnector\nspec: {config: {a: [1]}}", "'a' is not"),
    ],
)
def test_a_file_that_cannot_be_read_says_where(tmp_path, name, text, words):
    with pytest.raises(ConfigurationError) as error:
        written(tmp_path, name, text)
    for word in (name, *words.split(" … ")):
        assert word in str(error.value)


# --- java.util.Properties --------------------------------------------------------------------------

JAVA = [
    ("a=b", {"a": "b"}),
    ("a:b", {"a": "b"}),
    ("a b", {"a": "b"}),
    ("a = b ", {"a": "b "}),  # a trailing blank belongs to the value
    ("a \t:\f b", {"a": "b"}),
    ("a==b", {"a": "=b"}),
    ("a", {"a": ""}),
    ("=b", {"": "b"}),
    ("  a=b", {"a": "b"}),
    ("# c\n! d\n\n  # e\na=b # f", {"a": "b # f"}),
    ("a=b\\\n    c\\\r\n d", {"a": "bcd"}),
    ("a=b\\\\\nc=d", {"a": "b\\", "c": "d"}),  # an even number of backslashes continues nothing
    ("a=b\\\n#c", {"a": "b#c"}),
    ("a=b\\", {"a": "b"}),
    ("a=b\rc=d\r\ne=f", {"a": "b", "c": "d", "e": "f"}),
    (r"a\=b=c\:d", {"a=b": "c:d"}),
    (r"a\ b=c", {"a b": "c"}),
    (r"a=\t\n\r\f\q\\", {"a": "\t\n\r\fq\\"}),
    (r"a=\u00e9\u4E2D", {"a": "é中"}),
    (r"a=\ud83d\ude00", {"a": "😀"}),
    (r"table.include.list=public\\.orders", {"table.include.list": r"public\.orders"}),
    ("a=1\na=2", {"a": "2"}),
    ("", {}),
]


def test_text_is_read_as_java_reads_it():
    for text, expected in JAVA:
        assert parse_properties(text) == expected
    for text in ("x=1\na=\\u12", "x=1\na=\\uzzzz"):
        with pytest.raises(ValueError, match="line 2: .*four hexadecimal digits"):
            parse_properties(text)


# --- secrets ---------------------------------------------------------------------------------------


@pytest.fixture
def folder(tmp_path, monkeypatch) -> Path:
    monkeypatch.setenv("WALTAP_TEST_SECRET", "s3cret")
    monkeypatch.setenv("WALTAP_TEST_EMPTY", "")
    (tmp_path / "password").write_text("from file\n")
    (tmp_path / "secrets.properties").write_text("db.user=ann\ndb.password=p\\u00e4ss\n")
    return tmp_path


@pytest.mark.parametrize(
    ("value", "filled", "secrets"),
    [
        ("plain", "plain", ()),
        ("${env:WALTAP_TEST_SECRET}", "s3cret", ("s3cret",)),
        ("${env:WALTAP_TEST_EMPTY}", "", ("",)),
        ("${file:password}", "from file", ("from file",)),
        ("${file:HERE/password}", "from file", ("from file",)),
        ("${file:secrets.properties:db.password}", "päss", ("päss",)),
        ("${file:HERE/secrets.properties:db.user}", "ann", ("ann",)),
        (
            "${file:secrets.properties:db.user}:${env:WALTAP_TEST_SECRET}@host",
            "ann:s3cret@host",
            ("ann", "s3cret"),
        ),
        (["${file:password}", 7, "b"], ["from file", 7, "b"], ("from file",)),
        ("$1 ${1} $${x}", "$1 ${1} $${x}", ()),
        ("${env:}", None, "names nothing"),
        ("${file:/dev/full}", None, "/dev/full cannot be read: File too large"),
        ("${env:WALTAP_TEST_NOT_SET}", None, "WALTAP_TEST_NOT_SET, which is not set"),
        ("${file:absent}", None, "absent cannot be read: No such file"),
        (f"${{file:{'x' * 300}:key}}", None, "cannot be read: File name too long"),
        ("${file:secrets.properties:x}", None, "has no key 'x'"),
        ("${vault:db/password}", None, "no secrets provider is called 'vault'"),
    ],
)
def test_placeholders_are_filled_in_or_named(folder, value, filled, secrets):
    value = value.replace("HERE", str(folder)) if isinstance(value, str) else value
    if filled is None:
        with pytest.raises(SecretMissing, match=secrets):
            fill(value, folder)
    else:
        assert fill(value, folder) == (filled, secrets)
        assert holds_placeholder(value) is bool(secrets)


def test_secrets_are_cut_out_of_texts_and_short_ones_where_they_are_quoted():
    hide(["threads", "thresholds"])
    assert redacted("snapshot.max.threads: thresholds") == "snapshot.max.threads: ***"
    quoted = "snapshot.max.threads is 'x' and \"x\""
    assert without(quoted, ["x"]) == "snapshot.max.threads is '***' and \"***\""
    assert without("it is long-one-indeed", ["long-one-indeed"]) == "it is ***"
    assert not looks_secret("credentials.profile")
    assert looks_secret("credentials.profile.token")


def test_the_salt_of_a_hash_is_hidden_in_the_name_of_its_property():
    source = {
        "type": "postgres",
        "database.dbname": "d",
        "column.mask.hash.SHA-256.with.salt.pepper": "public.t.v",
        "column.mask.hash.v2.MD7.with.salt.pepper": "public.t.v",
    }
    found = survey(read_tables({"source": source, "sink": {"type": "null"}}), Host())
    shown = f"{[each.name for each in found.explained]} {redacted(str(found.error()))}"
    assert shown.count(".with.salt.***") == 2
    assert "pepper" not in shown
    advice = "column.mask.hash.SHA-256.with.salt.SALT = public.t.v"
    assert redacted(advice) == advice


# --- examples/profiles -----------------------------------------------------------------------------

FILES = sorted(path for path in EXAMPLES.iterdir() if path.suffix != ".md")


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.name)
def test_an_example_profile_resolves_without_a_warning(path, monkeypatch, tmp_path):
    for name in ("SHOP_PASSWORD", "INVENTORY_PASSWORD"):
        monkeypatch.setenv(name, "x")
    (tmp_path / "secrets").mkdir()
    (tmp_path / "secrets" / "shop-password").write_text("x\n")
    (tmp_path / "inventory.properties").write_text("password=x\n")
    raw = load(path)
    raw.folder = tmp_path
    for name, setting in raw.settings.items():
        if isinstance(setting.value, str) and "/run/secrets/" in setting.value:
            value = setting.value.replace("/run/secrets/", "")
            raw.settings[name] = type(setting)(name, value, setting.origin)
    sink = None if "sink" in raw.types else "jsonl:events.jsonl"
    assert examine(raw, Host(), sink=sink).warnings == []
    assert f"`{path.name}`" in (EXAMPLES / "README.md").read_text()


# --- a relative path starts at the folder of its profile, whatever the current directory is -------


SOURCE = {"database.dbname": "d", "database.sslrootcert": "ca.pem"}
OURS = {
    "waltap.state.dir": "state",
    "waltap.offset.file": "o/offset.json",
    "waltap.openlineage.to": "lineage.jsonl",
    "database.password": "${file:secret}",
}
KINDS = ("p.toml", "p.json", "p.properties")


def write(folder: Path, name: str, sink: dict[str, str], **more: str) -> Path:
    """Write one profile in the form that its name asks for."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "secret").write_text("xyzzy\n")
    settings = {**SOURCE, **OURS, **more}
    if name.endswith(".toml"):
        source = "\n".join(f'"{key}" = {json.dumps(value)}' for key, value in settings.items())
        target = "\n".join(f'"{key}" = {json.dumps(value)}' for key, value in sink.items())
        text = f'[source]\ntype = "postgres"\n{source}\n[sink]\n{target}\n'
    else:
        flat = {
            "connector.class": "io.debezium.connector.postgresql.PostgresConnector",
            "topic.prefix": "t",
            "plugin.name": "pgoutput",
            **settings,
            **{f"waltap.sink.{key}": value for key, value in sink.items()},
        }
        lines = "\n".join(f"{key}={value}" for key, value in flat.items())
        text = json.dumps(flat) if name.endswith(".json") else lines
    path = folder / name
    path.write_text(text)
    return path


def value(profile: Profile, part: str, field: str) -> object:
    return getattr(getattr(profile, part).properties, field)


@pytest.mark.parametrize("name", KINDS)
def test_paths_of_a_file_start_at_its_folder(name, tmp_path, monkeypatch):
    home = tmp_path / "profiles"
    write(home, name, {"type": "jsonl", "path": "out/x.jsonl"})
    monkeypatch.chdir(tmp_path)
    profile = resolve(load(Path("profiles") / name), Host())
    monkeypatch.chdir("/")  # nothing of it may depend on where the process goes later
    assert profile.engine.state_dir == home / "state"
    assert profile.engine.lineage_to == str(home / "lineage.jsonl")
    assert value(profile, "offset_store", "path") == home / "o" / "offset.json"
    assert value(profile, "sink", "path") == str(home / "out" / "x.jsonl")
    assert value(profile, "connector", "sslrootcert") == str(home / "ca.pem")
    assert value(profile, "connector", "password") == "xyzzy"


def test_the_connector_that_gives_or_gets_offsets_may_have_a_name_of_a_file(tmp_path):
    path = write(tmp_path, "p.properties", {"type": "null"})
    path.write_text(f"{path.read_text()}\nname=${{file:secret}}")
    *_, name = _stages(str(path), None)
    assert name == "xyzzy"


def test_what_is_no_relative_path_stays(tmp_path):
    for sink, given in (("jsonl", "-"), ("changelog", "s3://bucket/x"), ("changelog", "/abs/x")):
        path = write(tmp_path, "p.toml", {"type": sink, "path": given})
        assert value(resolve(load(path), Host()), "sink", "path") == given
    system = write(tmp_path, "q.toml", {"type": "terminal"}, **{"database.sslrootcert": "system"})
    assert value(resolve(load(system), Host()), "connector", "sslrootcert") == "system"


def test_paths_of_arguments_start_where_they_are_typed(tmp_path, monkeypatch):
    path = write(tmp_path / "profiles", "p.toml", {"type": "jsonl", "path": "x.jsonl"})
    here = tmp_path / "here"
    here.mkdir()
    (here / "mine").write_text("here's")
    monkeypatch.chdir(here)
    given = {"waltap.state.dir": "s", "database.password": "${file:mine}"}
    profile = resolve(load(path), Host(), sink="jsonl:y.jsonl", overrides=given)
    assert profile.engine.state_dir == here / "s"
    assert value(profile, "sink", "path") == str(here / "y.jsonl")
    assert value(profile, "connector", "password") == "here's"
    assert value(profile, "offset_store", "path") == tmp_path / "profiles" / "o" / "offset.json"


def test_paths_of_tables_start_at_the_directory_of_the_call(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    tables = {"source": {"type": "postgres", **SOURCE}, "sink": {"type": "jsonl", "path": "x"}}
    raw = read_tables(tables)
    monkeypatch.chdir("/")
    profile = resolve(raw, Host())
    assert profile.engine.state_dir == tmp_path / ".waltap"
    assert value(profile, "sink", "path") == str(tmp_path / "x")


@pytest.mark.parametrize("blank", ["  ", "${file:empty}"])
def test_an_empty_path_is_refused_by_the_name_of_its_property(blank, tmp_path):
    (tmp_path / "empty").write_text("\n")
    for sink, name in (
        ("jsonl", "sink.path"),
        ("changelog", "sink.path"),
        ("spark", "sink.path"),
        ("null", "waltap.state.dir"),
        ("null", "waltap.offset.file"),
        ("null", "database.sslcert"),
    ):
        own = {"path": blank} if name == "sink.path" else {}
        more = {} if own else {name: blank}
        path = write(tmp_path, "p.toml", {"type": sink} | own, **more)
        with pytest.raises(ConfigurationError) as reported:
            resolve(load(path), Host())
        found = [str(problem).partition(" (given")[0] for problem in reported.value.problems]
        assert found == [f"{name}: is empty"]


def test_an_empty_path_of_an_argument_is_refused_and_one_that_debezium_needs_not_is_none(tmp_path):
    path = write(tmp_path, "p.toml", {"type": "null"})
    for sink in ("jsonl:", "changelog:", "spark: "):
        with pytest.raises(ConfigurationError, match=r"path: is empty"):
            resolve(load(path), Host(), sink=sink)
    path = write(tmp_path, "p.toml", {"type": "null"}, **{"waltap.state.dir": "s3://b/state"})
    with pytest.raises(ConfigurationError, match="waltap.state.dir: is an address"):
        resolve(load(path), Host())
    none = {"waltap.openlineage.to": "", "waltap.otel.endpoint": "", "waltap.http": ""}
    engine = resolve(load(write(tmp_path, "p.toml", {"type": "null"}, **none)), Host()).engine
    assert not (engine.lineage_to or engine.otel_endpoint or engine.http)
    path = write(tmp_path, "p.properties", {"type": "null"}, **{"database.sslcert": ""})
    assert value(resolve(load(path), Host()), "connector", "sslcert") is None
