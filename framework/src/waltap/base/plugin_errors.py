"""Errors of plugins and of requests for them (WT-11xx), and their extras."""

import signal
import tomllib
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import cache
from importlib.resources import files
from inspect import Parameter, isfunction, signature
from typing import Any, TypeVar

from waltap.errors import PluginError, WaltapError

T = TypeVar("T")


class SpecMissing(PluginError):
    """No loaded plugin contributes the requested name.

    ``excuses`` name the plugins that might have it but cannot be used.
    """

    code = "WT-1101"
    remedy = "{hint}`waltap plugins` shows every plugin with its contributions and its health."

    def __init__(
        self,
        what: str,
        *,
        known: Collection[str],
        nearest: str | None = None,
        excuses: tuple[str, ...] = (),
    ) -> None:
        self.what, self.nearest, self.excuses = what, nearest, excuses
        self.known = ", ".join(sorted(known)) or "none"
        text = "; ".join((f"{what}; known: {self.known}", *excuses))
        # The remedy begins with the likely name.
        super().__init__(text, hint=f"Did you mean {nearest}? " if nearest else "")


DuplicateName = PluginError.define("DuplicateName", "WT-1102")
HookRaised = PluginError.define("HookRaised", "WT-1103")
WrongApiVersion = PluginError.define("WrongApiVersion", "WT-1104")
ImportFailed = PluginError.define("ImportFailed", "WT-1105")
LibraryMissing = PluginError.define("LibraryMissing", "WT-1112")
MisspeltHook = PluginError.define("MisspeltHook", "WT-1106")
WrongSpec = PluginError.define("WrongSpec", "WT-1107")
RoleIncomplete = PluginError.define("RoleIncomplete", "WT-1113")
# It may be a sink, a check, a decoder or a transform.
PluginRaised = WaltapError.define("PluginRaised", "WT-1108")


def interrupts(error: BaseException) -> bool:
    """Return whether the user ends the program.

    While a command of waltap handles SIGINT, only a plugin raises KeyboardInterrupt. Python's own
    handler raises it, and a program's may: PySpark's does.
    """
    if not isinstance(error, KeyboardInterrupt):
        return False
    handler = signal.getsignal(signal.SIGINT)
    # the Spark driver's handler raises nothing either; a built-in method has no module
    ours = str(getattr(handler, "__module__", None)).startswith("waltap")
    return callable(handler) and not ours


class UnusableResult(Exception):
    """The code of a plugin returned an object of the wrong kind.

    `Host.blamed` makes it the error of the plugin that has ``culprit``.
    """

    def __init__(self, culprit: object, call: str, problem: str) -> None:
        self.module, name = name_of(culprit)
        super().__init__(f"{'.'.join(filter(None, (self.module, name, call)))} {problem}")


def name_of(culprit: object) -> tuple[str, str]:
    """Return the module and name of a function or class."""
    reference = getattr(culprit, "reference", None)
    if isinstance(reference, str):
        module, _, name = reference.partition(":")
        return module, name
    named = culprit if hasattr(culprit, "__qualname__") else type(culprit)
    return named.__module__ or "", named.__qualname__


def usable(given: T, kinds: type | tuple[type, ...], culprit: object, call: str = "") -> T:
    """Return ``given``, a plugin's result, if it is of ``kinds``.

    Raises: UnusableResult.
    """
    if not isinstance(given, kinds):
        each = kinds if isinstance(kinds, tuple) else (kinds,)
        wanted = " or ".join("None" if k is type(None) else k.__name__ for k in each)
        raise UnusableResult(culprit, call, f"gave {type(given).__name__}, not {wanted}")
    return given


def part_of(factory: Callable[..., Any], contract: type | int, *arguments: object) -> Any:
    """Return the part that a plugin's ``factory`` makes of ``arguments``.

    It must have the members of ``contract``, or take that number of arguments. Raises: UnusableResult.
    """
    target = getattr(factory, "imported", lambda: factory)()
    if abstract := sorted(getattr(target, "__abstractmethods__", ())):
        raise UnusableResult(factory, "", f"lacks {', '.join(abstract)}")
    require_call(target, factory, "", *arguments)
    part = target(*arguments)
    if isinstance(contract, int):
        if not callable(part):
            raise UnusableResult(factory, "", f"gave {type(part).__name__}, not a function")
        require_call(part, part, "", *range(contract))
        return part
    methods = getattr(contract, "__abstractmethods__", None) or vars(contract)
    wanted = sorted({*methods, *vars(contract).get("__annotations__", ())})
    missing = [name for name in wanted if name[0] != "_" and not hasattr(part, name)]
    if missing:
        raise UnusableResult(
            factory,
            "",
            f"gave {type(part).__name__}, no {contract.__name__}: {', '.join(missing)} is missing",
        )
    require_methods(part, contract)
    return part


def require_methods(part: object, contract: type) -> None:
    """Refuse a ``part`` that cannot be called as ``contract`` says.

    Raises: UnusableResult.
    """
    for name, method in vars(contract).items():
        if name[0] != "_" and isfunction(method) and hasattr(part, name):
            _, *wanted = signature(method).parameters.values()
            given = [each for each in wanted if each.kind is not Parameter.KEYWORD_ONLY]
            named = dict.fromkeys(each.name for each in wanted if each not in given)
            require_call(getattr(part, name), part, name, *given, **named)


def require_call(
    function: Callable[..., Any], culprit: object, call: str, *arguments: object, **named: object
) -> None:
    """Require that ``function`` takes these arguments. Raises: UnusableResult."""
    try:
        called = signature(function)
    except ValueError:  # of one that is written in C
        return
    try:
        called.bind(*arguments, **named)
    except TypeError as error:
        raise UnusableResult(culprit, call, f"refuses its arguments: {error}") from error


@contextmanager
def needing(what: str, *, extra: str) -> Iterator[None]:
    """Import a library that comes with the ``extra``. Raises: LibraryMissing."""
    try:
        yield
    except ImportError as cause:
        raise LibraryMissing(what, extra=extra) from cause


@cache
def brought() -> Mapping[str, Mapping[str, Sequence[str]]]:
    """Return extra → kind of plugin → names and aliases."""
    text = files("waltap.base").joinpath("extras.toml").read_text(encoding="utf-8")
    return tomllib.loads(text)


def extra_for(kind: str, name: str) -> str | None:
    """Return the extra to install for ``name``, in pip's form.

    ``kind`` is such as ``"sinks"``. None: no extra of waltap has the name.
    """
    for extra, kinds in brought().items():
        if name.lower() in {known.lower() for known in kinds.get(kind, ())}:
            return f"waltap[{extra}]"
    return None
