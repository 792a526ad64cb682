"""Read rows of COPY's binary format as columns of typed values.

The server spares itself the text of numbers and times, and so does the client. A field is a length
and the bytes of a type's send function, so a row is a chain as in pgoutput: the chains of many rows
are followed together, one column after the other. Types without a reader here, and readers of text,
keep the text format (`copy_pieces`).

A value outside its Arrow type, such as an infinite date, makes its column text, so that the rules
for such values apply. This module does no I/O.

Source: PostgreSQL manual, COPY, "Binary Format"; the send functions of the types.
"""

import functools
import struct
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Final, NoReturn

from waltap.base.import_rules import np, pa, pc, spare_pandas
from waltap.changes.decode.builtin_types import builtin_type
from waltap.changes.decode.frame_block import numbers_at
from waltap.changes.decode.relation import Column, Relation
from waltap.changes.decode.row_block import RowBlock, is_text
from waltap.changes.decode.tuple_image import Tuple
from waltap.changes.decode.value_text import DAY_MICROS, clock_text, day_text
from waltap.errors import DecodeError
from waltap_postgres.replication.copy_buffer import HeadedRows, message_sizes
from waltap_postgres.replication.wire import COPY_DATA
from waltap_postgres.types.numeric import numeric_limits

SIGNATURE: Final = b"PGCOPY\n\xff\r\n\0"
# The signature, flags and the length of an extension follow each other.
_HEADER_BYTES: Final = len(SIGNATURE) + 8
_END: Final = -1

_COUNT = struct.Struct(">h").unpack_from
_LENGTH = struct.Struct(">i").unpack_from

# The header of a message: type and length. A row begins with its number of fields.
_MESSAGE_BYTES: Final = 5
_COUNT_BYTES: Final = 2

# PostgreSQL counts from 2000-01-01, Arrow from 1970-01-01.
_EPOCH_DAYS: Final = 10_957
_EPOCH_MICROS: Final = _EPOCH_DAYS * DAY_MICROS
# 0001-01-01 and 9999-12-31 in days since 1970.
_FIRST_DAY, _LAST_DAY = -719_162, 2_932_896

# A signed number of 64 bits holds so many digits.
_MOST_DIGITS: Final = 18
_NEGATIVE: Final = 0x4000
_SPECIAL_NUMBERS: Final = {0xC000: "NaN", 0xD000: "Infinity", 0xF000: "-Infinity"}


class _Damage(Exception):
    """Report an impossible value; the message is the expected one."""


