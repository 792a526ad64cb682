"""PostGIS: ``geometry`` and ``geography``, as extended well-known binary."""

import struct
from binascii import b2a_base64, unhexlify

from waltap.base.import_rules import pa
from waltap.changes.mapping import (
    Column,
    ColumnMapping,
    ConnectKind,
    DataType,
    Field,
    Schema,
    TypeMapper,
    TypeSample,
    TypeSpec,
    ValueForm,
    column_mapping,
    converted,
    types_named,
)

# Little-endian well-known binary of ``GEOMETRYCOLLECTION EMPTY``.
_EMPTY_COLLECTION = bytes.fromhex("010700000000000000")
# Extended well-known binary sets this bit of the geometry's kind if a spatial reference follows.
_SRID_FLAG = 0x20000000
_SRID = Field("srid", Schema(kind=ConnectKind.INT32, optional=True))


def ewkb_srid(data: bytes) -> int | None:
    """Return the spatial reference of extended well-known binary, None without one."""
    # The first byte is the byte order: 1 is little-endian, 0 big-endian.
    order = "<" if data[0] else ">"
    (kind,) = struct.unpack_from(f"{order}I", data, 1)
    if not kind & _SRID_FLAG:
        return None
    (srid,) = struct.unpack_from(f"{order}i", data, 5)
    return int(srid)


def _spatial(text: str) -> tuple[bytes, int | None]:
    # PostGIS writes both types as hexadecimal extended well-known binary.
    data = unhexlify(text)
    try:
        return data, ewkb_srid(data)
    except (struct.error, IndexError) as cause:
        raise ValueError("malformed geometry") from cause


def _spatial_json(text: str) -> str:
    data, srid = _spatial(text)
    shown = "null" if srid is None else str(srid)
    return f'{{"wkb":"{b2a_base64(data, newline=False).decode()}","srid":{shown}}}'


def _spatial_connect(text: str) -> dict[str, object]:
    data, srid = _spatial(text)
    # Debezium keeps the spatial reference in the binary, too.
    return {"wkb": data, "srid": srid}


_SPATIAL_ARROW = converted(
    "geometry",
    lambda: pa.struct([("wkb", pa.binary()), ("srid", pa.int32())]),
    _spatial_connect,
    (("waltap.form", "extended well-known binary"),),
)


def _build_spatial(column: Column, mapper: TypeMapper) -> ColumnMapping:
    assert isinstance(column.data_type, DataType)
    name = column.data_type.name.capitalize()
    form = ValueForm(
        schema=Schema(
            kind=ConnectKind.STRUCT,
            name=f"io.debezium.data.geometry.{name}",
            version=1,
            doc=name,
            fields=(Field("wkb", Schema(kind=ConnectKind.BYTES)), _SRID),
        ),
        to_json=_spatial_json,
        to_connect=_spatial_connect,
        zero={"wkb": _EMPTY_COLLECTION, "srid": None},
        arrow=_SPATIAL_ARROW,
        # Debezium's schema is optional even for a NOT NULL column of this type.
        always_optional=name == "Geometry",
    )
    return column_mapping(column, mapper.options, form)


POSTGIS_SPECS = (
    TypeSpec(
        name="PostGIS",
        summary="geometry and geography, as extended well-known binary",
        claims=types_named("geometry", "geography"),
        build=_build_spatial,
        order=100,
        examples=("geometry", "geography"),
        samples=(
            TypeSample.of_extension("geometry", "0101000000000000000000F03F0000000000000040"),
            TypeSample.of_extension(
                "geography", "0101000020E6100000000000000000F03F0000000000000040"
            ),
        ),
    ),
)
