"""Keep pyarrow from importing pandas.

Pyarrow imports an installed pandas to check whether a list is a pandas object. That costs 57 MiB and half
a second for nothing.
"""

import functools
import sys
import threading
from typing import Any


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
    import pyarrow as pa

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
