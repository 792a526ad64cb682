"""SwapGeometryCoordinates and GeometryFormatTransformer: adapt geometries."""

from typing import Any, Literal

from pydantic import field_validator

from waltap.base.property import CommaList, Properties, declare
from waltap.changes.mapping.connect_schema import ConnectKind, Schema
from waltap.encoders.format.record_transform import ConnectRecord, RecordUnfit
from waltap_transforms.debezium.struct_rewrite import Convert, StructRewrite
from waltap_transforms.debezium.wkb import is_extended, swapped, with_srid, without_srid
from waltap_transforms.specs import debezium_spec, each

__all__ = ["GEOMETRY"]

GEOMETRY = "io.debezium.data.geometry.Geometry"


class SwapCoordinatesProperties(Properties):
    """Geometries to change."""

    srids: CommaList = declare(
        "srids",
        default=("4326", "3857", "4269"),
        summary="SRIDs of the geometries whose coordinates are swapped; one without an SRID never is.",
    )

    @field_validator("srids")
    @classmethod
    def _numbers(cls, value: tuple[str, ...]) -> tuple[str, ...]:
        if not all(each.lstrip("-").isdigit() for each in value):
            raise ValueError("must be numbers")
        return value


class GeometryFormatProperties(Properties):
    """Format of plain geometries."""

    format: Literal["wkb", "ewkb"] = declare(
        "format",
        default="wkb",
        summary="Format that plain geometries have: those in WKB get their SRID inside (EWKB). Extended "
        "ones become plain.",
    )


class SwapCoordinates:
    """Swap x and y of geometries."""

    def __init__(self, properties: SwapCoordinatesProperties) -> None:
        self._srids = frozenset(map(int, properties.srids))
        self._rewrite = StructRewrite(_geometries(self._swapped), inside=True)

    def __call__(self, record: ConnectRecord) -> ConnectRecord:
        """Return ``record`` with x and y swapped.

        Raises: RecordUnfit.
        """
        return _rewritten(record, self._rewrite)

    def _swapped(self, value: Any) -> Any:
        srid = value.get("srid")
        if srid is None or srid not in self._srids:
            return value
        return {**value, "wkb": swapped(value["wkb"])}


class GeometryFormat:
    """Convert geometries between WKB and EWKB."""

    def __init__(self, properties: GeometryFormatProperties) -> None:
        self._extends = properties.format == "wkb"
        self._rewrite = StructRewrite(_geometries(self._converted), inside=False)

    def __call__(self, record: ConnectRecord) -> ConnectRecord:
        """Return ``record`` with the other format.

        Raises: RecordUnfit.
        """
        return _rewritten(record, self._rewrite)

    def _converted(self, value: Any) -> Any:
        wkb, srid = value["wkb"], value.get("srid")
        # Extended geometries become plain for either value of the property.
        if is_extended(wkb):
            return {**value, "wkb": without_srid(wkb)}
        if not self._extends:
            return value
        if srid is None:
            raise RecordUnfit("a geometry without an SRID cannot become EWKB")
        return {**value, "wkb": with_srid(wkb, srid)}


def _geometries(convert: Convert) -> Any:
    def change(schema: Schema) -> tuple[Schema, Convert] | None:
        if schema.kind is ConnectKind.STRUCT and schema.name == GEOMETRY:
            return schema, convert
        return None

    return change


def _rewritten(record: ConnectRecord, rewrite: StructRewrite) -> ConnectRecord:
    schema = record.value_schema
    # Tombstones and values that are not structs have no geometries.
    if record.value is None or schema is None or schema.kind is not ConnectKind.STRUCT:
        return record
    return rewrite(record)


GEOMETRY = (
    debezium_spec(
        "swap-geometry-coordinates",
        "SwapGeometryCoordinates",
        "Swaps x and y of geometries.",
        SwapCoordinatesProperties,
        lambda properties, _context: each(SwapCoordinates(properties)),
    ),
    debezium_spec(
        "geometry-format",
        "GeometryFormatTransformer",
        "Puts the SRID into geometries, or takes it out.",
        GeometryFormatProperties,
        lambda properties, _context: each(GeometryFormat(properties)),
    ),
)
