"""A side whose rows are read as they are and hashed here: what needs no SQL of a destination's own."""

from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

from waltap.sink.verification import Row, Rows, by_key
from waltap_sinks.comparison.common_text import reader_of
from waltap_sinks.comparison.row_hash import bucket_of, hash_of

__all__ = ["RowSide"]


class RowSide:
    """One table's columns, read whole at each call.

    ``read`` gives the rows, values in the order of ``columns``, which are (name, ``pg_type.typname``).
    """

    def __init__(
        self,
        read: Callable[[], Iterable[Sequence[Any]]],
        columns: Sequence[tuple[str, str]],
        key: Sequence[str],
    ) -> None:
        self._read = read
        self._readers = [reader_of(type_) for _, type_ in columns]
        names = [name for name, _ in columns]
        self._key = [names.index(name) for name in key]

    def _texts(self) -> Iterator[Row]:
        readers = self._readers
        for row in self._read():
            yield tuple(
                [
                    None if value is None else text(value)
                    for text, value in zip(readers, row, strict=True)
                ]
            )

    def _keyed(self) -> Iterator[tuple[Row, Row]]:
        for row in self._texts():
            yield tuple([row[n] for n in self._key]), row

    def whole(self) -> tuple[int, int]:
        """Return count and sum of all rows."""
        count = total = 0
        for row in self._texts():
            count, total = count + 1, total + hash_of(row)
        return count, total

    def sums(self) -> dict[str, tuple[int, int]]:
        """Return count and sum of each bucket."""
        found: dict[str, tuple[int, int]] = {}
        for key, row in self._keyed():
            bucket = bucket_of(key)
            count, total = found.get(bucket, (0, 0))
            found[bucket] = count + 1, total + hash_of(row)
        return found

    def rows(self, buckets: Sequence[str]) -> Rows:
        """Return the rows of ``buckets``."""
        wanted = set(buckets)
        return by_key((key, row) for key, row in self._keyed() if bucket_of(key) in wanted)

    def of_keys(self, keys: set[Row]) -> Rows:
        """Return the rows of ``keys``."""
        return by_key((key, row) for key, row in self._keyed() if key in keys)
