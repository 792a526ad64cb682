"""Keep rows that were read together as columns.

Snapshots and decoders make blocks; a reader that works on columns gets them as they are.
"""

import abc
import functools
from collections.abc import Callable, Iterator, Sequence
from importlib.util import find_spec
from itertools import chain
from types import NoneType
from typing import Any, Final, TypeVar, overload

from waltap.base.import_rules import np, pa
from waltap.changes.decode.tuple_image import Tuple

T = TypeVar("T")

_TEXTS: Final = frozenset((str, NoneType))


@functools.cache
def has_columns() -> bool:
    """Return whether the libraries for blocks are installed.

    The first block imports them.
    """
    return find_spec("pyarrow") is not None and find_spec("numpy") is not None


def texts_of(column: "pa.Array") -> list[str | None]:
    """Return the values of a text column, with None for NULL."""
    values: list[str | None] = column.to_numpy(zero_copy_only=False).tolist()
    return values


def is_text(values: "pa.StringArray") -> bool:
    """Return whether a new array has PostgreSQL's text: UTF-8 without NUL."""
    _, offsets, data = values.buffers()
    used = int(np.frombuffer(offsets, "i4", len(values) + 1)[-1])
    if not used:
        return True
    characters = np.frombuffer(data, "u1", used)
    if not characters.min():
        return False
    if characters.max() > 127:
        try:
            values.validate(full=True)
        except pa.ArrowInvalid:
            return False
    return True


class LazySequence(Sequence[T]):
    """Make a sequence's items at the first access.

    The data of the items is elsewhere, such as in columns, which slices share. Immutable.
    """

    __slots__ = ("_items",)

    def __init__(self) -> None:
        self._items: list[T] | None = None

    @abc.abstractmethod
    def _make(self) -> list[T]:
        """Make all items."""

    def _part(self, _start: int, _stop: int) -> Sequence[T] | None:
        """Return a slice without making its items, None where that is impossible."""
        return None

    def items(self) -> list[T]:
        if self._items is None:
            self._items = self._make()
        return self._items

    @overload
    def __getitem__(self, index: int) -> T: ...

    @overload
    def __getitem__(self, index: slice) -> Sequence[T]: ...

    def __getitem__(self, index: int | slice) -> T | Sequence[T]:
        if isinstance(index, slice):
            start, stop, step = index.indices(len(self))
            # Arrow slices without a copy only in steps of one.
            part = self._part(start, max(start, stop)) if step == 1 else None
            if part is not None:
                return part
        return self.items()[index]

    def __iter__(self) -> Iterator[T]:
        return iter(self.items())


class RowBlock(LazySequence[Tuple]):
    """Hold rows as Arrow columns.

    There is one array for each column of the tuples; NULL is null. `columns` are arrays of
    PostgreSQL's text. `arrays` are the same columns as they were read: text, or values of the type
    that `waltap.changes.arrow.column` gives the column. A block is a sequence of tuples of text like
    any list of rows, and immutable.
    """

    __slots__ = ("_columns", "_count", "arrays")

    def __init__(self, arrays: "Sequence[pa.Array]", count: int) -> None:
        """Make a block; ``count`` is the length of each column."""
        super().__init__()
        self.arrays = tuple(arrays)
        self._columns: tuple[pa.Array, ...] | None = None
        self._count = count

    @property
    def columns(self) -> "tuple[pa.Array, ...]":
        """Return the columns as text, which is written at the first access."""
        if self._columns is None:
            from waltap.changes.arrow.column import text_column

            self._columns = tuple(map(text_column, self.arrays))
        return self._columns

    def __len__(self) -> int:
        return self._count

    def _part(self, start: int, stop: int) -> "RowBlock":
        count = stop - start
        if count == self._count:
            return self
        return RowBlock([array.slice(start, count) for array in self.arrays], count)

    def _make(self) -> list[Tuple]:
        columns = [texts_of(column) for column in self.columns]
        # A table without columns has rows all the same.
        return list(zip(*columns, strict=True)) if columns else [()] * self._count

    @classmethod
    def of(cls, rows: Sequence[Tuple]) -> "RowBlock | None":
        """Return ``rows``, which are not empty, as a block.

        None if a value is neither text nor NULL.
        """
        if isinstance(rows, cls):
            return rows
        if not _TEXTS.issuperset(map(type, chain.from_iterable(rows))):
            return None
        return cls([pa.array(column, pa.string()) for column in zip(*rows, strict=True)], len(rows))

    @classmethod
    def joined(cls, blocks: "Sequence[RowBlock]") -> "RowBlock":
        """Return ``blocks`` of the same columns as one block."""
        columns = zip(*[block.columns for block in blocks], strict=True)
        return cls([pa.concat_arrays(each) for each in columns], sum(map(len, blocks)))

    @property
    def nbytes(self) -> int:
        """Return the approximate size of the columns in bytes."""
        return sum(array.nbytes for array in self.arrays)

    def chosen(self, indexes: Sequence[int]) -> "RowBlock":
        """Return the columns of ``indexes``, in their order."""
        return RowBlock([self.arrays[index] for index in indexes], self._count)

    def mapped(self, index: int, change: "Callable[[Any], Any]") -> "pa.Array":
        """Return column ``index`` with each value, also NULL, after ``change``.

        ``change`` returns text or None.
        """
        values = [change(value) for value in texts_of(self.columns[index])]
        return pa.array(values, pa.string())
