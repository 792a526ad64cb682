"""Kill a forked process at a chosen step.

A step is one of:

- a mark that the action sets between calls of the plugin;
- a call that changes files or opens a connection, just before it happens;
- a call of the plugin's own code into a native library, such as a database driver, whose writes
  are not visible one by one.

`KillPoint.at_bytes` kills the process inside any write that extends a file beyond a size,
whichever library writes.

Only the process dies. Data that the kernel has accepted survives, so a missing fsync goes
unnoticed.
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
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from importlib import import_module
from pathlib import Path
from types import BuiltinFunctionType, FrameType, ModuleType
from typing import IO, Any, Final, NoReturn

import msgspec

from waltap.base.plugin_errors import name_of
from waltap_testing.damage import evenly

# Audit events of Python that change files or open connections.
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
# Functions of `os` that raise no audit event.
WATCHED = ("fdatasync", "fsync", "pwrite", "sendfile", "write", "writev")
# The prefix of steps that are calls into a native library.
NATIVE: Final = "native call"
# Standard modules whose native calls reach beyond the process; `AUDITED` covers files.
DRIVERS: Final = frozenset({"sqlite3", "_sqlite3", "_socket", "_ssl", "mmap"})
WRITING = os.O_WRONLY | os.O_RDWR | os.O_CREAT
# Seconds of a child.
LONGEST_S: Final = 60
# Limits the time of a suite: each kill is a fork.
MOST_KILLS = 32


@dataclass(frozen=True, slots=True)
class KillPoint:
    """The moment of the child's death, if any."""

    # The child dies just before this step, counted from 1.
    step: int | None = None
    # The child dies inside the write that extends a file beyond this size.
    at_bytes: int | None = None

    def __str__(self) -> str:
        if self.step is not None:
            return f"killed at step {self.step}"
        return (
            "not killed" if self.at_bytes is None else f"killed at byte {self.at_bytes} of a file"
        )


@dataclass(slots=True)
class ChildOutcome:
    """A child's end, reports, ordered steps and error."""

    killed: bool = False
    reports: list[Any] = field(default_factory=list)
    steps: list[str] = field(default_factory=list)
    error: str | None = None


class CrashChild:
    """The child's side: an action reports values and marks steps."""

    def __init__(self, pipe: int, kill: KillPoint, own: tuple[str, ...] = ()) -> None:
        self._pipe, self._kill, self._own = pipe, kill, own
        self._count = 0
        self._write = os.write  # the real one, before it is watched

    def report(self, value: object) -> None:
        """Send a value to the parent, as JSON.

        The pipe keeps it even if the child dies right afterwards.
        """
        self._write(self._pipe, msgspec.json.encode(("report", value)) + b"\n")

    def fail(self, text: str) -> None:
        """Report the action's exception to the parent."""
        self._write(self._pipe, msgspec.json.encode(("error", text)) + b"\n")

    def mark(self, name: str) -> None:
        """Pass a step; the process may die here."""
        self._count += 1
        if self._count == self._kill.step:
            # SIGKILL: no handler, destructor or buffer runs, as in a real crash.
            os.kill(os.getpid(), signal.SIGKILL)
        self._write(self._pipe, msgspec.json.encode(("step", name)) + b"\n")

    def watch(self) -> None:
        """Count file changes as steps, up to the kill point."""
        if self._kill.at_bytes is not None:
            # SIGXFSZ would write a core file; Python ignores the signal by default.
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
        """Make a step of each native call in the plugin."""
        if (
            event == "c_call"
            and frame.f_code.co_filename.startswith(self._own)
            and _is_native(called)
        ):
            source_line = f"{Path(frame.f_code.co_filename).name}:{frame.f_lineno}"
            self.mark(f"{NATIVE} {called.__name__} at {source_line}")

    def _watched(self, name: str, real: Callable[..., Any]) -> Callable[..., Any]:
        def call(*arguments: Any, **options: Any) -> Any:
            self.mark(f"os.{name}")
            return real(*arguments, **options)

        return call

    def _watched_open(self, real: Callable[..., IO[Any]]) -> Callable[..., IO[Any]]:
        def call(*arguments: Any, **options: Any) -> IO[Any]:
            file = real(*arguments, **options)
            if file.writable():
                # Opening may already have emptied the file.
                self.mark("opened for writing")
            return file

        return call

    def _audit(self, event: str, arguments: tuple[Any, ...]) -> None:
        if event in AUDITED:
            self.mark(event)
        elif event == "open" and arguments[2] is not None and arguments[2] & WRITING:
            self.mark("open for writing")


def _is_native(called: Any) -> bool:
    """Return whether ``called`` is native code outside of Python itself.

    Python's own modules count only if their calls reach beyond the process.
    """
    owner = called.__self__ if isinstance(called, BuiltinFunctionType) else None
    if owner is None or isinstance(owner, ModuleType):
        module = called.__module__ or getattr(owner, "__name__", "")
    else:
        module = (owner if isinstance(owner, type) else type(owner)).__module__
    top = (module or "builtins").partition(".")[0]
    return top in DRIVERS or top not in sys.stdlib_module_names


