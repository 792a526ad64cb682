"""Literals as Kafka Connect's Values reads them: ``1``, ``true``, ``2026-01-31``, ``[1, 2]``.

What is none of those is a text as a whole. The schema of a literal is the smallest that holds it.
"""

import math
from decimal import Decimal
from typing import Any

from waltap.mapping.connect_schema import ConnectKind, Schema
from waltap_transforms.connect.java_number import (
    DECIMAL,
    big_decimal,
    decimal_bytes,
    to_double,
    to_integer,
    to_single,
)
from waltap_transforms.connect.simple_date_format import SimpleDateFormat
from waltap_transforms.connect.temporal import DATE, DAY_MS, TIME, TIMESTAMP

__all__ = ["parse_literal"]

Literal = tuple[Schema | None, Any]

LONGEST_WHOLE = 20
"""Digits that are more than a long has."""
DELIMITERS = ':,{}[]"'
TEXT = Schema(kind=ConnectKind.STRING)
TRUTH = Schema(kind=ConnectKind.BOOLEAN)
INTEGERS = (
    (8, Schema(kind=ConnectKind.INT8)),
    (16, Schema(kind=ConnectKind.INT16)),
    (32, Schema(kind=ConnectKind.INT32)),
    (64, Schema(kind=ConnectKind.INT64)),
)
SINGLE, DOUBLE = Schema(kind=ConnectKind.FLOAT32), Schema(kind=ConnectKind.FLOAT64)
WIDTH = {
    kind: rank
    for rank, kind in enumerate(
        (
            ConnectKind.INT8,
            ConnectKind.INT16,
            ConnectKind.INT32,
            ConnectKind.INT64,
            ConnectKind.FLOAT32,
            ConnectKind.FLOAT64,
        )
    )
}
TEMPORAL = {
    len("HH:mm:ss.SSSZ"): ("HH:mm:ss.SSS'Z'", Schema(kind=ConnectKind.INT32, name=TIME, version=1)),
    len("yyyy-MM-ddTHH:mm:ss.SSSZ"): (
        "yyyy-MM-dd'T'HH:mm:ss.SSS'Z'",
        Schema(kind=ConnectKind.INT64, name=TIMESTAMP, version=1),
    ),
    len("yyyy-MM-dd"): ("yyyy-MM-dd", Schema(kind=ConnectKind.INT32, name=DATE, version=1)),
}


class _NoLiteral(Exception):
    """The text is no array or map after all."""


def parse_literal(text: str) -> Literal:
    """Return schema and value of a literal; null has neither.

    Raises: ValueError for an array or map whose elements have no schema in common.
    """
    if not text:
        return TEXT, text
    return _LiteralReader(text).literal(embedded=False)


class _LiteralReader:
    """A text, split at delimiters that no backslash precedes, and how far it has been read."""

    def __init__(self, text: str) -> None:
        self._text = text
        self._tokens = _split(text)
        self._at = 0
        self._last = ""

    def _next(self) -> str:
        if self._at >= len(self._tokens):
            raise _NoLiteral
        self._last = self._tokens[self._at]
        self._at += 1
        return self._last

    def _took(self, token: str) -> bool:
        """Step over ``token`` where it comes next; blanks around it do not count."""
        at = self._at
        while at < len(self._tokens) - 1 and not self._tokens[at].strip():
            at += 1
        if at < len(self._tokens) and self._tokens[at].strip() == token:
            self._last = self._tokens[at]
            self._at = at + 1
            return True
        return False

    @property
    def _ended(self) -> bool:
        return self._at >= len(self._tokens)

    def literal(self, *, embedded: bool) -> Literal:
        """Return the next literal; ``embedded``: in an array or map."""
        if self._ended:
            return None, None
        if embedded and self._took('"'):
            return self._quoted()
        begin = self._at
        for word, found in (
            ("null", (None, None)),
            ("true", (TRUTH, True)),
            ("false", (TRUTH, False)),
        ):
            if self._took(word) and (embedded or self._ended):
                return found
            self._at = begin
        try:
            if self._took("["):
                return self._array()
            if self._took("{"):
                return self._map()
        except _NoLiteral:
            self._at = begin
        token = self._next()
        if not token.strip():
            return TEXT, token
        return self._token(token.strip(), embedded=embedded)

    def _token(self, token: str, *, embedded: bool) -> Literal:
        if token[0].isdigit():
            found = self._temporal(token)
            if found is not None:
                return found
        if token[0].isdigit() or token[0] in "+-":
            try:
                return _number(big_decimal(token))
            except ValueError:
                pass
        if embedded:
            raise _NoLiteral
        return TEXT, self._text

    def _temporal(self, token: str) -> Literal | None:
        """Read a date or time; colons cut a time into five tokens."""
        if self._at + 4 <= len(self._tokens):
            found = _temporal(token + "".join(self._tokens[self._at : self._at + 4]))
            if found is not None:
                self._at += 4
                return found
        return _temporal(token)

    def _quoted(self) -> Literal:
        content = ""
        while not self._ended and not self._took('"'):
            content += self._next()
        return _temporal(content) or (TEXT, content)

    def _array(self) -> Literal:
        values: list[Any] = []
        merged = _MergedSchema()
        while not self._ended:
            if self._took("]"):
                schema = merged.shared()
                return Schema(kind=ConnectKind.ARRAY, items=schema), [
                    _aligned(v, schema) for v in values
                ]
            if self._took(","):
                raise _NoLiteral
            of, value = self.literal(embedded=True)
            merged.add(of)
            values.append(value)
            at = self._at
            if self._took("]"):
                self._at = at
            elif not self._took(","):
                raise _NoLiteral
        raise _NoLiteral

    def _map(self) -> Literal:
        found: dict[Any, Any] = {}
        keys, values = _MergedSchema(), _MergedSchema()
        while not self._ended:
            if self._took("}"):
                key, value = keys.shared(), values.shared()
                aligned = {_aligned(k, key): _aligned(v, value) for k, v in found.items()}
                return Schema(kind=ConnectKind.MAP, keys=key, values=value), aligned
            if self._took(","):
                raise _NoLiteral
            of_key, key_found = self.literal(embedded=True)
            if key_found is None or isinstance(key_found, list | dict) or not self._took(":"):
                raise _NoLiteral
            of_value, found[key_found] = self.literal(embedded=True)
            self._took(",")
            keys.add(of_key)
            values.add(of_value)
        raise _NoLiteral


