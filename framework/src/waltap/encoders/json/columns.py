"""Convert whole columns of PostgreSQL text to JSON.

The conversions run without the interpreter's lock. Each `JsonColumn` writes the same text as
``to_json`` of its type. It returns None where it cannot: the column is then written by ``to_json``.
NULL stays null.
"""

import functools
from collections.abc import Callable
from typing import Any, Final

import msgspec

from waltap.base.import_rules import np, pa, pc
from waltap.changes.mapping.type_mapping import JsonColumn

# Control characters that have an escape of two characters in JSON.
_ESCAPED: Final = frozenset(b"\b\t\n\f\r")

_BASE64: Final = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/"


def offsets_of(array: "pa.Array") -> Any:
    """Return each value's start, and the end, in the data."""
    return np.frombuffer(array.buffers()[1], "<i4", len(array) + 1, 4 * array.offset)


def _characters(array: "pa.StringArray") -> Any:
    offsets, data = offsets_of(array), array.buffers()[2]
    # An array whose values are all empty or null may have no data buffer.
    if data is None:
        return np.empty(0, "u1")
    return np.frombuffer(data, "u1", int(offsets[-1] - offsets[0]), int(offsets[0]))


def _validity(array: "pa.Array") -> "tuple[pa.Buffer | None, int]":
    if not array.null_count:
        return None, 0
    # `is_valid` makes a bitmap without offset, also for a slice.
    return array.is_valid().buffers()[1], array.null_count


def _strings(array: "pa.Array", ends: Any, data: Any) -> "pa.StringArray":
    """Return texts that end in ``data`` at ``ends``.

    They are null where ``array`` is null.
    """
    offsets = np.zeros(len(array) + 1, "<i4")
    offsets[1:] = ends
    validity, nulls = _validity(array)
    return pa.StringArray.from_buffers(
        len(array), pa.py_buffer(offsets), pa.py_buffer(np.ascontiguousarray(data)), validity, nulls
    )


def integers_of(array: "pa.Array") -> Any:
    """Return the 64-bit values of ``array``.

    The number of a null is arbitrary.
    """
    return np.frombuffer(array.buffers()[1], "<i8", len(array), 8 * array.offset)


# --- text ---------------------------------------------------------------------------------------


def _escaped(array: "pa.StringArray") -> "pa.Array | None":
    characters = _characters(array)
    at = np.flatnonzero((characters < 32) | (characters == ord('"')) | (characters == ord("\\")))
    if not at.size:
        return array
    escaped = characters[at]
    if not _ESCAPED.issuperset(escaped[escaped < 32].tolist()):
        return None
    data = msgspec.json.encode(characters.tobytes().decode())
    # Each escape has one character more. The quotation marks go.
    ends = offsets_of(array)[1:] - offsets_of(array)[0]
    return _strings(array, ends + np.searchsorted(at, ends), np.frombuffer(data, "u1")[1:-1])


# Text as a JSON string.
QUOTED: Final = JsonColumn(convert=_escaped, quoted=True)

# Text that is JSON already.
AS_IT_IS: Final = JsonColumn(convert=lambda array: array)


def _cast(array: "pa.Array") -> "pa.Int64Array | None":
    try:
        return array.cast(pa.int64())
    except pa.ArrowInvalid:  # a number of more than 64 bits, or text that is no integer
        return None


def integers(low: int, high: int) -> JsonColumn:
    """Return the writer of integers from ``low`` to ``high``, unchanged.

    ``to_json`` writes columns with others.
    """
    most = len(str(high))

    def convert(array: "pa.StringArray") -> "pa.Array | None":
        present = array.drop_null() if array.null_count else array
        offsets, characters = offsets_of(present), _characters(present)
        starts, sizes = offsets[:-1] - offsets[0], np.diff(offsets)
        if (sizes < 1).any():
            return None
        signs = characters[starts] == ord("-")
        # The bytes are unsigned, so one below "0" becomes a large number.
        digits = np.count_nonzero(characters - ord("0") < 10)
        if digits + np.count_nonzero(signs) != len(characters):
            return None
        if (sizes <= signs).any():
            return None
        if ((characters[starts + signs] == ord("0")) & (sizes > 1)).any():
            return None
        if int(sizes.max(initial=0)) >= most or (low >= 0 and signs.any()):
            numbers = _cast(present)
            if numbers is None:
                return None
            values = integers_of(numbers)
            if values.min() < low or values.max() > high:
                return None
        return array

    return JsonColumn(convert=convert, numbers=_cast)


