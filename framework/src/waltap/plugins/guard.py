"""Guard hook implementations, to blame the plugin that raised or blocks.

pluggy calls implementations: it decides their order (``tryfirst``, ``trylast``), runs wrappers and stops
at a first result. It does not say which implementation raised. The host therefore guards each one when
it registers a plugin.
"""

import contextlib
import time
from collections.abc import Callable, Generator, Iterator
from typing import Any

import pluggy

Failed = Callable[[BaseException], Exception | None]
"""Takes an implementation's exception. Returns the error to raise instead; None ignores it. Raises the
exception itself if it is not the implementation's."""

Accept = Callable[[Any], Any]
"""Returns the result to use for an implementation's result. Raises: for a result that cannot be used."""

Wrapper = Generator[None, Any, Any]

Pending = dict[object, tuple[str, float]]
"""Names the implementations that have not returned, each with its begin by the monotonic clock."""


@contextlib.contextmanager
def calling(pending: Pending, name: str) -> Iterator[None]:
    """Note a call of a plugin in ``pending`` while the block lasts."""
    this = object()
    pending[this] = name, time.monotonic()
    try:
        yield
    finally:
        del pending[this]


def guard(
    implementation: pluggy.HookImpl,
    failed: Failed,
    accept: Accept,
    name: str,
    pending: Pending,
) -> None:
    """Report an implementation's exceptions to ``failed``, results to ``accept``.

    ``pending`` has ``name`` during a call.

    A wrapper that fails is left out, unless ``failed`` gives an error: the results of the wrapped
    implementations pass it. Their errors pass a wrapper unchanged and are never blamed on it.
    """
    function: Callable[..., Any] = implementation.function

    def call(*arguments: Any, **named: Any) -> Any:
        with calling(pending, name):
            try:
                return accept(function(*arguments, **named))
            except BaseException as cause:
                # Without an error the implementation counts as one without an answer.
                if (error := failed(cause)) is not None:
                    raise error from cause
                return None

    def wrap(*arguments: Any, **named: Any) -> Wrapper:
        wrapper, cause = _begun(function, arguments, named)
        if cause is not None:
            if (error := failed(cause)) is not None:
                raise error from cause
            return (yield)  # the wrapped implementations are called all the same
        raised: BaseException | None = None
        result: Any = None
        try:
            result = yield
        except BaseException as inner:  # noqa: BLE001 - the wrapper decides about it
            raised = inner
        try:
            return accept(_ended(wrapper, result, raised))
        except BaseException as failure:
            # The wrapper passed the error of a wrapped implementation on.
            if failure is raised:
                raise
            if (error := failed(failure)) is not None:
                raise error from failure
        if raised is not None:
            raise raised
        return result

    # pluggy has no public interface for this: its monitoring sees whole calls, not implementations
    implementation.function = wrap if implementation.wrapper else call  # type: ignore[misc]


def _begun(
    function: Callable[..., Wrapper],
    arguments: tuple[Any, ...],
    named: dict[str, Any],
) -> tuple[Wrapper, BaseException | None]:
    """Run a wrapper up to its ``yield``; return it and its exception."""
    wrapper = function(*arguments, **named)
    try:
        next(wrapper)
    except StopIteration:
        return wrapper, RuntimeError("the wrapper did not yield")
    except BaseException as cause:  # noqa: BLE001 - the caller of the wrapper decides about it
        return wrapper, cause
    return wrapper, None


def _ended(wrapper: Wrapper, result: Any, raised: BaseException | None) -> Any:
    """Resume a wrapper with the result or error."""
    try:
        if raised is None:
            wrapper.send(result)
        else:
            wrapper.throw(raised)
    except StopIteration as stop:
        return stop.value
    # A second ``yield`` breaks pluggy's contract of wrappers.
    wrapper.close()
    raise RuntimeError("the wrapper yielded twice")
