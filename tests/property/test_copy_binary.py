"""COPY's binary format: what a server writes is read back as columns wherever the bytes are cut, and damage is an error."""

import struct
from collections.abc import Sequence

import pytest
from hypothesis import assume, example, given
from hypothesis import strategies as st
from tests.harness.json_events import table
from tests.property.test_copy import filled
from tests.property.test_wire_stream import message

from waltap.errors import DecodeError
from waltap_postgres.replication.copy_buffer import CopyBuffer
from waltap_postgres.snapshot.binary_copy import SIGNATURE, BinaryRows, field_readers

TYPES = ("text", "int4", "bool", "jsonb", "numeric(12,2)")
COLUMNS = [f"{kind.partition('(')[0]} {kind}" for kind in TYPES]
RELATION = table("t", *COLUMNS)
HEADER = SIGNATURE + bytes(8)
TRAILER = struct.pack(">h", -1)
READY = b"Z\0\0\0\x05I"

TEXT = st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\0"), max_size=12)
NASTY = st.sampled_from(["d", "d" * 9, "", "é", "x" * 300])
# Behind a text that ends with d, such a number makes the bytes look like the message of a row.
LOOKALIKE = len(TYPES) << 16
ROWS = st.lists(
    st.tuples(
        st.none() | TEXT | NASTY,
        st.none() | st.integers(-(1 << 31), (1 << 31) - 1) | st.just(LOOKALIKE),
        st.none() | st.booleans(),
        st.none() | TEXT | NASTY,
        st.none() | st.integers(1 - 10**12, 10**12 - 1),
    ),
    max_size=40,
)
Row = tuple[str | None, int | None, bool | None, str | None, int | None]


def numeric(cents: int) -> bytes:
    """Encode hundredths as numeric_send does."""
    whole, rest = divmod(abs(cents), 100)
    digits = [rest * 100]
    while whole:
        whole, digit = divmod(whole, 10_000)
        digits.insert(0, digit)
    weight = len(digits) - 2
    while digits and not digits[-1]:
        digits.pop()
    while digits and not digits[0]:
        digits.pop(0)
        weight -= 1
    sign = 0x4000 if cents < 0 else 0
    head = struct.pack(">HhHH", len(digits), weight if digits else 0, sign, 2)
    return head + struct.pack(f">{len(digits)}H", *digits)


def fields(row: Row) -> list[bytes | None]:
    text, number, flag, document, cents = row
    return [
        None if text is None else text.encode(),
        None if number is None else struct.pack(">i", number),
        None if flag is None else bytes([flag]),
        None if document is None else b"\x01" + document.encode(),
        None if cents is None else numeric(cents),
    ]


def printed(row: Row) -> tuple[str | None, ...]:
    text, number, flag, document, cents = row
    amount = None
    if cents is not None:
        amount = f"{'-' if cents < 0 else ''}{abs(cents) // 100}.{abs(cents) % 100:02}"
    return (
        text,
        None if number is None else str(number),
        None if flag is None else "ft"[flag],
        document,
        amount,
    )


def encoded(row: Row) -> bytes:
    every = fields(row)
    return struct.pack(">h", len(every)) + b"".join(
        struct.pack(">i", -1) if field is None else struct.pack(">i", len(field)) + field
        for field in every
    )


def answer(payloads: Sequence[bytes]) -> bytes:
    """Return the answer to a COPY: the header comes with the first row."""
    first, *others = [*payloads, TRAILER]
    data = message(b"H", b"\1\0\0") + message(b"d", HEADER + first)
    return data + b"".join(message(b"d", each) for each in others) + message(b"c", b"") + READY


def read(data: bytes, size: int, step: int, most: int = 7) -> list[tuple[str | None, ...]]:
    readers = field_readers(RELATION)
    assert readers is not None
    rows = BinaryRows(readers)
    found = []
    for piece, _ in rows.pieces(filled(CopyBuffer(size, rows.bounds), data, [step]), most):
        assert 0 < len(piece) <= most
        found += list(piece)
    return found  # type: ignore[return-value]


@given(ROWS, st.integers(64, 900), st.integers(1, 1000))
@example([("d", LOOKALIKE, True, "{}", 5)] * 40, 512, 700)
@example([(None, None, None, None, None)] * 40, 128, 128)
@example([("x" * 3000, 1, None, "{}", 0)] * 3, 128, 128)
def test_rows_come_back_however_the_bytes_are_cut(rows, size, step):
    data = answer([encoded(row) for row in rows])
    assert read(data, size, step) == [printed(row) for row in rows]


@given(ROWS, st.integers(0, 5000), st.integers(0, 255), st.integers(64, 900))
def test_damaged_bytes_are_an_error_or_other_values(rows, place, byte, size):
    payloads = [HEADER + encoded(rows[0]) if rows else HEADER, *map(encoded, rows[1:]), TRAILER]
    bodies = b"".join(payloads)
    place %= len(bodies)
    damaged = bodies[:place] + bytes([byte]) + bodies[place + 1 :]
    data, at = message(b"H", b"\1\0\0"), 0
    for payload in payloads:
        data += message(b"d", damaged[at : at + len(payload)])
        at += len(payload)
    try:
        found = read(data + message(b"c", b"") + READY, size, size)
    except DecodeError as error:
        assert error.code == "WT-3001"
        return
    assert len(found) == len(rows)


@given(ROWS, st.integers(1, 200))
def test_an_answer_without_its_end_is_an_error(rows, removed):
    payloads = [HEADER, *map(encoded, rows), TRAILER]
    bodies = b"".join(payloads)
    assume(removed < len(bodies))
    data = message(b"H", b"\1\0\0") + message(b"d", bodies[:-removed]) + message(b"c", b"") + READY
    with pytest.raises(DecodeError):
        read(data, 1 << 16, 1 << 16)


def test_a_relation_with_another_type_is_not_read_in_binary():
    for kind in ("int4range", "numeric", "numeric(19,2)"):
        assert field_readers(table("t", *COLUMNS, f"x {kind}")) is None
