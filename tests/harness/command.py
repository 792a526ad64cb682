"""The ``waltap`` command as tests run it: a process for each command line.

Loading our modules is most of the time of a short command, so each is a fork of one process that has them
(`tests.harness.warm_command`). A command line that is to be killed, gets signals, or whose interpreter is
the point (``PYTHONPATH``, locale, limits) is a process from the beginning: start that by `subprocess`.
"""

import atexit
import functools
import json
import os
import socket
import subprocess
import sys
import tempfile
import threading
from pathlib import Path
from typing import IO

__all__ = ["waltap"]

WAIT_SECONDS = 120.0
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
        return subprocess.run(
            [sys.executable, "-m", "waltap", *words],
            cwd=cwd, env=environment, capture_output=True, text=True, timeout=wait,
        )  # fmt: skip
    asked = json.dumps([words, str(cwd or Path.cwd()), environment]).encode()
    with (
        tempfile.TemporaryFile() as out,
        tempfile.TemporaryFile() as errors,
        socket.socket(socket.AF_UNIX) as connection,
    ):
        connection.settimeout(wait)
        connection.connect(_warm())
        socket.send_fds(connection, [b"\0"], [out.fileno(), errors.fileno()])
        connection.sendall(asked)
        connection.shutdown(socket.SHUT_WR)
        try:
            answer = b""
            while data := connection.recv(100):
                answer += data
        except TimeoutError:
            raise subprocess.TimeoutExpired(words, wait, _text(out), _text(errors)) from None
        return subprocess.CompletedProcess(words, int(answer), _text(out), _text(errors))


def _text(file: IO[bytes]) -> str:
    file.seek(0)
    return file.read().decode()


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
        process.communicate()
        folder.cleanup()

    atexit.register(end)
    assert process.stdout is not None
    assert process.stdout.readline() == b"ready\n", "the process that waits for commands ended"
    return place
