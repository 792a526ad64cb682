"""The page of types is current, and every family is on it."""

from pathlib import Path

import pytest

from waltap.cli.reference.types import types_page
from waltap.plugins.host import Host
from waltap_testing.installed import installed_types

PAGE = Path(__file__).parents[3] / "docs" / "reference" / "types.md"


def test_page_of_types_is_current():
    assert PAGE.read_text(encoding="utf-8") == types_page(Host().types), "run `waltap docs`"


@pytest.mark.parametrize("spec", installed_types(), ids=lambda spec: spec.name)
def test_every_family_is_claimed_by_itself_and_has_samples(spec):
    from waltap.changes.mapping.type_registry import TypeRegistry

    registry = TypeRegistry(installed_types())
    assert spec.samples
    assert spec.examples
    for sample in spec.samples:
        assert registry.spec(sample.data_type) is spec
