"""Every snapshot mode of ours keeps the kit's promises."""

import pytest

from waltap_postgres.plugin import register_snapshotters
from waltap_postgres.snapshot.modes import ConfigurationBasedProperties
from waltap_testing.snapshotter_suite import SnapshotterRig, SnapshotterSuite

SPECS = {spec.name: spec for spec in register_snapshotters()}

TABLES = {
    "initial": """
        offset  incomplete  available   snapshot  stream
        no      no          no          yes       yes
        no      no          yes         yes       yes
        no      yes         no          yes       yes
        no      yes         yes         yes       yes
        yes     no          no          no        yes
        yes     no          yes         no        yes
        yes     yes         no          yes       yes
        yes     yes         yes         yes       yes
    """,
    "always": """
        offset  incomplete  available   snapshot  stream
        no      no          no          yes       yes
        no      no          yes         yes       yes
        no      yes         no          yes       yes
        no      yes         yes         yes       yes
        yes     no          no          yes       yes
        yes     no          yes         yes       yes
        yes     yes         no          yes       yes
        yes     yes         yes         yes       yes
    """,
    "initial_only": """
        offset  incomplete  available   snapshot  stream
        no      no          no          yes       no
        no      no          yes         yes       no
        no      yes         no          yes       no
        no      yes         yes         yes       no
        yes     no          no          no        no
        yes     no          yes         no        no
        yes     yes         no          yes       no
        yes     yes         yes         yes       no
    """,
    "no_data": """
        offset  incomplete  available   snapshot  stream
        no      no          no          no        yes
        no      no          yes         no        yes
        no      yes         no          refused   yes
        no      yes         yes         refused   yes
        yes     no          no          no        yes
        yes     no          yes         no        yes
        yes     yes         no          refused   yes
        yes     yes         yes         refused   yes
    """,
    "when_needed": """
        offset  incomplete  available   snapshot  stream
        no      no          no          yes       yes
        no      no          yes         yes       yes
        no      yes         no          yes       yes
        no      yes         yes         yes       yes
        yes     no          no          yes       yes
        yes     no          yes         no        yes
        yes     yes         no          yes       yes
        yes     yes         yes         yes       yes
    """,
    "configuration_based": """
        offset  incomplete  available   snapshot  stream
        no      no          no          no        no
        no      no          yes         no        no
        no      yes         no          refused   no
        no      yes         yes         refused   no
        yes     no          no          no        no
        yes     no          yes         no        no
        yes     yes         no          refused   no
        yes     yes         yes         refused   no
    """,
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
        table = """
            offset  incomplete  available   snapshot  stream
            no      no          no          yes       yes
            no      no          yes         no        yes
            no      yes         no          refused   yes
            no      yes         yes         refused   yes
            yes     no          no          yes       yes
            yes     no          yes         no        yes
            yes     yes         no          refused   yes
            yes     yes         yes         refused   yes
        """
        return SnapshotterRig(SPECS["configuration_based"], table, flags)


def test_every_registered_mode_is_here():
    assert set(SPECS) == set(TABLES)
