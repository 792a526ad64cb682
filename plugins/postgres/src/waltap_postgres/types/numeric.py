"""``numeric`` in the modes of ``decimal.handling.mode``, and ``money``.

Connect's ``Decimal`` and Debezium's ``VariableScaleDecimal`` hold the unscaled number. It is
written in two's complement, big-endian, in the fewest bytes that hold it (zero is one byte).
"""

from binascii import b2a_base64
from collections.abc import Callable
from decimal import ROUND_HALF_UP, Context, Decimal

from waltap.changes.arrow.column import AS_TEXT, arrow_type, converted, decimals, strings
from waltap.changes.decode.relation import Column, precision_and_scale
from waltap.changes.mapping.connect_schema import ConnectKind, Field, Schema
from waltap.changes.mapping.json_schema import number_json, quote
from waltap.changes.mapping.type_mapping import ArrowMapping, ColumnMapping, TypeMapper, TypeOptions
from waltap.changes.mapping.value_form import (
    OutOfRange,
    ValueForm,
    column_mapping,
    default_value,
    placeholder_text,
)
from waltap.encoders.json import columns

# PostgreSQL text → the text of Debezium's `decimal.handling.mode` = string.
SPECIAL = {"NaN": "NAN", "Infinity": "POSITIVE_INFINITY", "-Infinity": "NEGATIVE_INFINITY"}

# Wider than any numeric: 131,072 digits before and 16,383 after the point.
_EXACT = Context(prec=200_000)

VARIABLE_SCALE = Schema(
    kind=ConnectKind.STRUCT,
    name="io.debezium.data.VariableScaleDecimal",
    version=1,
    doc="Variable scaled decimal",
    fields=(
        Field("scale", Schema(kind=ConnectKind.INT32)),
        Field("value", Schema(kind=ConnectKind.BYTES)),
    ),
)


def numeric_limits(typmod: int) -> tuple[int, int] | None:
    """Return precision and scale of a numeric's modifier, or None without one."""
    return precision_and_scale(typmod) if typmod >= 4 else None


def _bytes(number: int) -> bytes:
    """Return ``number`` in two's complement, in the fewest bytes."""
    size = ((number if number >= 0 else ~number).bit_length() >> 3) + 1
    return number.to_bytes(size, "big", signed=True)


def _base64(number: int) -> str:
    return b2a_base64(_bytes(number), newline=False).decode()


def _unscaled(text: str, scale: int) -> int:
    """Return the value times 10**scale.

    Raises ValueError where that is no whole number.
    """
    try:
        scaled = Decimal(text).scaleb(scale, _EXACT)
    except ArithmeticError as cause:
        raise ValueError("malformed numeric") from cause
    if not scaled.is_finite():
        raise ValueError("numeric is not a number")
    if scaled != scaled.to_integral_value(context=_EXACT):
        raise ValueError("numeric has more decimals than its column")
    return int(scaled)


def _precise_json(scale: int, misfit: OutOfRange) -> Callable[[str], str]:
    """Return text → JSON of a Decimal of ``scale``."""
    # The server prints exactly `scale` decimals, so the point has a fixed place from the end.
    point = -scale - 1

    def integer(text: str) -> str:
        try:
            number = int(text)
        except ValueError:
            return far(text)
        # `_bytes` and `_base64` in line: this runs for every value.
        size = ((number if number >= 0 else ~number).bit_length() >> 3) + 1
        data = number.to_bytes(size, "big", signed=True)
        return f'"{b2a_base64(data, newline=False).decode()}"'

    def fractional(text: str) -> str:
        try:
            if text[point] != ".":
                return far(text)
            number = int(text.replace(".", "", 1))
        except (ValueError, IndexError):
            return far(text)
        size = ((number if number >= 0 else ~number).bit_length() >> 3) + 1
        data = number.to_bytes(size, "big", signed=True)
        return f'"{b2a_base64(data, newline=False).decode()}"'

    def far(text: str) -> str:
        if text in SPECIAL:
            return misfit.json("numeric is NaN or infinite")
        # Texts that the server does not print: exponents and other scales, in defaults.
        return f'"{_base64(_unscaled(text, scale))}"'

    # A negative scale has no point to find, and a number of fewer digits.
    return far if scale < 0 else fractional if scale else integer


