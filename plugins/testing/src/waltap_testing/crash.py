"""Ends a process at a chosen step, for real: a forked child that kills itself.

A step is a point between two acts that outlive the process: a mark that the action sets between calls
of the plugin, or a call that changes files or opens a connection, seen just before it happens, or a
call of the plugin's own files into a native library: the driver of a database, for one, whose writes
are not seen one by one. `KillPoint.at_bytes` ends the process inside any write that takes a file beyond a
size, whoever makes it.

Only the death of a process is simulated. What the kernel has taken survives it: a missing fsync does
not show.
"""

import builtins
import contextlib
import gc
import io
import os
import resource
import signal
import sys
import threading
import traceback
import warnings
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from types import BuiltinFunctionType, FrameType, ModuleType
from typing import IO, Any, Final, NoReturn

import msgspec

__all__ = [
    "NATIVE",
    "ChildOutcome",
    "CrashChild",
    "KillPoint",
    "imitated",
    "in_child",
    "limit_file_size",
    "own_files",
]

AUDITED = frozenset(
    (
        "os.link",
        "os.mkdir",
        "os.remove",
        "os.rename",
        "os.rmdir",
        "os.symlink",
        "os.truncate",
        "socket.connect",
        "sqlite3.connect",
    )
)
WATCHED = ("fdatasync", "fsync", "pwrite", "sendfile", "write", "writev")
NATIVE: Final = "native call"
"""How the names of steps begin that are calls into a native library."""
DRIVERS: Final = frozenset({"sqlite3", "_sqlite3", "_socket", "_ssl", "mmap"})
"""Modules of Python itself whose native calls reach beyond the process; `AUDITED` has the files'."""
WRITING = os.O_WRONLY | os.O_RDWR | os.O_CREAT


@dataclass(frozen=True, slots=True)
class KillPoint:
    """When the child dies: just before its ``step``-th step (from 1), or inside the write that takes
    a file beyond ``at_bytes``. Neither: it lives to the end."""

    step: int | None = None
    at_bytes: int | None = None

    def __str__(self) -> str:
        if self.step is not None:
            return f"killed at step {self.step}"
        return (
            "not killed" if self.at_bytes is None else f"killed at byte {self.at_bytes} of a file"
        )


@dataclass(slots=True)
class ChildOutcome:
    """What became of a child: was it killed, what it reported, its steps in order, its error."""

    killed: bool = False
    reports: list[Any] = field(default_factory=list)
    steps: list[str] = field(default_factory=list)
    error: str | None = None


class CrashChild:
    """What an action in the child may do: report values (msgspec makes JSON of them), mark steps."""

    def __init__(self, pipe: int, kill: KillPoint, own: tuple[str, ...] = ()) -> None:
        self._pipe, self._kill, self._own = pipe, kill, own
        self._count = 0
        self._write = os.write  # the real one, before it is watched

    def report(self, value: object) -> None:
        """Tell the parent; what was told stays told when the child dies right after."""
        self._write(self._pipe, msgspec.json.encode(("report", value)) + b"\n")

    def fail(self, text: str) -> None:
        """Tell the parent that the action raised."""
        self._write(self._pipe, msgspec.json.encode(("error", text)) + b"\n")

    def mark(self, name: str) -> None:
        """Pass a step. It may be the last thing this process does."""
        self._count += 1
        if self._count == self._kill.step:
            os.kill(os.getpid(), signal.SIGKILL)
        self._write(self._pipe, msgspec.json.encode(("step", name)) + b"\n")

    def watch(self) -> None:
        """Make steps of what changes files, and die at the size limit if that was asked for."""
        if self._kill.at_bytes is not None:
            resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
            signal.signal(signal.SIGXFSZ, signal.SIG_DFL)
            limit_file_size(self._kill.at_bytes)
        for name in WATCHED:
            if hasattr(os, name):
                setattr(os, name, self._watched(name, getattr(os, name)))
        builtins.open = io.open = self._watched_open(builtins.open)  # type: ignore[assignment]
        sys.addaudithook(self._audit)
        if self._own:
            threading.setprofile(self._profile)
            sys.setprofile(self._profile)

    def _profile(self, frame: FrameType, event: str, called: Any) -> None:
        """Make a step of what the plugin's own code calls in a native library."""
        if (
            event == "c_call"
            and frame.f_code.co_filename.startswith(self._own)
            and _is_native(called)
        ):
            place = f"{Path(frame.f_code.co_filename).name}:{frame.f_lineno}"
            self.mark(f"{NATIVE} {called.__name__} at {place}")

    def _watched(self, name: str, real: Callable[..., Any]) -> Callable[..., Any]:
        def call(*arguments: Any, **options: Any) -> Any:
            self.mark(f"os.{name}")
            return real(*arguments, **options)

        return call

    def _watched_open(self, real: Callable[..., IO[Any]]) -> Callable[..., IO[Any]]:
        def call(*arguments: Any, **options: Any) -> IO[Any]:
            file = real(*arguments, **options)
            if file.writable():
                self.mark("opened for writing")  # and emptied, if it is to be written anew
            return file

        return call

    def _audit(self, event: str, arguments: tuple[Any, ...]) -> None:
        if event in AUDITED:
            self.mark(event)
        elif event == "open" and arguments[2] is not None and arguments[2] & WRITING:
            self.mark("open for writing")


