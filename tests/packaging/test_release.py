"""What ``make dist`` gives: the same bytes wherever it is built, an SBOM, and wheels with their own package, whole
and alone, that work when installed."""

import email.parser
import hashlib
import json
import os
import re
import shutil
import subprocess
import sys
import tarfile
import zipfile
from importlib.metadata import Distribution, distribution
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name
from scripts.distributions import SBOM, SUMS, audit, build, build_all, members
from tests.harness.command import run_program
from tests.harness.servers.jars import unpack

import waltap
from waltap.base.plugin_errors import brought, extra_for
from waltap.plugins.host import Host
from waltap.ports.specs import KINDS

ROOT = Path(__file__).parents[2]
TOUCHED = 1_000_000_000


@pytest.fixture(scope="module")
def release(tmp_path_factory) -> Path:
    """Return the folder that ``make dist`` fills."""
    folder = tmp_path_factory.mktemp("dist")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("SOURCE_DATE_EPOCH", "1700000000")
        build_all(folder)
    return folder


def hashes(folder: Path) -> dict[str, str]:
    return {
        path.name: hashlib.sha256(path.read_bytes()).hexdigest()
        for path in folder.iterdir()
        if path.name != SUMS
    }


def test_another_folder_gives_the_same_bytes(release, tmp_path):
    """Another place, other times and modes of the files, another user's mask."""
    again = tmp_path / "again"
    before = os.umask(0o077)
    try:
        for folder in members():
            copy = tmp_path / "elsewhere" / folder.relative_to(ROOT)
            shutil.copytree(folder, copy, copy_function=shutil.copyfile)
            for path in copy.rglob("*"):
                os.utime(path, (TOUCHED, TOUCHED))
            build(copy, again, 1_700_000_000)
    finally:
        os.umask(before)
    reported = hashes(release)
    del reported[SBOM]
    assert hashes(again) == reported


def test_a_source_distribution_makes_the_same_wheel(release, tmp_path):
    for source in release.glob("*.tar.gz"):
        with tarfile.open(source) as archive:
            assert all(entry.isfile() for entry in archive)
        unpack(source, tmp_path)
        wheel, _ = build(
            tmp_path / source.name.removesuffix(".tar.gz"), tmp_path / "w", 1_700_000_000
        )
        assert wheel.read_bytes() == (release / wheel.name).read_bytes(), source.name


def test_the_list_of_hashes_is_of_all_files(release):
    reported = dict(
        reversed(line.split("  ")) for line in (release / SUMS).read_text().splitlines()
    )
    assert reported == hashes(release)
    assert len(reported) == 2 * len(members()) + 1


FOUND_BY_NAME = {"waltap_spark": ("pyspark_waltap/",)}
"""Modules that a host looks for by how they are called."""


@pytest.mark.parametrize("folder", members(), ids=lambda folder: folder.name)
def test_a_wheel_has_its_package_and_what_is_published_of_it(release, folder):
    """All of its modules and nothing else; and a page that stands alone: no link of it leads into the checkout."""
    package = "waltap" if folder.name == "framework" else f"waltap_{folder.name}"
    (file,) = release.glob(f"{package}-*.whl")
    with zipfile.ZipFile(file) as archive:
        names = archive.namelist()
        (about,) = [name for name in names if name.endswith(".dist-info/METADATA")]
        metadata = email.parser.BytesParser().parsebytes(archive.read(about))
    own = (f"{package}/", f"{package}-", *FOUND_BY_NAME.get(package, ()))
    assert [name for name in names if not name.startswith(own)] == []
    assert not [name for name in names if "__pycache__" in name or "/tests/" in name]
    modules = (folder / "src" / package).rglob("*.py")
    assert {str(path.relative_to(folder / "src")) for path in modules} <= set(names)
    assert f"{package}/py.typed" in names
    for ending in ("entry_points.txt", "licenses/LICENSE"):
        assert [name for name in names if name.endswith(ending)], ending

    assert metadata["License-Expression"] == "Apache-2.0"
    assert metadata["Author"]
    assert metadata["Summary"]
    assert "Typing :: Typed" in metadata.get_all("Classifier", ())
    page = metadata.get_payload()
    assert isinstance(page, str)
    assert page.startswith(f"# {metadata['Name']}")
    assert [link for link in re.findall(r"\]\(([^)]+)\)", page) if "://" not in link] == []

    # a release is one set: each requires the others at its own version, and no range of them
    assert metadata["Version"] == waltap.__version__
    wanted = [Requirement(each) for each in metadata.get_all("Requires-Dist", ())]
    ours = {str(each.specifier) for each in wanted if each.name.startswith("waltap")}
    assert ours == {f"=={waltap.__version__}"}
    # pyarrow has not required numpy since its version 18
    assert len({each.name for each in wanted} & {"pyarrow", "numpy"}) != 1


