"""What is recorded of Debezium's properties is what Debezium says."""

from pathlib import Path

import pytest
from tests.differential import properties
from tests.differential.engines import peer_installed


def test_the_recorded_list_is_what_debezium_declares(java: Path) -> None:
    if not peer_installed():
        pytest.skip("the Debezium peer is not installed: benchmarks/peer/run-peer --install")
    assert properties.asked() == properties.GOLDEN.read_text(encoding="utf-8")
