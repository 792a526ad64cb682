"""Differences between two versions of a schema, in words for messages.

Schemas are JSON, as Avro's are, or Protobuf texts. The reader of Protobuf reads messages with their
fields, as far as differences need them; it skips enums, services, extensions and options. Source: the
language guides of proto2 and proto3.
"""

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import orjson

from waltap_formats.protobuf.schema import MessageField, MessageType

# Differences that a message names; it counts the rest.
NAMED = 5


def difference(old: str, new: str) -> str:
    """Return the first differences between two schemas.

    They are JSON or Protobuf; other texts give "".
    """
    try:
        found = list(_walk(orjson.loads(old), orjson.loads(new), ""))
    except orjson.JSONDecodeError:
        found = _of_protobuf(old, new)
    more = f", and {len(found) - NAMED} more" if len(found) > NAMED else ""
    return ", ".join(found[:NAMED]) + more


def _of_protobuf(old: str, new: str) -> list[str]:
    try:
        return list(_proto_differences(read_text(old), read_text(new)))
    except NotProto:
        return []


def _walk(old: Any, new: Any, path: str) -> Iterator[str]:
    if isinstance(old, dict) and isinstance(new, dict):
        for name in [*old, *(name for name in new if name not in old)]:
            if name not in ("fields", "properties"):
                below = path if name in ("type", "items") else _below(path, name)
                yield from _pair(old, new, name, below)
        for name in ("fields", "properties"):
            if name in old or name in new:
                yield from _members(_named(old.get(name)), _named(new.get(name)), path)
    elif isinstance(old, list) and isinstance(new, list):
        plain = [each for each in old if not isinstance(each, dict)]
        if plain != [each for each in new if not isinstance(each, dict)]:
            yield f"{path or 'the schema'}: {_short(old)} became {_short(new)}"
        else:
            dicts = [[each for each in version if isinstance(each, dict)] for version in (old, new)]
            for one, other in zip(*dicts, strict=False):
                yield from _walk(one, other, path)
    elif old != new:
        yield f"{path or 'the schema'}: {_short(old)} became {_short(new)}"


def _pair(old: dict[str, Any], new: dict[str, Any], name: str, path: str) -> Iterator[str]:
    if name.startswith("connect.") or name in ("name", "namespace", "doc"):
        return
    if name in old and name in new:
        yield from _walk(old[name], new[name], path)
    elif name in old:
        yield f"{path} is gone (was {_short(old[name])})"
    else:
        yield f"{path} is new ({_short(new[name])})"


def _members(old: dict[str, Any], new: dict[str, Any], path: str) -> Iterator[str]:
    for name in [*old, *(name for name in new if name not in old)]:
        if name not in new:
            yield f"the field {_below(path, name)} is gone"
        elif name not in old:
            given = isinstance(new[name], dict) and "default" in new[name]
            without = "" if given else " without a default"
            yield f"the field {_below(path, name)} is new{without}"
        else:
            yield from _walk(old[name], new[name], _below(path, name))


def _named(fields: Any) -> dict[str, Any]:
    if isinstance(fields, list):
        return {str(field.get("name")): field for field in fields}
    return dict(fields or {})


def _below(path: str, name: str) -> str:
    return f"{path}.{name}" if path else name


def _short(value: Any) -> str:
    if isinstance(value, dict):
        value = value.get("name") or value.get("type") or value
    text = orjson.dumps(value).decode()
    return text if len(text) <= 60 else f"{text[:57]}..."


# --- Protobuf -------------------------------------------------------------------------------------


# Spaces and comments match no named group and are dropped.
TOKEN = re.compile(
    r"""\s+|//[^\n]*|/\*.*?\*/"""
    r"""|(?P<text>"(?:[^"\\]|\\.)*"|'(?:[^'\\]|\\.)*')"""
    r"""|(?P<word>[\w.+-]+)"""
    r"""|(?P<sign>[^\s\w])""",
    re.DOTALL,
)
LABELS = frozenset({"optional", "repeated", "required"})
CLOSES = {"{": "}", "[": "]", "(": ")", "<": ">"}


class NotProto(ValueError):
    """Refuse a text that is no Protobuf schema."""


@dataclass(slots=True, kw_only=True)
class ReadFile:
    """Describe a file that was read from a text."""

    package: str = ""
    messages: list[MessageType] = field(default_factory=list)


def read_text(text: str) -> ReadFile:
    """Parse ``text``.

    Raises: NotProto.
    """
    return _TokenReader(list(_tokens(text))).file()


def _tokens(text: str) -> Iterator[str]:
    offset = 0
    while offset < len(text):
        found = TOKEN.match(text, offset)
        if found is None:
            raise NotProto(f"no token at character {offset}")
        if found.lastgroup is not None:
            yield found.group()
        offset = found.end()


