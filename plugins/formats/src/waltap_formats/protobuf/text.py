"""Parser of Protobuf schema texts.

It reads messages with their fields, as far as differences need them. Enums, services, extensions
and options are skipped. Source: the language guides of proto2 and proto3.
"""

import re
from collections.abc import Iterator
from dataclasses import dataclass, field

from waltap_formats.protobuf.schema import MessageField, MessageType

__all__ = ["NotProto", "ReadFile", "read_text"]

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
    place = 0
    while place < len(text):
        found = TOKEN.match(text, place)
        if found is None:
            raise NotProto(f"no token at character {place}")
        if found.lastgroup is not None:
            yield found.group()
        place = found.end()


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
        place = self._at + ahead
        return self._tokens[place] if place < len(self._tokens) else ""

    def _expect(self, word: str) -> None:
        found = self._next()
        if found != word:
            raise NotProto(f"{word} was expected instead of {found}")
