"""Every snapshot mode of ours keeps the kit's promises."""

from itertools import product

import pytest

from waltap_postgres.plugin import register_snapshotters
from waltap_postgres.start.modes import ConfigurationBasedProperties
from waltap_testing.suites.snapshotter import SnapshotterRig, SnapshotterSuite

SPECS = {spec.name: spec for spec in register_snapshotters()}

FACTS = ["   ".join(facts) for facts in product(("no", "yes"), repeat=3)]
STREAMS = ("yes",) * 8


def table(snapshot: str, stream: tuple[str, ...] = STREAMS) -> str:
    """Return the suite's table of a mode; ``snapshot`` has its answers, those without an offset first."""
    rows = zip(FACTS, snapshot.split(), stream, strict=True)
    return "\n".join(["offset incomplete available snapshot stream", *map("  ".join, rows)])


#        offset:      no                               yes
#    incomplete:      no      yes                      no      yes
#     available:      no  yes no      yes              no  yes no      yes
INITIAL = "          yes yes yes     yes              no  no  yes     yes"
ALWAYS = "           yes yes yes     yes              yes yes yes     yes"
NO_DATA = "          no  no  refused refused          no  no  refused refused"
WHEN_NEEDED = "      yes yes yes     yes              yes no  yes     yes"
RECOVERING = "       yes no  refused refused          yes no  refused refused"
TABLES = {
    "initial": table(INITIAL),
    "always": table(ALWAYS),
    "initial_only": table(INITIAL, ("no",) * 8),
    "no_data": table(NO_DATA),
    "when_needed": table(WHEN_NEEDED),
    "configuration_based": table(NO_DATA, ("no",) * 8),
}


class TestModes(SnapshotterSuite):
    @pytest.fixture(params=list(TABLES))
    def rig(self, request):
        name = request.param
        flags = ConfigurationBasedProperties() if name == "configuration_based" else None
        return SnapshotterRig(SPECS[name], TABLES[name], flags)


class TestConfigurationBasedWithAllFlags(SnapshotterSuite):
    @pytest.fixture
    def rig(self):
        flags = ConfigurationBasedProperties(data=True, stream=True, on_data_error=True)
        return SnapshotterRig(SPECS["configuration_based"], TABLES["always"], flags)


class TestConfigurationBasedRecovering(SnapshotterSuite):
    @pytest.fixture
    def rig(self):
        flags = ConfigurationBasedProperties(stream=True, on_data_error=True)
        return SnapshotterRig(SPECS["configuration_based"], table(RECOVERING), flags)


def test_every_registered_mode_is_here():
    assert set(SPECS) == set(TABLES)
