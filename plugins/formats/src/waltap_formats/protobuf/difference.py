"""Differences between two Protobuf schemas, in words for messages."""

from collections.abc import Iterator, Sequence

from waltap_formats.protobuf.schema import MessageField, MessageType
from waltap_formats.protobuf.text import ReadFile

__all__ = ["proto_differences"]


def proto_differences(old: ReadFile, new: ReadFile) -> Iterator[str]:
    """Yield the differences between two files.

    Fields are matched by their numbers.
    """
    if old.package != new.package:
        yield f"the package {old.package} became {new.package}"
    yield from _messages(old.messages, new.messages, "")


def _messages(old: Sequence[MessageType], new: Sequence[MessageType], place: str) -> Iterator[str]:
    before, after = ({each.name: each for each in side} for side in (old, new))
    for name in [*before, *(name for name in after if name not in before)]:
        below = f"{place}.{name}" if place else name
        if name not in after:
            yield f"the message {below} is gone"
        elif name not in before:
            yield f"the message {below} is new"
        else:
            yield from _members(before[name].members, after[name].members, below)
            yield from _messages(before[name].messages, after[name].messages, below)


def _members(old: list[MessageField], new: list[MessageField], place: str) -> Iterator[str]:
    before, after = ({each.number: each for each in side} for side in (old, new))
    for number in sorted({*before, *after}):
        one, other = before.get(number), after.get(number)
        if one is None or other is None:
            found = one or other
            assert found is not None
            state = "gone" if other is None else "new"
            yield f"the field {place}.{found.name} (number {number}) is {state}"
        elif one.name != other.name:
            yield f"the field number {number} of {place} was {one.name} and is {other.name}"
        elif (one.label, one.type) != (other.label, other.type):
            kinds = [" ".join(filter(None, (each.label, each.type))) for each in (one, other)]
            yield f"the field {place}.{one.name} was {kinds[0]} and is {kinds[1]}"
