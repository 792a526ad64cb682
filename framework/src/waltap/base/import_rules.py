"""Decide when modules are imported.

A package with names from many modules would load all of them for one name, which delays ``waltap --help``;
so it imports its public names on first use (PEP 562). pyarrow and numpy take a tenth of a second, which
most commands and a run with few rows can spare. And pyarrow imports an installed pandas to check
whether a list is a pandas object. That costs 57 MiB and half a second, which a thread can spare.
"""

import ast
import functools
import linecache
import sys
import threading
from collections.abc import Callable
from functools import cache
from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import numpy as np
    import pyarrow as pa
    import pyarrow.compute as pc
    from pyarrow import fs, parquet

__all__ = ["fs", "np", "on_first_use", "pa", "parquet", "pc", "spare_pandas"]


def on_first_use(package: str) -> Callable[[str], Any]:
    """Return the ``__getattr__`` of ``package``.

    The names are those that the package imports for type checkers only.
    """

    @cache
    def homes() -> dict[str, str]:
        # The block for type checkers is the only list: a second one could differ from it.
        # pytest's loader, which rewrites assertions, gives no source; linecache has it from a file.
        module = sys.modules[package]
        source = "".join(linecache.getlines(str(module.__file__), vars(module)))
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
            raise AttributeError(f"module {package!r} has no attribute {name!r}")
        return getattr(import_module(home), name)

    return find


class _LaterModule:
    """A module that is imported at its first use."""

    def __init__(self, name: str) -> None:
        self._name = name

    def __getattr__(self, name: str) -> Any:
        found = getattr(import_module(self._name), name)
        setattr(self, name, found)  # the next use is a plain attribute
        return found


if not TYPE_CHECKING:
    fs = _LaterModule("pyarrow.fs")
    np = _LaterModule("numpy")
    pa = _LaterModule("pyarrow")
    parquet = _LaterModule("pyarrow.parquet")
    pc = _LaterModule("pyarrow.compute")


class _PandasBlocker:
    """An import finder that hides pandas from the thread that created it."""

    def __init__(self) -> None:
        self._thread = threading.get_ident()

    def find_spec(self, name: str, _path: object = None, _target: object = None) -> None:
        if name == "pandas" and threading.get_ident() == self._thread:
            raise ModuleNotFoundError(name, name=name)


@functools.cache
def spare_pandas() -> None:
    """Make pyarrow search for pandas once, now, and find none.

    A program that has imported pandas is left alone. ``to_pandas`` still imports pandas on demand.
    """
    # The memory is spent already.
    if "pandas" in sys.modules:
        return
    hidden: Any = _PandasBlocker()
    sys.meta_path.insert(0, hidden)
    try:
        # Pyarrow looks for pandas at its first conversion and remembers the result.
        pa.array([])
    finally:
        sys.meta_path.remove(hidden)
