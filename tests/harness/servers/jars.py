"""Java programs as Maven artifacts: fetched once into the user's cache, by Maven or by Spark's Ivy.

Where a program's files come from, in this order: the folder that ``WALTAP_JARS_<NAME>`` names, the cache
``$XDG_CACHE_HOME/waltap-services``, Maven (which honours the machine's own settings), and the Ivy that
pyspark brings, which needs Java alone.
"""

import contextlib
import fcntl
import hashlib
import importlib.util
import os
import shutil
import subprocess
import sys
import tarfile
import tempfile
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

FETCH_SECONDS = 420
"""Below the time that one test may take."""

EXCLUSIONS = (
    "<exclusions><exclusion><groupId>*</groupId><artifactId>*</artifactId></exclusion></exclusions>"
)


class MissingProgram(Exception):
    """A Java program cannot be had; the text says what was tried."""


def jars(name: str, coordinates: Sequence[str], *, alone: bool = False) -> Path:
    """Return a folder with the jars of ``coordinates`` (group:artifact:version) and all they need.
    ``alone``: nothing that they need, the list is complete.

    Raises: MissingProgram.
    """

    def fill(scratch: Path, made: Path) -> None:
        project = scratch / "pom.xml"
        project.write_text(_pom(coordinates, EXCLUSIONS if alone else ""))
        if not _maven(
            "-f", project, "dependency:copy-dependencies",
            "-DincludeScope=runtime", f"-DoutputDirectory={made}",
        ):  # fmt: skip
            needs = "".join(
                '<dependency org="{}" name="{}" rev="{}" transitive="{}" conf="default->default"/>'.format(
                    *each.split(":"), str(not alone).lower()
                )
                for each in coordinates
            )
            _ivy(scratch, made, needs, poms=not alone)
        if not any(made.glob("*.jar")):
            raise MissingProgram(f"no jar came for {', '.join(coordinates)}")

    return _kept(name, "\n".join(coordinates), fill)


def archive(name: str, artifact: str) -> Path:
    """Return the folder of an unpacked tar archive, or of a jar as it is,
    ``group:artifact:version:type:classifier``.

    Raises: MissingProgram.
    """
    group, program, version, kind, classifier = artifact.split(":")

    def fill(scratch: Path, made: Path) -> None:
        if not _maven("dependency:copy", f"-Dartifact={artifact}", f"-DoutputDirectory={scratch}"):
            # without POMs: a parent that cannot be had would fail a file that stands alone
            needs = (
                f'<dependency org="{group}" name="{program}" rev="{version}" transitive="false" '
                f'conf="default->default"><artifact name="{program}" type="{kind}" ext="{kind}" '
                f'm:classifier="{classifier}"/></dependency>'
            )
            _ivy(scratch, scratch, needs, poms=False)
        packed = scratch / f"{program}-{version}-{classifier}.{kind}"
        if not packed.is_file():
            raise MissingProgram(f"no file came for {artifact}")
        if kind == "jar":
            packed.rename(made / packed.name)
            return
        unpack(packed, made)

    return _kept(name, artifact, fill)


def unpack(packed: Path, folder: Path) -> None:
    with tarfile.open(packed) as opened:
        # Python before 3.11.4 has no filters, and no argument for one
        opened.extraction_filter = getattr(tarfile, "data_filter", None)
        opened.extractall(folder)


def _kept(name: str, what: str, fill: Callable[[Path, Path], None]) -> Path:
    if given := os.environ.get(f"WALTAP_JARS_{name.upper()}"):
        return Path(given)
    cache = cache_folder()
    folder = cache / f"{name}-{hashlib.sha256(what.encode()).hexdigest()[:12]}"
    if folder.is_dir():
        return folder
    if shutil.which("java") is None:
        raise MissingProgram(f"no 'java' on PATH to run {name} with")
    with locked(cache / f"{name}.lock"), tempfile.TemporaryDirectory(dir=cache) as scratch:
        if not folder.is_dir():  # another process may have been first
            made = Path(scratch) / "made"
            made.mkdir()
            fill(Path(scratch), made)
            made.rename(folder)
    return folder


def cache_folder() -> Path:
    cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "waltap-services"
    cache.mkdir(parents=True, exist_ok=True)
    return cache


@contextlib.contextmanager
def locked(path: Path) -> Iterator[None]:
    with path.open("w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield


def _pom(coordinates: Sequence[str], exclusions: str) -> str:
    needs = "".join(
        "<dependency><groupId>{}</groupId><artifactId>{}</artifactId><version>{}</version>"
        "{}</dependency>".format(*each.split(":"), exclusions)
        for each in coordinates
    )
    return (
        '<project xmlns="http://maven.apache.org/POM/4.0.0"><modelVersion>4.0.0</modelVersion>'
        "<groupId>local</groupId><artifactId>jars</artifactId><version>1</version>"
        f"<packaging>pom</packaging><dependencies>{needs}</dependencies></project>"
    )


def _maven(*arguments: object) -> bool:
    """Return whether Maven is there and did it; Ivy has its turn otherwise."""
    if shutil.which("mvn") is None:
        return False
    try:
        call("mvn", "-B", "-q", *arguments)
    except MissingProgram as reason:
        print(f"going on without Maven: {reason}", file=sys.stderr)
        return False
    return True


def _ivy(scratch: Path, into: Path, needs: str, *, poms: bool) -> None:
    spec = importlib.util.find_spec("pyspark")
    found = (
        [] if spec is None or spec.origin is None else Path(spec.origin).parent.glob("jars/ivy-*")
    )
    ivy = next(iter(found), None)
    if ivy is None:
        raise MissingProgram("neither mvn (package maven) nor pyspark is there to fetch jars with")
    (scratch / "settings.xml").write_text(
        '<ivysettings><settings defaultResolver="central"/><resolvers>'
        f'<ibiblio name="central" m2compatible="true" usepoms="{str(poms).lower()}"/>'
        "</resolvers></ivysettings>"
    )
    (scratch / "ivy.xml").write_text(
        '<ivy-module version="2.0" xmlns:m="http://ant.apache.org/ivy/maven">'
        '<info organisation="local" module="jars"/><configurations><conf name="default"/>'
        f"</configurations><dependencies>{needs}</dependencies></ivy-module>"
    )
    call(
        "java", "-jar", ivy, "-settings", scratch / "settings.xml", "-cache", scratch / "ivy",
        "-ivy", scratch / "ivy.xml", "-confs", "default",
        "-retrieve", f"{into}/[artifact]-[revision](-[classifier]).[ext]",
    )  # fmt: skip


def call(*command: object, folder: Path | None = None) -> None:
    """Run a command that fetches something. Raises: MissingProgram."""
    words = [str(word) for word in command]
    try:
        done = subprocess.run(
            words, cwd=folder, capture_output=True, text=True, check=False, timeout=FETCH_SECONDS
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        raise MissingProgram(f"{words[0]} failed: {error}") from error
    if done.returncode:
        raise MissingProgram(f"{words[0]} failed: {(done.stdout + done.stderr)[-2000:]}")
