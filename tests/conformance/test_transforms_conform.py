"""Every transform of ours keeps the kit's promises."""

import pytest

import waltap.plugin
from waltap.specs import SourceTransformSpec
from waltap_testing.event_transform_suite import EventTransformRig, EventTransformSuite
from waltap_testing.transform_suite import TransformRig, TransformSuite

SPECS = {spec.name: spec for spec in waltap.plugin.register_transforms()}
CASES = {
    "a table left out": ("filter", {"tables": r"public\.notes"}),
    "an operation left out": ("filter", {"operations": "u,t"}),
    "everything left out": ("filter", {"tables": ".*"}),
    "one table elsewhere": ("route", {"regex": r"public\.(i.*)", "replacement": "all.$1"}),
    "no table elsewhere": ("route", {"regex": r"other\.x", "replacement": "y"}),
}


class TestTransforms(TransformSuite):
    @pytest.fixture(params=list(CASES))
    def rig(self, request):
        name, given = CASES[request.param]
        properties = SPECS[name].properties.model_validate(given)
        return TransformRig(SPECS[name], properties)


EVENT_CASES = {
    "nothing changed": ("fields", {}),
    "a field left out": ("fields", {"exclude": "name,serial"}),
    "a field renamed": ("fields", {"renames": "name:title", "tables": r"public\.items"}),
}


class TestEventTransforms(EventTransformSuite):
    @pytest.fixture(params=list(EVENT_CASES))
    def rig(self, request):
        name, given = EVENT_CASES[request.param]
        properties = SPECS[name].properties.model_validate(given)
        return EventTransformRig(SPECS[name], properties)


def test_every_registered_transform_is_here():
    asks_the_source = {
        name for name, spec in SPECS.items() if isinstance(spec, SourceTransformSpec)
    }
    assert asks_the_source == {"reselect-columns"}, "they are tested with a server"
    here = {name for name, _ in [*CASES.values(), *EVENT_CASES.values()]}
    assert set(SPECS) == here | asks_the_source
