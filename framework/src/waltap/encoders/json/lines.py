"""Write records as lines of JSON objects.

An object has the members topic, key, value and headers. The line contains key, value and header
values of JSON records unchanged. A tombstone's value and a missing key are null. ``partition`` is
present when a record names one.
"""

from collections.abc import Iterable, Iterator, Sequence
from itertools import chain
from typing import Final

from waltap.base.cache import BoundedDict
from waltap.changes.events.event import Header, Record
from waltap.changes.mapping.json_schema import quote
from waltap.encoders.format.record_block import MixedRecords, RecordBlock

# Topics whose line start is cached.
MAX_PREFIXES = 20_000


# Texts of lines that are joined: some hundred KiB of usual records.
JOINED_TEXTS: Final = 1024


class JsonLines:
    """Write JSON records as lines."""

    __slots__ = ("_headers", "_prefixes", "_suffix")

    def __init__(self) -> None:
        self._prefixes = BoundedDict[str, bytes](MAX_PREFIXES)
        # The last header list and its text: most records share one list.
        self._headers: tuple[Header, ...] = ()
        self._suffix = _suffix(())

    def line(self, record: Record) -> bytes:
        """Return the line of one record, with its newline."""
        return self.lines((record,))

    def portions(self, records: Sequence[Record]) -> Iterator[bytes | memoryview]:
        """Yield the lines of ``records``, some at a time."""
        # This is no generator: another thread may consume the result, which only joins texts then.
        if isinstance(records, MixedRecords):
            return chain.from_iterable([self.portions(piece) for piece in records.pieces])
        if not isinstance(records, RecordBlock):
            texts = self._texts(records)
            # A few texts at a time, to reuse memory.
            starts = range(0, len(texts), JOINED_TEXTS)
            if len(starts) > 1:
                return (b"".join(texts[start : start + JOINED_TEXTS]) for start in starts)
            return iter((b"".join(texts),))
        prefix = self._prefix(records.topic)
        return records.lines(prefix.decode(), ',"value":', _suffix(records.headers).decode())

    def lines(self, records: Iterable[Record]) -> bytes:
        """Return the lines of ``records``, each with its newline."""
        return b"".join(self._texts(records))

    def _texts(self, records: Iterable[Record]) -> list[bytes]:
        prefixes = self._prefixes
        out: list[bytes] = []
        append = out.append
        headers, suffix = self._headers, self._suffix
        for record in records:
            topic, key, value = record.topic, record.key, record.value
            try:
                append(prefixes[topic])
            except KeyError:
                append(self._prefix(topic))
            append(b"null" if key is None else key)
            append(b',"value":')
            append(b"null" if value is None else value)
            if record.headers is not headers:
                headers = record.headers
                suffix = _suffix(headers)
            if record.partition is not None:
                append(b',"partition":%d' % record.partition)
            append(suffix)
        self._headers, self._suffix = headers, suffix
        return out

    def _prefix(self, topic: str) -> bytes:
        prefix = self._prefixes[topic] = f'{{"topic":{quote(topic)},"key":'.encode()
        return prefix


def _suffix(headers: tuple[Header, ...]) -> bytes:
    """Return the end of the line of a record with ``headers``."""
    items = b",".join(b'{"key":%b,"value":%b}' % (quote(n).encode(), v) for n, v in headers)
    return b',"headers":[%b]}\n' % items