def _precise_connect(scale: int, misfit: OutOfRange) -> Callable[[str], object]:
    # The point has a fixed place from the end, as in `_precise_json`.
    point = -scale - 1

    def to_connect(text: str) -> object:
        try:
            if scale < 0:
                return far(text)
            if not scale:
                number = int(text)
            elif text[point] == ".":
                number = int(text.replace(".", "", 1))
            else:
                return far(text)
        except (ValueError, IndexError):
            return far(text)
        size = ((number if number >= 0 else ~number).bit_length() >> 3) + 1
        return number.to_bytes(size, "big", signed=True)

    def far(text: str) -> object:
        if text in SPECIAL:
            return misfit.connect("numeric is NaN or infinite")
        return _bytes(_unscaled(text, scale))

    return to_connect


def _stripped(text: str) -> tuple[int, int]:
    """Return (scale, unscaled) without trailing zeros after the point."""
    integer, _, fraction = text.partition(".")
    fraction = fraction.rstrip("0")
    try:
        return len(fraction), int(integer + fraction)
    except ValueError:
        pass
    # An exponent, as a default may have, or more digits than `int` takes.
    try:
        scale = max(0, -int(Decimal(text).normalize(_EXACT).as_tuple().exponent))
    except ArithmeticError as cause:
        raise ValueError("malformed numeric") from cause
    return scale, _unscaled(text, scale)


def _variable_json(misfit: OutOfRange) -> Callable[[str], str]:
    def to_json(text: str) -> str:
        if text in SPECIAL:
            return misfit.json("numeric is NaN or infinite")
        scale, number = _stripped(text)
        return f'{{"scale":{scale},"value":"{_base64(number)}"}}'

    return to_json


def _variable_connect(misfit: OutOfRange) -> Callable[[str], object]:
    def to_connect(text: str) -> object:
        if text in SPECIAL:
            return misfit.connect("numeric is NaN or infinite")
        scale, number = _stripped(text)
        return {"scale": scale, "value": _bytes(number)}

    return to_connect


def _string_connect(scale: int | None) -> Callable[[str], str]:
    """Return text → text at the column's scale.

    Without a scale the digits stay unchanged.
    """

    def plain(text: str) -> str:
        special = SPECIAL.get(text)
        return text if special is None else special

    def scaled(text: str) -> str:
        special = SPECIAL.get(text)
        if special is not None:
            return special
        fraction = len(text) - text.find(".") - 1 if "." in text else 0
        # The server prints the column's scale; a default may have another.
        if fraction == scale:
            return text
        return f"{Decimal(_unscaled(text, scale or 0)).scaleb(-(scale or 0), _EXACT):f}"

    return plain if scale is None else scaled


def _finite(convert: Callable[[str], object]) -> Callable[[str], object]:
    """Return ``convert`` for defaults, which are finite numbers in Debezium."""

    def default(text: str) -> object:
        if not Decimal(text).is_finite():
            raise ValueError("numeric is NaN or infinite")
        return convert(text)

    return default


def build_numeric(column: Column, mapper: TypeMapper) -> ColumnMapping:
    """Map ``numeric``."""
    options = mapper.options
    limits = numeric_limits(column.typmod)
    arrow = _numeric_arrow(column.typmod, options)
    scaled = _string_connect(limits[1] if limits else None)
    match options.decimal_handling_mode:
        case "double":
            form = ValueForm(
                schema=Schema(kind=ConnectKind.FLOAT64),
                to_json=lambda text: number_json(float(text), single=False),
                to_connect=float,
                zero=0.0,
                # One with more decimals than the column is none, as in the other modes.
                default=default_value(column.default, "0.0", _finite(lambda t: float(scaled(t)))),
                arrow=arrow,
            )
            return column_mapping(column, options, form)
        case "string":
            form = ValueForm(
                schema=Schema(kind=ConnectKind.STRING),
                to_json=lambda text: quote(scaled(text)),
                to_connect=scaled,
                zero=scaled("0"),
                default=default_value(column.default, "0.0", _finite(scaled)),
                unavailable=placeholder_text(options),
                arrow=arrow,
            )
            return column_mapping(column, options, form)
        case _:
            return _build_precise(column, mapper, limits, arrow)


