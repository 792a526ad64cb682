"""The text of Protobuf schemas, read: messages with their fields, as far as values and differences need.

Source: the language guides of proto2 and proto3. Services, extensions and options are passed over.
"""

import re
from collections.abc import Iterator
from dataclasses import dataclass, field

from waltap_formats.protobuf.schema import MessageField, MessageType

__all__ = ["NotProto", "ReadFile", "ReadMessage", "read_text"]

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
    """The text is no Protobuf schema."""


@dataclass(slots=True, kw_only=True)
class ReadMessage(MessageType):
    """A message that was read. ``entry``: it is a map's. ``enums``: name → number → label; ``chosen``: the
    fields of which one at most is there."""

    entry: bool = False
    chosen: set[str] = field(default_factory=set)
    enums: dict[str, dict[int, str]] = field(default_factory=dict)


@dataclass(slots=True, kw_only=True)
class ReadFile:
    """What a file has. ``enums``: name → number → label."""

    package: str = ""
    proto3: bool = False
    imports: list[str] = field(default_factory=list)
    messages: list[ReadMessage] = field(default_factory=list)
    enums: dict[str, dict[int, str]] = field(default_factory=dict)


def read_text(text: str) -> ReadFile:
    """Return what ``text`` says. Raises: NotProto."""
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
    """Reads tokens one after the other."""

    def __init__(self, tokens: list[str]) -> None:
        self._tokens, self._at = tokens, 0

    def file(self) -> ReadFile:
        made = ReadFile()
        while self._at < len(self._tokens):
            word = self._next()
            if word == "package":
                made.package = self._next()
                self._to_end()
            elif word == "syntax":
                self._expect("=")
                made.proto3 = _unquoted(self._next()) == "proto3"
                self._to_end()
            elif word == "import":
                name = self._next()
                made.imports.append(_unquoted(self._next() if name in ("public", "weak") else name))
                self._to_end()
            elif word == "message":
                made.messages.append(self._message())
            elif word == "enum":
                made.enums.update([self._enum()])
            elif word != ";":  # option, extend, service
                self._to_end()
        return made

    def _message(self) -> ReadMessage:
        made = ReadMessage(name=self._next())
        self._expect("{")
        self._members(made)
        return made

    def _members(self, made: ReadMessage) -> None:
        while (word := self._next()) != "}":
            if word == "message" and self._peek(1) == "{":
                made.messages.append(self._message())
            elif word == "enum" and self._peek(1) == "{":
                made.enums.update([self._enum()])
            elif word == "oneof" and self._peek(1) == "{":
                self._next()
                self._expect("{")
                first = len(made.members)
                self._members(made)
                made.chosen.update(member.name for member in made.members[first:])
            elif word == "map" and self._peek() == "<":
                made.members.append(self._map(made))
            elif word in ("option", "reserved", "extensions", "extend") and self._peek(1) != "=":
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

    def _map(self, within: ReadMessage) -> MessageField:
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
        within.messages.append(ReadMessage(name=member.type, members=members, entry=True))
        return MessageField(
            name=member.name, number=member.number, type=member.type, label="repeated"
        )

    def _enum(self) -> tuple[str, dict[int, str]]:
        name, labels = self._next(), dict[int, str]()
        self._expect("{")
        while (word := self._next()) != "}":
            if word in ("option", "reserved") and self._peek() != "=":
                self._to_end()
            elif word != ";":
                self._expect("=")
                labels.setdefault(self._number(), word)
                self._to_end()
        return name, labels

    def _number(self) -> int:
        word = self._next()
        if word == "-":
            word += self._next()
        try:
            return int(word, 0)
        except ValueError:
            raise NotProto(f"a number was expected instead of {word}") from None

    def _to_end(self) -> None:
        """Pass over the rest of a statement: to its semicolon, or the end of its block."""
        open_: list[str] = []
        while True:
            word = self._next()
            if word in CLOSES:
                open_.append(CLOSES[word])
            elif open_ and word == open_[-1]:
                open_.pop()
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


def _unquoted(text: str) -> str:
    return text[1:-1]
