"""Planted faults: plugins that are right but for one thing, each with the promise of its suite that finds it.

    FAULTS = Faults()

    @FAULTS.right
    class Lines(Sink): ...

    @FAULTS.found_by("test_close_may_be_called_twice")
    class ClosesOnce(Lines): ...

    FAULTS.plant("SkipsEmpty", "test_an_empty_batch_moves_the_position", write=...)  # the same in one line

    FAULTS.edit(Lines, ("StartsOver", "test_a_sink_opened_again_continues", "touch()", "write_text('')"))

    class TestPlantedSinks(FindsFaults): ...

The promise must fail on the faulty plugin, and hold on the right one that the fault was planted in.
"""

import functools
import inspect
import itertools
import re
import sys
import textwrap
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

import pytest

FINDINGS = (AssertionError, pytest.fail.Exception)


@dataclass(frozen=True)
class Fault:
    """A faulty plugin, the promise that finds it, the plugin without the fault, and what is raised."""

    name: str
    plugin: Any
    promise: str
    right: Any
    raises: tuple[type[BaseException], ...]


class Faults(list[Fault]):
    """The planted faults of one suite."""

    def __init__(self) -> None:
        super().__init__()
        self._right: list[Any] = []

    def right(self, plugin: Any) -> Any:
        """Take ``plugin`` for one without a fault: the next ones are planted in it, or in that of their bases."""
        self._right.append(plugin)
        return plugin

    def found_by(
        self, promise: str, *raises: type[BaseException], right: Any = None
    ) -> Callable[[Any], Any]:
        """Add a plugin. ``raises``: other errors than failed assertions by which the promise fails."""

        def add(plugin: Any) -> Any:
            bases = [base for base in getattr(plugin, "__mro__", ()) if base in self._right]
            found = right or (bases or self._right[-1:])[0]
            self.append(Fault(plugin.__name__, plugin, promise, found, (*FINDINGS, *raises)))
            return plugin

        return add

    def plant(
        self,
        name: str,
        promise: str,
        *raises: type[BaseException],
        base: Any = None,
        **members: Any,
    ) -> Any:
        """Add the right plugin, or another ``base``, with ``members`` in the place of its own."""
        plugin = type(name, (base or self._right[-1],), members)
        return self.found_by(promise, *raises)(plugin)

    def make(self, *rows: tuple[Any, ...], right: Any = None) -> None:
        """Add plugins of one expression, a row (name, promise, plugin, what is raised …) each."""
        for name, promise, plugin, *raises in rows:
            plugin.__name__ = name
            self.found_by(promise, *raises, right=right)(plugin)

    def edit(self, right: Any, *rows: tuple[Any, ...]) -> None:
        """Add ``right`` once a row (name, promise, old text, new text, what is raised …): its source holds
        the old text once, and the new in its place."""
        for name, promise, old, new, *raises in rows:
            source, made = source_of(right), dict[str, Any]()
            assert source.count(old) == 1, (name, old)
            code = compile(source.replace(old, new), inspect.getfile(right), "exec")
            exec(code, vars(sys.modules[right.__module__]), made)  # noqa: S102
            self.make((name, promise, made[right.__name__], *raises), right=right)


@functools.cache
def source_of(plugin: Any) -> str:
    source = textwrap.dedent(inspect.getsource(plugin))
    return source[re.search(r"^(class|def) ", source, re.MULTILINE).start() :]


class FindsFaults:
    """Two tests for each planted fault. Subclass it, with ``faults``, ``suite``, and ``rig`` or ``fixtures``."""

    faults: ClassVar[Faults]
    suite: ClassVar[type]
    kept_elsewhere: ClassVar[frozenset[str]] = frozenset()
    """Slow promises that a real plugin without the fault is seen to keep."""

    def fixtures(self, plugin: Any, folder: Path) -> Mapping[str, Callable[[], object]]:
        """Return what makes each fixture of the suite for ``plugin``, in an empty ``folder``."""
        return {"rig": lambda: self.rig(plugin, folder)}

    def rig(self, plugin: Any, folder: Path) -> object:
        raise NotImplementedError

    def pytest_generate_tests(self, metafunc: pytest.Metafunc) -> None:
        """Give each fault to one test, and each promise of a right plugin to the other."""
        if "fault" in metafunc.fixturenames:
            names = [f"{fault.name}-{fault.promise}" for fault in self.faults]
            metafunc.parametrize("fault", self.faults, ids=names)
        else:
            found = dict.fromkeys(
                (fault.right, fault.promise)
                for fault in self.faults
                if fault.promise not in self.kept_elsewhere
            )
            names = [f"{getattr(r, '__name__', 'right')}-{promise}" for r, promise in found]
            metafunc.parametrize("right", found, ids=names)

    def test_its_promise_finds(
        self, fault: Fault, tmp_path: Path, request: pytest.FixtureRequest
    ) -> None:
        """One set of the promise's parameters that finds it is enough."""
        for run in self._runs(fault.plugin, fault.promise, tmp_path, request):
            try:
                run()
            except fault.raises:
                return
        pytest.fail(f"{fault.promise} does not find {fault.name}")

    def test_what_is_right_is_not_blamed(
        self, right: tuple[Any, str], tmp_path: Path, request: pytest.FixtureRequest
    ) -> None:
        """The same promise holds without the fault, with each set of parameters."""
        for run in self._runs(*right, tmp_path, request):
            run()

    def _runs(
        self, plugin: Any, promise: str, folder: Path, request: pytest.FixtureRequest
    ) -> Iterator[Callable[[], object]]:
        """Give what runs a promise of the suite, for each set of its parameters; fixtures are made first."""
        function = getattr(self.suite(), promise)
        names = list(inspect.signature(function).parameters)
        for number, parameters in enumerate(parameters_of(function)):
            own = folder / str(number)
            own.mkdir()
            makers = {"tmp_path": lambda own=own: own, **self.fixtures(plugin, own)}
            given = {
                name: makers[name]() if name in makers else request.getfixturevalue(name)
                for name in names
                if name not in parameters
            }
            yield lambda given=given, parameters=parameters: function(**given, **parameters)


def parameters_of(function: Callable[..., object]) -> Iterator[dict[str, object]]:
    """Give each set of the parameters that a test is marked with; one empty set where it has none."""
    marks = [m for m in getattr(function, "pytestmark", ()) if m.name == "parametrize"]
    for values in itertools.product(*(mark.args[1] for mark in marks)):
        yield dict(zip((mark.args[0] for mark in marks), values, strict=True))