def _numeric_arrow(typmod: int, options: TypeOptions) -> ArrowMapping:
    """Return the Arrow form of a numeric: its own precision and scale.

    A numeric without precision, or with more than 38 digits, is text, digit by digit. The options
    may choose a decimal of 256 bits instead.
    """
    limits = numeric_limits(typmod)
    if limits is None:
        if options.arrow_unconstrained_numeric == "decimal256":
            return decimals(76, 38, options)
        return strings(AS_TEXT)
    precision, scale = limits
    if scale < 0:
        return decimals(precision - scale, 0, options)
    if scale >= 1024:  # eleven bits with sign
        # A negative scale adds zeros before the point, and Arrow has it as digits.
        return decimals(precision + 2048 - scale, 0, options)
    return decimals(max(precision, scale), scale, options)


def _build_precise(
    column: Column, mapper: TypeMapper, limits: tuple[int, int] | None, arrow: ArrowMapping
) -> ColumnMapping:
    misfit = OutOfRange(column.name, mapper.options)
    if limits is None:  # a struct: Debezium gives it no default
        form = ValueForm(
            schema=VARIABLE_SCALE,
            to_json=_variable_json(misfit),
            to_connect=_variable_connect(misfit),
            zero={"scale": 0, "value": b"\0"},
            arrow=arrow,
        )
        return column_mapping(column, mapper.options, form, misfit)
    precision, scale = limits
    parameters = (("scale", str(scale)), ("connect.decimal.precision", str(precision)))
    form = ValueForm(
        schema=_decimal_schema(parameters),
        to_json=_precise_json(scale, misfit),
        to_connect=_precise_connect(scale, misfit),
        zero=b"\0",
        default=default_value(column.default, "0.0", lambda text: _bytes(_unscaled(text, scale))),
        arrow=arrow,
        json_column=None if scale < 0 else columns.decimals(scale),
    )
    return column_mapping(column, mapper.options, form, misfit)


def _decimal_schema(parameters: tuple[tuple[str, str], ...]) -> Schema:
    return Schema(
        kind=ConnectKind.BYTES,
        name="org.apache.kafka.connect.data.Decimal",
        version=1,
        parameters=parameters,
    )


_MONEY_SIGNS = str.maketrans("", "", "$, ")


def _money(text: str) -> Decimal:
    """Return the amount of a money text: ``-$1,234.56``, ``($1.00)``.

    The text is printed under ``lc_monetary=C``.
    """
    negative = "-" in text or text[:1] == "("
    try:
        amount = Decimal(text.translate(_MONEY_SIGNS).strip("-()"))
    except ArithmeticError as cause:
        raise ValueError("malformed money") from cause
    return -amount if negative else amount


_MONEY_ARROW = converted("money", arrow_type("decimal128", 19, 2), _money)


def build_money(column: Column, mapper: TypeMapper) -> ColumnMapping:
    """Map ``money``."""
    options = mapper.options
    digits = options.money_fraction_digits
    unit = Decimal(1).scaleb(-digits)

    def unscaled(text: str) -> int:
        # `money.fraction.digits` may be less than the amount has.
        return int(_money(text).quantize(unit, ROUND_HALF_UP, _EXACT).scaleb(digits))

    match options.decimal_handling_mode:
        case "double":
            form = ValueForm(
                schema=Schema(kind=ConnectKind.FLOAT64),
                to_json=lambda text: number_json(float(_money(text)), single=False),
                to_connect=lambda text: float(_money(text)),
                zero=0.0,
                arrow=_MONEY_ARROW,
            )
        case "string":
            form = ValueForm(
                schema=Schema(kind=ConnectKind.STRING),
                to_json=lambda text: f'"{_money(text):f}"',
                to_connect=lambda text: f"{_money(text):f}",
                zero=f"{Decimal(0).quantize(unit):f}",
                unavailable=placeholder_text(options),
                arrow=_MONEY_ARROW,
            )
        case _:
            form = ValueForm(
                schema=_decimal_schema((("scale", str(digits)),)),
                to_json=lambda text: f'"{_base64(unscaled(text))}"',
                to_connect=lambda text: _bytes(unscaled(text)),
                zero=b"\0",
                arrow=_MONEY_ARROW,
            )
    return column_mapping(column, options, form)
