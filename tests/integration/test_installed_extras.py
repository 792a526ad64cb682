"""What ``pip install waltap[postgres]`` has must be enough to write JSON lines, and say what is missing.

The packages are the wheels that we would publish; of all others only what those require is there.
"""

import json
import os
import re
import subprocess
import sys
import tomllib
from collections.abc import Iterator
from importlib.metadata import Distribution, distribution
from pathlib import Path

import pytest
from packaging.requirements import Requirement

from tests.harness.servers.postgres import Database
from waltap.extras import BROUGHT, extra_for
from waltap.host import Host
from waltap.specs import KINDS

ROOT = Path(__file__).parents[2]
OURS = re.compile(r"waltap(-\w+)?$")
EXTRAS = tomllib.loads((ROOT / "framework/pyproject.toml").read_text())["project"][
    "optional-dependencies"
]
PARTS = [part.partition("==")[0].removeprefix("waltap-") for part in EXTRAS["postgres"]]
POSTGRES = ("framework", *(f"plugins/{part}" for part in PARTS))

NEEDS_MORE = {("sinks", "sql"): "sql", ("commands", "sql"): "sql"}
"""What a distribution registers, and another extra brings with all that it needs."""

pytestmark = pytest.mark.needs_postgres


def required(names: Iterator[str], seen: set[str]) -> Iterator[Distribution]:
    for name in names:
        if name in seen or OURS.match(name):
            continue
        seen.add(name)
        found = distribution(name)
        yield found
        wanted = [Requirement(r) for r in found.requires or ()]
        here = (r.name for r in wanted if r.marker is None or r.marker.evaluate({"extra": ""}))
        yield from required(here, seen)


@pytest.fixture(scope="module")
def installed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a folder of packages as ``waltap[postgres]`` would make it."""
    target = tmp_path_factory.mktemp("site")
    subprocess.run(
        [
            *(sys.executable, "-m", "pip", "--disable-pip-version-check", "install", "-q"),
            *("--no-deps", "--no-build-isolation", "--no-index", "--target", target),
            *(ROOT / folder for folder in POSTGRES),
        ],
        check=True,
    )
    wanted: set[str] = {"psycopg-binary"}  # the extra of psycopg that we require
    for file in target.glob("waltap*.dist-info/METADATA"):
        for line in file.read_text().splitlines():
            if line.startswith("Requires-Dist: "):
                requirement = Requirement(line.removeprefix("Requires-Dist: "))
                if requirement.marker is None:
                    wanted.add(requirement.name)
    for found in required(iter(sorted(wanted)), set()):
        for name in {path.parts[0] for path in found.files or ()} - {"..", "__pycache__"}:
            source = Path(str(found.locate_file(name)))
            if not (target / name).exists():
                (target / name).symlink_to(source)
    return target


def waltap(site: Path, *arguments: str, cwd: Path) -> subprocess.CompletedProcess[str]:
    start = f"import sys; sys.path[:0] = [{str(site)!r}]; from waltap.cli import main; main()"
    environment = {k: v for k, v in os.environ.items() if not k.startswith(("PYTHON", "WALTAP"))}
    return subprocess.run(
        [sys.executable, "-I", "-S", "-c", start, *arguments],
        cwd=cwd, env=environment, capture_output=True, text=True, timeout=120, check=False,
    )  # fmt: skip


def test_postgres_to_json_lines_needs_no_other_extra(
    installed: Path, database: Database, tmp_path: Path
) -> None:
    assert not (installed / "pyarrow").exists()
    database.execute("CREATE TABLE t (id int PRIMARY KEY)")
    database.execute("INSERT INTO t VALUES (1), (2)")
    done = waltap(
        installed, "run", database.dsn, "--sink", "jsonl:out.jsonl", "--set", "name=small",
        "--set", "topic.prefix=s", "--until-idle", "0.3", cwd=tmp_path,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    lines = [json.loads(line) for line in (tmp_path / "out.jsonl").read_text().splitlines()]
    assert [line["value"]["after"]["id"] for line in lines] == [1, 2]


def test_postgres_brings_the_types_of_its_extensions(installed: Path, tmp_path: Path) -> None:
    done = waltap(installed, "plugins", cwd=tmp_path)
    assert re.search(r"types +waltap-types .* ok +types: PostGIS, vector", done.stdout), done.stdout


@pytest.mark.parametrize(
    ("sink", "extra"),
    [
        ("spark", "spark"),
        ("changelog", "sinks"),
        ("kafka", "kafka"),
        ("sql", "sql"),
        ("delta", "delta"),
    ],
)
def test_a_missing_sink_names_its_extra(
    installed: Path, tmp_path: Path, sink: str, extra: str
) -> None:
    done = waltap(installed, "run", "postgres://u@h/d", "--sink", f"{sink}:x", cwd=tmp_path)
    assert done.returncode == 2
    assert f"pip install 'waltap[{extra}]'" in " ".join(done.stderr.split())


def test_a_missing_command_names_its_extra(installed: Path, tmp_path: Path) -> None:
    done = waltap(installed, "demo", cwd=tmp_path)
    assert done.returncode == 1
    assert "pip install 'waltap[demo]'" in done.stderr


def test_the_framework_alone_names_the_extra_of_a_connector(
    installed: Path, tmp_path: Path
) -> None:
    alone = tmp_path / "site"
    alone.mkdir()
    for path in installed.iterdir():
        if not re.match(r"waltap_", path.name):
            (alone / path.name).symlink_to(path)
    done = waltap(alone, "run", "postgres://u@h/d", "--sink", "jsonl:x", cwd=tmp_path)
    assert done.returncode == 2
    assert "pip install 'waltap[postgres]'" in " ".join(done.stderr.split())


def test_extras_are_what_our_plugins_register() -> None:
    mentioned = {kind for kinds in BROUGHT.values() for kind in kinds}
    for plugin in Host().plugins():
        extra = "postgres" if plugin.distribution == "waltap-decoders" else plugin.name
        if extra not in BROUGHT:
            continue
        for kind in KINDS:
            if kind.attribute in mentioned:
                for name in plugin.provides.get(kind.attribute, ()):
                    brings = NEEDS_MORE.get((kind.attribute, name), extra)
                    assert extra_for(kind.attribute, name) == f"waltap[{brings}]", name
