"""``waltap plugins new`` makes packages that install, show, and pass their tests as they are."""

import json
import re
import shutil
import subprocess
import sys
import sysconfig
import venv
from pathlib import Path

import pytest

from waltap.cli.plugins_new import Kind, generate
from waltap.errors import ConfigurationError

EXAMPLES = Path(__file__).parents[2] / "examples" / "plugins"
DECODER = EXAMPLES / "waltap-testdecoding"
MADE = {
    Kind.SINK: "lines",
    Kind.TRANSFORM: "stars",
    Kind.RECORD_TRANSFORM: "site",
    Kind.FORMAT: "flat",
    Kind.OFFSET_STORE: "sqlite",
    Kind.SIGNAL_ACTION: "mark",
    Kind.SIGNAL_CHANNEL: "inbox",
    Kind.NOTIFICATION_CHANNEL: "notification-file",
    Kind.TYPE: "semver",
    Kind.CONVERTER: "isbn",
    Kind.SNAPSHOTTER: "resnapshot",
    Kind.REPLICA_IDENTITY: "whole-row",
    Kind.TOPIC_NAMING: "by-schema",
    Kind.CHECK: "wal-limit",
    Kind.COMMAND: "count",
}
"""The examples that are what the command makes, under these names; the decoder is one of its own."""


@pytest.fixture(scope="module")
def python(tmp_path_factory):
    """Return the interpreter of an environment of its own that also sees what is installed here.

    So nothing that a test installs shows up in the plugins of the other tests.
    """
    folder = tmp_path_factory.mktemp("environment")
    venv.create(folder, with_pip=False)
    here = sysconfig.get_path("purelib")
    site = next((folder / "lib").glob("python*/site-packages"))
    (site / "here.pth").write_text(f"import site; site.addsitedir({here!r})\n")
    return folder / "bin" / "python"


@pytest.fixture(scope="module")
def packages(python, tmp_path_factory):
    """Return the folders of one package per kind, all installed: copies of the examples."""
    into = tmp_path_factory.mktemp("packages")
    sources = {kind.value: EXAMPLES / f"waltap-{name}" for kind, name in MADE.items()}
    sources["decoder"] = generate("made-decoder", Kind.DECODER, into)
    sources["example decoder"] = DECODER
    copies = {}
    for kind, source in sources.items():
        copies[kind] = into / "copies" / source.name
        shutil.copytree(source, copies[kind])
    run(
        [sys.executable, "-m", "pip", "--python", str(python), "install", "--quiet"]
        + ["--no-deps", "--no-build-isolation", "--no-index", *map(str, copies.values())]
    )
    return copies


def run(command, **options):
    ran = subprocess.run(command, capture_output=True, text=True, timeout=300, **options)
    assert ran.returncode == 0, ran.stdout + ran.stderr
    return ran.stdout


@pytest.mark.parametrize("kind", [*(kind.value for kind in Kind), "example decoder"])
def test_the_tests_of_a_package_pass_as_made(packages, python, kind):
    out = run(
        [python, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-W", "error"], cwd=packages[kind]
    )
    assert " passed" in out
    assert not re.search(r"\d failed", out)


def test_packages_show_among_the_plugins(packages, python):
    plugins = json.loads(run([python, "-m", "waltap", "plugins", "--json"]))
    found = {plugin["distribution"]: plugin for plugin in plugins}
    for name in [*MADE.values(), "made-decoder"]:
        plugin = found[f"waltap-{name}"]
        assert plugin["health"] == "ok", plugin["error"]
        assert list(plugin["provides"].values()) == [[name]]
    assert found["waltap-testdecoding"]["provides"] == {"decoders": ["test_decoding"]}


def test_a_command_of_a_plugin_runs(packages, python):
    assert "sinks" in run([python, "-m", "waltap", "count"])


def test_there_is_an_example_of_every_kind():
    assert {*MADE, Kind.DECODER} == set(Kind)


@pytest.mark.parametrize("kind", list(MADE), ids=lambda kind: kind.value)
def test_an_example_is_what_the_command_makes(tmp_path, kind):
    """Fixed in the template, then: waltap plugins new NAME --kind KIND --into examples/plugins."""
    made = generate(MADE[kind], kind, tmp_path)
    example = EXAMPLES / made.name
    files = {path.relative_to(made) for path in made.rglob("*") if path.is_file()}
    for file in files:
        assert (example / file).read_text() == (made / file).read_text(), file
    kept = subprocess.run(
        ["git", "ls-files", "--cached", "--others", "--exclude-standard"],
        cwd=example, capture_output=True, text=True, check=True,
    ).stdout.split()  # fmt: skip
    assert set(map(Path, kept)) == files


def test_the_command_says_what_to_do_next(tmp_path):
    out = run(
        [sys.executable, "-m", "waltap", "plugins", "new", "waltap-acme", "--kind", "sink"]
        + ["--into", str(tmp_path)]
    )
    assert str(tmp_path / "waltap-acme") in out
    assert "pytest" in out
    assert (tmp_path / "waltap-acme" / "src" / "waltap_acme" / "plugin.py").exists()


@pytest.mark.parametrize("name", ["Acme", "acme_1", "-acme", "acme-", "../acme", "", "1acme"])
def test_a_name_that_cannot_be_one_is_refused(tmp_path, name):
    with pytest.raises(ConfigurationError, match="cannot be a plugin's name"):
        generate(name, Kind.SINK, tmp_path)
    assert list(tmp_path.iterdir()) == []


def test_a_folder_that_is_there_is_left_alone(tmp_path):
    kept = tmp_path / "waltap-acme"
    kept.mkdir()
    with pytest.raises(ConfigurationError, match="exists already"):
        generate("acme", Kind.SINK, tmp_path)
    assert list(kept.iterdir()) == []


@pytest.mark.parametrize("kind", list(Kind), ids=lambda kind: kind.value)
def test_nothing_of_the_template_is_left_unfilled(tmp_path, kind):
    folder = generate("acme", kind, tmp_path)
    for path in folder.rglob("*"):
        if path.is_file():
            assert "{{" not in path.read_text(), path
            assert path.suffix != ".tmpl"
