"""Strimzi's resource of a connector as a profile."""

import json
from pathlib import Path
from typing import Any

import pytest
import yaml
from waltap.config.layers import load
from waltap.config.resolve import examine
from waltap.errors import ConfigurationError
from waltap.host import Host

RESOURCE: dict[str, Any] = {
    "apiVersion": "kafka.strimzi.io/v1beta2",
    "kind": "KafkaConnector",
    "metadata": {"name": "inventory", "labels": {"strimzi.io/cluster": "connect"}},
    "spec": {
        "class": "io.debezium.connector.postgresql.PostgresConnector",
        "tasksMax": 1,
        "state": "stopped",
        "autoRestart": {"enabled": True},
        "config": {
            "database.hostname": "db",
            "database.port": 5433,
            "database.user": "u",
            "database.dbname": "d",
            "topic.prefix": "shop",
            "tombstones.on.delete": False,
        },
    },
}


@pytest.mark.parametrize("form", ["yaml", "yml", "json"])
def test_a_connector_of_strimzi_is_a_profile(tmp_path: Path, form: str) -> None:
    path = tmp_path / f"connector.{form}"
    write = json.dumps if form == "json" else lambda each: f"---\n{yaml.safe_dump(each)}"
    path.write_text(write(RESOURCE))
    found = examine(load(path), Host(), sink="jsonl:lines")
    assert found.profile.name == "inventory"
    assert found.profile.connector.properties.port == 5433  # type: ignore[union-attr]
    assert not found.profile.capture.tombstones
    assert {"spec.state", "spec.autoRestart"} <= set(found.ignored)


@pytest.mark.parametrize(
    ("text", "what"),
    [
        ("kind: KafkaConnector\nspec: {class: x}", "spec.config"),
        ("kind: KafkaTopic", "here are 0"),
        ("a: [", "cannot be parsed"),
        ("kind: KafkaConnector\nspec: {config: {a: [1]}}", "'a' in spec.config"),
    ],
)
def test_other_yaml_is_refused(tmp_path: Path, text: str, what: str) -> None:
    path = tmp_path / "connector.yaml"
    path.write_text(text)
    with pytest.raises(ConfigurationError, match=what):
        load(path)
