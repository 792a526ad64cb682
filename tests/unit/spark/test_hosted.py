"""Where the engine of a profile inside Spark captures to."""

import json
import pickle
from pathlib import Path
from typing import Any

import pytest

from waltap_spark.source.hosted import HostedEngine
from waltap_spark.source.profiles import SpoolTask
from waltap_spark.source.rows import RowLimits
from waltap_spark.source.tasks import LogTask

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
def test_a_change_log_that_the_profile_tells_how_to_reach_is_the_spool_and_shows_no_secret(
    tmp_path: Path, name: str, value: Any
) -> None:
    """Also in what goes to tasks; another spool is reached as the environment says."""
    file = profile(tmp_path, **{"type": "changelog", "path": LAKE, name: value})
    host = HostedEngine(file)
    task = pickle.loads(pickle.dumps(SpoolTask(host, LogTask([], RowLimits()))))
    assert (host.location, host.own) == (LAKE, True)
    assert task.storage.model_dump(by_alias=True)[name] == value
    assert "sesame" not in f"{host.storage!r} {task.__dict__}"
    other = HostedEngine(file, "spools")
    assert (other.location, other.storage) == ("spools/shop", None)


def test_a_change_log_that_the_environment_tells_of_is_the_spool(tmp_path: Path) -> None:
    host = HostedEngine(profile(tmp_path, type="changelog", path=LAKE))
    assert (host.location, host.own, host.storage) == (LAKE, True, None)