def test_the_sbom_has_what_the_wheels_require(release):
    bom = json.loads((release / SBOM).read_text())
    parts = {each["name"]: each for each in [bom["metadata"]["component"], *bom["components"]]}
    reported = hashes(release)
    for wheel in release.glob("*.whl"):
        name = wheel.name.partition("-")[0].replace("_", "-")
        assert parts[name]["hashes"] == [{"alg": "SHA-256", "content": reported[wheel.name]}]
        for requirement in map(Requirement, distribution(name).requires or ()):
            assert canonicalize_name(requirement.name) in parts
    pinned = dict(re.findall(r"^([\w.-]+)==(\S+)", (ROOT / "constraints.txt").read_text(), re.M))
    pinned = {canonicalize_name(name): version for name, version in pinned.items()}
    others = {name: each for name, each in parts.items() if "hashes" not in each}
    assert {name: each["version"] for name, each in others.items()}.items() <= pinned.items()
    refs = {each["bom-ref"] for each in parts.values()}
    assert {each["ref"] for each in bom["dependencies"]} == refs
    assert not {"pytest-xdist", "mypy", "hatchling"} & parts.keys()


AUDITS = {
    "nothing is known against them": ([], None),
    "a vulnerability": (
        [{"id": "GHSA-1", "fix_versions": [], "aliases": [], "description": ""}],
        "known vulnerabilities:\n  orjson 3.13.0: GHSA-1",
    ),
}


@pytest.mark.parametrize("case", [*AUDITS, "not reached", "not known"])
def test_an_audit_that_saw_less_than_all_fails(release, tmp_path, case):
    """The program in place of pip-audit answers in its form, recorded from 2.10.1."""
    bom = json.loads((release / SBOM).read_text())
    pins = [each for each in bom["components"] if "hashes" not in each]
    answers = [{"name": p["name"], "version": p["version"], "vulns": []} for p in pins]
    if case in AUDITS:
        orjson = next(each for each in answers if each["name"] == "orjson")
        orjson |= {"vulns": AUDITS[case][0], "version": "3.13.0"}
    if case == "not known":
        answers[0] = {"name": pins[0]["name"], "skip_reason": "Dependency not found"}
    program = tmp_path / "pip-audit"
    said = "no answer" if case == "not reached" else json.dumps({"dependencies": answers})
    (tmp_path / "said").write_text(said)
    program.write_text(
        f"#!/bin/sh\ncat {tmp_path / 'said'}\necho 'name not resolved' >&2\nexit 1\n"
    )
    program.chmod(0o755)
    problem = audit(release, str(program))
    if case in AUDITS:
        assert problem == AUDITS[case][1]
    elif case == "not known":
        assert f"1 of {len(pins)} packages were not audited" in str(problem)
    else:
        assert problem == "the audit did not run: name not resolved"


def third_party(name: str, seen: dict[str, Distribution]) -> None:
    """Add to ``seen`` what ``name`` requires of others; an extra in its name is one of ours."""
    wanted = Requirement(name)
    for requirement in map(Requirement, distribution(wanted.name).requires or ()):
        for extra in wanted.extras or {""}:
            if requirement.marker is None or requirement.marker.evaluate({"extra": extra}):
                found = canonicalize_name(requirement.name)
                if found not in seen:
                    if not found.startswith("waltap"):
                        seen[found] = distribution(found)
                    third_party(str(Requirement(str(requirement).partition(";")[0])), seen)
                    third_party(found, seen)


