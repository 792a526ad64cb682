"""Builds what is published: wheels and sdists of every distribution, their SBOM, their hashes.

    distributions.py build [--into dist] [--any-tree]
    distributions.py audit [--into dist] [--advisories FOLDER]

The same commit gives the same bytes: every time stamp is the commit's (``SOURCE_DATE_EPOCH``), order
and modes of files are the builder's. A release is of the committed tree, so a changed one is refused.

The SBOM (CycloneDX 1.6) has our distributions with the hashes of their wheels, and all that they may
require, with every extra, at the versions of ``constraints.txt``, which the building environment has.
"""

import argparse
import contextlib
import hashlib
import json
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from datetime import UTC, datetime
from importlib.metadata import Distribution, distribution
from pathlib import Path
from uuid import NAMESPACE_URL, uuid5

from cyclonedx.contrib.license.factories import LicenseFactory
from cyclonedx.model import HashAlgorithm, HashType
from cyclonedx.model.bom import Bom
from cyclonedx.model.component import Component, ComponentType
from cyclonedx.output.json import JsonV1Dot6
from cyclonedx.schema import SchemaVersion
from cyclonedx.validation.json import JsonStrictValidator
from hatchling import build as backend
from packageurl import PackageURL
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name
from scripts.advisories import Advisories

ROOT = Path(__file__).parents[1]
SBOM = "sbom.cdx.json"
SUMS = "SHA256SUMS"


def members() -> list[Path]:
    """Return the folders of our distributions."""
    return [
        ROOT / "framework",
        *sorted(file.parent for file in ROOT.glob("plugins/*/pyproject.toml")),
    ]


def commit_time() -> int:
    """Return the time of the commit that is built, in seconds since 1970."""
    given = os.environ.get("SOURCE_DATE_EPOCH")
    return int(given or _git("log", "-1", "--format=%ct"))


def build(folder: Path, into: Path, epoch: int) -> tuple[Path, Path]:
    """Build the wheel and the sdist of the distribution in ``folder``; return their paths, so ordered.

    It is built from a copy: a link to the licence of the repository becomes the licence, and what only
    a checkout has stays out.
    """
    into.mkdir(parents=True, exist_ok=True)
    before = os.environ.get("SOURCE_DATE_EPOCH")
    os.environ["SOURCE_DATE_EPOCH"] = str(epoch)
    try:
        with tempfile.TemporaryDirectory() as place:
            copy = Path(place) / folder.name
            left = shutil.ignore_patterns("__pycache__", "*.py[cod]", "*.egg-info", ".*")
            shutil.copytree(folder, copy, ignore=left, copy_function=shutil.copyfile)
            with contextlib.chdir(copy), contextlib.redirect_stdout(sys.stderr):
                wheel, source = backend.build_wheel(str(into)), backend.build_sdist(str(into))
        return into / wheel, into / source
    finally:
        del os.environ["SOURCE_DATE_EPOCH"]
        if before is not None:
            os.environ["SOURCE_DATE_EPOCH"] = before


def bill(wheels: list[Path], epoch: int) -> str:
    """Return the SBOM of ``wheels`` and of all that they may require, in JSON. Raises: ValueError."""
    licenses = LicenseFactory()
    hashes = {wheel.name.partition("-")[0].replace("_", "-"): _sha256(wheel) for wheel in wheels}
    found = dict(sorted(_required(sorted(hashes))))
    components = {}
    for name, one in found.items():
        purl = PackageURL("pypi", name=name, version=one.version)
        named = _licence(one)
        components[name] = Component(
            type=ComponentType.APPLICATION if name == "waltap" else ComponentType.LIBRARY,
            name=name,
            version=one.version,
            bom_ref=str(purl),
            purl=purl,
            licenses=[licenses.make_from_string(named)] if named else None,
            hashes=[HashType(alg=HashAlgorithm.SHA_256, content=hashes[name])]
            if name in hashes
            else None,
        )
    bom = Bom(components=[each for name, each in components.items() if name != "waltap"])
    bom.metadata.component = components["waltap"]
    bom.metadata.timestamp = datetime.fromtimestamp(epoch, UTC)
    bom.serial_number = uuid5(NAMESPACE_URL, json.dumps(hashes, sort_keys=True))
    for name, one in found.items():
        extras = ("", *_provided(one)) if name in hashes else ("",)
        asked = {canonicalize_name(r.name) for extra in extras for r in _wanted(one, extra)}
        wanted = sorted(asked & components.keys() - {name})
        bom.register_dependency(components[name], [components[each] for each in wanted])
    text = JsonV1Dot6(bom).output_as_string(indent=2)
    if problem := JsonStrictValidator(SchemaVersion.V1_6).validate_str(text):
        raise ValueError(f"the SBOM is no CycloneDX 1.6: {problem}")
    return text + "\n"


def _required(names: list[str]) -> Iterator[tuple[str, Distribution]]:
    """Give the distributions ``names`` with every extra, and all that they require, as installed."""
    seen: set[tuple[str, str]] = set()
    waiting = [(name, extra) for name in names for extra in ("", *_provided(distribution(name)))]
    while waiting:
        name, extra = waiting.pop()
        if (name, extra) in seen:
            continue
        if name not in {each for each, _ in seen}:
            yield name, distribution(name)
        seen.add((name, extra))
        for requirement in _wanted(distribution(name), extra):
            wanted = canonicalize_name(requirement.name)
            waiting += [(wanted, more) for more in ("", *requirement.extras)]


