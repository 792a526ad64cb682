"""Damage payloads for decoders, the same way in every run.

Each damaged payload has a description for the failure's message.
"""

import re
from collections.abc import Iterator, Sequence
from random import Random
from typing import TypeVar

T = TypeVar("T")

# Bytes at the ends of the signed and unsigned ranges.
ODD_BYTES = (0x00, 0x7F, 0x80, 0xFF)
# A place with at most this many different words names the kind of a frame; more are data.
MOST_KINDS = 20
# Big-endian lengths: largest, largest and smallest signed, zero. A decoder must not allocate them.
LENGTH_BOMBS = (b"\xff\xff\xff\xff", b"\x7f\xff\xff\xff", b"\x80\x00\x00\x00", b"\x00\x00\x00\x00")


def chance(seed: str) -> Random:
    """Return a repeatable source of chance: one seed, one sequence."""
    return Random(seed)  # noqa: S311 - repeatable on purpose


def evenly(items: Sequence[T], most: int) -> list[T]:
    """Return at most ``most`` items, evenly spaced, with both ends."""
    if len(items) <= most:
        return list(items)
    if most < 2:
        return list(items[:most])
    return [items[i * (len(items) - 1) // (most - 1)] for i in range(most)]


def foreign(payload: bytes, frames: Sequence[bytes]) -> Iterator[tuple[str, bytes]]:
    """Yield ``payload`` as a frame of an unknown kind.

    The first byte or word is replaced, and so is each JSON member that names the kind of a frame
    (``"kind": "insert"``).
    """
    for first in b"\x00z~":
        if not any(frame[:1] == bytes([first]) for frame in frames):
            yield f"first byte {first:#04x}", bytes([first]) + payload[1:]
    word = re.match(rb"[^A-Za-z]{0,3}([A-Za-z]{3,})", payload)
    if word is not None:
        end = word.end(1)
        yield (
            f"first word z{word[1][1:].decode()}",
            (payload[: word.start(1)] + b"z" * len(word[1]) + payload[end:]),
        )
    for member in sorted(_kinds(frames)):
        pattern = rb'("%s" ?: ?")(\w+)(")' % member
        found = re.search(pattern, payload)
        if found is not None:
            yield f"{member.decode()}: zz", re.sub(pattern, rb"\1zz\3", payload, count=1)


def _kinds(frames: Sequence[bytes]) -> set[bytes]:
    """Return the JSON members that name the kind of a frame.

    These are first members whose values over all frames are a few words.
    """
    first: dict[bytes, set[bytes]] = {}
    for frame in frames:
        found = re.match(rb'\s*\{\s*"(\w+)" ?: ?"(\w+)"', frame)
        if found is not None:
            first.setdefault(found[1], set()).add(found[2])
    return {member for member, words in first.items() if 1 < len(words) <= MOST_KINDS}


def truncated(payload: bytes, most: int) -> Iterator[tuple[str, bytes]]:
    """Yield proper prefixes of ``payload``, including the empty one."""
    for size in evenly(range(len(payload)), most):
        yield f"only the first {size} of {len(payload)} bytes", payload[:size]


def damaged(payload: bytes, most: int, random: Random) -> Iterator[tuple[str, bytes]]:
    """Yield ``payload`` with bytes changed, removed, inserted or moved."""
    kinds = (_odd_byte, _bit, _length_bomb, _without, _doubled, _swapped, _trailing)
    for number in range(most):
        yield kinds[number % len(kinds)](payload, random)


def noise(
    most: int, random: Random, first_bytes: Sequence[int] = ()
) -> Iterator[tuple[str, bytes]]:
    """Yield random payloads.

    Half of them start with one of ``first_bytes``, so that a decoder reads further than the kind
    of the message.
    """
    for number in range(most):
        payload = random.randbytes(random.choice((1, 2, 5, 17, 60, 400)))
        if first_bytes and number % 2:
            payload = bytes((random.choice(first_bytes),)) + payload[1:]
        yield "random bytes", payload


def _odd_byte(payload: bytes, random: Random) -> tuple[str, bytes]:
    at, byte = random.randrange(len(payload)), random.choice(ODD_BYTES)
    return f"byte {at} is {byte:#04x}", payload[:at] + bytes((byte,)) + payload[at + 1 :]


def _bit(payload: bytes, random: Random) -> tuple[str, bytes]:
    at, bit = random.randrange(len(payload)), random.randrange(8)
    changed = bytes((payload[at] ^ (1 << bit),))
    return f"bit {bit} of byte {at} is flipped", payload[:at] + changed + payload[at + 1 :]


def _length_bomb(payload: bytes, random: Random) -> tuple[str, bytes]:
    at, bomb = random.randrange(len(payload)), random.choice(LENGTH_BOMBS)
    return f"bytes from {at} are {bomb.hex()}", payload[:at] + bomb + payload[at + 4 :]


def _without(payload: bytes, random: Random) -> tuple[str, bytes]:
    at = random.randrange(len(payload))
    size = random.randint(1, max(1, len(payload) // 4))
    return f"{size} bytes from {at} are gone", payload[:at] + payload[at + size :]


def _doubled(payload: bytes, random: Random) -> tuple[str, bytes]:
    at = random.randrange(len(payload))
    part = payload[at : at + random.randint(1, 16)]
    return f"{len(part)} bytes from {at} come twice", payload[:at] + part + payload[at:]


def _swapped(payload: bytes, random: Random) -> tuple[str, bytes]:
    at = random.randrange(len(payload))
    return f"the part from {at} comes first", payload[at:] + payload[:at]


def _trailing(payload: bytes, random: Random) -> tuple[str, bytes]:
    junk = random.randbytes(random.randint(1, 9))
    return f"followed by {junk.hex()}", payload + junk
