"""``python -m tests.harness.warm_command SOCKET``: has our modules, and runs each command line it is given in
a fork of itself. See `tests.harness.command`."""

import atexit
import gc
import importlib
import json
import os
import pkgutil
import select
import signal
import socket
import sys
import threading
from pathlib import Path
from typing import NoReturn

LOADED = ("waltap", "waltap_postgres", "waltap_decoders")


def main(place: str) -> None:
    """Load our modules, say ``ready``, and serve until standard input ends."""
    _load()
    gc.freeze()  # forks that leave these objects alone share their memory
    with socket.socket(socket.AF_UNIX) as listening:
        listening.bind(place)
        listening.listen(64)
        print("ready", flush=True)
        signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # keepers are nobody's
        while True:
            ready, _, _ = select.select([listening, sys.stdin], [], [])
            if sys.stdin in ready:
                return
            connection, _ = listening.accept()
            with connection:
                if not os.fork():
                    listening.close()
                    _keep(connection)


def _load() -> None:
    for name in LOADED:
        package = importlib.import_module(name)
        for module in pkgutil.walk_packages(package.__path__, f"{name}."):
            if not module.name.endswith("__main__"):
                importlib.import_module(module.name)
    from waltap.plugins.host import Host

    _ = Host().commands
    assert len(list(Path("/proc/self/task").iterdir())) == 1, "a fork has no threads"


def _keep(connection: socket.socket) -> None:
    """Run the command line in a process that ends as any does; answer with its process ID, then its exit code."""
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    _, files, _, _ = socket.recv_fds(connection, 1, 2)
    asked = b""
    while data := connection.recv(1 << 16):
        asked += data
    command = os.fork()
    if not command:
        _become(*json.loads(asked), *files)
        connection.close()
        _run()
    connection.sendall(f"{command}\n".encode())
    # a test that waits no longer has closed the connection
    gone = select.poll()
    gone.register(connection, select.POLLHUP)
    process = os.pidfd_open(command)
    gone.register(process, select.POLLIN)
    if any(which != process for which, _ in gone.poll()):
        os.kill(command, signal.SIGKILL)
    _, status = os.waitpid(command, 0)
    connection.sendall(f"{os.waitstatus_to_exitcode(status)}\n".encode())
    os._exit(0)


def _run() -> NoReturn:
    """Run the command line, and end as an interpreter does.

    It frees no object of the process that waits where the command loaded no library of its own, which might not end
    well: in a copy of the memory that takes ten times as long as a short command.
    """
    before = set(sys.modules)
    from waltap.cli import main as waltap

    code = 0
    try:
        waltap()
    except SystemExit as ended:
        if ended.code is not None and not isinstance(ended.code, int):
            raise
        code = ended.code or 0
    if any(_is_library(name) for name in set(sys.modules) - before):
        sys.exit(code)
    threading._shutdown()  # waits for threads
    atexit._run_exitfuncs()
    try:
        sys.stdout.flush()
        sys.stderr.flush()
    except OSError:
        sys.exit(code)
    os._exit(code)


def _is_library(name: str) -> bool:
    path = getattr(sys.modules[name], "__file__", None) or ""
    return path.endswith(".so") and "site-packages" in path


def _become(
    words: list[str], folder: str, variables: dict[str, str], out: int, errors: int
) -> None:
    # a shell makes the processes that it starts in the background ignore Ctrl-C
    signal.signal(signal.SIGINT, signal.default_int_handler)
    os.chdir(folder)
    os.environ.clear()
    os.environ.update(variables)
    for number, file in enumerate((os.open(os.devnull, os.O_RDONLY), out, errors)):
        os.dup2(file, number)
    # a stream remembers whether its first file could seek
    sys.stdout = open(1, "w", 1 if os.isatty(1) else -1, sys.stdout.encoding, closefd=False)  # noqa: SIM115, PTH123
    sys.stderr = open(2, "w", 1, sys.stderr.encoding, "backslashreplace", closefd=False)  # noqa: SIM115, PTH123
    # as `python -m waltap` has it
    sys.argv = [
        str(Path(importlib.import_module("waltap").__file__ or "").with_name("__main__.py")),
        *words,
    ]
    sys.modules["__main__"].__package__ = "waltap"
    sys.path[0] = folder


if __name__ == "__main__":
    main(sys.argv[1])
