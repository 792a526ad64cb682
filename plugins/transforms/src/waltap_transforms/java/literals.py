"""Literals in the syntax of Kafka Connect's class Values.

Examples are ``1``, ``true``, ``2026-01-31`` and ``[1, 2]``. Any other literal is a text as a whole.
Each literal gets the smallest schema that fits its value.
"""

import math
from decimal import Decimal
from typing import Any

from waltap.changes.mapping.connect_schema import (
    DATE,
    DECIMAL,
    TIME,
    TIMESTAMP,
    ConnectKind,
    Schema,
)
from waltap_transforms.java.dates import DAY_MS, SimpleDateFormat
from waltap_transforms.java.numbers import (
    big_decimal,
    decimal_bytes,
    to_double,
    to_integer,
    to_single,
)

Literal = tuple[Schema | None, Any]

# A long has at most 19 digits; a longer number is not converted to an integer at all.
LONGEST_WHOLE = 20
DELIMITERS = ':,{}[]"'
TEXT = Schema(kind=ConnectKind.STRING)
TRUTH = Schema(kind=ConnectKind.BOOLEAN)
# In the order of size: the first one that fits wins.
INTEGERS = (
    (8, Schema(kind=ConnectKind.INT8)),
    (16, Schema(kind=ConnectKind.INT16)),
    (32, Schema(kind=ConnectKind.INT32)),
    (64, Schema(kind=ConnectKind.INT64)),
)
SINGLE, DOUBLE = Schema(kind=ConnectKind.FLOAT32), Schema(kind=ConnectKind.FLOAT64)
# Rank of each number type; elements of an array share the widest one.
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
# Length → pattern and schema. Connect chooses the pattern by the length of the text alone.
TEMPORAL = {
    len("HH:mm:ss.SSSZ"): ("HH:mm:ss.SSS'Z'", Schema(kind=ConnectKind.INT32, name=TIME, version=1)),
    len("yyyy-MM-ddTHH:mm:ss.SSSZ"): (
        "yyyy-MM-dd'T'HH:mm:ss.SSS'Z'",
        Schema(kind=ConnectKind.INT64, name=TIMESTAMP, version=1),
    ),
    len("yyyy-MM-dd"): ("yyyy-MM-dd", Schema(kind=ConnectKind.INT32, name=DATE, version=1)),
}


class _NoLiteral(Exception):
    """Signal that a text is not an array or map after all."""


def parse_literal(text: str) -> Literal:
    """Return schema and value of a literal.

    Null has neither. Raises: ValueError for an array or map whose elements have no common schema.
    """
    if not text:
        return TEXT, text
    return _LiteralReader(text).literal(embedded=False)


class _LiteralReader:
    """Read a text token by token.

    Tokens end at delimiters that have no backslash before them.
    """

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

    def _accept(self, token: str) -> bool:
        """Skip ``token`` if it is next, and return whether it was.

        Blanks around it are ignored.
        """
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
        """Read the next literal.

        ``embedded`` means that it is an element of an array or map.
        """
        if self._ended:
            return None, None
        if embedded and self._accept('"'):
            return self._quoted()
        begin = self._at
        for word, found in (
            ("null", (None, None)),
            ("true", (TRUTH, True)),
            ("false", (TRUTH, False)),
        ):
            # At the top, a word that more text follows is part of that text.
            if self._accept(word) and (embedded or self._ended):
                return found
            self._at = begin
        try:
            if self._accept("["):
                return self._array()
            if self._accept("{"):
                return self._map()
        except _NoLiteral:
            # An array or map that is not well formed is a text: read it again from its start.
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
        # Texts within an array or map need quotes.
        if embedded:
            raise _NoLiteral
        return TEXT, self._text

    def _temporal(self, token: str) -> Literal | None:
        """Read a date or time, None if the token is neither."""
        # A colon is a delimiter, so a time arrives as five tokens.
        if self._at + 4 <= len(self._tokens):
            found = _temporal(token + "".join(self._tokens[self._at : self._at + 4]))
            if found is not None:
                self._at += 4
                return found
        return _temporal(token)

    def _quoted(self) -> Literal:
        content = ""
        while not self._ended and not self._accept('"'):
            content += self._next()
        return _temporal(content) or (TEXT, content)

    def _array(self) -> Literal:
        values, schemas = list[Any](), list[Schema | None]()
        while not self._ended:
            if self._accept("]"):
                schema = _shared(schemas)
                return Schema(kind=ConnectKind.ARRAY, items=schema), [
                    _aligned(v, schema) for v in values
                ]
            if self._accept(","):
                raise _NoLiteral
            of, value = self.literal(embedded=True)
            schemas.append(of)
            values.append(value)
            # The head of the loop must see the closing bracket.
            at = self._at
            if self._accept("]"):
                self._at = at
            elif not self._accept(","):
                raise _NoLiteral
        raise _NoLiteral

    def _map(self) -> Literal:
        found: dict[Any, Any] = {}
        keys, values = list[Schema | None](), list[Schema | None]()
        while not self._ended:
            if self._accept("}"):
                key, value = _shared(keys), _shared(values)
                aligned = {_aligned(k, key): _aligned(v, value) for k, v in found.items()}
                return Schema(kind=ConnectKind.MAP, keys=key, values=value), aligned
            if self._accept(","):
                raise _NoLiteral
            of_key, key_found = self.literal(embedded=True)
            if key_found is None or isinstance(key_found, list | dict) or not self._accept(":"):
                raise _NoLiteral
            of_value, found[key_found] = self.literal(embedded=True)
            self._accept(",")  # Connect accepts entries without a comma between them
            keys.append(of_key)
            values.append(of_value)
        raise _NoLiteral


def _shared(schemas: list[Schema | None]) -> Schema:
    """Return the schema that all elements share. Raises: ValueError if there is none.

    Numbers share the widest of their types.
    """
    found = None
    for schema in filter(None, schemas):
        if found is None or schema.kind is found.kind:
            found = schema
        elif schema.kind in WIDTH and found.kind in WIDTH:
            found = max(schema, found, key=lambda each: WIDTH[each.kind])
        else:
            found = None
            break
    if found is None:
        raise ValueError("the elements of an array or map must be of one type, and some")
    return found


def _aligned(value: Any, schema: Schema) -> Any:
    """Convert an element to the shared type."""
    if value is None:
        raise _NoLiteral  # the shared schema is not optional, so the whole is a text
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
    # Integers come first, also for a text such as 1.0. Then a number gets the smaller of the two float
    # types that has its magnitude, and a Decimal if neither has.
    exponent = number.as_tuple().exponent
    assert isinstance(exponent, int)
    if number.adjusted() < LONGEST_WHOLE and number == number.to_integral_value():
        integer = int(number)
        for bits, schema in INTEGERS:
            if integer == to_integer(integer, bits):
                return schema, integer
    if exponent and not math.isinf(to_single(number)):
        return SINGLE, to_single(number)
    if exponent and not math.isinf(to_double(number)):
        return DOUBLE, to_double(number)
    schema = Schema(
        kind=ConnectKind.BYTES, name=DECIMAL, version=1, parameters=(("scale", str(-exponent)),)
    )
    return schema, decimal_bytes(number, -exponent)
