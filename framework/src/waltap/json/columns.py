"""Whole columns of PostgreSQL's text to JSON, without the interpreter's lock.

Each function returns a `JsonColumn` that writes what ``to_json`` of the same type writes, value by value,
and says None where it cannot: the column is then written by ``to_json``. NULL stays null.
"""

import functools
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Final

from waltap.mapping.type_mapping import JsonColumn

if TYPE_CHECKING:
    import pyarrow as pa

__all__ = [
    "AS_IT_IS",
    "BOOLEANS",
    "DAYS",
    "QUOTED",
    "WHOLE",
    "decimals",
    "mended",
    "timestamps",
    "zoned",
]

_ESCAPES: Final = {8: "\\b", 9: "\\t", 10: "\\n", 12: "\\f", 13: "\\r"}
"""Control characters that JSON has a short escape for."""

_BASE64: Final = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/"


def _offsets(array: "pa.Array") -> Any:
    import numpy as np

    return np.frombuffer(array.buffers()[1], "<i4", len(array) + 1, 4 * array.offset)


def _characters(array: "pa.StringArray") -> Any:
    """Return the bytes of all values, one after the other."""
    import numpy as np

    offsets, data = _offsets(array), array.buffers()[2]
    if data is None:
        return np.empty(0, "u1")
    return np.frombuffer(data, "u1", int(offsets[-1] - offsets[0]), int(offsets[0]))


def _validity(array: "pa.Array") -> "tuple[pa.Buffer | None, int]":
    """Return bitmap and number of nulls for an array made of ``array`` value by value."""
    if not array.null_count:
        return None, 0
    return array.is_valid().buffers()[1], array.null_count


def _strings(array: "pa.Array", ends: Any, data: Any) -> "pa.StringArray":
    """Return texts with ``ends`` in ``data``, null where ``array`` is."""
    import numpy as np
    import pyarrow as pa

    offsets = np.zeros(len(array) + 1, "<i4")
    offsets[1:] = ends
    validity, nulls = _validity(array)
    return pa.StringArray.from_buffers(
        len(array), pa.py_buffer(offsets), pa.py_buffer(np.ascontiguousarray(data)), validity, nulls
    )


def _integers(array: "pa.Array") -> Any:
    """Return the 64-bit values of ``array``; what stands for a null is any number."""
    import numpy as np

    return np.frombuffer(array.buffers()[1], "<i8", len(array), 8 * array.offset)


# --- text ---------------------------------------------------------------------------------------


def _escaped(array: "pa.StringArray") -> "pa.Array | None":
    import numpy as np
    import pyarrow.compute as pc

    characters = _characters(array)
    controls = characters[characters < 32]
    kinds: set[int] = set(np.unique(controls).tolist()) if controls.size else set()
    if not kinds <= _ESCAPES.keys():
        return None
    if (characters == ord("\\")).any():
        array = pc.replace_substring(array, "\\", "\\\\")
    if (characters == ord('"')).any():
        array = pc.replace_substring(array, '"', '\\"')
    for code in kinds:
        array = pc.replace_substring(array, chr(code), _ESCAPES[code])
    return array


QUOTED: Final = JsonColumn(convert=_escaped, quoted=True)
"""Text as a JSON string."""

AS_IT_IS: Final = JsonColumn(convert=lambda array: array)
"""Text that is JSON already."""


def _whole(array: "pa.StringArray") -> "pa.Array | None":
    """Return ``array`` where all its values are digits without a zero before them."""
    import numpy as np

    if array.null_count == len(array):
        return array
    present = array.drop_null()
    characters = _characters(present)
    if ((characters - ord("0")) > 9).any():  # of bytes: what is less than 0 is large
        return None
    starts, sizes = _offsets(present) - _offsets(present)[0], np.diff(_offsets(present))
    if (sizes < 1).any() or ((characters[starts[:-1]] == ord("0")) & (sizes > 1)).any():
        return None
    return array


WHOLE: Final = JsonColumn(convert=_whole)
"""Integers that are not negative, as they are; others are written by ``to_json``."""


def _words(array: "pa.StringArray") -> "pa.Array | None":
    import pyarrow.compute as pc

    true = pc.equal(array, "t")
    if not pc.all(pc.or_(true, pc.equal(array, "f")), min_count=0).as_py():
        return None
    return pc.if_else(true, "true", "false")


BOOLEANS: Final = JsonColumn(convert=_words)
"""``t`` and ``f``."""


def mended(mark: str, to_json: Callable[[str], str]) -> JsonColumn:
    """Return what leaves numbers with ``mark`` in them as they are, and writes others by ``to_json``."""

    def convert(array: "pa.StringArray") -> "pa.Array | None":
        import pyarrow as pa
        import pyarrow.compute as pc

        marked = pc.match_substring(array, mark)
        plain = array.filter(marked)
        if not pc.all(pc.match_substring_regex(plain, _NUMBER), min_count=0).as_py():
            return None
        others = pc.invert(marked).fill_null(False)
        if not pc.any(others, min_count=0).as_py():
            return array
        written = [to_json(text) for text in array.filter(others).to_pylist()]
        return pc.replace_with_mask(array, others, pa.array(written, pa.string()))

    return JsonColumn(convert=convert)


_NUMBER: Final = r"^-?(0|[1-9][0-9]*)(\.[0-9]+)?(e[+-]?[0-9]+)?$"