@dataclass(slots=True)
class FieldValues:
    """Hold the places of one column's values in ``data``.

    ``nulls`` is None without any; a NULL has no bytes.
    """

    data: bytes | bytearray
    starts: "np.ndarray[Any, Any]"
    lengths: "np.ndarray[Any, Any]"
    nulls: "np.ndarray[Any, Any] | None"

    @property
    def present(self) -> Any:
        """Return the index of the values that are not NULL."""
        return slice(None) if self.nulls is None else ~self.nulls

    def numbers(self, kind: str) -> "np.ndarray[Any, Any]":
        """Return the values as numbers of ``kind``, 0 for NULL."""
        if (self.lengths[self.present] != np.dtype(kind).itemsize).any():
            raise _Damage(f"{np.dtype(kind).itemsize} bytes")
        return self.spread(numbers_at(self.data, self.starts[self.present], kind))

    def spread(self, values: "np.ndarray[Any, Any]") -> "np.ndarray[Any, Any]":
        """Return an item for each row, 0 for NULL."""
        if self.nulls is None:
            return values
        found = np.zeros(len(self.starts), values.dtype)
        found[self.present] = values
        return found

    def of(self, type_: "pa.DataType", values: "np.ndarray[Any, Any]") -> "pa.Array":
        """Return ``values``, in the machine's order, as an array of ``type_``."""
        buffers = [self.validity(), pa.py_buffer(values)]
        return pa.Array.from_buffers(type_, len(self.starts), buffers)

    def texts(self, *, skipped: int = 0) -> "pa.StringArray":
        """Return the bytes behind the first ``skipped`` ones as text."""
        values = self.byte_strings(pa.string(), skipped=skipped)
        if not is_text(values):
            raise _Damage("UTF-8 without NUL")
        return values

    def byte_strings(self, type_: "pa.DataType", *, skipped: int = 0) -> "pa.Array":
        """Return the bytes behind the first ``skipped`` ones, which are copied."""
        count, nulls = len(self.starts), self.nulls
        # Every second string is a value; the others lie between two values.
        bounds = np.empty((count, 2), "i4")
        bounds[:, 0] = self.starts + (skipped if nulls is None else np.where(nulls, 0, skipped))
        bounds[:, 1] = self.starts + np.maximum(self.lengths, 0)
        buffers = [None, pa.py_buffer(bounds), pa.py_buffer(self.data)]
        every = pa.Array.from_buffers(type_, 2 * count - 1, buffers)
        indexes = pa.array(np.arange(0, 2 * count, 2, dtype="i4"), mask=nulls)
        return pc.take(every, indexes, boundscheck=False)

    def validity(self) -> "pa.Buffer | None":
        """Return Arrow's bitmap of the rows that are not NULL."""
        if self.nulls is None:
            return None
        return pa.py_buffer(np.packbits(~self.nulls, bitorder="little"))

    def as_text(
        self, values: "np.ndarray[Any, Any]", text: Callable[[int], str]
    ) -> "pa.StringArray":
        """Return the text of values unfit for their Arrow type."""
        return pa.array([text(value) for value in values.tolist()], pa.string(), mask=self.nulls)


# Returns a column's array of its Arrow type, or of text.
FieldReader = Callable[[FieldValues], "pa.Array"]


def _number(kind: str, arrow: str) -> FieldReader:
    def read(field: FieldValues) -> "pa.Array":
        return field.of(getattr(pa, arrow)(), field.numbers(f">{kind}").astype(kind))

    return read


def _boolean(field: FieldValues) -> "pa.Array":
    return field.of(pa.bool_(), np.packbits(field.numbers("u1"), bitorder="little"))


def _date(field: FieldValues) -> "pa.Array":
    days = field.numbers(">i4").astype("i8") + _EPOCH_DAYS
    if _within(days, _FIRST_DAY, _LAST_DAY):
        return field.of(pa.date32(), days.astype("i4"))
    return field.as_text(days, date_text)


def date_text(days: int) -> str:
    """Return the date ``days`` after 1970-01-01 as PostgreSQL prints it."""
    if days - _EPOCH_DAYS in _INFINITE_DAYS:
        return _INFINITE_DAYS[days - _EPOCH_DAYS]
    return "".join(day_text(days))


_INFINITE_DAYS: Final = {(1 << 31) - 1: "infinity", -(1 << 31): "-infinity"}
_INFINITE_MICROS: Final = {(1 << 63) - 1: "infinity", -(1 << 63): "-infinity"}


def _timestamp(zone: str | None) -> FieldReader:
    offset = "" if zone is None else "+00"
    first, last = _FIRST_DAY * DAY_MICROS, (_LAST_DAY + 1) * DAY_MICROS - 1

    def read(field: FieldValues) -> "pa.Array":
        micros = field.numbers(">i8").astype("i8")
        if _within(micros, first - _EPOCH_MICROS, last - _EPOCH_MICROS):
            return field.of(pa.timestamp("us", zone), micros + _EPOCH_MICROS)
        return field.as_text(micros, lambda value: timestamp_text(value, offset))

    return read


def timestamp_text(micros: int, offset: str) -> str:
    """Return the time ``micros`` after 2000-01-01 as PostgreSQL prints it.

    ``offset`` follows the time of a column with a time zone, in UTC.
    """
    if micros in _INFINITE_MICROS:
        return _INFINITE_MICROS[micros]
    days, rest = divmod(micros + _EPOCH_MICROS, DAY_MICROS)
    day, era = day_text(days)
    return f"{day} {clock_text(rest)}{offset}{era}"


