"""Convert whole columns of PostgreSQL text to Arrow arrays.

Columns are lists or Arrow arrays of strings (`ArrowMapping.text`); one cast reads both. Each function
returns an `ArrowMapping` for a family of types.

Some values do not fit their Arrow type: numeric NaN, infinite or far dates, 24:00, a second dimension.
``TypeOptions.arrow_misfit`` decides about them. error raises `ArrowMisfit`, null writes null. string
makes the column a string of PostgreSQL text from the start, so that every value fits.

After a failed cast the values are checked one by one. No cast runs that could wrap silently.
pyarrow is imported with the first column.
"""

import ctypes
from array import array
from binascii import unhexlify
from collections.abc import Callable, Sequence
from decimal import Decimal, InvalidOperation
from itertools import accumulate
from typing import Any, Final

from waltap.base.import_rules import pa, pc
from waltap.changes.arrow.out_of_range import ArrowMalformed, ArrowMisfit
from waltap.changes.mapping.type_mapping import ArrowMapping, TypeOptions

# Make Arrow arrays of Python lists with few copies.
#
# `pyarrow.array` copies a long text two to three times; one copy is enough.

# Up to this number of values are joined here. pyarrow is quicker with more of them, and then no
# value is long.
FEW: Final = 64

# From this number of characters on, an array points into the text and does not copy it.
LONG: Final = 1 << 20


def string_array(values: Sequence[str | None]) -> "pa.Array":
    """Return ``values`` as an array of strings."""
    if len(values) > FEW:
        return pa.array(values, pa.string())
    # Nulls have no bytes; the bitmap marks them.
    texts = ["" if value is None else value for value in values]
    joined = texts[0] if len(texts) == 1 else "".join(texts)
    # An ASCII character is one byte, so the sizes are known without encoding.
    if len(joined) >= LONG and joined.isascii():
        sizes, data = list(map(len, texts)), _shown(joined)
    else:
        encoded = [text.encode() for text in texts]
        sizes = list(map(len, encoded))
        data = pa.py_buffer(encoded[0] if len(encoded) == 1 else b"".join(encoded))
    offsets = pa.py_buffer(array("i", accumulate(sizes, initial=0)))
    validity, nulls = _validity(values)
    return pa.StringArray.from_buffers(len(values), offsets, data, validity, nulls)


def _shown(text: str) -> "pa.Buffer":
    """Return a buffer that points into an ASCII text.

    The buffer keeps the text alive.
    """
    # Python stores ASCII text as its UTF-8 bytes, so the pointer needs no encoding.
    utf8 = ctypes.pythonapi.PyUnicode_AsUTF8AndSize
    utf8.restype, utf8.argtypes = ctypes.c_void_p, (ctypes.py_object, ctypes.c_void_p)
    return pa.foreign_buffer(utf8(text, None), len(text), base=text)


