"""Sets that no commit names any more: they stay for a while, for those who read an earlier commit.

What a commit stops naming is written down before the commit is, in a file of its own: however much that
is, no commit says it again, and no reader reads it.
"""

import time
from collections.abc import Iterable
from typing import Final

import msgspec

from waltap.files.store import Store
from waltap_spark.errors import OutputDamaged

__all__ = ["Garbage"]

FOLDER: Final = "_waltap/garbage"


class _Dropped(msgspec.Struct, frozen=True, kw_only=True):
    """What one commit dropped; ``since``: seconds since 1970."""

    since: float
    paths: tuple[str, ...]


class Garbage:
    """What the commits of one output dropped, and when."""

    def __init__(self, store: Store) -> None:
        self._store = store

    def note(self, number: int, paths: Iterable[str]) -> None:
        """Write down what commit ``number`` is to drop; before it appears."""
        dropped = _Dropped(since=time.time(), paths=tuple(sorted(paths)))
        if dropped.paths:
            self._store.put(f"{FOLDER}/{_name(number)}", msgspec.json.encode(dropped) + b"\n")

    def forget_after(self, number: int) -> None:
        """Forget what commits after ``number`` were to drop: they never appeared."""
        for name in self._store.names(FOLDER):
            if name > _name(number):
                self._store.delete(f"{FOLDER}/{name}")

    def paths(self) -> set[str]:
        """Return all that is still there. Raises: OutputDamaged."""
        return {path for name in self._store.names(FOLDER) for path in self._read(name).paths}

    def due(self, grace_s: float) -> Iterable[tuple[str, tuple[str, ...]]]:
        """Return (file, paths) of what was dropped ``grace_s`` ago, oldest first.

        Raises: OutputDamaged.
        """
        limit = time.time() - grace_s
        for name in self._store.names(FOLDER):
            dropped = self._read(name)
            if dropped.since > limit:
                return
            yield f"{FOLDER}/{name}", dropped.paths

    def _read(self, name: str) -> _Dropped:
        path = f"{FOLDER}/{name}"
        try:
            return msgspec.json.decode(self._store.read(path), type=_Dropped)
        except msgspec.DecodeError as cause:
            text = f"{path} does not say what was dropped: {cause}"
            raise OutputDamaged(text, path=self._store.uri(path)) from cause


def _name(number: int) -> str:
    return f"{number:012d}.json"