class _MergedSchema:
    """The schema that elements share: the widest of numbers, one that all have, or none."""

    def __init__(self) -> None:
        self._schema: Schema | None = None
        self._mixed = False

    def shared(self) -> Schema:
        """Return it. Raises: ValueError where there is none."""
        if self._schema is None:
            raise ValueError("the elements of an array or map must be of one type, and some")
        return self._schema

    def add(self, schema: Schema | None) -> None:
        """Take an element's schema into account."""
        if schema is None or self._mixed:
            return
        if self._schema is None:
            self._schema = schema
        elif schema.kind is not self._schema.kind:
            numbers = schema.kind in WIDTH and self._schema.kind in WIDTH
            widest = max(schema, self._schema, key=lambda each: WIDTH.get(each.kind, 0))
            self._schema = widest if numbers else None
            self._mixed = not numbers
        else:
            self._schema = schema


def _aligned(value: Any, schema: Schema) -> Any:
    """Return a number as one of the type that all share."""
    if value is None:
        raise _NoLiteral
    if schema.kind is ConnectKind.FLOAT32:
        return to_single(value)
    if schema.kind is ConnectKind.FLOAT64:
        return to_double(value)
    return value


def _split(text: str) -> list[str]:
    tokens: list[str] = []
    token, escaped = "", False
    for letter in text:
        if letter in DELIMITERS and not escaped:
            tokens += [token, letter] if token else [letter]
            token = ""
            continue
        escaped = letter == "\\" and not escaped
        token += letter
    return [*tokens, token] if token else tokens


def _temporal(text: str) -> Literal | None:
    text = text.replace("\\:", ":")
    if len(text) not in TEMPORAL:
        return None
    pattern, schema = TEMPORAL[len(text)]
    try:
        instant = SimpleDateFormat(pattern).parse(text)
    except ValueError:
        return None
    if schema.name == TIME and not 0 <= instant < DAY_MS:
        raise ValueError(f"{text} is no time of a day")
    return schema, instant // DAY_MS if schema.name == DATE else instant


def _number(number: Decimal) -> Literal:
    exponent = number.as_tuple().exponent
    assert isinstance(exponent, int)
    if number.adjusted() < LONGEST_WHOLE and number == number.to_integral_value():
        whole = int(number)
        for bits, schema in INTEGERS:
            if whole == to_integer(whole, bits):
                return schema, whole
    if exponent and not math.isinf(to_single(number)):
        return SINGLE, to_single(number)
    if exponent and not math.isinf(to_double(number)):
        return DOUBLE, to_double(number)
    schema = Schema(
        kind=ConnectKind.BYTES, name=DECIMAL, version=1, parameters=(("scale", str(-exponent)),)
    )
    return schema, decimal_bytes(number, -exponent)
