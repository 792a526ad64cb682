"""Keep rows that were read together as columns.

Snapshots and decoders make blocks; a reader that works on columns gets them as they are.
"""

import functools
from collections.abc import Callable, Iterator, Sequence
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any, overload

from waltap.changes.decode.tuple_image import Tuple

if TYPE_CHECKING:
    import pyarrow as pa


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


class RowBlock(Sequence[Tuple]):
    """Hold rows as Arrow columns of PostgreSQL's text.

    There is one array of strings for each column of the tuples; NULL is null. A block is a
    sequence of tuples like any list of rows, and immutable. It makes the tuples at the first
    access and keeps them; slices share the columns.
    """

    __slots__ = ("_count", "_tuples", "columns")

    def __init__(self, columns: "Sequence[pa.Array]", count: int) -> None:
        """Make a block; ``count`` is the length of each column."""
        self.columns = tuple(columns)
        self._count = count
        self._tuples: list[Tuple] | None = None

    def __len__(self) -> int:
        return self._count

    @overload
    def __getitem__(self, index: int) -> Tuple: ...

    @overload
    def __getitem__(self, index: slice) -> Sequence[Tuple]: ...

    def __getitem__(self, index: int | slice) -> Tuple | Sequence[Tuple]:
        if isinstance(index, slice):
            start, stop, step = index.indices(self._count)
            # Arrow slices without a copy only in steps of one.
            if step != 1:
                return self.tuples()[index]
            count = max(0, stop - start)
            return RowBlock([column.slice(start, count) for column in self.columns], count)
        return self.tuples()[index]

    def __iter__(self) -> Iterator[Tuple]:
        return iter(self.tuples())

    def tuples(self) -> list[Tuple]:
        """Return the rows."""
        if self._tuples is None:
            columns = [texts_of(column) for column in self.columns]
            # A table without columns has rows all the same.
            self._tuples = list(zip(*columns, strict=True)) if columns else [()] * self._count
        return self._tuples

    @property
    def nbytes(self) -> int:
        """Return the approximate size of the columns in bytes."""
        return sum(column.nbytes for column in self.columns)

    def chosen(self, indexes: Sequence[int]) -> "RowBlock":
        """Return the columns of ``indexes``, in their order."""
        return RowBlock([self.columns[index] for index in indexes], self._count)

    def mapped(self, index: int, change: "Callable[[Any], Any]") -> "pa.Array":
        """Return column ``index`` with each value, also NULL, after ``change``.

        ``change`` returns text or None.
        """
        # pyarrow is an optional dependency; only a process that has a block has it.
        import pyarrow as pa

        values = [change(value) for value in texts_of(self.columns[index])]
        return pa.array(values, pa.string())
