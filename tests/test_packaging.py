"""Each distribution builds a wheel with its own package, and nothing else."""

import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
MEMBERS = {
    "framework": "waltap",
    "plugins/decoders": "waltap_decoders",
    "plugins/postgres": "waltap_postgres",
    "plugins/formats": "waltap_formats",
    "plugins/types": "waltap_types",
    "plugins/kafka": "waltap_kafka",
    "plugins/yugabyte": "waltap_yugabyte",
    "plugins/sinks": "waltap_sinks",
    "plugins/spark": "waltap_spark",
    "plugins/testing": "waltap_testing",
    "plugins/demo": "waltap_demo",
}


@pytest.fixture(scope="module", params=MEMBERS.items(), ids=lambda member: member[1])
def wheel(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> tuple[str, list[str]]:
    """Return a package and the names of the files in the wheel that is built for it."""
    folder, package = request.param
    built = tmp_path_factory.mktemp(package)
    subprocess.run(
        [
            *(sys.executable, "-m", "pip", "--disable-pip-version-check", "wheel", "-q"),
            *("--no-deps", "--no-build-isolation", "--no-index", "-w", built, ROOT / folder),
        ],
        check=True,
    )
    [file] = built.glob("*.whl")
    with zipfile.ZipFile(file) as archive:
        return package, archive.namelist()


def test_wheel_holds_its_package_and_nothing_else(wheel: tuple[str, list[str]]) -> None:
    package, names = wheel
    own = (f"{package}/", f"{package}-")
    assert [name for name in names if not name.startswith(own)] == []
    assert not [name for name in names if "__pycache__" in name or "/tests/" in name]


def test_wheel_tells_type_checkers_that_it_is_typed(wheel: tuple[str, list[str]]) -> None:
    package, names = wheel
    assert f"{package}/py.typed" in names


def test_wheel_holds_every_module_of_the_source(wheel: tuple[str, list[str]]) -> None:
    package, names = wheel
    folder = next(ROOT / path / "src" for path, name in MEMBERS.items() if name == package)
    sources = {str(path.relative_to(folder)) for path in (folder / package).rglob("*.py")}
    assert sources <= set(names)


def test_wheel_holds_its_licence_and_entry_points(wheel: tuple[str, list[str]]) -> None:
    _, names = wheel
    assert [name for name in names if name.endswith("entry_points.txt")]
