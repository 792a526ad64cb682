"""Where a relative path starts: at the folder of its profile, whatever the current directory is."""

import json
from pathlib import Path

import pytest

from waltap.config.layers import load, read_tables
from waltap.config.profile import Profile
from waltap.config.resolve import resolve
from waltap.errors import ConfigurationError
from waltap.plugins.host import Host

SOURCE = {"database.dbname": "d", "database.sslrootcert": "ca.pem"}
OURS = {
    "waltap.state.dir": "state",
    "waltap.offset.file": "o/offset.json",
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
    assert value(profile, "offset_store", "path") == home / "o" / "offset.json"
    assert value(profile, "sink", "path") == str(home / "out" / "x.jsonl")
    assert value(profile, "connector", "sslrootcert") == str(home / "ca.pem")
    assert value(profile, "connector", "password") == "xyzzy"


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
    path = write(tmp_path, "p.properties", {"type": "null"}, **{"database.sslcert": ""})
    assert value(resolve(load(path), Host()), "connector", "sslcert") is None
