"""Store dead letters in a pipeline's state folder.

The file has JSON lines and grows at its end; the last line of a dead letter counts. It holds unmasked
values of the server, like spilled transactions, so only its owner may read it. The engine adds
dead letters while commands read, mark and drop them: every writer takes the folder's lock.
"""

import fcntl
import os
from collections.abc import Collection, Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

import msgspec

from waltap.base.files.durable_file import (
    UNREADABLE,
    private,
    private_folder,
    replace_durably,
    sync,
)
from waltap.errors import OffsetError
from waltap.services.dead_letters.dead_letter import DeadLetter

FILE: Final = "letters.jsonl"
LOCK: Final = "lock"

DeadLettersUnusable = OffsetError.define("DeadLettersUnusable", "WT-6204")


class DeadLetterStore:
    """The dead letters of one pipeline in a folder.

    The first dead letter creates the folder. Every method raises DeadLettersUnusable.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._path = folder / FILE
        self._known: dict[str, _DeadLetterSummary] = {}
        self._read: tuple[int, int] = 0, 0
        """Inode of the file, and the size that was read."""
        # How often `drop` had replaced the file at the last reading: a new file may get a former inode.
        self._replaced = 0

    def all(self) -> list[DeadLetter]:
        """Return the dead letters in order of their first refusal."""
        with self._guarded():
            return list(self._every().values())

    def put(self, dead_letters: Iterable[DeadLetter]) -> list[DeadLetter]:
        """Store dead letters durably and return them as stored.

        A known dead letter counts another attempt.
        """
        with self._guarded(), self._locked():
            self._refresh()
            written = [self._again(dead_letter) for dead_letter in dead_letters]
            self._append(written)
        return written

    def mark_redelivered(self, dead_letters: Iterable[DeadLetter], redelivered_ms: int) -> None:
        """Record durably that dead letters were delivered."""
        with self._guarded(), self._locked():
            self._refresh()
            known = [each for each in dead_letters if each.id in self._known]
            self._append(
                [msgspec.structs.replace(each, redelivered_ms=redelivered_ms) for each in known]
            )

    def drop(self, identifiers: Collection[str]) -> int:
        """Delete dead letters and return their number."""
        with self._guarded(), self._locked() as lock:
            every = self._every()
            remaining = [
                dead_letter for dead_letter in every.values() if dead_letter.id not in identifiers
            ]
            if len(remaining) < len(every):
                os.write(lock, b".")
                # a crash leaves either the old file or the whole new one
                replace_durably(self._path, _lines(remaining))
        return len(every) - len(remaining)

    def _again(self, dead_letter: DeadLetter) -> DeadLetter:
        known = self._known.get(dead_letter.id)
        if known is None:
            return dead_letter
        return msgspec.structs.replace(
            dead_letter, first_ms=known.first_ms, attempts=known.attempts + 1
        )

    def _append(self, dead_letters: list[DeadLetter]) -> None:
        data = _lines(dead_letters)
        new = not self._path.exists()
        descriptor = private(self._path, os.O_WRONLY | os.O_APPEND | os.O_CREAT)
        try:
            # an incomplete last line, left by a crash, would spoil the line after it
            if os.fstat(descriptor).st_size > self._read[1]:
                os.ftruncate(descriptor, self._read[1])
            while data:
                data = data[os.write(descriptor, data) :]
            os.fsync(descriptor)
        finally:
            os.close(descriptor)
        if new:
            # the name of a new file is durable only with its folder
            sync(self.folder)
        self._refresh()

    def _every(self) -> dict[str, DeadLetter]:
        """Return id → dead letter of the whole file."""
        try:
            data = self._path.read_bytes()
        except FileNotFoundError:
            return {}
        # a line without its newline is not complete
        lines = data[: data.rfind(b"\n") + 1].splitlines()
        return {dead_letter.id: dead_letter for dead_letter in map(_decode, lines)}

    def _refresh(self) -> None:
        """Read the lines that other processes added."""
        try:
            with self._path.open("rb") as file:
                found = os.fstat(file.fileno())
                inode, read = self._read
                # `drop` of another process replaced the file: read it from its start
                if inode != found.st_ino or found.st_size < read:
                    self._known, read = {}, 0
                file.seek(read)
                data = file.read()
        except FileNotFoundError:
            self._known, self._read = {}, (0, 0)
            return
        complete = data.rfind(b"\n") + 1
        for head in map(_decode_head, data[:complete].splitlines()):
            self._known[head.id] = head
        self._read = found.st_ino, read + complete

    @contextmanager
    def _locked(self) -> Iterator[int]:
        """Yield the lock, whose size counts the replaced files."""
        private_folder(self.folder)
        descriptor = private(self.folder / LOCK, os.O_RDWR | os.O_APPEND | os.O_CREAT)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX)
            replaced = os.fstat(descriptor).st_size
            if replaced != self._replaced:
                self._known, self._read, self._replaced = {}, (0, 0), replaced
            yield descriptor
        finally:
            os.close(descriptor)

    @contextmanager
    def _guarded(self) -> Iterator[None]:
        try:
            yield
        except OSError as cause:
            what = f"dead letters cannot be kept in {self.folder}: {cause.strerror}"
            raise DeadLettersUnusable(what, folder=self.folder) from cause
        except UNREADABLE as cause:
            what = f"{self._path} cannot be read: {cause}"
            raise DeadLettersUnusable(what, folder=self.folder) from cause


class _DeadLetterSummary(msgspec.Struct, frozen=True):
    """The members of a dead letter that the engine keeps in memory."""

    id: str
    first_ms: int = 0
    attempts: int = 1


_lines = msgspec.json.Encoder().encode_lines
_decode = msgspec.json.Decoder(DeadLetter).decode
_decode_head = msgspec.json.Decoder(_DeadLetterSummary).decode
