"""A server as a child process: it is waited for, stopped, killed, and dies with the test run."""

import abc
import os
import shutil
import subprocess
import sys
import tempfile
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, ClassVar, Self

from tests.harness.servers.packages import packaged
from tests.harness.servers.place import data_folder
from tests.harness.servers.ports import free_ports

WAIT_SECONDS = 240.0

DYING = """
import ctypes, os, signal, sys
if sys.platform == "linux":
    ctypes.CDLL(None).prctl(1, signal.SIGKILL)  # PR_SET_PDEATHSIG
    if os.getppid() != int(sys.argv[1]):
        sys.exit(1)  # the test run died before this line
os.execvp(sys.argv[2], sys.argv[2:])
"""
"""What a child begins with: the kernel is asked to kill it with the process that started it."""


class ChildFailed(Exception):
    """A server did not come up; the text has the end of its log."""


class Child:
    """One server process with a log file."""

    def __init__(self, command: Sequence[str], log: Path) -> None:
        self._command, self.log = list(command), log
        self._process: subprocess.Popen[bytes] | None = None
        self._logged_before = 0

    @property
    def pid(self) -> int:
        assert self._process is not None
        return self._process.pid

    @property
    def ended(self) -> bool:
        """Whether it runs no more, or never did."""
        return self._process is None or self._process.poll() is not None

    def start(self) -> None:
        """Start the process; `wait_until` shows when it serves."""
        self._logged_before = self.log.stat().st_size if self.log.exists() else 0
        with self.log.open("ab") as out:
            self._process = subprocess.Popen(
                [sys.executable, "-I", "-S", "-c", DYING, str(os.getpid()), *self._command],
                stdin=subprocess.DEVNULL,
                stdout=out,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )

    def wait_until(self, serves: Callable[[], bool], seconds: float = WAIT_SECONDS) -> None:
        """Wait until ``serves()``. Raises: ChildFailed when the process ends, or takes longer."""
        deadline = time.monotonic() + seconds
        while not serves():
            if self.ended:
                raise ChildFailed(f"{self._command[0]} ended:\n{self.said()}")
            if time.monotonic() > deadline:
                raise ChildFailed(f"{self._command[0]} does not serve:\n{self.said()}")
            time.sleep(0.05)

    def said(self) -> str:
        text = self.log.read_bytes()[self._logged_before :] if self.log.exists() else b""
        return text.decode(errors="replace")

    def stop(self, seconds: float = 60) -> None:
        """End it with SIGTERM, after ``seconds`` with SIGKILL. No error when it has ended."""
        if self._process is None or self.ended:
            return
        self._process.terminate()
        try:
            self._process.wait(seconds)
        except subprocess.TimeoutExpired:
            self.kill()

    def kill(self) -> None:
        if self._process is not None and not self.ended:
            self._process.kill()
        if self._process is not None:
            self._process.wait()


class LocalServer(abc.ABC):
    """A server of one process on one port of the loopback, with a folder of its own."""

    NAME: str
    """What its folder is called after."""
    IN_MEMORY = False
    """Whether its folder is where there is room in memory."""
    PACKAGES: ClassVar[tuple[str, ...]] = ()
    """Of the distribution: the first brings the program of its name, the others have its libraries."""

    def __init__(self, folder: Path, port: int, **options: Any) -> None:
        self.folder, self.port = folder, port
        self._child = Child(self.command(**options), folder / "log")

    @classmethod
    def create(cls, **options: Any) -> Self:
        """Make one and start it; ``options`` are those of `command`. Raises: MissingProgram, ChildFailed."""
        make = data_folder if cls.IN_MEMORY else tempfile.mkdtemp
        folder = Path(make(prefix=f"waltap-{cls.NAME}-"))
        made = None
        try:
            made = cls(folder, free_ports(1)[0], **options)
            made.start()
        except BaseException:
            if made is not None:
                made.kill()
            shutil.rmtree(folder, ignore_errors=True)
            raise
        return made

    @classmethod
    def prepare(cls) -> list[str]:
        """Return how to start it, fetched where it is missing. Raises: MissingProgram."""
        return packaged(*cls.PACKAGES)

    @abc.abstractmethod
    def command(self, *args: Any, **options: Any) -> list[str]:
        """Return how it is started, with its settings written into `folder`; each server has options of
        its own. Raises: MissingProgram."""

    @abc.abstractmethod
    def answers(self) -> bool:
        """Return whether it serves."""

    def start(self) -> None:
        self._child.start()
        self._child.wait_until(self.answers)

    def kill(self) -> None:
        self._child.kill()

    def remove(self) -> None:
        """End it, and delete its folder."""
        self._child.kill()
        shutil.rmtree(self.folder, ignore_errors=True)


def http_answers(url: str) -> bool:
    """Return whether a server answers at ``url``."""
    try:
        with urllib.request.urlopen(url, timeout=5) as answer:
            return bool(answer.status == 200)
    except (urllib.error.URLError, ConnectionError, TimeoutError):
        return False