class _TokenReader:
    """Parse a list of tokens."""

    def __init__(self, tokens: list[str]) -> None:
        self._tokens, self._at = tokens, 0

    def file(self) -> ReadFile:
        made = ReadFile()
        while self._at < len(self._tokens):
            word = self._next()
            if word == "package":
                made.package = self._next()
                self._to_end()
            elif word == "message":
                made.messages.append(self._message())
            elif word != ";":  # syntax, import, enum, option, extend, service
                self._to_end()
        return made

    def _message(self) -> MessageType:
        made = MessageType(name=self._next())
        self._expect("{")
        self._members(made)
        return made

    def _members(self, made: MessageType) -> None:
        while (word := self._next()) != "}":
            if word == "message" and self._peek(1) == "{":
                made.messages.append(self._message())
            elif word == "enum" and self._peek(1) == "{":
                self._to_end()
            elif word == "oneof" and self._peek(1) == "{":
                self._next()
                self._expect("{")
                self._members(made)
            elif word == "map" and self._peek() == "<":
                made.members.append(self._map(made))
            elif word in ("option", "reserved", "extensions", "extend"):
                self._to_end()
            elif word != ";":
                made.members.append(self._field(word))

    def _field(self, word: str) -> MessageField:
        label = ""
        if word in LABELS and self._peek(1) != "=":
            label, word = word, self._next()
        if word == "group":
            raise NotProto("groups of proto2 are not read")
        name = self._next()
        self._expect("=")
        number = self._number()
        self._to_end()
        return MessageField(name=name, number=number, type=word, label=label)

    def _map(self, within: MessageType) -> MessageField:
        self._expect("<")
        key = self._next()
        self._expect(",")
        value = self._next()
        self._expect(">")
        member = self._field(f"{self._peek()}.Entry")
        members = [
            MessageField(name="key", number=1, type=key),
            MessageField(name="value", number=2, type=value),
        ]
        # A map is a repeated message of key and value on the wire.
        within.messages.append(MessageType(name=member.type, members=members))
        return MessageField(
            name=member.name, number=member.number, type=member.type, label="repeated"
        )

    def _number(self) -> int:
        word = self._next()
        try:
            return int(word, 0)
        except ValueError:
            raise NotProto(f"a number was expected instead of {word}") from None

    def _to_end(self) -> None:
        """Skip the rest of a statement.

        It ends at its semicolon or at the end of its block.
        """
        open_: list[str] = []
        while True:
            word = self._next()
            if word in CLOSES:
                open_.append(CLOSES[word])
            elif open_ and word == open_[-1]:
                open_.pop()
                # A block ends its statement, unless a semicolon follows.
                if not open_ and word == "}" and self._peek() != ";":
                    return
            elif word == ";" and not open_:
                return

    def _next(self) -> str:
        if self._at >= len(self._tokens):
            raise NotProto("the text ends in the middle")
        self._at += 1
        return self._tokens[self._at - 1]

    def _peek(self, ahead: int = 0) -> str:
        index = self._at + ahead
        return self._tokens[index] if index < len(self._tokens) else ""

    def _expect(self, word: str) -> None:
        found = self._next()
        if found != word:
            raise NotProto(f"{word} was expected instead of {found}")


def _proto_differences(old: ReadFile, new: ReadFile) -> Iterator[str]:
    """Yield the differences between two files.

    Fields are matched by their numbers.
    """
    if old.package != new.package:
        yield f"the package {old.package} became {new.package}"
    yield from _messages(old.messages, new.messages, "")


def _messages(old: Sequence[MessageType], new: Sequence[MessageType], path: str) -> Iterator[str]:
    before, after = ({each.name: each for each in version} for version in (old, new))
    for name in [*before, *(name for name in after if name not in before)]:
        below = f"{path}.{name}" if path else name
        if name not in after:
            yield f"the message {below} is gone"
        elif name not in before:
            yield f"the message {below} is new"
        else:
            yield from _message_fields(before[name].members, after[name].members, below)
            yield from _messages(before[name].messages, after[name].messages, below)


def _message_fields(old: list[MessageField], new: list[MessageField], path: str) -> Iterator[str]:
    before, after = ({each.number: each for each in version} for version in (old, new))
    for number in sorted({*before, *after}):
        one, other = before.get(number), after.get(number)
        if one is None or other is None:
            found = one or other
            assert found is not None
            state = "gone" if other is None else "new"
            yield f"the field {path}.{found.name} (number {number}) is {state}"
        elif one.name != other.name:
            yield f"the field number {number} of {path} was {one.name} and is {other.name}"
        elif (one.label, one.type) != (other.label, other.type):
            kinds = [" ".join(filter(None, (each.label, each.type))) for each in (one, other)]
            yield f"the field {path}.{one.name} was {kinds[0]} and is {kinds[1]}"
