"""``bytea`` in the modes of ``binary.handling.mode``, and bit strings."""

import base64
from binascii import b2a_base64, unhexlify
from collections.abc import Callable

from waltap.changes.arrow.column import arrow_type, byte_strings, converted, strings
from waltap.changes.decode.relation import Column, DataType
from waltap.changes.mapping.connect_schema import ConnectKind, Schema
from waltap.changes.mapping.type_mapping import ArrowMapping, ColumnMapping, TypeMapper, TypeOptions
from waltap.changes.mapping.value_form import (
    ValueForm,
    column_mapping,
    default_value,
    placeholder_text,
)
from waltap_postgres.types.builtin import builtin_name


def bytea_bytes(text: str) -> bytes:
    r"""Return the bytes of ``\x…``.

    Raises ValueError for another ``bytea_output``.
    """
    if text[:2] != "\\x":
        raise ValueError("bytea is not in hexadecimal: bytea_output must be hex")
    return unhexlify(text[2:])


def _base64_json(text: str) -> str:
    # A check in line saves a call per value; the call raises the error.
    if text[:2] != "\\x":
        bytea_bytes(text)
    return f'"{b2a_base64(unhexlify(text[2:]), newline=False).decode()}"'


def _url_safe(data: bytes) -> str:
    return base64.urlsafe_b64encode(data).decode()


def _standard(data: bytes) -> str:
    return b2a_base64(data, newline=False).decode()


def binary_form(
    options: TypeOptions, read: Callable[[str], bytes], arrow: ArrowMapping
) -> ValueForm:
    """Return the form of bytes under ``binary.handling.mode``.

    ``read`` takes the bytes from the text.
    """
    match options.binary_handling_mode:
        case "base64":
            encode: Callable[[bytes], str] = _standard
            # Debezium leaves an unavailable value null in the base64 modes, so they have no
            # placeholder.
            unavailable = None
        case "base64-url-safe":
            encode, unavailable = _url_safe, None
        case "hex":
            encode, unavailable = bytes.hex, placeholder_text(options)
        case _:
            return ValueForm(
                schema=Schema(kind=ConnectKind.BYTES),
                to_json=_base64_json
                if read is bytea_bytes
                else lambda text: f'"{_standard(read(text))}"',
                to_connect=read,
                zero=b"",
                unavailable=options.unavailable_value_placeholder,
                arrow=arrow,
            )
    return ValueForm(
        schema=Schema(kind=ConnectKind.STRING),
        to_json=lambda text: f'"{encode(read(text))}"',
        to_connect=lambda text: encode(read(text)),
        zero="",
        unavailable=unavailable,
        arrow=arrow,
    )


def build_bytea(column: Column, mapper: TypeMapper) -> ColumnMapping:
    """Map ``bytea``."""
    form = binary_form(mapper.options, bytea_bytes, byte_strings())
    return column_mapping(column, mapper.options, form)


def _bits(text: str) -> bytes:
    """Return a bit string as a little-endian number without high zero bytes."""
    number = int(text, 2) if text else 0
    return number.to_bytes((number.bit_length() + 7) >> 3, "little")


def _bit(text: str) -> bool:
    return int(text, 2) != 0


def _bits_default(text: str) -> bytes:
    """Return the default of a longer ``bit``.

    Debezium takes one digit for a boolean, and writes it as a byte.
    """
    return bytes([text == "1"]) if len(text) == 1 else _bits(text)


def build_bits(column: Column, mapper: TypeMapper) -> ColumnMapping:
    """Map ``bit(n)`` and ``varbit(n)``; one bit is a boolean."""
    assert isinstance(column.data_type, DataType)
    varying = builtin_name(column.data_type) == "varbit"
    # `bit` without length is `bit(1)`, whose modifier may be missing for a domain's element.
    # `varbit` without length has Java's largest int in Debezium's schema.
    length = column.typmod if column.typmod > 0 else (2**31 - 1 if varying else 1)
    if length == 1:
        form = ValueForm(
            schema=Schema(kind=ConnectKind.BOOLEAN),
            to_json=lambda text: "true" if int(text, 2) else "false",
            to_connect=_bit,
            zero=False,
            default=default_value(column.default, "0", _bit),
            arrow=converted("bit", arrow_type("bool_"), _bit),
        )
    else:
        form = ValueForm(
            schema=Schema(
                kind=ConnectKind.BYTES,
                name="io.debezium.data.Bits",
                version=1,
                parameters=(("length", str(length)),),
            ),
            to_json=lambda text: f'"{_standard(_bits(text))}"',
            to_connect=_bits,
            zero=b"",
            default=default_value(column.default, "00", _bits if varying else _bits_default),
            arrow=strings((("waltap.form", "bits"),)),
        )
    return column_mapping(column, mapper.options, form)
