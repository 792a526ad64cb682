"""Pipelines on a clock that jumps, and how their sinks fail."""

from collections.abc import Callable
from pathlib import Path

import pytest

from waltap.errors import RetryVerdict, SinkError
from waltap_testing.simulation import SimulatedPipeline

New = Callable[..., SimulatedPipeline]


@pytest.fixture
def new(tmp_path: Path) -> New:
    """Return what makes a pipeline with these properties of the engine; ``_`` stands for a dot."""
    return lambda **settings: SimulatedPipeline(
        tmp_path / "state", **{name.replace("_", "."): value for name, value in settings.items()}
    )


class Refused(SinkError):
    """A sink that takes the same batch later."""

    code = "WT-5999"
    retry = RetryVerdict.SAME_BATCH
    remedy = "Wait."


class Gone(SinkError):
    """A sink that has to be opened anew."""

    code = "WT-5998"
    retry = RetryVerdict.RECONNECT
    remedy = "Wait."


def raising(error: Exception) -> Callable[..., object]:
    def fail(*_arguments: object) -> object:
        raise error

    return fail
