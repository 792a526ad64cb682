"""The ``waltap`` command as tests run it: a process for each command line.

Loading our modules is most of the time of a short command, so each is a fork of one process that has them
(`tests.harness.warm_command`). A command line whose interpreter is the point (``PYTHONPATH``, locale, limits,
imports) is a process from the beginning: start that by `subprocess`.
"""

import atexit
import contextlib
import functools
import json
import os
import select
import signal
import socket
import subprocess
import sys
import tempfile
import threading
from collections.abc import Mapping
from pathlib import Path
from typing import IO, Any

PIPE = subprocess.PIPE

WAIT_SECONDS = 300.0
BEGINS_WITH = ("PYTHON", "LC_", "LANG", "TZ", "LD_")
"""Variables that an interpreter reads when it starts."""


def waltap(
    *arguments: object, cwd: Path | None = None, wait: float = WAIT_SECONDS, **variables: str
) -> subprocess.CompletedProcess[str]:
    """Run a command line in the folder ``cwd``, with ``variables`` in its environment and none of ours that
    waltap reads.

    A terminal would have 160 columns. Raises: TimeoutExpired after ``wait`` seconds, the command killed.
    """
    words = list(map(str, arguments))
    ours = {name: value for name, value in os.environ.items() if not name.startswith("WALTAP_")}
    environment = {**ours, "COLUMNS": "160", **variables}
    if any(name.startswith(BEGINS_WITH) for name in variables):
        python = sys.executable, "-m", "waltap"
        return run_program(*python, *words, code=None, wait=wait, cwd=cwd, env=environment)
    command = start(*words, cwd=cwd, environment=environment)
    try:
        code = command.wait(wait)
    except subprocess.TimeoutExpired:
        raise subprocess.TimeoutExpired(words, wait, command.said(), command.errors()) from None
    finally:
        command.close()
    return subprocess.CompletedProcess(words, code, command.said(), command.errors())


def run_program(
    *words: object, code: int | None = 0, wait: float = WAIT_SECONDS, **options: Any
) -> subprocess.CompletedProcess[str]:
    """Run any program to its end, which is ``code`` unless that is None; what it says is kept as text."""
    done = subprocess.run(
        list(map(str, words)), capture_output=True, text=True, check=False, timeout=wait, **options
    )
    assert code in {None, done.returncode}, (done.stdout + done.stderr)[-8000:]
    return done


def start(
    *arguments: object,
    cwd: Path | None = None,
    environment: Mapping[str, str] | None = None,
    out: IO[bytes] | int | None = None,
    errors: IO[bytes] | None = None,
) -> "Command":
    """Start a command line in the folder ``cwd``, with the environment of the tests if none is given.

    Its output goes to the files ``out`` and ``errors``, or is kept for `Command.communicate`. With `PIPE` as
    ``out``, `Command.stdout` reads it as it comes.
    """
    reading, stdout = None, out
    if isinstance(stdout, int):
        readable, writable = os.pipe()
        reading, stdout = os.fdopen(readable), os.fdopen(writable, "wb")
    command = Command(
        list(map(str, arguments)),
        cwd or Path.cwd(),
        os.environ if environment is None else environment,
        stdout,
        errors,
    )
    if reading is not None and stdout is not None:
        stdout.close()
        command.stdout = reading
    return command


class Command:
    """A command line that runs: of `subprocess.Popen` what tests use. `close` kills it if it runs."""

    def __init__(
        self,
        words: list[str],
        folder: Path,
        environment: Mapping[str, str],
        out: IO[bytes] | None,
        errors: IO[bytes] | None,
    ) -> None:
        self.words = words
        self.returncode: int | None = None
        self.stdout: IO[str] | None = None
        self._said, self._errors = _Kept(out), _Kept(errors)
        self._connection = socket.socket(socket.AF_UNIX)
        self._connection.connect(_warm())
        socket.send_fds(
            self._connection, [b"\0"], [self._said.file.fileno(), self._errors.file.fileno()]
        )
        asked = json.dumps([words, str(folder), dict(environment)])
        self._connection.sendall(asked.encode())
        self._connection.shutdown(socket.SHUT_WR)
        self._answers = self._connection.makefile("r")
        self.pid = int(self._answers.readline())

    def wait(self, timeout: float | None = None) -> int:
        """Return the exit code, negative for a signal. Raises: TimeoutExpired."""
        if self.returncode is None:
            if not select.select([self._connection], [], [], timeout)[0]:
                raise subprocess.TimeoutExpired(self.words, timeout or 0.0)
            self.returncode = int(self._answers.readline())
            self.close()
        return self.returncode

    def poll(self) -> int | None:
        """Return the exit code, None while it runs."""
        with contextlib.suppress(subprocess.TimeoutExpired):
            return self.wait(0)
        return None

    def send_signal(self, number: int) -> None:
        """Send a signal, unless it ended."""
        if self.poll() is None:
            with contextlib.suppress(
                ProcessLookupError
            ):  # it ended since, or that is being reported
                os.kill(self.pid, number)

    def kill(self) -> None:
        self.send_signal(signal.SIGKILL)

    def terminate(self) -> None:
        self.send_signal(signal.SIGTERM)

    def communicate(self, timeout: float = WAIT_SECONDS) -> tuple[str, str]:
        """Wait, and return its output and its errors. Raises: TimeoutExpired."""
        self.wait(timeout)
        return self.said(), self.errors()

    def said(self) -> str:
        return self._said.text()

    def errors(self) -> str:
        return self._errors.text()

    def close(self) -> None:
        """End the connection: the command is killed if it runs."""
        self._answers.close()
        self._connection.close()
        self._said.close()
        self._errors.close()


class _Kept:
    """A file that a command writes: one that the test has, or a temporary one whose text is kept."""

    def __init__(self, given: IO[bytes] | None) -> None:
        self.file = given or tempfile.TemporaryFile()
        self._temporary, self._text = given is None, ""

    def text(self) -> str:
        """Return its content so far, "" of a file that the test has."""
        if self._temporary and not self.file.closed:
            number = self.file.fileno()
            # the command writes at the offset that both share, so it must not move
            self._text = os.pread(number, os.fstat(number).st_size, 0).decode(errors="replace")
        return self._text

    def close(self) -> None:
        """Close a temporary file, with its text kept."""
        if self._temporary:
            self.text()
            self.file.close()


_starting = threading.Lock()


def _warm() -> str:
    with _starting:
        return _started(os.getpid())


@functools.cache
def _started(_process: int) -> str:
    """Start the process that waits; return the path of its socket. It ends with us: its input does."""
    folder = tempfile.TemporaryDirectory(prefix="waltap-")
    place = f"{folder.name}/s"
    process = subprocess.Popen(
        [sys.executable, "-m", "tests.harness.warm_command", place],
        cwd=Path(__file__).parents[2], stdin=subprocess.PIPE, stdout=subprocess.PIPE,
    )  # fmt: skip

    def end() -> None:
        with process:  # its output stays open while a command runs that a failed test left
            folder.cleanup()

    atexit.register(end)
    assert process.stdout is not None
    assert process.stdout.readline() == b"ready\n", "the process that waits for commands ended"
    return place
