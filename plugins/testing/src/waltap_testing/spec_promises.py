"""Rules for every spec; each suite checks them."""

import re

from waltap.base.property import declarations
from waltap.ports.specs import Spec

__all__ = ["assert_well_formed"]

# A profile writes the name in a property and in prefixes of properties.
NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.$-]*")
# A summary is one cell of a table in the reference pages.
LONGEST_SUMMARY = 120


def assert_well_formed(spec: Spec) -> None:
    """Check name, aliases, summary and the declared properties."""
    assert NAME.fullmatch(spec.name), f"{spec.name!r} is no name for a profile"
    for alias in spec.aliases:
        assert NAME.fullmatch(alias), f"{alias!r} is no name for a profile"
        assert alias != spec.name, f"{alias!r} is the name itself"
    assert len(set(spec.aliases)) == len(spec.aliases), f"{spec.name}: an alias is there twice"
    assert spec.summary.strip(), f"{spec.name} has no summary"
    assert "\n" not in spec.summary, f"{spec.name}: the summary is more than one line"
    assert len(spec.summary) <= LONGEST_SUMMARY, f"{spec.name}: the summary is too long for a table"
    assert callable(getattr(spec, "factory", None)), f"{spec.name} has no factory"
    for declaration in declarations(spec.properties) if spec.properties is not None else ():
        assert declaration.summary, f"{spec.name}: property {declaration.name} has no summary"
