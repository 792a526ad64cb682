"""When tables that stand still are tried again."""

import contextlib
import time
from collections.abc import Iterator
from typing import Final

__all__ = ["RETRY_S", "TableRetries"]

RETRY_S: Final = 60.0
"""How long a table is left alone at least."""

TRY_S: Final = 3.0
"""All other tables wait for a try. After one that took longer the pause is longer in proportion."""

MOST: Final = 15.0
"""So many times `RETRY_S` at most."""


class TableRetries:
    """What is known of tries, by table; all tables are due for one who has tried none."""

    def __init__(self) -> None:
        self._failed: dict[str, tuple[float, float]] = {}
        self._spent: dict[str, float] = {}

    def due(self, name: str) -> bool:
        """Tell whether it is time."""
        if name not in self._failed:
            return True
        at, spent = self._failed[name]
        return time.monotonic() - at >= RETRY_S * min(MOST, max(1.0, spent / TRY_S))

    @contextlib.contextmanager
    def timed(self, name: str) -> Iterator[None]:
        """Count the time of the block as spent on the next try."""
        started = time.monotonic()
        try:
            yield
        finally:
            self._spent[name] = self._spent.get(name, 0.0) + time.monotonic() - started

    def failed(self, name: str) -> None:
        """Leave the table alone for a while."""
        self._failed[name] = time.monotonic(), self._spent.pop(name, 0.0)

    def forget(self, name: str) -> None:
        """Let the table be due at once."""
        self._failed.pop(name, None)
        self._spent.pop(name, None)

    def clear(self) -> None:
        """Let all be due at once."""
        self._failed.clear()
