"""Rules that hold for plugins of every kind."""

import re
import sys
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any, ClassVar

import pytest

from waltap.base.plugin_errors import name_of
from waltap.base.property import declarations
from waltap.errors import WaltapError, error_texts
from waltap.ports.specs import LazyReference, Spec
from waltap_testing.workload import SHOWN

# A profile writes the name in a property and in prefixes of properties.
NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.$-]*")
# A summary is one cell of a table in the reference pages.
LONGEST_SUMMARY = 120


def _assert_well_formed(spec: Spec) -> None:
    """Check name, aliases, summary and the declared properties."""
    assert NAME.fullmatch(spec.name), f"{spec.name!r} is no name for a profile"
    for alias in spec.aliases:
        assert NAME.fullmatch(alias), f"{alias!r} is no name for a profile"
        assert alias != spec.name, f"{alias!r} is the name itself"
    assert len(set(spec.aliases)) == len(spec.aliases), f"{spec.name}: an alias is there twice"
    assert spec.summary.strip(), f"{spec.name} has no summary"
    assert "\n" not in spec.summary, f"{spec.name}: the summary is more than one line"
    assert len(spec.summary) <= LONGEST_SUMMARY, f"{spec.name}: the summary is too long for a table"
    factory = getattr(spec, "factory", None)
    assert callable(factory), f"{spec.name} has no factory"
    assert_own_codes(_root(name_of(factory)[0]))
    for value in vars(spec).values():
        if isinstance(value, LazyReference):
            value.imported()  # a name that is not there would be an error of the first user
    for declaration in declarations(spec.properties) if spec.properties is not None else ():
        assert declaration.summary, f"{spec.name}: property {declaration.name} has no summary"


def _root(module: str) -> str:
    return module.partition(".")[0]


def assert_own_codes(package: str) -> None:
    """Check that a package's errors have remedies and codes of their own."""
    taken = {
        code: f"a row of {root}"
        for root in {_root(name) for name in list(sys.modules)} - {package}
        if root.partition("_")[0] == "waltap"
        for code in _rows(root)
    }
    errors = sorted(WaltapError.family(), key=lambda error: _root(error.__module__) == package)
    for error in dict.fromkeys(errors):
        if "code" not in vars(error):
            continue
        name = f"{error.__module__}.{error.__qualname__}"
        if _root(error.__module__) == package:
            owner = taken.get(error.code, name)  # the same name if its module was imported again
            assert owner == name, f"{name} has the code of {owner}: {error.code}"
            assert error.code not in error.remedy, f"{name} has no remedy in errors.toml"
        taken[error.code] = name


def _rows(package: str) -> Iterable[str]:
    try:
        return error_texts(package)
    except (OSError, TypeError, ImportError):
        return ()


class RigSuite:
    """A base of suites whose rig is one object."""

    # The rig that a subclass defines, for the message of a missing one.
    needs: ClassVar[str]

    def test_spec_is_well_formed(self, rig: Any) -> None:
        """Name, summary, properties and errors are fit for profiles and pages."""
        _assert_well_formed(rig.spec)

    @pytest.fixture
    def rig(self) -> Any:
        """Return the plugin to test. Subclasses define this."""
        pytest.fail(f"{type(self).__name__} must define the fixture 'rig' ({self.needs})")


class FolderRigSuite(RigSuite):
    """A base of suites with several rigs in folders."""

    @pytest.fixture
    def new_rig(self) -> Callable[[Path], Any]:
        """Return a function from folder to rig. Subclasses define this."""
        pytest.fail(
            f"{type(self).__name__} must define the fixture 'new_rig': a function of a folder that "
            f"returns {self.needs}"
        )

    @pytest.fixture
    def rig(self, new_rig: Callable[[Path], Any], tmp_path: Path) -> Any:
        return new_rig(tmp_path)


def assert_hidden_alike(found: Iterable[object]) -> None:
    """Check that a text is hidden everywhere or nowhere.

    ``found`` has the results for `life_of_a_row`, in order.
    """
    created, *others = map(repr, found)
    if SHOWN in created or created == "[]":
        pytest.skip("shows items.name, or leaves out created rows")
    shown = [other for other in others if SHOWN in other]
    assert not shown, f"hidden where a row is created, and shown here: {shown[0]}"
