"""Public names of a package that are imported when they are first used (PEP 562).

A package whose names come from many modules would load all of them for anyone who needs one, and
``waltap --help`` has no time for that.
"""

from collections.abc import Callable, Mapping
from importlib import import_module
from typing import Any

__all__ = ["on_first_use"]


def on_first_use(package: str, homes: Mapping[str, tuple[str, ...]]) -> Callable[[str], Any]:
    """Return the ``__getattr__`` of ``package``; ``homes``: module → the public names it has."""
    home_of = {name: module for module, names in homes.items() for name in names}

    def find(name: str) -> Any:
        if name not in home_of:
            message = f"module {package!r} has no attribute {name!r}"
            raise AttributeError(message)
        return getattr(import_module(home_of[name]), name)

    return find
