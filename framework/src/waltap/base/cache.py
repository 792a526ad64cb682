"""Bound the memory of caches."""

from typing import TypeVar

K = TypeVar("K")
V = TypeVar("V")


class BoundedDict(dict[K, V]):
    """A dict that forgets all entries before one too many is set.

    Caches of tables, topics and schemas rarely reach their bound, and an entry is cheap to make. So a
    lookup costs the same as in a plain dict, which counting of uses would not allow.
    """

    def __init__(self, most: int) -> None:
        super().__init__()
        self._most = most

    def __setitem__(self, key: K, value: V) -> None:
        if len(self) >= self._most and key not in self:
            self.clear()
        super().__setitem__(key, value)
