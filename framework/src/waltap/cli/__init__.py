"""The ``waltap`` command; each command's module imports its needs late."""

import gc
import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from signal import SIGINT
from signal import signal as handle_signal  # `signal` becomes the command of that name
from typing import Final

__all__ = ["main", "uncollected"]

COLLECTED_FROM = 20_000
"""How many containers more there must be before the collector of cycles looks at the young ones. Rows are
freed by their reference counts, so that looking at 700 of them at a time, the default, finds nothing:
a twentieth of the processor time of a run. It is the command's process; a library leaves it alone."""

INTERRUPTED: Final = 130
"""The exit code of what SIGINT ended."""


def main() -> None:
    """Run the command line; the process ends with its exit code."""
    gc.set_threshold(COLLECTED_FROM, 20, 50)
    _open_streams()
    # an exception during imports would be printed
    before = handle_signal(SIGINT, lambda *_: os._exit(INTERRUPTED))
    with uncollected():
        from waltap.cli.application import run

    handle_signal(SIGINT, before)
    try:
        run()
    finally:
        gc.freeze()  # the system takes all at once; to look for cycles first takes 40 ms


def _open_streams() -> None:
    """Open the standard streams that the parent process closed.

    Else the next files and connections get their numbers, and what is printed. They are opened for
    reading only: a sink that writes to standard output must fail, not lose its rows.
    """
    for number in range(3):
        try:
            os.fstat(number)
        except OSError:
            os.set_inheritable(os.open(os.devnull, os.O_RDONLY), True)
    for name, mode in (("stdin", "r"), ("stdout", "w"), ("stderr", "w")):
        if getattr(sys, name) is None:
            setattr(sys, name, Path(os.devnull).open(mode))  # noqa: SIM115 - open until the end
    for stream in (sys.stdout, sys.stderr):
        # A locale without UTF-8 has no arrows, and a program that reads JSON takes UTF-8 only.
        encoding = None if stream.isatty() else "utf-8"
        stream.reconfigure(encoding=encoding, errors="backslashreplace")  # type: ignore[union-attr]


@contextmanager
def uncollected() -> Iterator[None]:
    """Load modules and build parts, which stay: no collection visits them."""
    gc.disable()
    try:
        yield
    finally:
        gc.freeze()
        gc.enable()
