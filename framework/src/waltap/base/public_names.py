"""Import a package's public names on first use (PEP 562).

A package with names from many modules would otherwise load all of them for one name, which delays
``waltap --help``.
"""

import ast
import sys
from collections.abc import Callable
from functools import cache
from importlib import import_module
from typing import Any


def on_first_use(package: str) -> Callable[[str], Any]:
    """Return the ``__getattr__`` of ``package``.

    The names are those that the package imports for type checkers only.
    """

    @cache
    def homes() -> dict[str, str]:
        # The block for type checkers is the only list: a second one could differ from it.
        source = sys.modules[package].__loader__.get_source(package)  # type: ignore[union-attr]
        blocks = (node for node in ast.parse(source).body if isinstance(node, ast.If))
        imports = (node for block in blocks for node in block.body)
        return {
            alias.name: str(node.module)
            for node in imports
            if isinstance(node, ast.ImportFrom)
            for alias in node.names
        }

    def find(name: str) -> Any:
        home = homes().get(name)
        if home is None:
            message = f"module {package!r} has no attribute {name!r}"
            raise AttributeError(message)
        return getattr(import_module(home), name)

    return find
