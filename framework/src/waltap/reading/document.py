"""What the bytes of a key, a value or a header mean."""

import base64
import json
import math
from collections.abc import Mapping
from dataclasses import dataclass
from decimal import Decimal
from typing import Any, Final

from waltap.reading.stored_record import DecodedDocument, RecordDecoder

__all__ = ["DocumentReader", "ReadDocument", "json_text"]

NOTHING: Final = "null"
BYTES: Final = "bytes"
DEEPEST: Final = 4
"""Documents within documents: Avro in the data of a CloudEvent."""
DEEPEST_VALUE: Final = 200


@dataclass(frozen=True, slots=True, kw_only=True)
class ReadDocument:
    """A value that was read. ``form``: null, json, json with schema, text, bytes, or a decoder's."""

    value: Any
    form: str
    problem: str | None = None

    @property
    def envelope(self) -> Mapping[str, Any] | None:
        """Return the envelope of a change event in it, None where there is none."""
        value = self.value
        if isinstance(value, dict) and value.get("op") and isinstance(value.get("source"), dict):
            return value
        if isinstance(value, dict) and isinstance(value.get("data"), dict):
            return _of_cloud_event(value, value["data"])
        return None


class DocumentReader:
    """Makes documents of bytes. Whatever they are, there is one."""

    def __init__(self, decoder: RecordDecoder | None) -> None:
        self._decoder = decoder

    def of(self, data: bytes | None) -> ReadDocument:
        """Return what ``data`` means. Raises: WaltapError when the decoder cannot ask for schemas."""
        return self._of(data, 0)

    def value_of(
        self, data: bytes | None, headers: tuple[tuple[str, bytes | None], ...]
    ) -> ReadDocument:
        """Return what a value means, which headers may make the data of a CloudEvent. Raises: as `of`."""
        found = self.of(data)
        event = {
            name[3:]: (value or b"").decode("utf-8", "replace")
            for name, value in headers
            if name.startswith("ce_")
        }
        if "specversion" not in event or not isinstance(found.value, dict):
            return found
        whole = {**event, "data": found.value}
        return ReadDocument(value=whole, form=f"cloudevent, {found.form}")

    def _of(self, data: bytes | None, depth: int) -> ReadDocument:
        if data is None:
            return ReadDocument(value=None, form=NOTHING)
        if data[:1] == b"\x00":
            found = self._decoder.decode(data) if self._decoder is not None else None
            if found is None:
                return ReadDocument(value=data, form=BYTES)
            if found.problem is not None:
                return ReadDocument(value=data, form=BYTES, problem=found.problem)
            return self._unfolded(found, depth)
        try:
            text = data.decode()
        except UnicodeDecodeError:
            return ReadDocument(value=data, form=BYTES)
        try:
            value = json.loads(text, parse_constant=_no_json)
        except (ValueError, RecursionError):
            return _as_text(text, data)
        if _is_deep(value):
            return _as_text(text, data)
        if isinstance(value, dict) and value.keys() == {"schema", "payload"}:
            return ReadDocument(value=value["payload"], form="json with schema")
        return self._unfolded(DecodedDocument(document=value, form="json"), depth)

    def _unfolded(self, found: DecodedDocument, depth: int) -> ReadDocument:
        """Return the document; the data of a CloudEvent is read, too."""
        value, form = found.document, found.form
        if _is_deep(value):
            return ReadDocument(value=None, form=form, problem="nested too deeply to be shown")
        if not (isinstance(value, dict) and "specversion" in value and "data" in value):
            return ReadDocument(value=value, form=form)
        inner, data = None, value["data"]
        if depth < DEEPEST and isinstance(data, bytes):
            inner = self._of(data, depth + 1)
        elif (
            depth < DEEPEST
            and isinstance(data, str)
            and "avro" in str(value.get("datacontenttype"))
        ):
            try:
                inner = self._of(base64.b64decode(data, validate=True), depth + 1)
            except ValueError:
                inner = None
        elif isinstance(data, dict) and data.keys() == {"schema", "payload"}:
            return ReadDocument(
                value={**value, "data": data["payload"]}, form=f"cloudevent, {form}"
            )
        if inner is not None and inner.problem is None:
            value = {**value, "data": inner.value}
        return ReadDocument(
            value=value,
            form=f"cloudevent, {form}",
            problem=None if inner is None else inner.problem,
        )


def _as_text(text: str, data: bytes) -> ReadDocument:
    if all(letter.isprintable() or letter in "\t\r\n" for letter in text):
        return ReadDocument(value=text, form="text")
    return ReadDocument(value=data, form=BYTES)


def json_text(value: Any) -> str:
    """Return ``value`` as JSON on one line: bytes as base64, decimals as texts, numbers that JSON lacks as
    texts."""
    plain = _plain(value)
    text = json.dumps(plain, ensure_ascii=False, separators=(",", ":"))
    try:
        text.encode()
    except UnicodeEncodeError:  # half of a pair, as JSON may have by an escape
        return json.dumps(plain, separators=(",", ":"))
    return text


def _plain(value: Any) -> Any:
    if isinstance(value, dict):
        return {str(name): _plain(each) for name, each in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(each) for each in value]
    if isinstance(value, bytes):
        return base64.b64encode(value).decode()
    if isinstance(value, Decimal):
        return f"{value:f}" if value.is_finite() else str(value)
    if isinstance(value, float) and not math.isfinite(value):
        return str(value)
    if value is None or isinstance(value, bool | int | float | str):
        return value
    return str(value)


def _is_deep(value: Any) -> bool:
    layer = [value]
    for _ in range(DEEPEST_VALUE):
        layer = [
            each
            for part in layer
            if isinstance(part, dict | list)
            for each in (part.values() if isinstance(part, dict) else part)
        ]
        if not layer:
            return False
    return True


def _no_json(word: str) -> Any:
    raise ValueError(f"{word} is no JSON")


EXTENSION: Final = "iodebezium"


def _of_cloud_event(event: Mapping[str, Any], data: dict[str, Any]) -> Mapping[str, Any] | None:
    """Return the envelope that Debezium's extension attributes and the data of a CloudEvent tell."""
    operation = event.get(f"{EXTENSION}op")
    if not operation or not ("before" in data or "after" in data):
        return None
    source = {
        name.removeprefix(EXTENSION): value
        for name, value in event.items()
        if name.startswith(EXTENSION)
    }
    return {**data, "op": operation, "source": source}
