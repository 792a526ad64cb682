"""Records as lines: one JSON object each, ``{"topic", "key", "value", "headers"}``.

Key, value and header values of JSON records stand in the line as the JSON they are; null for a
tombstone's value and for a record without key. ``partition`` is there when a record names one.
"""

from collections.abc import Iterable, Iterator

from waltap.format.record import Header, Record
from waltap.format.record_block import RecordBlock
from waltap.json.schema import quote

__all__ = ["JsonLines"]

_BARE = b',"headers":[]}\n'


PREFIXES_KEPT = 20_000
"""Topics whose beginning of a line is kept."""


class JsonLines:
    """Turns JSON records into lines; what is constant per topic or header list is made once."""

    __slots__ = ("_headers", "_prefixes", "_suffix")

    def __init__(self) -> None:
        self._prefixes: dict[str, bytes] = {}
        self._headers: tuple[Header, ...] = ()
        self._suffix = _BARE

    def line(self, record: Record) -> bytes:
        """Return the line of ``record``, with its newline."""
        return self.lines((record,))

    def portions(self, records: Iterable[Record]) -> Iterator[bytes | memoryview]:
        """Yield the lines of ``records``, some at a time. Another thread may go through them: all but
        putting together was done when this returns."""
        if not isinstance(records, RecordBlock):
            return iter((self.lines(records),))
        suffix = _suffix(records.headers) if records.headers else _BARE
        prefix = self._prefix(records.topic)
        return records.lines(prefix.decode(), ',"value":', suffix.decode())

    def lines(self, records: Iterable[Record]) -> bytes:
        """Return the lines of ``records``, each with its newline."""
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
                suffix = _suffix(headers) if headers else _BARE
            if record.partition is not None:
                append(b',"partition":%d' % record.partition)
            append(suffix)
        self._headers, self._suffix = headers, suffix
        return b"".join(out)

    def _prefix(self, topic: str) -> bytes:
        if len(self._prefixes) >= PREFIXES_KEPT:
            self._prefixes.clear()
        prefix = self._prefixes[topic] = f'{{"topic":{quote(topic)},"key":'.encode()
        return prefix


def _suffix(headers: tuple[Header, ...]) -> bytes:
    """Return the end of a line of a record with ``headers``."""
    items = b",".join(b'{"key":%b,"value":%b}' % (quote(n).encode(), v) for n, v in headers)
    return b',"headers":[%b]}\n' % items
