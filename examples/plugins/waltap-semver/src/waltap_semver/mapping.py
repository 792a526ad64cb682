"""The type `semver` of an extension: versions like 1.2.3, as a struct of three numbers."""

from typing import TYPE_CHECKING

from waltap.changes.mapping import Field, ConnectKind, Schema, TypeSample, simple_type, types_named

if TYPE_CHECKING:
    import pyarrow as pa

# [type]
PARTS = ("major", "minor", "patch")
SCHEMA = Schema(
    kind=ConnectKind.STRUCT,
    name="waltap_semver.Version",
    version=1,
    fields=tuple(Field(part, Schema(kind=ConnectKind.INT32)) for part in PARTS),
)


def parse(text: str) -> dict[str, int]:
    """Return the value that PostgreSQL prints as ``1.2.3``. Raises: ValueError for any other text."""
    return dict(zip(PARTS, map(int, text.split(".")), strict=True))


def arrow() -> "pa.DataType":
    """Return the column's type; pyarrow is loaded by sinks that want columns, not at start-up."""
    import pyarrow as pa

    return pa.struct([(part, pa.int32()) for part in PARTS])


SPEC = simple_type(
    "semver",
    summary="Versions, as three numbers.",
    claims=types_named("semver"),
    schema=SCHEMA,
    parse=parse,
    zero=dict.fromkeys(PARTS, 0),
    arrow=arrow,
    samples=[TypeSample.of_extension("semver", "1.2.3")],
)
# [/type]