def _wanted(one: Distribution, extra: str) -> Iterator[Requirement]:
    """Give what ``one`` with ``extra`` ("" for none) requires on this machine."""
    for requirement in map(Requirement, one.requires or ()):
        if requirement.marker is None or requirement.marker.evaluate({"extra": extra}):
            yield requirement


def _licence(one: Distribution) -> str | None:
    """Return the licence as the metadata names it: an SPDX expression where there is one."""
    for field in ("License-Expression", "License"):
        for named in one.metadata.get_all(field) or ():
            if "\n" not in named and len(named) < 60:
                return str(named)
    for classifier in one.metadata.get_all("Classifier") or ():
        if classifier.startswith("License :: "):
            return str(classifier.rpartition(" :: ")[2])
    return None


def _provided(one: Distribution) -> list[str]:
    return one.metadata.get_all("Provides-Extra") or []


def _sha256(file: Path) -> str:
    return hashlib.sha256(file.read_bytes()).hexdigest()


def _git(*words: str) -> str:
    done = subprocess.run(["git", *words], cwd=ROOT, capture_output=True, text=True, check=True)
    return done.stdout.strip()


def build_all(into: Path) -> None:
    """Fill the folder ``into`` with wheels, sdists, the SBOM and the list of hashes."""
    for old in [*into.glob("waltap*.whl"), *into.glob("waltap*.tar.gz"), into / SBOM, into / SUMS]:
        old.unlink(missing_ok=True)
    epoch = commit_time()
    built = [build(folder, into, epoch) for folder in members()]
    (into / SBOM).write_text(bill([wheel for wheel, _ in built], epoch))
    files = sorted([into / SBOM, *(file for pair in built for file in pair)])
    (into / SUMS).write_text("".join(f"{_sha256(file)}  {file.name}\n" for file in files))


def audit(into: Path, program: str) -> str | None:
    """Ask pip-audit about everything that the SBOM names but our own; return what is wrong, or None.

    A package that the service does not know was not audited: that is a failure, too.
    """
    bom = json.loads((into / SBOM).read_text())
    pins = [f"{c['name']}=={c['version']}" for c in bom["components"] if "hashes" not in c]
    with tempfile.NamedTemporaryFile("w", suffix=".txt") as asked:
        asked.write("\n".join(pins) + "\n")
        asked.flush()
        done = subprocess.run(
            [program, "--no-deps", "--disable-pip", "-f", "json", "-r", asked.name],
            capture_output=True, text=True, check=False,
        )  # fmt: skip
    try:
        answers = json.loads(done.stdout)["dependencies"]
    except ValueError:
        last = (done.stderr.strip().splitlines() or [f"exit code {done.returncode}"])[-1]
        return f"the audit did not run: {last}"
    vulnerable = [
        f"{answer['name']} {answer['version']}: {found['id']}"
        for answer in answers
        for found in answer.get("vulns", ())
    ]
    skipped = [
        f"{each['name']}: {each['skip_reason']}" for each in answers if "skip_reason" in each
    ]
    if vulnerable:
        return "\n  ".join(["known vulnerabilities:", *vulnerable])
    if skipped or len(answers) < len(pins):
        told = (
            f"{len(skipped)} of {len(pins)} packages were not audited: the advisories of the index"
        )
        return "\n  ".join(
            [f"{told} are not reached from here; run make audit where they are", *skipped[:3]]
        )
    return None


def audit_by(folder: Path, into: Path) -> str | None:
    """Hold everything that the SBOM names but our own against the advisories in ``folder``; return what is
    wrong, or None. Advisories that are a month old are a failure, whatever they say."""
    advisories = Advisories.read(folder)
    bom = json.loads((into / SBOM).read_text())
    pins = [(c["name"], c["version"]) for c in bom["components"] if "hashes" not in c]
    found = [
        f"{name} {version}: {i}" for name, version in pins for i in advisories.of(name, version)
    ]
    if found:
        return "\n  ".join(["known vulnerabilities:", *found])
    if advisories.stale(datetime.now(UTC)):
        return (
            f"no known vulnerability in {len(pins)} packages, as of {advisories.newest:%Y-%m-%d}: the "
            "advisories are old, fetch newer ones"
        )
    return None


def main() -> None:
    """Build, or audit."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("what", choices=["build", "audit"])
    parser.add_argument("--into", type=Path, default=ROOT / "dist", help="the folder for the files")
    parser.add_argument("--program", default="pip-audit", help="pip-audit, for the audit")
    parser.add_argument(
        "--advisories", type=Path, help="a folder of them, for an audit without network"
    )
    parser.add_argument("--any-tree", action="store_true", help="build what is not committed, too")
    given = parser.parse_args()
    into = given.into.absolute()
    if given.what == "audit":
        if not (into / SBOM).exists():
            sys.exit("audit: there is no SBOM; make dist writes it")
        by = given.advisories
        problem = audit(into, given.program) if by is None else audit_by(by, into)
        sys.exit(f"audit: {problem}" if problem else None)
    changed = _git("status", "--porcelain", "--", "framework", "plugins")
    if changed and not given.any_tree:
        sys.exit(
            f"dist: these files differ from the commit; commit them, or say --any-tree:\n{changed}"
        )
    build_all(into)
    print(
        f"dist: {len(list(into.glob('*.whl')))} wheels and sdists in {into}, with {SBOM} and {SUMS}"
    )


if __name__ == "__main__":
    main()
