"""The conformance suite of waltap: every form of a value says the same."""

import pytest

from waltap.changes.mapping import DataType
from waltap_testing import TypeRig, TypeSuite
from waltap_semver.mapping import SPEC


# [suite]
class TestSemver(TypeSuite):
    @pytest.fixture
    def rig(self):
        return TypeRig(
            SPEC,
            DataType(oid=16_400, schema="public", name="semver"),
            values={
                "1.2.3": {"major": 1, "minor": 2, "patch": 3},
                "0.10.0": {"major": 0, "minor": 10, "patch": 0},
            },
            defaults={"'1.0.0'::semver": {"major": 1, "minor": 0, "patch": 0}},
            malformed=("", "1.2", "x.y.z"),
        )
        # [/suite]
