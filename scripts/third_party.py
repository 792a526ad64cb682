"""Prints the requirements of our distributions, without our own: one per argument of pip.

    third_party.py FOLDER...

pip installs the members of the workspace without their dependencies, so that it never looks for
one of them in an index; what they need of others is installed from this list.
"""

import sys
import tomllib
from pathlib import Path


def requirements(folders: list[Path]) -> list[str]:
    """Return the requirements of the distributions in ``folders``, sorted, without our own."""
    found: set[str] = set()
    for folder in folders:
        project = tomllib.loads((folder / "pyproject.toml").read_text())["project"]
        optional = project.get("optional-dependencies", {}).values()
        for requirement in [
            *project["dependencies"],
            *(item for group in optional for item in group),
        ]:
            if not requirement.startswith("waltap"):
                found.add(requirement.replace(" ", ""))
    return sorted(found)


if __name__ == "__main__":
    print("\n".join(requirements([Path(argument) for argument in sys.argv[1:]])))
