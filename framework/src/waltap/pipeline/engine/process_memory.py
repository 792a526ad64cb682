"""Bound the freed memory that this process's allocators keep."""

import ctypes
import os
import sys
from contextlib import suppress
from typing import Final

# Parameters of glibc's mallopt, and the bytes from which on it returns memory at once.
_TRIM_THRESHOLD: Final = -1
_MMAP_THRESHOLD: Final = -3
_RETAINED_BYTES: Final = 8 << 20


def configure_allocators() -> None:
    """Set the limits of malloc, Arrow and numpy.

    Both read their variables when they are imported.
    """
    if sys.platform == "linux":
        # By default malloc returns each buffer of 128 KiB and more, and the system clears the pages
        # of the next one: a twentieth of the processor time of a stream.
        with suppress(AttributeError):  # a C library without mallopt
            mallopt = ctypes.CDLL(None).mallopt
            mallopt(_MMAP_THRESHOLD, _RETAINED_BYTES)
            mallopt(_TRIM_THRESHOLD, _RETAINED_BYTES)
        # Arrow's own choice, mimalloc, keeps some 40 MiB more of what a run has freed.
        os.environ.setdefault("ARROW_DEFAULT_MEMORY_POOL", "jemalloc")
        # Arrow keeps freed pages for a second, in an arena for each thread: some 10 MiB of a run.
        os.environ.setdefault(
            "JE_ARROW_MALLOC_CONF", "narenas:1,dirty_decay_ms:200,muzzy_decay_ms:0"
        )
    # numpy would start a thread for each core, to multiply matrices.
    os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")


def return_free_memory() -> None:
    """Return malloc's free pages to the system.

    A snapshot of 5,000 tables leaves some 5 MiB of them. It takes half a millisecond.
    """
    if sys.platform == "linux":
        with suppress(AttributeError):  # a C library without malloc_trim
            ctypes.CDLL(None).malloc_trim(0)
