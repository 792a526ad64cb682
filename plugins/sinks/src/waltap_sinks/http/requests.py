"""Turn records into requests. Sans-IO."""

import base64
import zlib
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Final
from urllib.parse import quote

import msgspec

from waltap.changes.events.event import Header, Record
from waltap.encoders.json.lines import JsonLines
from waltap_sinks.http.properties import HttpProperties

JSON: Final = "application/json"
# The prefix of headers in Kafka's binding of CloudEvents; the HTTP binding has a dash.
CLOUD_EVENTS: Final = "ce_"
# Printable ASCII without "%", so that receivers can decode it unambiguously.
PLAIN: Final = "".join(chr(code) for code in range(0x20, 0x7F)).replace("%", "")


class HttpRequest(msgspec.Struct, frozen=True, kw_only=True):
    """Hold a body with its headers."""

    body: bytes
    headers: dict[str, str]
    # The records in the body.
    held: Sequence[Record]


Pack = Callable[[Sequence[Record]], Iterator[HttpRequest]]


def shards_of(records: Iterable[Record], count: int) -> list[list[Record]]:
    """Distribute ``records`` among ``count`` lists by topic and key.

    Each list keeps the order.
    """
    if count == 1:
        return [list(records)]
    shared: list[list[Record]] = [[] for _ in range(count)]
    for record in records:
        key = record.topic.encode() if record.key is None else record.key
        shared[zlib.crc32(key) % count].append(record)
    return [shard for shard in shared if shard]


def packer(properties: HttpProperties) -> Pack:
    """Return the conversion of records to requests, in order."""
    body, tombstones = properties.body, properties.tombstones
    most, most_bytes = properties.batch_records, properties.batch_bytes
    if body == "record":
        return lambda records: _singles(records, properties)
    line = JsonLines().line
    begin, between, end, kind = b"[", b",", b"]", JSON
    if body == "lines":
        begin, between, end, kind = b"", b"", b"", "application/x-ndjson"
    elif body == "cloudevents":
        kind, tombstones = "application/cloudevents-batch+json", False

    def item(record: Record) -> bytes:
        if body == "cloudevents":
            return record.value or b""
        return line(record) if body == "lines" else line(record)[:-1]

    def many(records: Sequence[Record]) -> Iterator[HttpRequest]:
        bodies: list[bytes] = []
        held: list[Record] = []
        size = 0
        for record in records:
            if record.value is None and not tombstones:
                continue
            made = item(record)
            if bodies and (len(bodies) >= most or size + len(made) > most_bytes):
                yield _joined(bodies, held)
                bodies, held, size = [], [], 0
            bodies.append(made)
            held.append(record)
            size += len(made) + len(between)
        if bodies:
            yield _joined(bodies, held)

    def _joined(items: list[bytes], held: list[Record]) -> HttpRequest:
        body = begin + between.join(items) + end
        return HttpRequest(body=body, headers={"Content-Type": kind}, held=held)

    return many


def _singles(records: Iterable[Record], properties: HttpProperties) -> Iterator[HttpRequest]:
    prefix, encode = properties.prefix, properties.encode
    for record in records:
        if record.value is None and not properties.tombstones:
            continue
        headers = {"Content-Type": JSON, f"{prefix}TOPIC": _plain(record.topic)}
        if record.key is not None:
            headers[f"{prefix}KEY"] = _value(record.key, encode=encode)
        for header in record.headers:
            name, value = _header(header, prefix, encode=encode)
            headers[name] = value
        yield HttpRequest(body=record.value or b"", headers=headers, held=(record,))


def _header(header: Header, prefix: str, *, encode: bool) -> tuple[str, str]:
    name, value = header
    # CloudEvents in binary mode carry the type of the data in this header.
    if name.lower() == "content-type":
        return "Content-Type", _plain(_unquoted(value))
    if name.startswith(CLOUD_EVENTS):
        return f"ce-{name[len(CLOUD_EVENTS) :]}", _plain(_unquoted(value))
    return f"{prefix}{_token(name)}", _value(value, encode=encode)


def _unquoted(value: bytes) -> str:
    """Return the text of a header whose value may be JSON."""
    if value[:1] == b'"':
        return str(msgspec.json.decode(value))
    return value.decode("utf-8", "replace")


def _value(value: bytes, *, encode: bool) -> str:
    return base64.b64encode(value).decode() if encode else _plain(value.decode("utf-8", "replace"))


def _plain(text: str) -> str:
    """Return a text for HTTP; only printable ASCII is not percent-encoded."""
    return quote(text, safe=PLAIN)


def _token(name: str) -> str:
    """Return a header's name with valid characters."""
    return "".join(
        c if c.isascii() and (c.isalnum() or c in "!#$&'*+.^_`|~-") else "_" for c in name
    )
