"""Sets that no commit names any more: they stay for a while, for those who read an earlier commit.

What a commit stops naming is written down before the commit is, in a file of its own: however much that
is, no commit says it again, and no reader reads it.
"""

import time
from collections.abc import Iterable
from typing import Final

import msgspec

from waltap.decode_errors import UNREADABLE
from waltap.files.errors import FilesUnavailable
from waltap.files.store import FileStore
from waltap_spark.errors import OutputDamaged

__all__ = ["OrphanFiles"]

FOLDER: Final = "_waltap/garbage"


class _DroppedPaths(msgspec.Struct, frozen=True, kw_only=True):
    """What one commit dropped; ``since``: seconds since 1970."""

    since: float
    paths: tuple[str, ...]


class OrphanFiles:
    """What the commits of one output dropped, and when."""

    def __init__(self, store: FileStore) -> None:
        self._store = store

    def note(self, number: int, paths: Iterable[str]) -> None:
        """Write down what commit ``number`` is to drop; before it appears. What an attempt at it that
        failed was to drop counts no more."""
        dropped = _DroppedPaths(since=time.time(), paths=tuple(sorted(paths)))
        path = f"{FOLDER}/{_name(number)}"
        if dropped.paths:
            self._store.put(path, msgspec.json.encode(dropped) + b"\n")
        else:
            self._store.delete(path)

    def forget_after(self, number: int) -> None:
        """Forget what commits after ``number`` were to drop: they never appeared."""
        for name in self._store.names(FOLDER):
            if name > _name(number):
                self._store.delete(f"{FOLDER}/{name}")

    def paths(self) -> set[str]:
        """Return all that is still there. Raises: OutputDamaged."""
        found: set[str] = set()
        for name in self._store.names(FOLDER):
            try:
                found.update(self._read(name).paths)
            except FilesUnavailable as error:  # a driver has collected it since: the sets are gone
                if not isinstance(error.__cause__, FileNotFoundError):
                    raise
        return found

    def due(self, grace_s: float, number: int) -> Iterable[tuple[str, tuple[str, ...]]]:
        """Return (file, paths) of what commits up to ``number`` dropped ``grace_s`` ago, oldest first:
        of a commit that did not appear, the one before it still names what it was to drop.

        Raises: OutputDamaged.
        """
        limit = time.time() - grace_s
        for name in self._store.names(FOLDER):
            if name > _name(number):
                return
            dropped = self._read(name)
            if dropped.since > limit:
                return
            yield f"{FOLDER}/{name}", dropped.paths

    def _read(self, name: str) -> _DroppedPaths:
        path = f"{FOLDER}/{name}"
        try:
            return msgspec.json.decode(self._store.read(path), type=_DroppedPaths)
        except UNREADABLE as cause:
            text = f"{path} does not say what was dropped: {cause}"
            raise OutputDamaged(text, path=self._store.uri(path)) from cause


def _name(number: int) -> str:
    return f"{number:012d}.json"
