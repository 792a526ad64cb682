"""Network addresses and WAL positions."""

import ipaddress
import struct
from collections.abc import Callable

from waltap.decode.relation import Column
from waltap.mapping.type_mapping import ColumnMapping, TypeMapper
from waltap.specs import TypeSpec
from waltap_postgres.types.claims import builtin, builtin_name
from waltap_postgres.types.text import text_mapping

__all__ = ["NETWORK_SPECS", "lsn_from_binary"]

_IPV4 = 2


def _address_from_binary(data: bytes) -> str:
    """Return the text of inet or cidr in send format.

    The format has the family (2 or 3), prefix bits, a flag for cidr, size and address. Source:
    ``network_send`` and ``network_out`` of PostgreSQL's network.c.
    """
    family, bits, is_cidr, size = data[:4]
    octets = data[4 : 4 + size]
    text = str(ipaddress.IPv4Address(octets)) if family == _IPV4 else _ipv6_text(octets)
    # An inet of one host shows no prefix; a cidr always does.
    return text if bits == 8 * size and not is_cidr else f"{text}/{bits}"


def _ipv6_text(octets: bytes) -> str:
    """Return an IPv6 address as the server prints it.

    Source: ``pg_inet_net_ntop``.
    """
    groups = [int.from_bytes(octets[n : n + 2], "big") for n in range(0, 16, 2)]
    start, length = _longest_zeros(groups)
    # The server prints an embedded IPv4 address in dotted form. Its sign is that the first
    # longest run of zeros has the first six groups, or the first five before ffff.
    if start == 0 and (length == 6 or (length == 5 and groups[5] == 0xFFFF)):
        return ("::" if length == 6 else "::ffff:") + str(ipaddress.IPv4Address(octets[12:]))
    shown = [f"{group:x}" for group in groups]
    # A single zero group is not abbreviated.
    if length < 2:
        return ":".join(shown)
    return f"{':'.join(shown[:start])}::{':'.join(shown[start + length :])}"


def _longest_zeros(groups: list[int]) -> tuple[int, int]:
    """Return start and length of the first longest run of zero groups."""
    best, start = (0, 0), -1
    # The extra group ends a run at the address's end.
    for index, group in enumerate([*groups, 1]):
        if group == 0 and start < 0:
            start = index
        elif group and start >= 0:
            if index - start > best[1]:
                best = (start, index - start)
            start = -1
    return best


def _hardware_from_binary(data: bytes) -> str:
    return data.hex(":")


def lsn_from_binary(data: bytes) -> str:
    """Return the text of a pg_lsn in send format."""
    (number,) = struct.unpack(">Q", data)
    return f"{number >> 32:X}/{number & 0xFFFFFFFF:X}"


_READERS: dict[str, Callable[[bytes], str]] = {
    "inet": _address_from_binary,
    "cidr": _address_from_binary,
    "macaddr": _hardware_from_binary,
    "macaddr8": _hardware_from_binary,
}


def _build(column: Column, mapper: TypeMapper) -> ColumnMapping:
    assert column.data_type is not None
    name = builtin_name(column.data_type) or "inet"
    return text_mapping(column, mapper, from_binary=_READERS[name])


NETWORK_SPECS = (
    TypeSpec(
        name="network",
        summary="inet, cidr, macaddr, macaddr8",
        claims=builtin("inet", "cidr", "macaddr", "macaddr8"),
        build=_build,
        order=100,
    ),
)
