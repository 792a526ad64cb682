"""Errors of plugins and of requests for them (WT-11xx), and their extras."""

import signal
import tomllib
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import cache
from importlib.resources import files
from typing import TypeVar

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

    While a command handles SIGINT itself, Python raises no KeyboardInterrupt: a plugin did.
    """
    handler = signal.getsignal(signal.SIGINT)
    return isinstance(error, KeyboardInterrupt) and handler is signal.default_int_handler


class UnusableResult(TypeError):
    """The code of a plugin returned an object of the wrong kind.

    `Host.blamed` makes it the error of the plugin that has ``culprit``.
    """

    def __init__(self, culprit: object, call: str, problem: str) -> None:
        self.module, name = _name_of(culprit)
        super().__init__(f"{'.'.join(filter(None, (self.module, name, call)))} {problem}")


def _name_of(culprit: object) -> tuple[str, str]:
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


def usable_part(made: T, contract: type | None, factory: object) -> T:
    """Return a part that a plugin's ``factory`` made, if it fits ``contract``.

    It must have the members of ``contract``; None: be a function. Raises: UnusableResult.
    """
    if contract is None:
        if not callable(made):
            raise UnusableResult(factory, "", f"gave {type(made).__name__}, not a function")
        return made
    members = vars(contract)
    abstract = getattr(contract, "__abstractmethods__", None) or members
    wanted = sorted({*abstract, *members.get("__annotations__", ())})
    missing = [name for name in wanted if name[0] != "_" and not hasattr(made, name)]
    if missing:
        raise UnusableResult(
            factory,
            "",
            f"gave {type(made).__name__}, no {contract.__name__}: {', '.join(missing)} is missing",
        )
    return made


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
