"""A plugin package of somebody else's: installed by pip, listed, and used from a profile."""

import json
import os
import subprocess
import sys
import venv
from collections.abc import Callable
from pathlib import Path

import pytest
from waltap.host import Host

from tests.harness.servers.postgres import Database

EXAMPLE = Path(__file__).parents[2] / "examples" / "plugins" / "waltap-sink-example"
Run = Callable[..., subprocess.CompletedProcess[str]]


@pytest.fixture(scope="module")
def python(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return the interpreter of a new environment with the example installed.

    It also sees the packages of this environment.
    A ``.pth`` file adds this environment's folders, with their own ``.pth`` files: what
    ``--system-site-packages`` does for a system's interpreter.
    """
    home = tmp_path_factory.mktemp("environment") / "venv"
    venv.create(home, with_pip=False, symlinks=True)
    (site,) = home.glob("lib/python3*/site-packages")
    folders = [entry for entry in sys.path if entry.endswith("site-packages")]
    lines = [f"import site; site.addsitedir({folder!r})\n" for folder in folders]
    (site / "outer.pth").write_text("".join(lines))
    install(home / "bin" / "python", EXAMPLE)
    return home / "bin" / "python"


@pytest.fixture
def run(python: Path, tmp_path: Path) -> Run:
    def waltap(*arguments: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [python, "-m", "waltap", *arguments],
            cwd=tmp_path,
            env={**os.environ, "COLUMNS": "160"},
            capture_output=True,
            text=True,
            timeout=60,
        )

    return waltap


def install(python: Path, package: Path) -> None:
    """Install with pip, without network: ours and the build backend are there already."""
    offline = ["--no-index", "--no-deps", "--no-build-isolation", "--disable-pip-version-check"]
    command = [sys.executable, "-m", "pip", "--python", str(python), "install", "-q", *offline]
    done = subprocess.run([*command, str(package)], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


def listed(run: Run) -> dict[str, dict]:
    return {p["distribution"]: p for p in json.loads(run("plugins", "--json").stdout)}


def test_an_installed_plugin_is_listed_and_usable_from_a_profile(
    run: Run, database: Database, tmp_path: Path
) -> None:
    plugin = listed(run)["waltap-sink-example"]
    assert (plugin["version"], plugin["health"]) == ("0.1.0", "ok")
    assert plugin["provides"] == {"sinks": ["counts"]}
    assert "waltap-sink-example" in run("plugins").stdout

    database.execute("CREATE TABLE t (id int PRIMARY KEY); INSERT INTO t VALUES (1), (2), (3)")
    source = "\n".join(f'"{k}" = {json.dumps(v)}' for k, v in database.properties().items())
    (tmp_path / "p.toml").write_text(
        f'[source]\ntype = "postgres"\n{source}\nslot.name = "{database.name}"\n'
        f'publication.name = "{database.name}"\n'
        '[sink]\ntype = "counts"\npath = "counts.json"\n'
    )
    counts = tmp_path / "counts.json"
    done = run("run", "p.toml", "--until-idle", "0.3")
    assert done.returncode == 0, done.stderr
    assert json.loads(counts.read_text()) == {"p.public.t": 3}
    database.execute("INSERT INTO t VALUES (4); DELETE FROM t WHERE id = 1")
    assert run("run", "p.toml", "--until-idle", "0.3").returncode == 0
    assert json.loads(counts.read_text()) == {"p.public.t": 6}  # a delete has its tombstone


def test_the_plugin_is_not_there_before_it_is_installed() -> None:
    assert "waltap-sink-example" not in {p.distribution for p in Host().plugins()}


def test_a_property_that_the_plugin_does_not_declare_is_refused(run: Run, tmp_path: Path) -> None:
    (tmp_path / "p.toml").write_text(
        '[source]\ntype = "postgres"\ndatabase.dbname = "x"\n[sink]\ntype = "counts"\npaht = "y"\n'
    )
    done = run("explain", "p.toml")
    assert done.returncode == 2
    assert "sink.paht is not known; given: y; did you mean sink.path?" in done.stderr
