"""Records of many rows of one table, stored as columns."""

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, overload

from waltap.changes.events.record import Header, Record
from waltap.encoders.format.text_rows import TextRows

if TYPE_CHECKING:
    import pyarrow as pa

__all__ = ["RecordBlock"]


class RecordBlock(Sequence[Record]):
    """Hold records for one topic as Arrow arrays of UTF-8.

    No value is null. The block is also a sequence of records, which it makes at the first access.
    Immutable.

    ``chunks`` are pairs of keys and values in order; keys None means records without key. `TextRows` are
    texts that are not joined yet. Every record has ``headers``.
    """

    __slots__ = ("_chunks", "_count", "_records", "headers", "topic")

    def __init__(
        self,
        topic: str,
        chunks: "Sequence[tuple[pa.StringArray | TextRows | None, pa.StringArray | TextRows]]",
        headers: tuple[Header, ...],
    ) -> None:
        self.topic, self.headers = topic, headers
        self._chunks = [
            (keys if keys is None else _rows(keys), _rows(values)) for keys, values in chunks
        ]
        self._count = sum(len(values) for _, values in self._chunks)
        self._records: list[Record] | None = None

    @property
    def chunks(self) -> "Iterator[tuple[pa.StringArray | None, pa.StringArray]]":
        """Yield keys and values as arrays, in order.

        Keys None means records without key.
        """
        for keys, values in self._chunks:
            yield None if keys is None else keys.array(), values.array()

    def lines(self, before: str, between: str, after: str) -> Iterator[memoryview]:
        """Yield the text of all records, some at a time.

        These texts surround each record's key (null without one) and value. Any thread may call this.
        """
        for keys, values in self._chunks:
            key = ("null",) if keys is None else keys.pieces
            yield from values.within([before, *key, between], after).texts()

    def value_bytes(self) -> Iterator[int]:
        """Join keys and values, and yield the values' sizes in bytes."""
        for keys, values in self._chunks:
            # The keys are joined for the side effect only.
            for _ in () if keys is None else keys.texts():
                pass
            yield from map(len, values.texts())

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


def _rows(texts: "pa.StringArray | TextRows") -> TextRows:
    return texts if isinstance(texts, TextRows) else TextRows([texts], len(texts))


def _bytes_of(texts: "pa.StringArray") -> list[bytes]:
    import pyarrow as pa

    found: list[bytes] = texts.cast(pa.binary()).to_numpy(zero_copy_only=False).tolist()
    return found