def _words(array: "pa.StringArray") -> "pa.Array | None":
    true = pc.equal(array, "t")
    # ``min_count=0``: a column of nulls alone has no wrong value.
    if not pc.all(pc.or_(true, pc.equal(array, "f")), min_count=0).as_py():
        return None
    return pc.if_else(true, "true", "false")


# The texts ``t`` and ``f`` of booleans.
BOOLEANS: Final = JsonColumn(convert=_words)


def doubles(to_json: Callable[[str], str]) -> JsonColumn:
    """Return the writer of numbers that mostly have a point.

    Numbers with a point stay unchanged; ``to_json`` writes the others.
    """

    def convert(array: "pa.StringArray") -> "pa.Array | None":
        if _are_decimals(array.drop_null() if array.null_count else array):
            return array
        pointed = pc.match_substring(array, ".")
        plain = array.filter(pointed)
        if not pc.all(pc.match_substring_regex(plain, _NUMBER), min_count=0).as_py():
            return None
        others = pc.invert(pointed).fill_null(False)
        if not pc.any(others, min_count=0).as_py():
            return array
        written = [to_json(text) for text in array.filter(others).to_pylist()]
        return pc.replace_with_mask(array, others, pa.array(written, pa.string()))

    return JsonColumn(convert=convert)


def _are_decimals(array: "pa.StringArray") -> bool:
    """Return whether each value is a plain decimal number."""
    offsets, characters = offsets_of(array), _characters(array)
    starts, ends = offsets[:-1] - offsets[0], offsets[1:] - offsets[0]
    points = np.flatnonzero(characters == ord("."))
    # Digits are on both sides, so no value is empty.
    if len(points) != len(array) or (points <= starts).any() or (points >= ends - 1).any():
        return False
    signs = characters[starts] == ord("-")
    first = starts + signs
    if (points <= first).any():
        return False
    # The bytes are unsigned, so one below "0" becomes a large number.
    digits = np.count_nonzero(characters - ord("0") < 10)
    zeros = characters[first] == ord("0")
    return (
        digits + len(points) + np.count_nonzero(signs) == len(characters)
        and not (zeros & (points != first + 1)).any()
    )


# Exponents stay below the largest of a double; ``to_json`` judges others.
_NUMBER: Final = r"^-?(0|[1-9][0-9]*)(\.[0-9]+)?(e[+-]?([0-9]{1,2}|[12][0-9]{2}|30[0-7]))?$"


# --- numbers --------------------------------------------------------------------------------------


def decimals(scale: int) -> JsonColumn:
    """Return the writer of numerics with ``scale`` decimals.

    It writes base64 of the unscaled number, in two's complement and the fewest bytes that hold it.
    """

    def unscaled(array: "pa.StringArray") -> "pa.Int64Array | None":
        if not scale:
            return _cast(array)
        offsets, characters = offsets_of(array), _characters(array)
        starts, ends = offsets[:-1] - offsets[0], offsets[1:] - offsets[0]
        before = np.arange(1, len(array) + 1)
        if array.null_count:
            present = array.is_valid().to_numpy(zero_copy_only=False)
            starts, ends, before = starts[present], ends[present], np.cumsum(present)
        # Every text must have exactly ``scale`` digits behind its point.
        points = ends - (scale + 1)
        if (points < starts).any() or (characters[points] != ord(".")).any():
            return None
        # Arrow reads 0x7, too.
        if (characters > ord("9")).any():
            return None
        digits = np.delete(characters, points)
        return _cast(_strings(array, offsets[1:] - offsets[0] - before, digits))

    def convert(array: "pa.StringArray") -> "pa.Array | None":
        numbers = unscaled(array)
        return None if numbers is None else _base64(array, integers_of(numbers))

    return JsonColumn(convert=convert, quoted=True, numbers=unscaled)


def two_complements(numbers: Any) -> tuple[Any, Any]:
    """Return each 64-bit number's size and its bytes, at top."""
    # The complement of a negative number needs as many bytes as the number.
    magnitude = np.where(numbers < 0, ~numbers, numbers)
    largest = int(magnitude.max(initial=0))
    size = np.ones(len(numbers), "i8")
    for more in range(1, 8):
        if largest < 1 << (8 * more - 1):
            break
        size += magnitude >= 1 << (8 * more - 1)
    return size, numbers.astype("u8") << ((8 - size) * 8).astype("u8")


