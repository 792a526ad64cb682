"""Replace small files atomically and durably."""

import os
import stat
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Final, Generic, TypeVar

import msgspec

from waltap.errors import WaltapError

# Offsets, spilled rows and tokens are unmasked: no access for group and others.
FILE: Final = 0o600
FOLDER: Final = 0o700
_OTHERS: Final = 0o077

UNREADABLE: Final = (msgspec.MsgspecError, UnicodeDecodeError)
"""For ``except``: damaged stored bytes, unlike a missing file.

Invalid UTF-8 raises Python's own error, not ``msgspec.DecodeError``.
"""


def private(path: Path | str, flags: int) -> int:
    """Open ``path`` with access for its owner alone, whatever the umask is.

    An existing file loses the access of other users. The function fits ``open`` as its ``opener``.
    Raises: OSError.
    """
    file = os.open(path, flags | os.O_CLOEXEC, FILE)
    found = os.fstat(file)
    if stat.S_ISREG(found.st_mode) and found.st_mode & _OTHERS:
        with suppress(OSError):  # another user owns and shares it
            os.fchmod(file, FILE)
    return file


def private_folder(path: Path) -> None:
    """Create ``path`` and its missing parent folders for the owner alone.

    Existing folders keep their mode. Raises: OSError.
    """
    try:
        path.mkdir(FOLDER, exist_ok=True)
    except FileNotFoundError:
        private_folder(path.parent)
        path.mkdir(FOLDER, exist_ok=True)


def lies_in_private(path: Path) -> bool:
    """Return whether new files at ``path`` are closed to other users.

    The nearest existing folder decides that.
    """
    while not path.exists() and path != path.parent:
        path = path.parent
    return not path.stat().st_mode & _OTHERS


def close_to_others(folder: Path) -> None:
    """Remove the access of other users to ``folder`` and its content.

    Earlier versions created the files with the umask's mode. Files of another owner keep their mode. The
    function follows no links.
    """
    root = folder.resolve()
    _close(root)
    for parent, folders, files in os.walk(root):
        for name in (*folders, *files):
            _close(Path(parent, name))


def _close(path: Path) -> None:
    with suppress(OSError):
        mode = path.lstat().st_mode
        if mode & _OTHERS and not stat.S_ISLNK(mode):
            path.chmod(FOLDER if stat.S_ISDIR(mode) else FILE)


T = TypeVar("T")


class StateDocument(Generic[T]):
    """A JSON document in one file that only its owner can read.

    ``damaged`` makes the error of a file that cannot be read or written, of a text and the path.
    Without it the document is optional: a damaged one is missing, and a failed write is ignored.
    """

    def __init__(
        self,
        path: Path,
        kind: type[T],
        damaged: Callable[..., WaltapError] | None = None,
        *,
        unwritable: Callable[..., WaltapError] | None = None,
        what: str = "",
        indented: bool = False,
        decode: Callable[[bytes], T] | None = None,
    ) -> None:
        self.path, self._indented = path, indented
        self._what = what or str(path)
        self._damaged, self._unwritable = damaged, unwritable or damaged
        self._decode = decode or msgspec.json.Decoder(kind).decode

    def load(self) -> T | None:
        """Return the document, or None. Raises: the error of a damaged file."""
        try:
            return self._decode(self.path.read_bytes())
        # The first start has no file yet; other checks report a folder that is none.
        except (FileNotFoundError, NotADirectoryError):
            return None
        except (OSError, ValueError, *UNREADABLE) as error:
            if self._damaged is None:
                return None
            raise self._damaged(f"{self._what} cannot be read: {error}", path=self.path) from error

    def save(self, value: T) -> None:
        """Replace the document durably. Raises: the error of an unwritable file."""
        data = msgspec.json.encode(value)
        if self._indented:
            data = msgspec.json.format(data, indent=1) + b"\n"
        with self._written():
            replace_durably(self.path, data)

    def clear(self) -> None:
        """Remove the file. Raises: the error of an unwritable file."""
        with self._written():
            self.path.unlink(missing_ok=True)

    @contextmanager
    def _written(self) -> Iterator[None]:
        try:
            yield
        except OSError as error:
            if self._unwritable is not None:
                text = f"{self._what} cannot be written: {error.strerror or error}"
                raise self._unwritable(text, path=self.path) from error


def replace_durably(path: Path, data: bytes) -> None:
    """Replace the content of ``path`` atomically and durably.

    A reader sees the old or the new content, never a part. Only the owner can read the file.

    Raises: OSError.
    """
    new = draft_of(path)
    private_folder(path.parent)
    with open(new, "wb", opener=private) as file:
        file.write(data)
        file.flush()
        os.fsync(file.fileno())
    # The content must be on disk before the name points to it.
    new.replace(path)
    # A file's fsync does not cover its name: the folder has that.
    sync(path.parent)


def sync(path: Path | str) -> None:
    """Flush a file or a folder to disk.

    Raises: OSError.
    """
    descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def draft_of(path: Path) -> Path:
    """Return the draft file that a crash may leave behind."""
    return path.with_suffix(f"{path.suffix}.new")