# --- numbers --------------------------------------------------------------------------------------


def decimals(scale: int) -> JsonColumn:
    """Return what writes numerics with ``scale`` decimals as base64 of the unscaled number, in two's
    complement and as few bytes as hold it; of at most 63 bits."""

    def convert(array: "pa.StringArray") -> "pa.Array | None":
        import pyarrow as pa
        import pyarrow.compute as pc

        digits = array
        if scale:
            places = pc.subtract(pc.binary_length(array), scale + 1)
            right = pc.equal(pc.find_substring(array, "."), places)
            if not pc.all(right, min_count=0).as_py():
                return None
            digits = pc.replace_substring(array, ".", "", max_replacements=1)
        try:
            numbers = _integers(digits.cast(pa.int64()))
        except pa.ArrowInvalid:
            return None
        return _base64(array, numbers)

    return JsonColumn(convert=convert, quoted=True)


def _base64(array: "pa.Array", numbers: Any) -> "pa.StringArray":
    """Return each number in base64, null where ``array`` is."""
    import numpy as np

    magnitude = np.where(numbers < 0, ~numbers, numbers)
    largest = int(magnitude.max(initial=0))
    size = np.ones(len(numbers), "i8")
    for more in range(1, 8):
        if largest < 1 << (8 * more - 1):
            break
        size += magnitude >= 1 << (8 * more - 1)
    left = numbers.astype("u8") << ((8 - size) * 8).astype("u8")
    digits, width = (size * 8 + 5) // 6, (size + 2) // 3 * 4
    most = int(width.max(initial=0))
    pairs = np.empty((len(numbers), most // 2), "<u2")
    for place in range(most // 2):
        shift = 52 - 12 * place
        bits = left >> np.uint64(shift) if shift >= 0 else left << np.uint64(-shift)
        pairs[:, place] = _pairs()[bits & np.uint64(4095)]
    text = pairs.view("u1")
    text[np.arange(most) >= digits[:, None]] = ord("=")
    if (width != most).any():
        text = text[np.arange(most) < width[:, None]]
    return _strings(array, np.cumsum(width), text)


@functools.cache
def _pairs() -> Any:
    """Return the two characters of base64 that each 12 bits are."""
    import numpy as np

    alphabet = np.frombuffer(_BASE64, "u1")
    both = np.stack((alphabet.repeat(64), np.tile(alphabet, 64)), axis=1)
    return np.ascontiguousarray(both).view("<u2")[:, 0]


# --- dates and times ------------------------------------------------------------------------------


def _day_numbers(array: "pa.StringArray") -> "pa.Array | None":
    import pyarrow as pa

    try:
        return array.cast(pa.date32()).cast(pa.int32()).cast(pa.string())
    except pa.ArrowInvalid:
        return None


DAYS: Final = JsonColumn(convert=_day_numbers)
"""Dates of years 1 to 9999 as days since 1970."""


def timestamps(divisor: int) -> JsonColumn:
    """Return what writes timestamps of years 1 to 9999 as microseconds since 1970, over ``divisor``."""

    def convert(array: "pa.StringArray") -> "pa.Array | None":
        import pyarrow as pa

        try:
            micros = array.cast(pa.timestamp("us")).cast(pa.int64())
        except pa.ArrowInvalid:
            return None
        if divisor != 1:
            numbers = pa.py_buffer(_integers(micros) // divisor)
            validity, nulls = _validity(array)
            micros = pa.Array.from_buffers(pa.int64(), len(array), [validity, numbers], nulls)
        return micros.cast(pa.string())

    return JsonColumn(convert=convert)


_SHORTEST, _LONGEST = len("2020-01-01 00:00:00+00"), len("2020-01-01 00:00:00.000001+00")
_POINT = len("2020-01-01 00:00:00")


def zoned(digits: int) -> JsonColumn:
    """Return what writes timestamps in UTC, of years 1 to 9999, in ISO's form, ``digits`` of fraction."""

    def convert(array: "pa.StringArray") -> "pa.Array | None":
        import numpy as np
        import pyarrow.compute as pc

        present = array.fill_null("1970-01-01 00:00:00+00")
        sizes = np.diff(_offsets(present)).astype("i8")
        fraction = sizes - _SHORTEST - 1  # digits of it; -1 where there is no point
        if not ((fraction >= 1) & (fraction <= digits) | (fraction == -1)).all():
            return None
        padded = pc.ascii_rpad(present, _LONGEST, " ")
        text = _characters(padded).reshape(len(array), -1)
        if text.shape[1] != _LONGEST:  # what is not ASCII has more bytes than characters
            return None
        row = np.arange(len(array))
        zone = [(text[row, sizes - 3 + n] == code).all() for n, code in enumerate(b"+00")]
        if not all(zone) or (text[:, 10] != ord(" ")).any():
            return None
        wide = _POINT + 1 + (digits + 1 if digits else 0)
        out = np.empty((len(array), wide), "u1")
        out[:, :_POINT] = text[:, :_POINT]
        out[:, 10], out[:, -1] = ord("T"), ord("Z")
        if digits:
            out[:, _POINT] = ord(".")
        for place in range(digits):
            at = _POINT + 1 + place
            out[:, at] = np.where(place < fraction, text[:, at], ord("0"))
        return _strings(array, np.arange(1, len(array) + 1) * wide, out)

    return JsonColumn(convert=convert, quoted=True)
