"""Types of ours that plugins could have brought keep the kit's promises."""

import pytest

from waltap.changes.mapping import DataType
from waltap_testing import TypeRig, TypeSuite
from waltap_testing.installed import installed_types

SPECS = {spec.name: spec for spec in installed_types()}
POINT = bytes.fromhex("0101000020E6100000000000000000F03F0000000000000040")
PLAIN = bytes.fromhex("0101000000000000000000F03F0000000000000040")


def added(name: str) -> DataType:
    return DataType(oid=16_500, schema="extensions", name=name)


RIGS = {
    "geometry": TypeRig(
        SPECS["PostGIS"],
        added("geometry"),
        {
            POINT.hex().upper(): {"wkb": POINT, "srid": 4326},
            PLAIN.hex().upper(): {"wkb": PLAIN, "srid": None},
        },
        malformed=("", "01", "xyz", "POINT(1 2)"),
    ),
    "vector": TypeRig(
        SPECS["vector"],
        added("vector"),
        {"[1,2.5]": [1.0, 2.5], "[-0.25]": [-0.25]},
        malformed=("", "1,2", "[a]", "{1}"),
    ),
    "halfvec": TypeRig(
        SPECS["halfvec"],
        added("halfvec"),
        {"[1,2.5]": [1.0, 2.5]},
        malformed=("", "[a]"),
    ),
    "sparsevec": TypeRig(
        SPECS["sparsevec"],
        added("sparsevec"),
        {"{1:1.5,3:2}/5": {"dimensions": 5, "vector": {1: 1.5, 3: 2.0}}},
        malformed=("", "{1:1.5}", "[1]/2", "{a:1}/2"),
    ),
    "point": TypeRig(
        SPECS["point"],
        DataType(oid=600, schema="pg_catalog", name="point"),
        {"(1,2)": {"x": 1.0, "y": 2.0, "wkb": PLAIN, "srid": None}},
        malformed=("", "(1)", "1,2", "(1,2,3)"),
    ),
    "ltree": TypeRig(
        SPECS["ltree"], added("ltree"), {"Top.Science": "Top.Science", 'a"b': 'a"b'}
    ),
    "citext": TypeRig(
        SPECS["citext"],
        added("citext"),
        {"Word": "Word"},
        defaults={"lower('X')::citext": None},
    ),
}  # fmt: skip


class TestTypes(TypeSuite):
    @pytest.fixture(params=list(RIGS))
    def rig(self, request):
        return RIGS[request.param]