def chosen(steps: Sequence[str]) -> list[int]:
    """Return the steps to kill at, by number from 1.

    File changes and the suite's own marks come first. Native calls are sampled per line of code,
    since loops make most of them.
    """
    acts: list[int] = []
    lines: dict[str, list[int]] = {}
    for number, name in enumerate(steps, 1):
        (lines.setdefault(name, []) if name.startswith(NATIVE) else acts).append(number)
    acts = evenly(acts, MOST_KILLS)
    each = max(2, (MOST_KILLS - len(acts)) // max(1, len(lines)))
    natives = sorted(number for found in lines.values() for number in evenly(found, each))
    return sorted([*acts, *evenly(natives, MOST_KILLS)])


def own_files(made_by: Callable[..., object]) -> tuple[str, ...]:
    """Return the path prefixes of the plugin that ``made_by`` belongs to."""
    module = import_module(name_of(made_by)[0])
    package = sys.modules.get(module.__name__.partition(".")[0], module)
    folders = [str(Path(folder)) + os.sep for folder in getattr(package, "__path__", ())]
    file = module.__file__ or ""
    inside = tuple(folder for folder in folders if file.startswith(folder))
    return inside if package.__file__ is not None and inside else (file,)


def limit_file_size(size: int | None) -> None:
    """Limit the size of files this process writes; None: unlimited."""
    _, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (hard if size is None else size, hard))


def in_child(
    action: Callable[[CrashChild], None], kill: KillPoint, *, own: tuple[str, ...] = ()
) -> ChildOutcome:
    """Run ``action`` in a forked process and return its outcome.

    ``own`` are the path prefixes of files whose native calls are steps (`own_files`).

    Raises: AssertionError when the child runs longer than `LONGEST_S`.
    """
    reading, writing = os.pipe()
    sys.stdout.flush()
    sys.stderr.flush()
    with warnings.catch_warnings():
        # Python warns of forks beside threads; the child only runs the plugin, then leaves at once.
        warnings.simplefilter("ignore")
        pid = os.fork()
    if pid == 0:
        # Objects of the parent may belong to threads that the child does not have.
        gc.freeze()
        os.close(reading)
        _live(action, CrashChild(writing, kill, own))
    os.close(writing)
    with open(reading, "rb") as pipe:  # noqa: PTH123 - a file descriptor
        lines = pipe.read().split(b"\n")
    _, status = os.waitpid(pid, 0)
    return _outcome(lines, status)


class _ImitatedDeath(BaseException):
    """An imitated death; no ``except Exception`` can catch it."""


class _ImaginedChild(CrashChild):
    """A child in this process: its death is an exception."""

    def __init__(self, kill: KillPoint, outcome: ChildOutcome) -> None:
        self._kill, self._outcome = kill, outcome

    def report(self, value: object) -> None:
        self._outcome.reports.append(value)

    def mark(self, name: str) -> None:
        self._outcome.steps.append(name)
        if len(self._outcome.steps) == self._kill.step:
            raise _ImitatedDeath


def imitated(action: Callable[[CrashChild], None], kill: KillPoint) -> ChildOutcome:
    """Run ``action`` in this process, for plugins that cannot be forked.

    Only the action's own marks are steps. Its objects stay unclosed, and no file is torn.
    """
    outcome = ChildOutcome()
    try:
        action(_ImaginedChild(kill, outcome))
    except _ImitatedDeath as death:
        outcome.killed = True
        # Keeps the frames alive: a buffer that is collected would still be written.
        _GRAVES.append(death)
    except Exception:  # noqa: BLE001 - the same as from a child
        outcome.error = traceback.format_exc()
    return outcome


_GRAVES: list[BaseException] = []


def _live(action: Callable[[CrashChild], None], child: CrashChild) -> NoReturn:
    """Run the child's whole life; never return into the parent's code."""
    code = 1
    try:
        signal.signal(signal.SIGALRM, signal.SIG_DFL)
        signal.alarm(LONGEST_S)
        child.watch()
        action(child)
        code = 0
    except BaseException:  # noqa: BLE001 - a process boundary: everything is handed over
        # The limit also applies to the report of the error.
        with contextlib.suppress(BaseException):
            limit_file_size(None)
            child.fail(traceback.format_exc())
    finally:
        os._exit(code)


def _outcome(lines: list[bytes], status: int) -> ChildOutcome:
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
        # The child's own alarm: it neither ended nor died in time.
        assert number != signal.SIGALRM, f"still busy after {LONGEST_S} s, after {found.steps[-3:]}"
        found.killed = number in (signal.SIGKILL, signal.SIGXFSZ)
        if not found.killed:
            found.error = f"died of {signal.Signals(number).name}"
    elif os.WEXITSTATUS(status) and found.error is None:
        found.error = f"ended with status {os.WEXITSTATUS(status)}"
    return found
