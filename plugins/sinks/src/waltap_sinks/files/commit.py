"""Commits of a folder of files: which files count, and the position that is theirs. Sans-IO.

::

    table=public.orders/date=2026-03-01/0000000012-000000000153f2a8-0001.jsonl.gz
    _waltap/commits/0000000012.json      `FileCommit`: appears behind its files, whole or not at all
    _waltap/begun.json                   `PendingCommit`: the names of files, before the first of
    them appears

A file's name is made of the number of the commit that it will be part of, and of the position behind which
it begins: what is delivered again after a crash gets the same name. A name tells a file of another history
apart by the number, which is never used again.
"""

from typing import Final

import msgspec

from waltap.decode_errors import UNREADABLE
from waltap.source.position import Position
from waltap_sinks.files.errors import FilesDamaged

__all__ = [
    "BEGUN",
    "COMMITS",
    "VERSION",
    "FileCommit",
    "PendingCommit",
    "WrittenFile",
    "file_name",
    "parse",
]

VERSION: Final = 1
COMMITS: Final = "_waltap/commits"
BEGUN: Final = "_waltap/begun.json"


class WrittenFile(msgspec.Struct, frozen=True):
    """One file: where it is below the folder, its lines, and its bytes as they are stored."""

    path: str
    lines: int
    bytes: int


class FileCommit(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """What one commit added. ``positions``: how far each partition of the source has got with it.
    ``snapshot``: an initial snapshot had begun and not ended, so that they are no place to go on from.
    ``letters``: dead letters that the last replay delivered, in this commit or one before
    (`Batch.replays`)."""

    version: int
    number: int
    pipeline: str
    at: str
    positions: dict[str, Position]
    snapshot: bool = False
    files: tuple[WrittenFile, ...] = ()
    letters: tuple[str, ...] = ()

    @property
    def name(self) -> str:
        """Return the path of the commit."""
        return f"{COMMITS}/{self.number:010d}.json"


class PendingCommit(msgspec.Struct, frozen=True, kw_only=True):
    """Files that a commit is about to have: without that commit they count for nothing."""

    number: int
    paths: tuple[str, ...]


def file_name(number: int, behind: Position | None, part: int, ending: str) -> str:
    """Return the name of a file of commit ``number`` that begins ``behind`` a position."""
    lsn = 0 if behind is None else behind.end_lsn
    return f"{number:010d}-{lsn:016x}-{part:04d}{ending}"


def parse(data: bytes, path: str) -> FileCommit:
    """Read a commit. Raises: FilesDamaged."""
    try:
        found = msgspec.json.decode(data, type=FileCommit)
    except UNREADABLE as cause:
        raise FilesDamaged(f"{path} is not a commit: {cause}", path=path) from cause
    if found.version != VERSION:
        text = f"{path} has version {found.version}, this program reads {VERSION}"
        raise FilesDamaged(text, path=path)
    return found
