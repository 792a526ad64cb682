"""Every attribute of Debezium's MBeans has its place here."""

import re
import zipfile
from pathlib import Path

import pytest

from waltap.cli.reference.pages import mbeans

TRAITS = "io/debezium/pipeline/metrics/traits"
COMMON = (
    f"{TRAITS}/CommonEventMetricsMXBean",
    f"{TRAITS}/QueueMetricsMXBean",
    f"{TRAITS}/SchemaMetricsMXBean",
)
OF = {
    "snapshot": (*COMMON, f"{TRAITS}/SnapshotMetricsMXBean"),
    "streaming": (
        *COMMON,
        f"{TRAITS}/ConnectionMetricsMXBean",
        f"{TRAITS}/StreamingMetricsMXBean",
        f"{TRAITS}/StreamingStatisticsMXBean",
        "io/debezium/metrics/activity/ActivityMonitoringMXBean",
    ),
}


def attributes(jar: zipfile.ZipFile, classes: tuple[str, ...]) -> set[str]:
    """Return what the interfaces have getters for, of their constant pools."""
    found = set()
    for name in classes:
        pool = jar.read(f"{name}.class")
        found |= {
            m.decode()
            for m in re.findall(rb"(?:get|is)([A-Z][A-Za-z0-9]{2,})(?=[\x00-\x1f])", pool)
        }
    return found


@pytest.mark.parametrize("context", ["snapshot", "streaming"])
def test_the_tables_have_what_the_real_ones_have(context):
    jars = sorted(Path.home().glob(".cache/waltap-peer/**/debezium-connector-common-3.6*.jar"))
    if not jars:
        pytest.skip("no Debezium peer: benchmarks/peer/run-peer --install")
    listing = mbeans()
    with zipfile.ZipFile(jars[-1]) as jar:
        listed = {
            name
            for row in {**listing["Both contexts"], **listing[f"`context={context}`"]}
            for name in row.split(", ")
        }
        assert attributes(jar, OF[context]) == listed
