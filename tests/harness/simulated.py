"""Pipelines on a clock that jumps, how their sinks fail, and what fails or dies where a test says."""

import contextlib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

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


class Died(BaseException):
    """Who wrote is gone."""


@contextlib.contextmanager
def dying(*places: tuple[object, str], at: int = 1) -> Iterator[list[str]]:
    """Have whoever works in the block die at call number ``at`` of all ``places``, objects and names of their functions,
    and at each later one; give the calls. Raises: Died."""
    calls: list[str] = []

    def until_then(name: str, function: Callable[..., Any]) -> Callable[..., Any]:
        def call(*arguments: Any, **options: Any) -> Any:
            calls.append(name)
            if len(calls) >= at:
                raise Died
            return function(*arguments, **options)

        return call

    with pytest.MonkeyPatch.context() as patch:
        for place, name in places:
            patch.setattr(place, name, until_then(name, getattr(place, name)))
        yield calls
