"""What to do about what the operating system refuses, by its error number.

The class of an error says what waltap was doing; what fixes it depends on the system's reason more often
than on that: a process that has used up its file descriptors needs no other folder.
"""

import errno

__all__ = ["ADVICE", "system_advice"]

ADVICE = {
    errno.EMFILE: "Let the process open more files: `ulimit -n 4096` in the shell that starts it, "
    "LimitNOFILE=4096 in its systemd unit.",
    errno.ENFILE: "The machine has no file descriptor left: raise fs.file-max (sysctl), or end what "
    "holds so many (`lsof | wc -l`).",
    errno.ENOMEM: "The machine has no memory left for this: give the process more, or end others.",
    errno.EROFS: "This filesystem is mounted read-only: mount it for writing, or choose another place.",
    errno.EDQUOT: "The disk quota of this user is used up: make room, or have it raised.",
    errno.ENAMETOOLONG: "Choose a shorter name: a file system takes 255 bytes for each part of a path.",
    errno.ENOSPC: "Make room on the disk.",
    errno.EACCES: "Give this user the right to read and write there, or choose another place.",
}
STRONGER = frozenset(ADVICE) - {errno.ENOSPC, errno.EACCES}
"""What the remedy of an error class does not know; of room and rights it does."""


def system_advice(error: BaseException | None, *, all_known: bool = False) -> str | None:
    """Return what fixes the refusal that ``error``, or what it was raised from, is; None for others.

    ``all_known``: also where the class of a waltap error says as much.
    """
    seen: set[int] = set()
    while error is not None and id(error) not in seen:  # some raise an error from itself
        seen.add(id(error))
        number = error.errno if isinstance(error, OSError) else None
        if number is not None and number in (ADVICE if all_known else STRONGER):
            return ADVICE[number]
        error = error.__cause__
    return None
