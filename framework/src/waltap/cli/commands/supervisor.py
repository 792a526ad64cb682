"""Start, watch and stop several pipelines, each in its own process.

A pipeline is a `waltap run` of one profile. A failed one starts again after a pause that doubles up
to a minute; one with a faulty profile waits until the folder is read again (SIGHUP); a finished one
stays finished. SIGHUP goes to each pipeline, which reads its profile again, and ends if a change
needs a new start.
"""

import json
import logging
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from queue import SimpleQueue
from typing import TYPE_CHECKING

from waltap.clock import Clock, SystemClock
from waltap.errors import WaltapError

if TYPE_CHECKING:
    from waltap.config.profile import Profile
    from waltap.pipeline import Engine


log = logging.getLogger(__name__)

START_OVER = 4
"""Exit code of a run that ended since a changed profile needs a new start."""


class ProfileReloader:
    """Read a profile again at SIGHUP, and apply it to run and log.

    ``exits``: the run ends cleanly if a change needs a new start; ``start_over`` reports that.
    """

    def __init__(
        self,
        engine: "Engine",
        load: "Callable[[], Profile]",
        apply_profile: "Callable[[Profile], None]",
        *,
        exits: bool = False,
    ) -> None:
        self._engine, self._load = engine, load
        self._apply_profile, self._exits = apply_profile, exits
        self.start_over = False

    def again(self) -> None:
        """Reload; a fault in the file is logged, and changes nothing."""
        extra = {"pipeline": self._engine.profile.name}
        try:
            profile = self._load()
            self._apply_profile(profile)
            outcome = self._engine.reload(profile)
        except WaltapError as error:
            log.error(  # noqa: TRY400 - the error says it all
                "the profile was read again and is refused, the run continues with what it has: %s",
                error,
                extra={**extra, "error_code": error.code},
            )
            return
        except Exception as error:  # noqa: BLE001 - a plugin's; the run continues
            log.error(  # noqa: TRY400
                "the profile could not be read again, the run continues with what it has: %s: %s",
                type(error).__name__, error, extra=extra,
            )  # fmt: skip
            return
        applied = ", ".join(outcome.applied)
        log.info("the profile was read again: %s", applied or "nothing to change", extra=extra)
        if outcome.restart:
            ends = "the run ends for it" if self._exits else "restart it"
            log.warning(
                "changed, and needs a restart (%s): %s",
                ends,
                ", ".join(outcome.restart),
                extra=extra,
            )
            if self._exits:
                self.start_over = True
                self._engine.stop()


@contextmanager
def reloaded_by_signal(reloading: ProfileReloader, stop: Callable[[], None]) -> Iterator[None]:
    """Reload on SIGHUP within the block, in a separate thread.

    A closed terminal sends the same signal: then the run ends cleanly (``stop``), unless the parent
    process ignores the signal (nohup).
    """
    asked: SimpleQueue[bool] = SimpleQueue()  # its put may be called within a signal handler
    on_terminal = _terminal()

    def reload_on_signal() -> None:
        while asked.get():
            if on_terminal and not _terminal():
                stop()
            else:
                reloading.again()

    before = signal.getsignal(signal.SIGHUP)
    on_terminal = on_terminal and before != signal.SIG_IGN
    signal.signal(signal.SIGHUP, lambda _number, _frame: asked.put(True))
    thread = threading.Thread(target=reload_on_signal, name="waltap-reload", daemon=True)
    thread.start()
    # Its parent process may hold one back.
    signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGHUP})
    try:
        yield
    finally:
        signal.signal(signal.SIGHUP, signal.SIG_IGN if before == signal.SIG_IGN else signal.SIG_DFL)
        asked.put(False)
        thread.join()


def _terminal() -> bool:
    try:
        os.close(os.open(os.ctermid(), os.O_RDWR | os.O_NOCTTY))
    except OSError:
        return False
    return True


REST_S, LONGEST_REST_S = 1.0, 60.0
WELL_S = 60.0
"""Who has run for so long has started well: the next rest is a short one."""
POLL_S = 0.2
DONE, FAILED, FAULTY = 0, 1, 2
SETTINGS_FROM_STDIN = "--set-from-stdin"
"""Option of `waltap run` that has a JSON list of NAME=VALUE read from standard input."""


@dataclass(slots=True)
class _SupervisedProcess:
    """A profile and the process that runs it, None between two."""

    path: Path
    content: bytes
    process: "subprocess.Popen[bytes] | None" = None
    began: float = 0.0
    rest_s: float = REST_S
    due: float | None = 0.0
    """When it is to be started; None: not before the folder is read again."""
    code: int | None = None
    gone: bool = False
    """Its profile was removed, and the process ends."""


