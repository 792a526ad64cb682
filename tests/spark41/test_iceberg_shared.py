"""Targets in Apache Iceberg that several pipelines write."""

from pathlib import Path
from typing import Any

import pytest
from tests.harness.shared_outputs import write_one_target

from waltap_spark.formats import iceberg as iceberg_format
from waltap_spark.formats import merging
from waltap_spark.formats.choice import FormatChoice


def test_pipelines_share_targets_of_a_catalogue(
    iceberg: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each removes old versions as often as it can."""
    monkeypatch.setattr(iceberg_format, "MIN_SNAPSHOTS", 1)
    monkeypatch.setattr(merging, "VACUUM_S", 0.0)
    values = {"format.catalog": "lake", "format.retention.hours": "0"}
    choice = FormatChoice("iceberg", values)
    write_one_target(tmp_path, iceberg, choice, "lake.`all`.{}", monkeypatch)
