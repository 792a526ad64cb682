"""Each distribution builds a wheel with its own package, and nothing else."""

import email.parser
import re
import zipfile
from dataclasses import dataclass
from email.message import Message
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from scripts.distributions import build

ROOT = Path(__file__).parents[2]
MEMBERS = {
    "framework": "waltap",
    "plugins/decoders": "waltap_decoders",
    "plugins/postgres": "waltap_postgres",
    "plugins/formats": "waltap_formats",
    "plugins/types": "waltap_types",
    "plugins/kafka": "waltap_kafka",
    "plugins/lake": "waltap_lake",
    "plugins/streams": "waltap_streams",
    "plugins/transforms": "waltap_transforms",
    "plugins/yugabyte": "waltap_yugabyte",
    "plugins/sinks": "waltap_sinks",
    "plugins/spark": "waltap_spark",
    "plugins/testing": "waltap_testing",
    "plugins/demo": "waltap_demo",
}


@dataclass(frozen=True)
class Wheel:
    """A distribution as it would be published."""

    package: str
    names: list[str]
    metadata: Message


@pytest.fixture(scope="module", params=MEMBERS.items(), ids=lambda member: member[1])
def wheel(request, tmp_path_factory) -> Wheel:
    """Return the wheel that is built for a member of the workspace."""
    folder, package = request.param
    built = tmp_path_factory.mktemp(package)
    file, _ = build(ROOT / folder, built, 1_700_000_000)
    with zipfile.ZipFile(file) as archive:
        names = archive.namelist()
        (about,) = [name for name in names if name.endswith(".dist-info/METADATA")]
        return Wheel(package, names, email.parser.BytesParser().parsebytes(archive.read(about)))


FOUND_BY_NAME = {"waltap_spark": ("pyspark_waltap/",)}
"""Modules that a host looks for by how they are called."""


def test_wheel_holds_its_package_and_nothing_else(wheel):
    own = (f"{wheel.package}/", f"{wheel.package}-", *FOUND_BY_NAME.get(wheel.package, ()))
    assert [name for name in wheel.names if not name.startswith(own)] == []
    assert not [name for name in wheel.names if "__pycache__" in name or "/tests/" in name]


def test_wheel_shows_type_checkers_that_it_is_typed(wheel):
    assert f"{wheel.package}/py.typed" in wheel.names


def test_wheel_holds_every_module_of_the_source(wheel):
    folder = next(ROOT / path / "src" for path, name in MEMBERS.items() if name == wheel.package)
    sources = {str(path.relative_to(folder)) for path in (folder / wheel.package).rglob("*.py")}
    assert sources <= set(wheel.names)


def test_wheel_holds_its_licence_and_entry_points(wheel):
    assert [name for name in wheel.names if name.endswith("entry_points.txt")]
    assert [name for name in wheel.names if name.endswith("licenses/LICENSE")]


def test_wheel_says_whose_it_is_and_what_for(wheel):
    """Licence, authors, classifiers, and a page that stands alone: no link of it leads into the checkout."""
    metadata = wheel.metadata
    assert metadata["License-Expression"] == "Apache-2.0"
    assert metadata["Author"]
    assert metadata["Summary"]
    assert "Typing :: Typed" in metadata.get_all("Classifier", ())
    page = metadata.get_payload()
    assert isinstance(page, str)
    assert page.startswith(f"# {metadata['Name']}")
    links = re.findall(r"\]\(([^)]+)\)", page)
    assert [link for link in links if "://" not in link] == []


def test_wheels_of_ours_fit_each_other_alone(wheel):
    """A release is one set: each requires the others at its own version, and no range of them."""
    wanted = map(Requirement, wheel.metadata.get_all("Requires-Dist", ()))
    ours = [each for each in wanted if each.name.startswith("waltap")]
    assert {str(each.specifier) for each in ours} <= {f"=={wheel.metadata['Version']}"}
    assert bool(ours)


def test_columns_come_with_all_that_they_need(wheel):
    """pyarrow has not required numpy since its version 18."""
    wanted = {Requirement(each).name for each in wheel.metadata.get_all("Requires-Dist", ())}
    assert ("pyarrow" in wanted) is ("numpy" in wanted)


def test_every_distribution_is_tested_here():
    assert {
        str(path.parent.relative_to(ROOT)) for path in ROOT.glob("plugins/*/pyproject.toml")
    } == (MEMBERS.keys() - {"framework"})