@dataclass(slots=True)
class Supervisor:
    """Runs the profiles that ``profiles`` returns.

    Each run gets ``arguments``, and ``settings`` (NAME=VALUE) by a pipe: they may be secrets, which
    a list of processes would show.
    """

    profiles: Callable[[], Iterable[Path]]
    arguments: Sequence[str] = ()
    settings: Sequence[str] = ()
    clock: Clock = field(default_factory=SystemClock)
    stopping: bool = False
    killing: bool = False
    reading: bool = True
    _children: dict[Path, _SupervisedProcess] = field(default_factory=dict)

    def stop(self) -> None:
        """Have every pipeline end cleanly. Called by signal handlers, too."""
        self.stopping = True

    def interrupt(self) -> None:
        """Stop; the second time, kill the processes that still run."""
        self.killing, self.stopping = self.stopping, True

    def read_again(self) -> None:
        """Reload the folder: start new profiles, stop removed ones.

        All others reload their profile.
        """
        self.reading = True

    def run(self) -> int:
        """Watch all pipelines until `stop` or until all have ended.

        Return 1 if one ended with an error.
        """
        try:
            while not self.stopping:
                if self.reading:
                    self.reading = False
                    self._read()
                for child in list(self._children.values()):
                    self._check(child)
                runs = [
                    each for each in self._children.values() if each.process or each.due is not None
                ]
                if not (runs or self.reading):
                    break
                self.clock.wait(POLL_S, lambda: self.stopping)
        finally:
            self._end()
        bad = [each.code for each in self._children.values() if each.code not in {None, DONE}]
        return 1 if bad and not self.stopping else 0

    def _read(self) -> None:
        try:
            there = {path: _content(path) for path in self.profiles()}
        except OSError as error:
            log.error("the folder cannot be read again, nothing changes: %s", error)  # noqa: TRY400
            return
        for child in [child for path, child in self._children.items() if path not in there]:
            child.gone, child.due = True, None
            if child.process is None:
                self._forget(child)
            else:
                child.process.terminate()
        for path, content in there.items():
            known = self._children.get(path)
            if known is None:
                self._children[path] = _SupervisedProcess(path, content)
            elif known.gone:
                continue  # its old process has not ended: `_forget` reads the folder again
            elif known.process is not None:
                known.content = content
                known.process.send_signal(signal.SIGHUP)
            elif known.content != content or known.code == FAULTY:
                known.content, known.due = content, 0.0

    def _check(self, child: _SupervisedProcess) -> None:
        now = self.clock.monotonic()
        if child.process is None:
            if child.due is not None and now >= child.due:
                child.began, child.code = now, None
                try:
                    child.process = self._started(child.path)
                except OSError as error:  # too many processes, or no memory for one more
                    child.code = FAILED
                    self._rest(child, f"cannot be started ({error.strerror})")
                    return
                log.info("%s: process %d", child.path.name, child.process.pid)
            return
        code = child.process.poll()
        if code is None:
            return
        child.process, child.code = None, code
        if child.gone:
            self._forget(child)
            return
        if code == START_OVER:
            log.info("%s has changed: its pipeline restarts", child.path.name)
            child.due, child.rest_s = now, REST_S
            return
        if code in {DONE, FAULTY}:
            child.due = None
            why = (
                "is done" if code == DONE else "has a faulty profile, and is left out until SIGHUP"
            )
            log.log(logging.INFO if code == DONE else logging.ERROR, "%s %s", child.path.name, why)
            return
        if now - child.began >= WELL_S:
            child.rest_s = REST_S
        self._rest(child, f"ended with {code}")

    def _forget(self, child: _SupervisedProcess) -> None:
        log.info("%s is gone: its pipeline has ended", child.path)
        del self._children[child.path]
        if child.path.exists():  # it has come back
            self.read_again()

    def _rest(self, child: _SupervisedProcess, problem: str) -> None:
        child.due = self.clock.monotonic() + child.rest_s
        log.warning("%s %s; it starts again in %g s", child.path.name, problem, child.rest_s)
        child.rest_s = min(child.rest_s * 2, LONGEST_REST_S)

    def _started(self, path: Path) -> "subprocess.Popen[bytes]":
        command = [sys.executable, "-m", "waltap", "run", str(path), "--exit-on-change"]
        command += self.arguments
        with _held_back(signal.SIGHUP):
            if not self.settings:
                return subprocess.Popen(command)
            process = subprocess.Popen([*command, SETTINGS_FROM_STDIN], stdin=subprocess.PIPE)
        assert process.stdin is not None
        with suppress(BrokenPipeError), process.stdin as pipe:
            pipe.write(json.dumps(list(self.settings)).encode())
        return process

    def _end(self) -> None:
        """End processes cleanly, all at once, and wait for them."""
        running = [child for child in self._children.values() if child.process is not None]
        for child in running:
            assert child.process is not None
            child.process.terminate()
        for child in running:
            assert child.process is not None
            while child.process.poll() is None:
                if self.clock.wait(POLL_S, lambda: self.killing):
                    child.process.kill()
                    child.process.wait()
            child.code, child.process = child.process.returncode, None


@contextmanager
def _held_back(number: signal.Signals) -> Iterator[None]:
    """Block the signal for a child until the child listens to it.

    The child inherits the mask; an earlier signal would end it.
    """
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {number})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def _content(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except OSError:
        return b""
