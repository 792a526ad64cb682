"""Where the engine of a profile inside Spark captures to."""

import json
from pathlib import Path
from typing import Any

import pytest
from waltap_spark.source.errors import SourceOption
from waltap_spark.source.hosted import HostedEngine

LAKE = "s3://lake/shop"


def profile(folder: Path, **sink: Any) -> str:
    file = folder / "shop.toml"
    lines = ['name = "shop"', "[source]", 'type = "postgres"', '"database.dbname" = "shop"']
    lines += [
        "[sink]",
        *(f"{json.dumps(name)} = {json.dumps(value)}" for name, value in sink.items()),
    ]
    file.write_text("\n".join(lines))
    return str(file)


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("storage.endpoint", "http://127.0.0.1:9000"),
        ("storage.access.key", "somebody"),
        ("storage.secret.key", "sesame"),
        ("storage.anonymous", True),
    ],
)
def test_a_change_log_that_the_environment_does_not_tell_how_to_reach_is_refused(
    tmp_path: Path, name: str, value: Any
) -> None:
    file = profile(tmp_path, **{"type": "changelog", "path": LAKE, name: value})
    with pytest.raises(SourceOption, match=f"WT-5221 the sink of shop has {name}: ") as caught:
        HostedEngine(file)
    assert "sesame" not in str(caught.value)
    assert HostedEngine(file, "spools").location == "spools/shop"


def test_a_change_log_that_the_environment_tells_of_is_the_spool(tmp_path: Path) -> None:
    told = {"storage.region": "eu-central-1", "storage.max.attempts": 9}
    host = HostedEngine(profile(tmp_path, type="changelog", path=LAKE, **told))
    assert (host.location, host.own) == (LAKE, True)