def _time(field: FieldValues) -> "pa.Array":
    micros = field.numbers(">i8").astype("i8")
    if _within(micros, 0, DAY_MICROS - 1):
        return field.of(pa.time64("us"), micros)
    return field.as_text(micros, clock_text)  # 24:00:00


def _within(values: "np.ndarray[Any, Any]", low: int, high: int) -> bool:
    return not len(values) or bool(low <= values.min() and values.max() <= high)


def _uuid(field: FieldValues) -> "pa.Array":
    count = len(field.starts)
    digits = _hexadecimal()[field.numbers("V16").view("u1").reshape(count, 16)]
    text = np.full((count, 36), ord("-"), "u1")
    at = 0
    for start, end in ((0, 8), (8, 12), (12, 16), (16, 20), (20, 32)):
        text[:, at : at + end - start] = digits.view("u1").reshape(count, 32)[:, start:end]
        at += end - start + 1
    offsets = np.arange(0, 36 * (count + 1), 36, dtype="i4")
    buffers = [field.validity(), pa.py_buffer(offsets), pa.py_buffer(text)]
    return pa.Array.from_buffers(pa.string(), count, buffers)


@functools.cache
def _hexadecimal() -> "np.ndarray[Any, Any]":
    return np.array([b"%02x" % byte for byte in range(256)]).view("u2")


def _numeric(precision: int, scale: int) -> FieldReader:
    """Return the reader of numbers that fit 64 bits without their point."""

    def read(field: FieldValues) -> "pa.Array":
        starts, lengths = field.starts[field.present], field.lengths[field.present]
        try:
            values, signs = _unscaled(field.data, starts, lengths, scale)
        except IndexError as error:
            raise _Damage("8 bytes and the digits") from error
        if not _within(values, 1 - 10**precision, 10**precision - 1):
            raise _Damage(f"at most {precision} digits")
        values, signs = field.spread(values), field.spread(signs)
        if (signs & ~_NEGATIVE).any():
            texts = [
                _SPECIAL_NUMBERS.get(sign) or _scaled(value, scale)
                for value, sign in zip(values.tolist(), signs.tolist(), strict=True)
            ]
            return pa.array(texts, pa.string(), mask=field.nulls)
        # Two halves, the lower one first; the upper one repeats the sign.
        halves = np.stack((values, values >> 63), axis=1)
        return field.of(pa.decimal128(precision, scale), halves)

    return read


def _unscaled(
    data: bytes | bytearray,
    starts: "np.ndarray[Any, Any]",
    lengths: "np.ndarray[Any, Any]",
    scale: int,
) -> "tuple[np.ndarray[Any, Any], np.ndarray[Any, Any]]":
    """Return numbers times ten to the ``scale``, and their sign words."""

    def word(offset: int) -> "np.ndarray[Any, Any]":
        return numbers_at(data, starts + offset, ">u2").astype("i8")

    count, weight, signs = word(0), word(2).astype("i2").astype("i8"), word(4)
    if (lengths != 8 + 2 * count).any():
        raise _Damage("8 bytes and the digits")
    if not np.isin(signs, [0, _NEGATIVE, *_SPECIAL_NUMBERS]).all():
        raise _Damage("the sign of a number")
    values, powers = np.zeros(len(starts), "i8"), 10 ** np.arange(_MOST_DIGITS + 1, dtype="i8")
    for index in range(int(count.max(initial=0))):
        has = count > index
        digit = np.where(
            has, numbers_at(data, np.where(has, starts + 8 + 2 * index, starts), ">u2"), 0
        )
        # Digits of four places each; those behind the scale are zeros.
        places = 4 * (weight - index) + scale
        values += np.where(
            places < 0,
            digit // powers[np.clip(-places, 0, _MOST_DIGITS)],
            digit * powers[np.clip(places, 0, _MOST_DIGITS)],
        )
    return np.where(signs == _NEGATIVE, -values, values), signs


