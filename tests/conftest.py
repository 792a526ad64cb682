"""Fixtures for all tests: real servers, from `tests.harness.servers.fixtures`."""

import atexit
import functools
import gc
import os
import signal
import sys
from collections.abc import Iterator, Mapping
from importlib.metadata import EntryPoints, entry_points
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, settings
from tests.harness.pipeline import SIGNALS, PipelineRig
from tests.harness.servers import shared_classes
from tests.harness.servers.postgres import Database
from tests.harness.tiers.exhaustive import mark_exhaustive
from tests.harness.tiers.groups import add_groups

from waltap.base import redaction
from waltap.plugins import host

pytest_plugins = ["tests.harness.servers.fixtures"]

# hundreds of processes of ours are started: without bytecode each would compile all our modules again
os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
sys.dont_write_bytecode = False
# a shell starts a job in the background with SIGINT ignored
signal.signal(signal.SIGINT, signal.default_int_handler)
os.environ.setdefault("SPARK_SUBMIT_OPTS", shared_classes.options())

# no test is a matter of time; `make test-all` tries more
EXAMPLES = 300 if "WALTAP_FUZZ_INPUTS" in os.environ else 50
settings.register_profile(
    "shared machine",
    deadline=None,
    max_examples=EXAMPLES,
    suppress_health_check=[HealthCheck.too_slow],
)
settings.load_profile("shared machine")


gc.disable()  # until all is collected: each cycle would look at a million objects that stay


@pytest.hookimpl(tryfirst=True)  # pytest-xdist reads the groups in this hook, too
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Say which tests one worker runs, and which only `make test-all` does."""
    mark_exhaustive(items)
    add_groups(items)


def pytest_collection_finish() -> None:
    """Keep modules and tests, a million objects, out of each later garbage collection."""
    gc.freeze()
    gc.enable()
    # the end of the process collects them: DuckDB would report what it loaded as leaked
    atexit.register(gc.unfreeze)


@pytest.fixture(scope="session", autouse=True)
def _known_distributions() -> Iterator[None]:
    """Read what is installed once, not for each of thousands of hosts, unless a folder has something new."""

    @functools.cache
    def read(group: str, _: tuple[object, ...]) -> EntryPoints:
        return entry_points(group=group)

    def known(group: str) -> EntryPoints:
        folders = (Path(folder) for folder in sys.path)
        return read(group, tuple((f, f.stat().st_mtime_ns) for f in folders if f.exists()))

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(host, "entry_points", known)
        yield


@pytest.fixture(autouse=True)
def _own_secrets() -> Iterator[None]:
    """What one test hides stays hidden in the process: it would go from the messages of the next ones."""
    before = set(redaction._hidden), redaction._known
    yield
    redaction._hidden.clear()
    redaction._hidden.update(before[0])
    redaction._known = before[1]


@pytest.fixture(autouse=True)
def _closed_rigs() -> Iterator[None]:
    """Close appliers and change logs that a test opened, also where it failed."""
    yield
    spark = sys.modules.get("tests.harness.spark")  # which only tests of Spark import
    if spark is not None:
        spark.Rig.close_all()


@pytest.fixture
def pipeline(request: pytest.FixtureRequest, database: Database, tmp_path: Path) -> PipelineRig:
    """Return a pipeline of an empty database, as `@pytest.mark.pipeline(sql=…, settings=…, signals=…)` on the
    module, the class and the test say, one after the other; ``signals`` makes a signal table."""
    made = PipelineRig(database, tmp_path)
    for mark in reversed(list(request.node.iter_markers("pipeline"))):
        _furnish(made, **mark.kwargs)
    return made


def _furnish(
    made: PipelineRig, *, sql: str = "", settings: Mapping[str, Any] = {}, signals: bool = False
) -> None:
    if signals:
        made.database.execute(SIGNALS)
        made.settings["signal.data.collection"] = "public.signals"
    if sql:
        made.database.execute(sql)
    made.settings |= settings
