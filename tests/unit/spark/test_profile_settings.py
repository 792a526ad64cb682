"""Commands of Spark tables take the Spark settings of the profile's sink that writes them."""

from pathlib import Path

import pytest

from waltap_spark.cli import commands
from waltap_spark.state.output import SparkOutput

PROFILE = """
name = "shop"

[source]
type = "postgres"
"database.hostname" = "localhost"
"database.user" = "waltap"
"database.dbname" = "shop"

[[sinks]]
name = "first"
type = "spark"
path = "first"
"spark.ui.enabled" = "first"

[[sinks]]
name = "lines"
type = "jsonl"
path = "lines.jsonl"

[[sinks]]
name = "second"
type = "spark"
path = "second"
"spark.ui.enabled" = "second"
"""


@pytest.mark.parametrize(
    ("output", "sink"),
    [("first/tables", "first"), ("second/tables", "second"), ("second", "second"), ("x", "first")],
)
def test_settings_are_those_of_the_sink_that_writes_the_output(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, output: str, sink: str
) -> None:
    monkeypatch.chdir(tmp_path)
    profile = tmp_path / "shop.toml"
    profile.write_text(PROFILE)
    for place in (output, str(tmp_path / output)):
        assert commands._spark_pairs(str(profile), SparkOutput(place)) == [
            f"spark.ui.enabled={sink}"
        ]
    assert commands._spark_pairs(None, SparkOutput(output)) == []
