"""pyarrow and numpy, each imported when one of its names is first used.

Both take a tenth of a second, which most commands and a run with few rows can spare.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import numpy as np
    import pyarrow as pa
    import pyarrow.compute as pc
    from pyarrow import fs, parquet

__all__ = ["fs", "np", "pa", "parquet", "pc"]


class _LaterModule:
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
