"""``waltap plugins new`` makes packages that install, show, pass their tests as they are, and run in a pipeline."""

import json
import re
import shutil
import sys
import sysconfig
import venv
from pathlib import Path

import pytest
from tests.harness.command import run_program
from tests.harness.shop import Shop

from waltap.cli.commands.plugins import TemplateKind, generate
from waltap.errors import ConfigurationError
from waltap.plugins.host import Host

EXAMPLES = Path(__file__).parents[2] / "examples" / "plugins"
MADE = {
    TemplateKind.SINK: "lines",
    TemplateKind.TRANSFORM: "stars",
    TemplateKind.RECORD_TRANSFORM: "site",
    TemplateKind.FORMAT: "flat",
    TemplateKind.OFFSET_STORE: "sqlite",
    TemplateKind.SIGNAL_ACTION: "mark",
    TemplateKind.SIGNAL_CHANNEL: "inbox",
    TemplateKind.NOTIFICATION_CHANNEL: "notification-file",
    TemplateKind.TYPE: "semver",
    TemplateKind.CONVERTER: "isbn",
    TemplateKind.SNAPSHOTTER: "resnapshot",
    TemplateKind.REPLICA_IDENTITY: "whole-row",
    TemplateKind.TOPIC_NAMING: "by-schema",
    TemplateKind.CHECK: "wal-limit",
    TemplateKind.COMMAND: "count",
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
    sources["decoder"] = generate("made-decoder", TemplateKind.DECODER, into)
    sources["example decoder"] = EXAMPLES / "waltap-testdecoding"
    sources["example sink"] = EXAMPLES / "waltap-sink-example"
    copies = {}
    for kind, source in sources.items():
        copies[kind] = into / "copies" / source.name
        shutil.copytree(source, copies[kind])
    run(
        [sys.executable, "-m", "pip", "--python", str(python), "install", "--quiet"]
        + ["--no-deps", "--no-build-isolation", "--no-index", *map(str, copies.values())]
    )
    return copies


def run(command, code=0, **options):
    ran = run_program(*command, code=code, **options)
    return ran.stdout + (ran.stderr if code else "")


def test_the_tests_of_the_packages_pass_as_made(packages, python):
    """In few processes: those of decoders have a module ``rig`` each."""
    options = "-q", "-p", "no:cacheprovider", "-W", "error", "--import-mode=importlib"
    decoders = [packages["decoder"], packages["example decoder"]]
    others = [each for each in packages.values() if each not in decoders]
    for folder, *tested in [(others[0], *others), *([each] for each in decoders)]:
        out = run([python, "-m", "pytest", *options, *tested], cwd=folder)
        assert " passed" in out
        assert not re.search(r"\d failed", out)


def test_packages_show_among_the_plugins(packages, python):
    found = {
        plugin["distribution"]: plugin
        for plugin in json.loads(run([python, "-m", "waltap", "plugins", "--json"]))
    }
    for name in [*MADE.values(), "made-decoder"]:
        plugin = found[f"waltap-{name}"]
        assert plugin["health"] == "ok", plugin["error"]
        assert list(plugin["provides"].values()) == [[name]]
    assert found["waltap-testdecoding"]["provides"] == {"decoders": ["test_decoding"]}
    assert found["waltap-sink-example"]["provides"] == {"sinks": ["counts"]}
    assert "sinks" in run([python, "-m", "waltap", "count"])
    assert "waltap-sink-example" not in {each.distribution for each in Host().plugins()}


@pytest.mark.parametrize("kind", list(TemplateKind), ids=lambda kind: kind.value)
def test_an_example_is_what_the_command_makes(tmp_path, kind):
    """Fixed in the template, then: waltap plugins new NAME --kind KIND --into examples/plugins."""
    made = generate(MADE.get(kind, "acme"), kind, tmp_path)
    texts = {path.relative_to(made): path for path in made.rglob("*") if path.is_file()}
    for path in texts.values():
        assert "{{" not in path.read_text(), path
        assert path.suffix != ".tmpl"
    if kind is TemplateKind.DECODER:
        return
    example = EXAMPLES / made.name
    for file, path in texts.items():
        assert (example / file).read_text() == path.read_text(), file
    kept = run_program("git", "ls-files", "--cached", "--others", "--exclude-standard", cwd=example)
    assert set(map(Path, kept.stdout.split())) == texts.keys()


def test_the_command_says_what_to_do_next(tmp_path):
    out = Shop(tmp_path).waltap("plugins new waltap-acme --kind sink --into .").stdout
    assert "waltap-acme" in out
    assert "pytest" in out
    assert (tmp_path / "waltap-acme" / "src" / "waltap_acme" / "plugin.py").exists()
    assert {*MADE, TemplateKind.DECODER} == set(TemplateKind), "there is an example of every kind"


def test_a_name_that_cannot_be_one_is_refused_and_a_folder_that_is_there_is_left_alone(tmp_path):
    for name in ("Acme", "acme_1", "-acme", "acme-", "../acme", "", "1acme"):
        with pytest.raises(ConfigurationError, match="cannot be a plugin's name"):
            generate(name, TemplateKind.SINK, tmp_path)
    for name in ("postgres", "waltap-testing"):
        with pytest.raises(ConfigurationError, match="is of a distribution of waltap's own"):
            generate(name, TemplateKind.SINK, tmp_path)
    assert list(tmp_path.iterdir()) == []
    kept = tmp_path / "waltap-acme"
    kept.mkdir()
    with pytest.raises(ConfigurationError, match="exists already"):
        generate("acme", TemplateKind.SINK, tmp_path)
    assert list(kept.iterdir()) == []
