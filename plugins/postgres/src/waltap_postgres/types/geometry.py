"""The native ``point``, and the text of the other geometric types."""

import struct
from binascii import b2a_base64

from waltap.base.import_rules import pa
from waltap.changes.arrow.column import converted
from waltap.changes.decode.relation import Column
from waltap.changes.mapping.connect_schema import ConnectKind, Field, Schema
from waltap.changes.mapping.java_number import double_text
from waltap.changes.mapping.json_schema import number_json
from waltap.changes.mapping.type_mapping import ColumnMapping, TypeMapper
from waltap.changes.mapping.value_form import ValueForm, column_mapping

_POINT_WKB = struct.Struct("<bIdd")

_SRID = Field("srid", Schema(kind=ConnectKind.INT32, optional=True))
_POINT = Schema(
    kind=ConnectKind.STRUCT,
    name="io.debezium.data.geometry.Point",
    version=1,
    doc="Geometry (POINT)",
    fields=(
        Field("x", Schema(kind=ConnectKind.FLOAT64)),
        Field("y", Schema(kind=ConnectKind.FLOAT64)),
        Field("wkb", Schema(kind=ConnectKind.BYTES, optional=True)),
        _SRID,
    ),
)


def parse_point(text: str) -> tuple[float, float]:
    """Return the point of ``(x,y)``."""
    if text[:1] != "(" or text[-1:] != ")":
        raise ValueError("malformed point")
    x, y = text[1:-1].split(",")
    return float(x), float(y)


def _point_json(text: str) -> str:
    x, y = parse_point(text)
    wkb = b2a_base64(_well_known(x, y), newline=False).decode()
    shown = f'"x":{number_json(x, single=False)},"y":{number_json(y, single=False)}'
    return f'{{{shown},"wkb":"{wkb}","srid":null}}'


def _point_connect(text: str) -> dict[str, object]:
    x, y = parse_point(text)
    return {"x": x, "y": y, "wkb": _well_known(x, y), "srid": None}


def _well_known(x: float, y: float) -> bytes:
    """Return a point as little-endian well-known binary."""
    # 1 is little-endian, the other 1 is WKB's code of a point.
    return _POINT_WKB.pack(1, 1, x, y)


_POINT_ARROW = converted(
    "point",
    lambda: pa.struct([("x", pa.float64()), ("y", pa.float64())]),
    lambda text: dict(zip("xy", parse_point(text), strict=True)),
)


def build_point(column: Column, mapper: TypeMapper) -> ColumnMapping:
    """Map ``point``."""
    form = ValueForm(
        schema=_POINT,
        to_json=_point_json,
        to_connect=_point_connect,
        zero=_point_connect("(0,0)"),
        arrow=_POINT_ARROW,
    )
    return column_mapping(column, mapper.options, form)


def java_geometry(text: str) -> str:
    """Return a native geometric value as PgJDBC prints it.

    ``include.unknown.datatypes`` passes it on for box, circle, line, lseg, path and polygon.
    """
    parts: list[str] = []
    number = ""
    for char in text:
        if char in "(){}[]<>,":
            if number:
                # PgJDBC parses and prints every number as a Java double.
                parts.append(double_text(float(number)))
                number = ""
            parts.append(char)
        else:
            number += char
    return "".join(parts)
