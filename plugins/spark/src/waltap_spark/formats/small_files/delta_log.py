"""Read a Delta version's files and rows without Spark.

Delta computes that by a job over its log. For a small table the log has a checkpoint and the entries
after it, which the driver reads faster than Spark plans the job.
"""

import json
import re
import sys
from typing import Final
from urllib.parse import unquote

import msgspec

from waltap.base.files.durable_file import UNREADABLE
from waltap.base.files.errors import FilesUnavailable
from waltap.base.files.store import FileStore

CHECKPOINT: Final = re.compile(r"(\d{20})\.checkpoint\.(?:\d{10}\.(\d{10})\.)?parquet")

# Bytes of a checkpoint that the driver reads for a commit; Delta reads larger ones in parallel.
LARGE_CHECKPOINT: Final = 1 << 20

# Entries of a checkpoint that are read at once.
BATCH: Final = 10_000


class _DeletionVector(msgspec.Struct, frozen=True, rename="camel"):
    """Marks of deleted rows, without which a file's rows are unknown."""

    storage_type: str
    path_or_inline_dv: str
    offset: int | None = None
    cardinality: int = 0


class StoredFile(msgspec.Struct, frozen=True, rename="camel"):
    """A data file of a table, as the log names it."""

    path: str
    size: int = 0
    stats: str | None = None
    deletion_vector: _DeletionVector | None = None

    @property
    def name(self) -> str | None:
        """The path below the table's folder, None for one elsewhere."""
        name = unquote(self.path)
        return None if ":" in name or name.startswith("/") else name

    @property
    def rows(self) -> int:
        """The rows without deleted ones. Raises: ValueError, KeyError without statistics."""
        deleted = 0 if self.deletion_vector is None else self.deletion_vector.cardinality
        return int(json.loads(self.stats or "")["numRecords"]) - deleted


class _FileEntry(msgspec.Struct, frozen=True):
    """One entry of the log; others name no file."""

    add: StoredFile | None = None
    remove: StoredFile | None = None


_Files = dict[tuple[str, _DeletionVector | None], StoredFile]
_ENTRY: Final = msgspec.json.Decoder(_FileEntry)


class FileList:
    """A table's files; a later version costs its new entries.

    A checkpoint of more than ``most_bytes`` is not read.
    """

    def __init__(self, store: FileStore, folder: str, most_bytes: float = LARGE_CHECKPOINT) -> None:
        self._store, self._folder, self._most_bytes = store, f"{folder}/_delta_log", most_bytes
        # The last version that was read.
        self.version = -1
        self._files: _Files | None = None
        self._is_large = False

    def at(self, version: int) -> list[StoredFile] | None:
        """Return the files of a version.

        None if the log is large, has another form, or lacks its beginning.

        Raises: FilesUnavailable.
        """
        if self._is_large:
            return None
        try:
            if self._files is None or version < self.version:
                self.version, self._files = self._checkpoint(version)
            for number in range(self.version + 1, version + 1):
                self.version, self._files = number, self._after(number)
        except UNREADABLE:
            self._files = None
        except FilesUnavailable as error:
            self._files = None
            if not isinstance(error.__cause__, FileNotFoundError):
                raise
        return None if self._files is None else list(self._files.values())

    @property
    def count(self) -> int:
        """The last version's number of files, very many if unknown."""
        return sys.maxsize if self._files is None else len(self._files)

    def _after(self, version: int) -> _Files | None:
        """Return the files with the changes of a version."""
        if self._files is None:
            return None
        files, added = dict(self._files), []
        for line in self._store.read(f"{self._folder}/{version:020d}.json").splitlines():
            entry = _ENTRY.decode(line)
            if entry.add is not None:
                added.append(entry.add)
            if entry.remove is not None:
                files.pop((entry.remove.path, entry.remove.deletion_vector), None)
        # an entry may remove a file and another one of the commit add it, with other marks
        files.update(((each.path, each.deletion_vector), each) for each in added)
        return files

    def _checkpoint(self, version: int) -> tuple[int, _Files | None]:
        """Return the last checkpoint until ``version``, and its files.

        -1 if there is no checkpoint, and no files if it is large.
        """
        parts: dict[tuple[int, int], list[str]] = {}
        for name in self._store.names(self._folder):
            match = CHECKPOINT.fullmatch(name)
            if match is not None and int(match[1]) <= version:
                checkpoint = int(match[1]), int(match[2] or 1)
                parts.setdefault(checkpoint, []).append(f"{self._folder}/{name}")
        # A writer that died leaves some of its parts.
        complete = [each for each, names in parts.items() if len(names) == each[1]]
        newest = max(complete, default=None)
        if newest is None:
            return -1, {}
        last = newest[0]
        self._is_large = sum(map(self._store.size, parts[newest])) > self._most_bytes
        if self._is_large:
            return last, None
        files: _Files = {}
        for path in parts[newest]:
            for batch in self._store.parquet_batches(path, BATCH):
                added = batch.column("add").drop_null().to_pylist()
                for each in msgspec.convert(added, list[StoredFile]):
                    files[each.path, each.deletion_vector] = each
        return last, files
