"""Metrics: of many tables those of the busiest, and a place for every attribute of Debezium's MBeans."""

import re
import zipfile
from collections import Counter
from pathlib import Path

import pytest

from waltap.cli.reference.pages import mbeans
from waltap.ports.sink.roles import DownstreamProgress, DownstreamTable
from waltap.services.monitor.counts import SnapshotTableProgress, TableStatus
from waltap.services.monitor.metrics import METRICS
from waltap.services.monitor.status import PipelineStatus

TABLES = 500


def status(most: int) -> PipelineStatus:
    def table(number: int) -> TableStatus:
        return TableStatus(
            table=f"t{number}", creates=number, updates=1, deletes=1, truncates=1, reads=1,
            commit_lsn=1, committed_ms=1,
        )  # fmt: skip

    stopped = DownstreamTable(table="t7", lsn=1, failed="broken")
    downstream = tuple(DownstreamTable(table=f"t{n}", lsn=1) for n in range(TABLES) if n != 7)
    return PipelineStatus(
        pipeline="p", at_ms=1, started_ms=1, state="streaming", state_since_ms=1,
        tables=tuple(map(table, range(TABLES))),
        snapshot=tuple(
            SnapshotTableProgress(table=f"t{n}", rows=n, estimate=n, complete=n != 3) for n in range(TABLES)
        ),
        downstream=(
            DownstreamProgress(
                stage="spark", lsn=1, lag_bytes=0, current=True, committed_ms=1, applied_ms=1,
                tables=(stopped, *downstream), problem="",
            ),
        ),
        metric_tables=most,
    )  # fmt: skip


@pytest.mark.parametrize("most", [0, 100])
def test_only_the_busiest_tables_have_series_of_their_own(most):
    shown: Counter[str] = Counter()
    named: dict[str, set[str]] = {}
    reported = status(most)
    for metric in METRICS:
        for labels, _ in metric.read(reported):
            if "table" in labels:
                shown[metric.name] += 1
                named.setdefault(metric.name, set()).add(labels["table"])
    assert sum(shown.values()) <= 15 * max(most, 1)
    if most:
        busiest = {f"t{n}" for n in range(TABLES - most, TABLES)}
        assert named["waltap_table_events"] == named["waltap_table_lsn"] == busiest
        assert "t3" in named["waltap_snapshot_table_rows"], "it is read now"
    assert "t7" in named["waltap_downstream_table_stopped"]


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
