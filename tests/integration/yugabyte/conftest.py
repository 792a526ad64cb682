"""A pipeline of the YugabyteDB connector on the double of a server (`tests/harness/yugabyte`), or, for what
only looks at events, on the cluster at ``WALTAP_YUGABYTE``."""

import os
import time
from collections.abc import Iterator
from typing import Any

import pytest
from tests.harness.yugabyte.pipeline import YugabytePipeline
from tests.harness.yugabyte.real import RealYugabyte, address
from tests.harness.yugabyte.server import Yugabyte


@pytest.fixture
def yugabyte(request) -> Iterator[Any]:
    real = address()
    if real is not None:
        with RealYugabyte(real, f"waltap_{os.getpid()}_{time.time_ns()}") as cluster:
            yield cluster
        return
    with Yugabyte(request.getfixturevalue("yb_database")) as server:
        yield server


@pytest.fixture
def pipeline(yugabyte, tmp_path) -> YugabytePipeline:
    yugabyte.database.execute("CREATE TABLE t (id int PRIMARY KEY, name text, aura int)")
    return YugabytePipeline(yugabyte, tmp_path)
