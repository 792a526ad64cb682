"""The conformance suite of waltap, and what this transform is for."""

import pytest

from waltap.encoders.format import RecordUnfit
from waltap_testing import RecordTransformRig, RecordTransformSuite, every_record
from waltap_site.plugin import register_transforms
from waltap_site.transform import SiteProperties

(SPEC,) = register_transforms()
PROPERTIES = SiteProperties.model_validate({"field": "site", "text": "north"})


class TestSite(RecordTransformSuite):
    @pytest.fixture
    def rig(self):
        return RecordTransformRig(SPEC, PROPERTIES)


def test_values_get_the_field_and_tombstones_pass():
    records = every_record()
    found = RecordTransformRig(SPEC, PROPERTIES).build()(records)
    for before, after in zip(records, found, strict=True):
        if before.value is None:
            assert after is before
        else:
            assert after.value == {**before.value, "site": "north"}
            assert after.value_schema.fields[-1].name == "site"


def test_a_field_that_is_there_is_refused():
    properties = SiteProperties.model_validate({"field": "op", "text": "x"})
    with pytest.raises(RecordUnfit, match="a field op already"):
        RecordTransformRig(SPEC, properties).build()(every_record())
