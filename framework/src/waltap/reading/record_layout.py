"""Lines of records: changes as the terminal shows them, and other documents as they are."""

from collections.abc import Iterator, Mapping
from typing import Any, Final

from waltap.printable import printable
from waltap.reading.document import DocumentReader, ReadDocument, json_text
from waltap.reading.stored_record import StoredRecord
from waltap.sink.terminal_style import TerminalStyle

__all__ = ["RecordLayout", "json_line"]

WORDS: Final = {
    "r": "READ",
    "c": "INSERT",
    "u": "UPDATE",
    "d": "DELETE",
    "t": "TRUNCATE",
    "m": "MESSAGE",
}
UNSENT: Final = "__debezium_unavailable_value"


def json_line(record: StoredRecord, documents: DocumentReader) -> str:
    """Return a record as a JSON object on a line. Raises: as `DocumentReader.of`."""
    key, value = documents.of(record.key), documents.value_of(record.value, record.headers)
    found = {
        "topic": record.topic,
        "partition": record.partition,
        "offset": record.offset,
        "timestamp": record.timestamp,
        "key": key.value,
        "value": value.value,
        "headers": [
            {"key": name, "value": documents.of(data).value} for name, data in record.headers
        ],
        "key_format": key.form,
        "value_format": value.form,
    }
    for name, document in (("key_problem", key), ("value_problem", value)):
        if document.problem is not None:
            found[name] = document.problem
    return f"{json_text(found)}\n"


class RecordLayout:
    """Makes lines of records. ``named``: the topic stands in each."""

    def __init__(self, ink: TerminalStyle, documents: DocumentReader, *, named: bool) -> None:
        self._ink, self._documents, self._named = ink, documents, named

    def line(self, record: StoredRecord) -> str:
        """Return the line of a record: time, partition@offset, what happened.

        Raises: as `DocumentReader.of`.
        """
        ink = self._ink
        key = self._documents.of(record.key)
        value = self._documents.value_of(record.value, record.headers)
        topic = f"{printable(record.topic)}/" if self._named else ""
        clock = "" if record.timestamp is None else self._clock(record.timestamp)
        place = f"{ink.dim}{topic}{record.partition}@{record.offset}{ink.plain} "
        return f"{clock}{place}{self._told(key, value)}{self._tail(record, value)}\n"

    def _clock(self, timestamp: int) -> str:
        try:
            return self._ink.clock(timestamp * 1000)
        except (ValueError, OverflowError, OSError):  # a producer may say any number
            return f"{self._ink.dim}{timestamp}{self._ink.plain} "

    def _told(self, key: ReadDocument, value: ReadDocument) -> str:
        ink = self._ink
        if value.form == "null":
            return f"{ink.head('TOMBSTONE')}{self._shown(key)}"
        envelope = value.envelope
        word = WORDS.get(str(envelope["op"])) if envelope is not None else None
        if envelope is None or word is None:
            before = "" if key.form == "null" else f"{self._shown(key)} {ink.dim}→{ink.plain} "
            return f"{ink.head('RECORD')}{before}{self._shown(value)}"
        if word == "MESSAGE":
            return f"{ink.head(word)}{printable(json_text(envelope.get('message')))}"
        source = envelope["source"]
        space = source.get("schema") or source.get("db") or ""
        table = printable(".".join(str(part) for part in (space, source.get("table")) if part))
        cells = " ".join(self._cells(key, envelope))
        return f"{ink.head(word)}{ink.bold}{table}{ink.plain}{'  ' if cells else ''}{cells}"

    def _cells(self, key: ReadDocument, envelope: Mapping[str, Any]) -> Iterator[str]:
        """Give the columns of a change, the key's first; those that an update changed with both values."""
        before, after = envelope.get("before"), envelope.get("after")
        row = after if isinstance(after, dict) else before
        if not isinstance(row, dict):
            return
        old = before if row is after and isinstance(before, dict) else {}
        keys = key.value if isinstance(key.value, dict) else {}
        dim, plain = self._ink.dim, self._ink.plain
        for name in sorted(row, key=lambda name: name not in keys):
            value, was = row[name], old.get(name, row[name])
            cell = f"{dim}{printable(str(name))}={plain}"
            if value == UNSENT and was == UNSENT:
                continue
            if value == UNSENT or was in (value, UNSENT):
                yield f"{cell}{self._value(was if value == UNSENT else value)}"
            else:
                yield f"{cell}{self._value(was)} {dim}→{plain} {self._value(value)}"

    def _value(self, value: Any) -> str:
        if value is None:
            return f"{self._ink.dim}NULL{self._ink.plain}"
        if isinstance(value, str):
            return f"'{self._ink.cut(printable(value))}'"
        if isinstance(value, bytes):
            return self._ink.cut(f"\\x{value.hex()}")
        text = json_text(value)
        return self._ink.cut(printable(text.strip('"')))

    def _shown(self, document: ReadDocument) -> str:
        """Return a document whole, bytes escaped."""
        value = document.value
        if document.form == "null":
            return f"{self._ink.dim}no key{self._ink.plain}"
        if isinstance(value, bytes):
            return repr(value)[2:-1]
        return printable(value if document.form == "text" else json_text(value))

    def _tail(self, record: StoredRecord, value: ReadDocument) -> str:
        """Return headers, and what is wrong with the value."""
        parts = [
            f"{printable(name)}={self._shown(self._documents.of(data)) if data is not None else 'NULL'}"
            for name, data in record.headers
        ]
        problem = [] if value.problem is None else [f"({printable(value.problem)})"]
        if not parts and not problem:
            return ""
        headers = [f"[{' '.join(parts)}]"] if parts else []
        return f"  {self._ink.dim}{' '.join(headers + problem)}{self._ink.plain}"
