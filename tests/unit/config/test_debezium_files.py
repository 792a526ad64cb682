"""Connector files that Debezium runs are taken as they are: those of every recorded workload."""

from pathlib import Path

import pytest
from waltap.config.layers import load
from waltap.config.resolve import examine
from waltap.host import Host

CORPORA = Path(__file__).parents[2] / "differential" / "corpora"
FILES = sorted(CORPORA.rglob("*.properties"))
HOST = Host()


@pytest.mark.parametrize("path", FILES, ids=lambda p: f"{p.parent.name}:{p.stem}")
def test_a_connector_file_is_taken_and_nothing_in_it_is_without_effect(path: Path) -> None:
    resolution = examine(load(path), HOST, sink="null")
    assert resolution.ignored == ()
    assert resolution.warnings == ()


def test_there_are_files() -> None:
    assert len(FILES) > 70