def _scaled(value: int, scale: int) -> str:
    digits = f"{abs(value):0{scale + 1}d}"
    point = len(digits) - scale
    return f"{'-' if value < 0 else ''}{digits[:point]}{'.' if scale else ''}{digits[point:]}"


_JSONB_VERSION: Final = 1


def _jsonb(field: FieldValues) -> "pa.Array":
    if (field.lengths[field.present] < 1).any():
        raise _Damage("a version and text")
    if (numbers_at(field.data, field.starts[field.present], "u1") != _JSONB_VERSION).any():
        raise _Damage("version 1 of jsonb")
    return field.texts(skipped=1)


_READERS: Final[dict[str, FieldReader]] = {
    "int2": _number("i2", "int16"),
    "int4": _number("i4", "int32"),
    "int8": _number("i8", "int64"),
    "float4": _number("f4", "float32"),
    "float8": _number("f8", "float64"),
    "bool": _boolean,
    "date": _date,
    "time": _time,
    "timestamp": _timestamp(None),
    "timestamptz": _timestamp("UTC"),
    "uuid": _uuid,
    "bytea": lambda field: field.byte_strings(pa.binary()),
    "jsonb": _jsonb,
    **dict.fromkeys(("text", "varchar", "bpchar", "name", "json"), FieldValues.texts),
}


def field_readers(relation: Relation) -> list[FieldReader] | None:
    """Return the readers of all columns, or None."""
    found = [_reader(column) for column in relation.columns]
    return None if None in found else [each for each in found if each is not None] or None


def _reader(column: Column) -> FieldReader | None:
    known = builtin_type(column.type_oid)
    if known is None:
        return None
    if known.name != "numeric":
        return _READERS.get(known.name)
    precision, scale = numeric_limits(column.typmod) or (_MOST_DIGITS + 1, 0)
    return _numeric(precision, scale) if scale <= precision <= _MOST_DIGITS else None