def _base64(array: "pa.Array", numbers: Any) -> "pa.StringArray":
    # base64 starts to read at the top.
    size, shifted = two_complements(numbers)
    width = (size + 2) // 3 * 4
    most = int(width.max(initial=0))
    pairs = np.empty((len(numbers), most // 2), "<u2")
    # 12 bits, from the top, give two characters.
    for group in range(most // 2):
        shift = 52 - 12 * group
        bits = shifted >> np.uint64(shift) if shift >= 0 else shifted << np.uint64(-shift)
        pairs[:, group] = _pairs()[bits & np.uint64(4095)]
    text = pairs.view("u1").reshape(-1)
    ends = np.arange(len(numbers)) * most + width
    rest = size % 3
    text[ends[rest > 0] - 1] = text[ends[rest == 1] - 2] = ord("=")
    if (width != most).any():
        # Bytes move in groups of four characters.
        fours = text.view("<u4").reshape(len(numbers), -1)
        text = fours[np.arange(most // 4) < width[:, None] // 4].view("u1")
    return _strings(array, np.cumsum(width), text)


@functools.cache
def _pairs() -> Any:
    """Return the two base64 characters of each 12-bit number."""
    alphabet = np.frombuffer(_BASE64, "u1")
    both = np.stack((alphabet.repeat(64), np.tile(alphabet, 64)), axis=1)
    return np.ascontiguousarray(both).view("<u2")[:, 0]


# --- dates and times ------------------------------------------------------------------------------


def _day_numbers(array: "pa.StringArray") -> "pa.Int64Array | None":
    try:
        return array.cast(pa.date32()).cast(pa.int32()).cast(pa.int64())
    except pa.ArrowInvalid:
        return None


def _number_texts(
    numbers: "Callable[[pa.StringArray], pa.Int64Array | None]",
) -> JsonColumn:
    def convert(array: "pa.StringArray") -> "pa.Array | None":
        found = numbers(array)
        return None if found is None else found.cast(pa.string())

    return JsonColumn(convert=convert, numbers=numbers)


# Dates of the years 1 to 9999 as days since 1970.
DAYS: Final = _number_texts(_day_numbers)


def timestamps(divisor: int) -> JsonColumn:
    """Return the writer of timestamps as numbers since 1970.

    The number is microseconds over ``divisor``; the years are 1 to 9999.
    """

    def since_1970(array: "pa.StringArray") -> "pa.Int64Array | None":
        try:
            micros = array.cast(pa.timestamp("us")).cast(pa.int64())
        except pa.ArrowInvalid:
            return None
        if divisor != 1:
            numbers = pa.py_buffer(integers_of(micros) // divisor)
            validity, nulls = _validity(array)
            micros = pa.Array.from_buffers(pa.int64(), len(array), [validity, numbers], nulls)
        return micros

    return _number_texts(since_1970)


_SHORTEST, _LONGEST = len("2020-01-01 00:00:00+00"), len("2020-01-01 00:00:00.000001+00")


def zoned(digits: int) -> JsonColumn:
    """Return the writer of UTC timestamps in ISO form.

    The years are 1 to 9999; the fraction has ``digits`` digits.
    """

    def convert(array: "pa.StringArray") -> "pa.Array | None":
        present = array.fill_null("1970-01-01 00:00:00+00")
        sizes = np.diff(offsets_of(present)).astype("i8")
        fraction = sizes - _SHORTEST - 1  # the number of its digits; -1 without a point
        if not ((fraction >= 1) & (fraction <= digits) | (fraction == -1)).all():
            return None
        padded = pc.ascii_rpad(present, _LONGEST, " ")
        text = _characters(padded).reshape(len(array), -1)
        # Text that is not ASCII has more bytes than characters.
        if text.shape[1] != _LONGEST:
            return None
        # ``to_json`` gets text with any other zone than +00.
        zone = np.arange(len(array)) * _LONGEST + sizes - 3
        if any((text.reshape(-1)[zone + n] != code).any() for n, code in enumerate(b"+00")):
            return None
        if (text[:, 10] != ord(" ")).any():
            return None
        point = len("2020-01-01 00:00:00")
        wide = point + 1 + (digits + 1 if digits else 0)
        out = np.empty((len(array), wide), "u1")
        out[:, : wide - 1] = text[:, : wide - 1]
        out[:, 10], out[:, -1] = ord("T"), ord("Z")
        short = np.flatnonzero(fraction < digits)
        if digits and short.size:
            out[short, point : point + 1] = ord(".")
            some = out[short, point + 1 : -1]
            np.copyto(some, ord("0"), where=np.arange(digits) >= fraction[short, None])
            out[short, point + 1 : -1] = some
        return _strings(array, np.arange(1, len(array) + 1) * wide, out)

    return JsonColumn(convert=convert, quoted=True)