def _is_native(called: Any) -> bool:
    """Tell whether ``called`` is of a library that is no part of Python, or reaches beyond the process."""
    owner = called.__self__ if isinstance(called, BuiltinFunctionType) else None
    if owner is None or isinstance(owner, ModuleType):
        module = called.__module__ or getattr(owner, "__name__", "")
    else:
        module = (owner if isinstance(owner, type) else type(owner)).__module__
    top = (module or "builtins").partition(".")[0]
    return top in DRIVERS or top not in sys.stdlib_module_names


def own_files(made_by: Callable[..., object]) -> tuple[str, ...]:
    """Return how the names of the files of a plugin begin: those of the package of what makes it."""
    module = sys.modules[made_by.__module__]
    package = sys.modules.get(module.__name__.partition(".")[0], module)
    folders = [str(Path(folder)) + os.sep for folder in getattr(package, "__path__", ())]
    file = module.__file__ or ""
    inside = tuple(folder for folder in folders if file.startswith(folder))
    return inside if package.__file__ is not None and inside else (file,)


def limit_file_size(size: int | None) -> None:
    """Let no file of this process grow beyond ``size`` bytes; None: as far as allowed before."""
    _, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (hard if size is None else size, hard))


def in_child(
    action: Callable[[CrashChild], None],
    kill: KillPoint,
    *,
    seconds: int = 60,
    own: tuple[str, ...] = (),
) -> ChildOutcome:
    """Run ``action`` in a forked process and tell what became of it. ``own``: how the names of those files
    begin whose calls of native libraries are steps (`own_files`).

    Raises: AssertionError when it neither ended nor died within ``seconds``.
    """
    reading, writing = os.pipe()
    sys.stdout.flush()
    sys.stderr.flush()
    with warnings.catch_warnings():
        # Python warns of forks beside threads; the child only runs the plugin, then leaves at once.
        warnings.simplefilter("ignore")
        pid = os.fork()
    if pid == 0:
        gc.freeze()  # what the parent left lying about may belong to threads that are not here
        os.close(reading)
        _live(action, CrashChild(writing, kill, own), seconds)
    os.close(writing)
    with open(reading, "rb") as pipe:  # noqa: PTH123 - a file descriptor
        lines = pipe.read().split(b"\n")
    _, status = os.waitpid(pid, 0)
    return _outcome(lines, status, seconds)


class _ImitatedDeath(BaseException):
    """An imitated death. Not an Exception, so that nothing can catch and fix it."""


class _ImaginedChild(CrashChild):
    """A child in imagination: its death is an exception that the action cannot survive."""

    def __init__(self, kill: KillPoint, outcome: ChildOutcome) -> None:
        self._kill, self._outcome = kill, outcome

    def report(self, value: object) -> None:
        self._outcome.reports.append(value)

    def mark(self, name: str) -> None:
        self._outcome.steps.append(name)
        if len(self._outcome.steps) == self._kill.step:
            raise _ImitatedDeath


def imitated(action: Callable[[CrashChild], None], kill: KillPoint) -> ChildOutcome:
    """Run ``action`` in this process; only its own marks are steps, and its objects stay as they are.

    For plugins that cannot be forked: nothing is closed, and nothing is torn.
    """
    outcome = ChildOutcome()
    try:
        action(_ImaginedChild(kill, outcome))
    except _ImitatedDeath as death:
        outcome.killed = True
        _GRAVES.append(death)  # keeps the frames: a buffer that is collected would still be written
    except Exception:  # noqa: BLE001 - the same as from a child
        outcome.error = traceback.format_exc()
    return outcome


_GRAVES: list[BaseException] = []


def _live(action: Callable[[CrashChild], None], child: CrashChild, seconds: int) -> NoReturn:
    """The child's whole life; it never returns into the parent's code."""
    code = 1
    try:
        signal.signal(signal.SIGALRM, signal.SIG_DFL)
        signal.alarm(seconds)
        child.watch()
        action(child)
        code = 0
    except BaseException:  # noqa: BLE001 - a process boundary: everything is handed over
        with contextlib.suppress(BaseException):
            limit_file_size(None)
            child.fail(traceback.format_exc())
    finally:
        os._exit(code)


def _outcome(lines: list[bytes], status: int, seconds: int) -> ChildOutcome:
    found = ChildOutcome()
    for line in lines[:-1]:
        kind, value = msgspec.json.decode(line)
        if kind == "report":
            found.reports.append(value)
        elif kind == "step":
            found.steps.append(value)
        else:
            found.error = value
    if os.WIFSIGNALED(status):
        number = os.WTERMSIG(status)
        assert number != signal.SIGALRM, f"still busy after {seconds} s, after {found.steps[-3:]}"
        found.killed = number in (signal.SIGKILL, signal.SIGXFSZ)
        if not found.killed:
            found.error = f"died of {signal.Signals(number).name}"
    elif os.WEXITSTATUS(status) and found.error is None:
        found.error = f"ended with status {os.WEXITSTATUS(status)}"
    return found