@pytest.fixture(scope="module")
def clean(release, tmp_path_factory) -> Path:
    """Return the program ``waltap`` of a new environment with the wheels of ``waltap[postgres]``.

    pip resolves them from the folder of the release alone. Of others there is what they require and no
    more: the files that the set-up installed.
    """
    place = tmp_path_factory.mktemp("clean")
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", place], check=True)
    (site,) = place.glob("lib/python*/site-packages")
    seen: dict[str, Distribution] = {}
    third_party("waltap[postgres]", seen)
    for found in seen.values():
        for name in {path.parts[0] for path in found.files or ()} - {"..", "__pycache__"}:
            if not (site / name).exists():
                (site / name).symlink_to(Path(str(found.locate_file(name))))
    subprocess.run(
        [
            *(sys.executable, "-m", "pip", "--python", place / "bin/python", "install", "-q"),
            *("--no-index", "--find-links", release, "waltap[postgres]"),
        ],
        env={k: v for k, v in os.environ.items() if not k.startswith("PIP_")},
        check=True,
    )
    return place / "bin/waltap"


def says(program: Path, *words: str, cwd: Path, code: int = 0) -> str:
    environment = {k: v for k, v in os.environ.items() if not k.startswith(("PYTHON", "WALTAP"))}
    done = run_program(program, *words, code=code, cwd=cwd, env=environment)
    return done.stdout + (done.stderr if code else "")


def test_installed_wheels_say_what_they_have(clean, tmp_path):
    assert "waltap run" in says(clean, "--help", cwd=tmp_path)
    listed = says(clean, "plugins", cwd=tmp_path)
    assert {"framework", "decoders", "postgres", "types"} <= set(
        re.findall(r"^ *(\w+)", listed, re.M)
    )
    assert "spark" not in re.findall(r"^ *(\w+)", listed, re.M)
    assert re.search(r"types +waltap-types .* ok +types: PostGIS, vector", listed), listed


MISSING = {
    "run postgres://u@h/d --sink spark:x": (2, "spark"),
    "run postgres://u@h/d --sink changelog:x": (2, "sinks"),
    "run postgres://u@h/d --sink kafka:x": (2, "kafka"),
    "run postgres://u@h/d --sink sql:x": (2, "sql"),
    "run postgres://u@h/d --sink delta:x": (2, "delta"),
    "demo": (1, "demo"),
}


def test_what_is_not_installed_names_its_extra(clean, tmp_path):
    for line, (code, extra) in MISSING.items():
        said = says(clean, *line.split(), cwd=tmp_path, code=code)
        assert f"pip install 'waltap[{extra}]'" in " ".join(said.split()), line


NEEDS_MORE = {("sinks", "sql"): "sql", ("commands", "sql"): "sql"}
"""What a distribution registers, and another extra brings with all that it needs."""


def test_extras_are_what_our_plugins_register():
    mentioned = {kind for kinds in brought().values() for kind in kinds}
    for plugin in Host().plugins():
        extra = "postgres" if plugin.distribution == "waltap-decoders" else plugin.name
        if extra not in brought():
            continue
        for kind in KINDS:
            if kind.attribute in mentioned:
                for name in plugin.provides.get(kind.attribute, ()):
                    brings = NEEDS_MORE.get((kind.attribute, name), extra)
                    assert extra_for(kind.attribute, name) == f"waltap[{brings}]", name


@pytest.mark.needs_postgres
def test_installed_wheels_take_a_database_to_json_lines(clean, database, tmp_path):
    database.execute("CREATE TABLE t (id int PRIMARY KEY); INSERT INTO t VALUES (1), (2)")
    says(
        clean, "run", database.dsn, "--sink", "jsonl:out.jsonl", "--set", "name=released",
        "--set", "topic.prefix=s", "--until-idle", "0.3", cwd=tmp_path,
    )  # fmt: skip
    lines = [json.loads(line) for line in (tmp_path / "out.jsonl").read_text().splitlines()]
    assert [line["value"]["after"]["id"] for line in lines] == [1, 2]
    says(clean, "drop", database.dsn, "--set", "name=released", "--yes", cwd=tmp_path)
