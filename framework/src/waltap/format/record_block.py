"""Records as columns: those of many rows of one table, for sinks that can take them so."""

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, overload

from waltap.format.record import Header, Record

if TYPE_CHECKING:
    import pyarrow as pa

__all__ = ["RecordBlock"]


class RecordBlock(Sequence[Record]):
    """Records for one topic, as Arrow arrays of UTF-8; no value is null. It is a sequence of records like
    any list of them: they are made when somebody asks for them, and kept. Immutable.

    ``chunks`` are (keys, values), in order; keys None: the records have none. ``headers`` are those of
    every record.
    """

    __slots__ = ("_count", "_records", "chunks", "headers", "topic")

    def __init__(
        self,
        topic: str,
        chunks: "Sequence[tuple[pa.StringArray | None, pa.StringArray]]",
        headers: tuple[Header, ...],
    ) -> None:
        self.topic, self.chunks, self.headers = topic, tuple(chunks), headers
        self._count = sum(len(values) for _, values in self.chunks)
        self._records: list[Record] | None = None

    def __len__(self) -> int:
        return self._count

    @overload
    def __getitem__(self, index: int) -> Record: ...

    @overload
    def __getitem__(self, index: slice) -> Sequence[Record]: ...

    def __getitem__(self, index: int | slice) -> Record | Sequence[Record]:
        return self.records()[index]

    def __iter__(self) -> Iterator[Record]:
        return iter(self.records())

    def records(self) -> list[Record]:
        """Return the records."""
        if self._records is None:
            made: list[Record] = []
            topic, headers = self.topic, self.headers
            for keys, values in self.chunks:
                all_values = _bytes_of(values)
                all_keys = [None] * len(all_values) if keys is None else _bytes_of(keys)
                made += [
                    Record(topic, key, value, headers)
                    for key, value in zip(all_keys, all_values, strict=True)
                ]
            self._records = made
        return self._records


def _bytes_of(texts: "pa.StringArray") -> list[bytes]:
    import pyarrow as pa

    found: list[bytes] = texts.cast(pa.binary()).to_numpy(zero_copy_only=False).tolist()
    return found