class BinaryRows:
    """Read the rows of one COPY in binary format as blocks."""

    def __init__(self, readers: Sequence[FieldReader]) -> None:
        self._readers = readers
        self._rest = b""
        self._offset = 0
        self._begun = self._ended = False

    def bounds(self, data: "np.ndarray[Any, Any]") -> "np.ndarray[Any, Any] | None":
        """Return the bounds of the rows at the start of ``data`` (`CopyBuffer`)."""
        if len(data) < _MESSAGE_BYTES + _COUNT_BYTES:
            return None
        # Wherever the bytes look like a row's message, its end is known at once.
        at = np.flatnonzero(data[: 1 - _MESSAGE_BYTES - _COUNT_BYTES] == COPY_DATA)
        width = len(self._readers)
        at = at[(data[at + _MESSAGE_BYTES] == width >> 8) & (data[at + 6] == width & 0xFF)]
        after = at + 1 + message_sizes(data, at)
        at, after = at[after <= len(data)], after[after <= len(data)]
        if not len(at) or at[0] != 0:
            return None
        if (after[:-1] != at[1:]).any():  # the bytes of a value look like a message
            at, after = _chained(at, after)
        return np.append(at, after[-1])

    def pieces(
        self, portions: Iterator[HeadedRows | bytes], most: int
    ) -> Iterator[tuple[Sequence[Tuple], int]]:
        """Yield blocks of at most ``most`` rows, and their sizes. Raises: DecodeError."""
        for portion in portions:
            if isinstance(portion, HeadedRows):
                if self._rest:
                    self._damaged("the end of a row", "the next one", self._rest, 0)
                bounds = portion.bounds
                block = self._block(portion.buffer, bounds[:-1] + _MESSAGE_BYTES, bounds[1:])
                self._offset += portion.size - _MESSAGE_BYTES * len(block)
            else:
                block = self._careful(self._rest + portion)
            for start in range(0, len(block), most):
                part = block[start : start + most]
                yield part, block.nbytes * len(part) // len(block)
        if not self._ended:
            self._damaged("the trailer", "the end of the data", self._rest, len(self._rest))

    def _careful(self, data: bytes) -> RowBlock:
        """Read complete rows one by one, with the header and the trailer."""
        at = 0 if self._begun else self._after_header(data)
        starts: list[int] = []
        ends: list[int] = []
        while at + _COUNT_BYTES <= len(data):
            (count,) = _COUNT(data, at)
            if self._ended or count not in (_END, len(self._readers)):
                expected = "nothing" if self._ended else f"{len(self._readers)} columns"
                self._damaged(expected, f"{count}", data, at)
            if count == _END:
                self._ended = True
                at += _COUNT_BYTES
                continue
            end = self._end_of_row(data, at)
            if end is None:
                break
            starts.append(at)
            ends.append(end)
            at = end
        block = self._block(data, np.array(starts, "i8"), np.array(ends, "i8"))
        self._rest = data[at:]
        self._offset += at
        return block

    def _after_header(self, data: bytes) -> int:
        if len(data) < _HEADER_BYTES or data[: len(SIGNATURE)] != SIGNATURE:
            self._damaged("the signature of COPY's binary format", "other bytes", data, 0)
        # No server has set a flag or sent an extension yet.
        if any(data[len(SIGNATURE) : _HEADER_BYTES]):
            self._damaged("no flags and no extension", "other bytes", data, len(SIGNATURE))
        self._begun = True
        return _HEADER_BYTES

    def _end_of_row(self, data: bytes, at: int) -> int | None:
        """Return the row's end, None if incomplete."""
        at += _COUNT_BYTES
        for _ in self._readers:
            if at + 4 > len(data):
                return None
            (length,) = _LENGTH(data, at)
            if length < -1:
                self._damaged("a length", f"{length}", data, at)
            at += 4 + max(0, length)
        return at if at <= len(data) else None

    def _block(
        self, data: bytes | bytearray, starts: "np.ndarray[Any, Any]", ends: "np.ndarray[Any, Any]"
    ) -> RowBlock:
        """Return the rows between ``starts`` and ``ends`` as columns."""
        spare_pandas()
        if not len(starts):
            return RowBlock((), 0)
        fields: list[FieldValues] = []
        at = starts + _COUNT_BYTES
        try:
            for _ in self._readers:
                lengths = numbers_at(data, at, ">i4").astype("i8")
                nulls = lengths < 0
                fields.append(FieldValues(data, at + 4, lengths, nulls if nulls.any() else None))
                at = at + 4 + np.maximum(lengths, 0)
        except IndexError:  # a length that leads out of the data
            at = starts
        if (at != ends).any():
            row = int((at != ends).argmax())
            found = bytes(data[int(starts[row]) : int(ends[row])])
            self._damaged("columns that end with their row", "other lengths", found, 0)
        arrays = []
        for index, (read, field) in enumerate(zip(self._readers, fields, strict=True)):
            try:
                arrays.append(read(field))
            except _Damage as damage:
                found = bytes(data[int(starts[0]) : int(ends[0])])
                self._damaged(f"{damage} in column {index + 1}", "other bytes", found, 0)
        return RowBlock(arrays, len(starts))

    def _damaged(self, expected: str, found: str, data: bytes, at: int) -> NoReturn:
        raise DecodeError(
            "copy",
            offset=self._offset + at,
            expected=expected,
            found=found,
            payload=bytes(data[at : at + 64]),
        )


def _chained(
    at: "np.ndarray[Any, Any]", after: "np.ndarray[Any, Any]"
) -> "tuple[np.ndarray[Any, Any], np.ndarray[Any, Any]]":
    """Return the messages that follow each other from the first one on."""
    follower = at.searchsorted(after)
    known = follower < len(at)
    known[known] = at[follower[known]] == after[known]
    chain, index, following = [0], 0, follower.tolist()
    while known[index]:
        index = following[index]
        chain.append(index)
    return at[chain], after[chain]