def _validity(values: Sequence[object]) -> "tuple[pa.Buffer | None, int]":
    """Return the null bitmap of ``values`` and the number of nulls.

    The bitmap is None if no value is null.
    """
    nulls = sum(value is None for value in values)
    if not nulls:
        return None, 0
    # Arrow's bitmap starts at the lowest bit, hence the reversed order.
    bits = "".join("0" if value is None else "1" for value in reversed(values))
    return pa.py_buffer(int(bits, 2).to_bytes((len(bits) + 7) // 8, "little")), nulls


def integer_array(code: str, values: list[int], arrow_type: "pa.DataType") -> "pa.Array":
    """Return ``values`` as an array of machine integers.

    ``code`` is a type code of `array.array`.
    """
    data = pa.py_buffer(array(code, values))
    return pa.Array.from_buffers(arrow_type, len(values), [None, data])


Texts = Sequence[str | None]

# Metadata of a column that is a string only because its values might not fit.
AS_TEXT = (("waltap.form", "postgres text"),)


def _text(values: Sequence[object]) -> "pa.Array":
    return pa.array(values, pa.string())


def _listed(text: "Callable[[pa.StringArray], pa.Array]") -> "Callable[[Texts], pa.Array]":
    return lambda values: text(_text(values))


def arrow_type(name: str, *arguments: object) -> "Callable[[], pa.DataType]":
    """Return a function that makes an Arrow type of pyarrow's function ``name``."""
    return lambda: getattr(pa, name)(*arguments)


def strings(metadata: tuple[tuple[str, str], ...] = ()) -> ArrowMapping:
    """Return the mapping of text to string."""
    return ArrowMapping(
        type=arrow_type("string"),
        column=string_array,
        metadata=metadata,
        text=lambda values: values,
    )


def _cast(name: str, type_: "Callable[[], pa.DataType]") -> "Callable[[pa.StringArray], pa.Array]":
    """Return a column function that casts text to a type.

    It raises ArrowMalformed for text of another type.
    """

    def text(values: "pa.StringArray") -> "pa.Array":
        try:
            return values.cast(type_())
        except pa.ArrowInvalid as cause:
            raise ArrowMalformed(name) from cause

    return text


def integers(bits: int) -> ArrowMapping:
    """Return the mapping of 16-, 32- or 64-bit integers."""
    type_ = arrow_type(f"int{bits}")
    text = _cast("integer", type_)
    return ArrowMapping(type=type_, column=_listed(text), text=text)


def floats(bits: int) -> ArrowMapping:
    """Return the mapping of 32- or 64-bit IEEE numbers.

    NaN and infinities are valid values.
    """
    type_ = arrow_type(f"float{bits}")
    text = _cast("floating point", type_)
    return ArrowMapping(type=type_, column=_listed(text), text=text)


def booleans() -> ArrowMapping:
    """Return the mapping of booleans, ``t`` and ``f``."""

    def text(values: "pa.StringArray") -> "pa.Array":
        true = pc.equal(values, "t")
        # ``min_count=0``: a column of nulls alone has no wrong value.
        if not pc.all(pc.or_(true, pc.equal(values, "f")), min_count=0).as_py():
            raise ArrowMalformed("boolean")
        return true

    return ArrowMapping(type=arrow_type("bool_"), column=_listed(text), text=text)


def byte_strings() -> ArrowMapping:
    r"""Return the mapping of bytea (``\x…``) to binary."""

    def column(values: Texts) -> "pa.Array":
        try:
            return pa.array([None if v is None else _unhex(v) for v in values], pa.binary())
        except ValueError as cause:
            raise ArrowMalformed("bytea") from cause

    return ArrowMapping(type=arrow_type("binary"), column=column)


def _unhex(text: str) -> bytes:
    if text[:2] != "\\x":
        raise ValueError("bytea is not in hexadecimal")
    return unhexlify(text[2:])


def _guarded(
    name: str,
    options: TypeOptions,
    type_: "Callable[[], pa.DataType]",
    cast: "Callable[[pa.StringArray], pa.Array]",
    misfit: Callable[[str], str | None],
) -> ArrowMapping:
    """Return a mapping whose ``cast`` may find misfits.

    ``cast`` raises ArrowInvalid for them. ``misfit`` returns the reason for one text, or None if the
    text fits.
    """
    if options.arrow_misfit == "string":
        return strings(AS_TEXT)

    def text(values: "pa.StringArray") -> "pa.Array":
        try:
            return cast(values)
        except pa.ArrowInvalid:
            # Arrow does not name the value, so look at them all.
            fitting = _without_misfits(values.to_pylist(), misfit, options)
        try:
            return cast(_text(fitting))
        except pa.ArrowInvalid as cause:
            raise ArrowMalformed(name) from cause

    return ArrowMapping(type=type_, column=_listed(text), text=text)


def _without_misfits(
    values: Texts, misfit: Callable[[str], str | None], options: TypeOptions
) -> list[str | None]:
    """Return ``values`` with null for misfits.

    Raises: ArrowMisfit unless the policy is null.
    """
    fitting: list[str | None] = []
    for value in values:
        reason = None if value is None else misfit(value)
        if reason is not None:
            if options.arrow_misfit != "null":
                raise ArrowMisfit(reason)
            options.arrow_misfits[reason] += 1
        fitting.append(value if reason is None else None)
    return fitting


# Digits of decimal128 and decimal256. A cast of text with more digits than its decimal wraps
# silently. So the cast uses the widest type, and text with more digits is refused before it.
_WIDE = 38
_WIDEST = 76


def _too_wide(text: str | None) -> bool:
    return text is not None and len(text) - text.count("-") - text.count(".") > _WIDEST


def decimals(precision: int, scale: int, options: TypeOptions) -> ArrowMapping:
    """Return the mapping of decimals.

    Decimals have 128 bits up to precision 38; wider ones are text. With
    ``arrow_unconstrained_numeric`` = decimal256 they have 256 bits up to precision 76.
    """
    # Spark, like many readers of Parquet, knows no decimal of more than 38 digits, so decimal256
    # is optional.
    widest = _WIDEST if options.arrow_unconstrained_numeric == "decimal256" else _WIDE
    if precision > widest:
        return strings(AS_TEXT)

    type_ = arrow_type("decimal128" if precision <= _WIDE else "decimal256", precision, scale)

    def cast(values: "pa.StringArray") -> "pa.Array":
        longest = pc.max(pc.binary_length(values)).as_py()
        if longest is not None and longest > _WIDEST and any(map(_too_wide, values.to_pylist())):
            raise pa.ArrowInvalid("more digits than any decimal has")
        wide = values.cast(pa.decimal256(_WIDEST, scale))
        return wide if precision == _WIDEST else wide.cast(type_())

    def misfit(text: str) -> str | None:
        try:
            number = Decimal(text)
        except InvalidOperation:
            return None  # malformed, which the second cast finds
        if not number.is_finite():
            return "numeric NaN or infinity"
        _, digits, exponent = number.as_tuple()
        integer_digits = len(digits) + int(exponent)
        if number and (integer_digits > precision - scale or -int(exponent) > scale):
            return "numeric beyond precision and scale"
        return None

    return _guarded("numeric", options, type_, cast, misfit)


def _far_date(text: str) -> str | None:
    if text in {"infinity", "-infinity"}:
        return "infinite date or timestamp"
    if text.endswith("BC") or text.find("-") > 4:
        return "date or timestamp outside years 1 to 9999"
    return None


def dates(options: TypeOptions) -> ArrowMapping:
    """Return the mapping of dates to date32."""
    type_ = arrow_type("date32")
    return _guarded("date", options, type_, lambda values: values.cast(type_()), _far_date)


def timestamps(options: TypeOptions, zone: str | None = None) -> ArrowMapping:
    """Return the mapping of timestamps to microseconds.

    A timestamptz has a ``zone``, which is UTC.
    """
    type_ = arrow_type("timestamp", "us", zone)
    return _guarded("timestamp", options, type_, lambda values: values.cast(type_()), _far_date)


def clocks(options: TypeOptions) -> ArrowMapping:
    """Return the mapping of times of day to microseconds.

    PostgreSQL's 24:00 does not fit.
    """

    def cast(values: "pa.StringArray") -> "pa.Array":
        # Arrow has no cast from text to a time of day, so the text gets a date.
        full = pc.binary_join_element_wise("1970-01-01", values, " ")
        return full.cast(pa.timestamp("us")).cast(pa.time64("us"))

    def misfit(text: str) -> str | None:
        return "time 24:00" if text[:2] == "24" else None

    return _guarded("time", options, arrow_type("time64", "us"), cast, misfit)


def converted(
    name: str,
    type_: "Callable[[], pa.DataType]",
    convert: Callable[[str], object],
    metadata: tuple[tuple[str, str], ...] = (),
) -> ArrowMapping:
    """Return a mapping that converts value by value.

    It serves types that no cast knows. ``convert`` returns a value that `pyarrow.array` accepts for the
    type, and raises ValueError for malformed text.
    """

    def column(values: Texts) -> "pa.Array":
        try:
            return pa.array([None if v is None else convert(v) for v in values], type_())
        except (ValueError, pa.ArrowInvalid) as cause:
            raise ArrowMalformed(name) from cause

    return ArrowMapping(type=type_, column=column, metadata=metadata)


def lists(
    element: ArrowMapping, parse: Callable[[str], list[Any]], options: TypeOptions
) -> ArrowMapping:
    """Return the mapping of one-dimensional arrays.

    ``parse`` returns texts, None or inner lists. A second dimension does not fit.
    """
    if options.arrow_misfit == "string":
        return strings(AS_TEXT)

    def column(values: Texts) -> "pa.Array":
        # The elements of all arrays are cast together.
        offsets: list[int | None] = []
        flat: list[str | None] = []
        for value in values:
            items = None if value is None else _parsed(value, parse)
            if items and any(isinstance(item, list) for item in items):
                reason = "array of several dimensions"
                if options.arrow_misfit != "null":
                    raise ArrowMisfit(reason)
                options.arrow_misfits[reason] += 1
                items = None
            if items is None:
                offsets.append(None)
            else:
                offsets.append(len(flat))
                flat.extend(items)
        offsets.append(len(flat))
        return pa.ListArray.from_arrays(
            pa.array(offsets, pa.int32()), element.column(flat), type=pa.list_(element.type())
        )

    return ArrowMapping(
        type=lambda: pa.list_(element.type()), column=column, metadata=element.metadata
    )


def _parsed(text: str, parse: Callable[[str], list[Any]]) -> list[Any]:
    try:
        return parse(text)
    except ValueError as cause:
        raise ArrowMalformed("array") from cause


def text_column(values: "pa.Array") -> "pa.StringArray":
    """Return ``values`` as text; a column of text as it is.

    It is the way back from the mappings above, for readers of blocks that need text; lists have no
    text here. A timestamp with a zone is in UTC. Raises: TypeError for another type.
    """
    kind, types = values.type, pa.types
    if types.is_string(kind):
        return values
    if types.is_null(kind) or types.is_integer(kind) or types.is_date(kind):
        return values.cast(pa.string())
    if types.is_boolean(kind):
        return pc.if_else(values, "t", "f")
    if types.is_timestamp(kind):
        text = _clock(values.cast(pa.timestamp("us")))
        return text if kind.tz is None else pc.binary_join_element_wise(text, "+00", "")
    if types.is_time(kind):
        return _clock(values)
    if types.is_decimal(kind):
        return _each(values, "{:f}".format)
    if types.is_floating(kind):
        # Whatever registers a type loads this module, `waltap --help` too.
        from waltap.changes.decode.value_text import float4_text, float8_text

        return _each(values, float8_text if kind.bit_width == 64 else float4_text)
    if types.is_binary(kind):
        return _each(values, lambda value: f"\\x{value.hex()}")
    raise TypeError(f"a column of {kind} has no text of PostgreSQL")


def _clock(values: "pa.Array") -> "pa.StringArray":
    """Return times with as many digits of a second as they need."""
    # Arrow prints all six digits, so that the pattern meets no other zeros.
    return pc.replace_substring_regex(values.cast(pa.string()), r"\.?0*$", "")


def _each(values: "pa.Array", text: Callable[[Any], str]) -> "pa.StringArray":
    found = [None if value is None else text(value) for value in values.to_pylist()]
    return pa.array(found, pa.string())
