"""Full-text search vectors."""

import struct

from waltap.decode.relation import Column
from waltap.mapping.type_mapping import ColumnMapping, TypeMapper
from waltap.specs import TypeSpec
from waltap_postgres.types.claims import builtin
from waltap_postgres.types.text import text_mapping

__all__ = ["SEARCH_SPECS"]

_WEIGHTS = ("", "C", "B", "A")


def _tsvector_from_binary(data: bytes) -> str:
    """Return the text of a tsvector in send format.

    The format has a count, then each lexeme NUL-terminated with its positions. Source:
    ``tsvectorsend`` and ``tsvectorout`` of PostgreSQL's tsvector.c.
    """
    (count,) = struct.unpack_from(">i", data)
    at, lexemes = 4, []
    for _ in range(count):
        end = data.index(0, at)
        word = data[at:end].decode().replace("\\", "\\\\").replace("'", "''")
        (places,) = struct.unpack_from(">H", data, end + 1)
        positions = struct.unpack_from(f">{places}H", data, end + 3)
        # 14 bits of position and 2 bits of weight; D, the default weight, is not printed.
        shown = ",".join(f"{p & 0x3FFF}{_WEIGHTS[p >> 14]}" for p in positions)
        lexemes.append(f"'{word}':{shown}" if shown else f"'{word}'")
        at = end + 3 + 2 * places
    return " ".join(lexemes)


def _build(column: Column, mapper: TypeMapper) -> ColumnMapping:
    return text_mapping(
        column, mapper, name="io.debezium.data.Tsvector", from_binary=_tsvector_from_binary
    )


SEARCH_SPECS = (
    TypeSpec(
        name="tsvector",
        summary="text search vectors, as text",
        claims=builtin("tsvector"),
        build=_build,
        order=100,
    ),
)
