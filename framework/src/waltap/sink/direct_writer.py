"""Large blocks to a file past the kernel's page cache: what a snapshot writes nobody reads again soon.

Written through the cache, gigabytes would be copied into memory that has to be found first, and would push
out what a database on the same machine keeps there.
"""

import errno
import fcntl
import mmap
import os
from collections.abc import Callable
from typing import Final

__all__ = ["PastCache"]

LEAST_BYTES: Final = 1 << 20
"""A block that is worth it."""

BUFFER_BYTES: Final = 1 << 20
ALIGNED: Final = 4096
"""What place, length and memory of a direct write are multiples of."""

_DIRECT: Final = getattr(os, "O_DIRECT", 0)
_UNSUPPORTED: Final = frozenset({errno.EINVAL, errno.EOPNOTSUPP, errno.ENOTTY})


class PastCache:
    """Writes what it can of a block directly; ``refused``: system or file system knows no such thing.
    Single-threaded.
    """

    __slots__ = ("_buffer", "refused")
    _direct = staticmethod(os.write)

    def __init__(self) -> None:
        self._buffer: mmap.mmap | None = None
        self.refused = not _DIRECT

    def write(
        self, fd: int, at: int, block: memoryview, before: Callable[[], None] = lambda: None
    ) -> memoryview:
        """Write ``block`` to ``fd``, which appends to a file of ``at`` bytes; return what is left of it to
        be written in the ordinary way: its end, or all of it. ``before`` is called before each write.
        Raises: OSError, what ``before`` raises.
        """
        if self.refused or len(block) < LEAST_BYTES:
            return block
        block, for_whole_page = block.cast("B"), -at % ALIGNED
        rest = block[:for_whole_page]
        while rest:
            before()
            rest = rest[os.write(fd, rest) :]
        block = block[for_whole_page:]
        flags = fcntl.fcntl(fd, fcntl.F_GETFL)
        try:
            fcntl.fcntl(fd, fcntl.F_SETFL, flags | _DIRECT)
        except OSError as error:
            self._note(error)
            return block
        try:
            return self._written(fd, block, before)
        finally:
            fcntl.fcntl(fd, fcntl.F_SETFL, flags)

    def _written(self, fd: int, block: memoryview, before: Callable[[], None]) -> memoryview:
        if self._buffer is None:
            self._buffer = mmap.mmap(-1, BUFFER_BYTES)
        buffer = self._buffer
        with memoryview(buffer) as shown:
            while len(block) >= ALIGNED:
                size = min(BUFFER_BYTES, len(block) // ALIGNED * ALIGNED)
                shown[:size] = block[:size]
                before()
                try:
                    with shown[:size] as part:
                        written = self._direct(fd, part)
                except OSError as error:
                    self._note(error)
                    return block
                block = block[written:]
                if written % ALIGNED:  # the next one would not begin where it has to
                    return block
        return block

    def _note(self, error: OSError) -> None:
        """Keep in mind that it cannot be done here. Raises: ``error``, where it says something else."""
        if error.errno not in _UNSUPPORTED:
            raise error
        self.refused = True
