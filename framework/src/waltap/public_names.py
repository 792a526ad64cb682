"""Import a package's public names on first use (PEP 562).

A package with names from many modules would otherwise load all of them for one name, which delays
``waltap --help``.
"""

from collections.abc import Callable, Mapping
from importlib import import_module
from typing import Any

__all__ = ["on_first_use"]


def on_first_use(package: str, homes: Mapping[str, tuple[str, ...]]) -> Callable[[str], Any]:
    """Return the ``__getattr__`` of ``package``.

    ``homes`` is module → its public names.
    """
    home_of = {name: module for module, names in homes.items() for name in names}

    def find(name: str) -> Any:
        if name not in home_of:
            message = f"module {package!r} has no attribute {name!r}"
            raise AttributeError(message)
        return getattr(import_module(home_of[name]), name)

    return find
