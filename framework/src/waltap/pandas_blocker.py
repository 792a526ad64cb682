"""Pyarrow without pandas: it imports pandas where it is installed, to ask whether a list is one of its.

That is 57 MiB and half a second, for nothing.
"""

import functools
import sys
import threading
from typing import Any

__all__ = ["spare_pandas"]


class _PandasBlocker:
    """Finds no pandas, for the thread that made it."""

    def __init__(self) -> None:
        self._thread = threading.get_ident()

    def find_spec(self, name: str, _path: object = None, _target: object = None) -> None:
        if name == "pandas" and threading.get_ident() == self._thread:
            raise ModuleNotFoundError(name, name=name)


@functools.cache
def spare_pandas() -> None:
    """Let pyarrow look for pandas now, once, and find none, unless somebody has imported it.

    What needs pandas (``to_pandas``) imports it when it is asked, as before.
    """
    import pyarrow as pa

    if "pandas" in sys.modules:
        return
    hidden: Any = _PandasBlocker()
    sys.meta_path.insert(0, hidden)
    try:
        pa.array([])
    finally:
        sys.meta_path.remove(hidden)
