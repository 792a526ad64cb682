"""Programs out of the distribution's packages, unpacked into the user's cache: nothing is installed, no service
starts, and root is not needed. One that is on PATH is used as it is."""

import shutil
import tempfile
import venv
from pathlib import Path

from tests.harness.servers.jars import MissingProgram, cache_folder, call, locked

PATHS = "/usr/sbin:/usr/local/sbin"


def packaged(package: str, *libraries: str, program: str = "") -> list[str]:
    """Return how to start ``program`` of ``package``, by default that of its name; others have its libraries.

    Raises: MissingProgram.
    """
    name = program or package
    found = shutil.which(name) or shutil.which(name, path=PATHS)
    if found is not None:
        return [found]
    if shutil.which("apt-get") is None:
        raise MissingProgram(f"no {name} (package {package})")
    cache = cache_folder()
    folder = cache / f"{name}-packages"
    with locked(cache / f"{name}.lock"), tempfile.TemporaryDirectory(dir=cache) as scratch:
        if not folder.is_dir():
            made = Path(scratch) / "made"
            call("apt-get", "-q", "download", package, *libraries, folder=Path(scratch))
            for file in Path(scratch).glob("*.deb"):
                call("dpkg", "-x", file, made, folder=Path(scratch))
            made.rename(folder)
    paths = [*folder.glob(f"usr/bin/{name}"), *folder.glob(f"usr/sbin/{name}")]
    if not paths:
        raise MissingProgram(f"package {package} has no {name}")
    folders = sorted({str(file.parent) for file in folder.rglob("*.so*")})
    return ["env", f"LD_LIBRARY_PATH={':'.join(folders)}", str(paths[0])]


def python_program(name: str, requirement: str) -> list[str]:
    """Return how to start the program ``name`` of a Python package, in an environment of its own: what it needs
    may contradict what we need. Raises: MissingProgram."""
    cache = cache_folder()
    folder = cache / requirement.replace("[", "-").replace("]", "").replace("==", "-")
    with locked(cache / f"{name}.lock"):
        if not (folder / "complete").exists():
            shutil.rmtree(folder, ignore_errors=True)
            venv.create(folder, with_pip=True)
            pip = [str(folder / "bin" / "python"), "-m", "pip", "--disable-pip-version-check"]
            call(*pip, "install", "-q", requirement, folder=cache)
            (folder / "complete").touch()
    return [str(folder / "bin" / name)]
