"""Files below one folder, on any filesystem that pyarrow knows.

Durability: on a local disk a file counts once it, and the name of it, were synchronised. Object
stores make an object visible, whole, when its upload ends; there is nothing to synchronise.
"""

import contextlib
import fcntl
import hashlib
import itertools
import math
import os
import tempfile
import time
import urllib.parse
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from threading import Lock
from typing import TYPE_CHECKING, Any, Final, TypeVar

from waltap.files.errors import BucketMissing, FilesInUse, FilesUnavailable, kind_of
from waltap.files.location import opened
from waltap.files.place import refusal
from waltap.files.properties import StorageProperties
from waltap.offsets.durable_file import sync
from waltap.offsets.lock_file import LockFile, holder
from waltap.offsets.private_file import lies_in_private, private, private_folder

if TYPE_CHECKING:
    import pyarrow as pa
    from pyarrow import parquet

__all__ = [
    "FileStore",
    "machine_lock",
    "safe_name",
]


# Locks for places whose storage keeps none, among the processes of one user on one machine.
#
# An engine that was killed leaves its Spark process, which applies what there is and ends then.
# The next engine starts another at once: it has to wait, wherever the files are.


def machine_lock(place: str) -> Path | None:
    """Return the file that who writes ``place`` holds, in a folder that is there; None where this user may
    keep no such file, or cannot lock it: then nobody is seen."""
    state = Path(os.environ.get("XDG_STATE_HOME", ""))
    name = hashlib.sha256(place.encode()).hexdigest()[:32]
    try:
        # a relative one counts as none, by the specification of these folders
        base = state if state.is_absolute() else Path.home() / ".local/state"
        folder = base / "waltap/locks"
        private_folder(folder)
        with tempfile.TemporaryFile(dir=folder) as file:  # a home on a network may know no locks
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except (OSError, RuntimeError):  # RuntimeError: there is no home
        return None
    return folder / name


Read = TypeVar("Read")

RENAMING: Final = frozenset({"local", "hdfs", "viewfs", "mock"})
"""Filesystems that rename atomically; elsewhere an upload itself is atomic."""

OBJECTS: Final = frozenset({"s3", "gcs", "abfs"})
"""Object stores: they have no folders."""

LARGE_BYTES: Final = 8 << 20
"""A file that is made durable as soon as it is complete."""

MISREAD: Final = "Failed to flush response stream"
"""What Amazon's SDK says, and tries no more, where a refusal is longer than the bytes that were asked for:
pyarrow gives it a buffer for those alone."""

AGAIN_S: Final = 0.1
LONGEST_AGAIN_S: Final = 5.0

MANY_FILES: Final = 16
SYNC_THREADS: Final = 8


def safe_name(text: str) -> str:
    """Return ``text`` as a file name: what is not a letter, digit, _ or - is percent-encoded."""
    return urllib.parse.quote(text, safe="").replace(".", "%2E").replace("~", "%7E")


def _anyone() -> None:
    """Let whoever asks write."""


class FileStore:
    """Files below one folder. Paths are relative to it and use ``/``.

    ``location`` is a plain path or a URI of a filesystem (``s3://bucket/folder``,
    ``file:///…``, ``hdfs://…``, ``gs://…``, ``abfs://…``), ``storage`` how an object store is reached.
    Every method raises FilesUnavailable when the filesystem refuses.
    """

    def __init__(self, location: str, storage: StorageProperties | None = None) -> None:
        self.location, _mark, self._query = location.partition("?")
        self._remote = "://" in location
        self.storage = storage = storage or StorageProperties()
        self._attempts = storage.storage_attempts
        try:
            place = opened(location, storage)
        except (OSError, ValueError) as cause:  # pyarrow's errors are subclasses of these
            raise self._failure("cannot be opened", cause) from cause
        self._fs, base, self.location, host = place
        self._base = base.rstrip("/")
        self.local: bool = self._fs.type_name == "local"
        self._remote = not self.local
        self._named = f"{self._fs.type_name} {host} {self._base}"
        self._renames = self._fs.type_name in RENAMING
        self._objects = self._fs.type_name in OBJECTS
        self._folders: set[str] = set()
        self._private = False
        self._files: set[str] = set()
        self._settling = Lock()
        self._unsynced: set[str] = set()
        """Folders whose names of files are not known to be durable, as ``_files`` are not."""
        self._lock: LockFile | None = None
        self.takes_over = False
        self.may_write: Callable[[], None] = _anyone
        """See `SinkContext`: asked before a file is begun, appears or goes."""

    def __getstate__(self) -> dict[str, Any]:
        """Go to another process (tasks of Spark read by it): a lock of threads stays where it is."""
        return {name: value for name, value in self.__dict__.items() if name != "_settling"}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state, _settling=Lock())

    def reached_alike(self, location: str) -> "FileStore":
        """Return the files below ``location``, whose object store is reached as this one is."""
        if self._query and "://" in location and "?" not in location:
            location = f"{location}?{self._query}"
        return FileStore(location, self.storage)

    def path(self, relative: str) -> str:
        """Return the path that the filesystem knows ``relative`` by."""
        return f"{self._base}/{relative}" if relative else self._base

    def uri(self, relative: str) -> str:
        """Return where ``relative`` is, in the form the location was given in."""
        if self.local:
            return self.path(relative)
        return f"{self.location.rstrip('/')}/{relative}"

    # --- reading ----------------------------------------------------------------------------------

    def names(self, folder: str) -> list[str]:
        """Return the names of the files in ``folder``, sorted; [] when it does not exist."""
        return [name for name, is_folder in self._entries(folder) if not is_folder]

    def folders(self, folder: str) -> list[str]:
        """Return the names of the folders in ``folder``, sorted; [] when it does not exist."""
        return [name for name, is_folder in self._entries(folder) if is_folder]

    def _entries(self, folder: str) -> list[tuple[str, bool]]:
        if self.local:
            return self._local_entries(folder)
        from pyarrow import fs

        try:
            found = self._fs.get_file_info(fs.FileSelector(self.path(folder), allow_not_found=True))
        except OSError as cause:
            raise self._failure("cannot be listed", cause) from cause
        return sorted(
            (info.base_name, info.type == fs.FileType.Directory)
            for info in found
            if not info.base_name.startswith(".")
        )

    def _local_entries(self, folder: str) -> list[tuple[str, bool]]:
        """Do without a stat for every file: a log is looked at several times a second."""
        try:
            with os.scandir(self.path(folder)) as found:
                return sorted(
                    (entry.name, entry.is_dir()) for entry in found if entry.name[0] != "."
                )
        except FileNotFoundError:
            return []
        except OSError as cause:
            raise self._failure("cannot be listed", cause) from cause

    def read(self, path: str) -> bytes:
        """Return the content of a small file."""

        def whole() -> bytes:
            with self._fs.open_input_stream(self.path(path), compression=None) as stream:
                return bytes(stream.read())

        return self._read(path, whole)

    def size(self, path: str) -> int:
        """Return the bytes of a file. Raises: FilesUnavailable, caused by FileNotFoundError where there is
        none."""
        from pyarrow import fs

        try:
            found = self._fs.get_file_info(self.path(path))
            if found.type != fs.FileType.File:
                raise FileNotFoundError(f"there is no file {path}")
        except OSError as cause:
            raise self._failure(f"cannot give {path}", cause) from cause
        return int(found.size)

    def has(self, path: str) -> bool:
        """Tell whether there is a file of that name."""
        try:
            self.size(path)
        except FilesUnavailable as error:
            if isinstance(error.__cause__, FileNotFoundError):
                return False
            raise
        return True

    def read_parquet(self, path: str) -> "pa.Table":
        """Return the rows of one segment, in file order."""

        def rows() -> "pa.Table":
            with self._segment(path) as file:
                return file.read()

        return self._read(path, rows)

    def parquet_columns(self, path: str, names: "Sequence[str]", most: int) -> "pa.Table | None":
        """Return columns of one segment, its rows in file order; None where their values take more than
        ``most`` bytes, or the file does not say how many."""

        def columns() -> "pa.Table | None":
            with self._segment(path) as file:
                if _unpacked(file.metadata, names) > most:
                    return None
                return file.read(columns=list(names)).select(list(names))

        return self._read(path, columns)

    def parquet_schema(self, path: str) -> "pa.Schema":
        """Return the schema of one segment, of which only the end is read."""

        def schema() -> "pa.Schema":
            with self._segment(path) as file:
                return file.schema_arrow

        return self._read(path, schema)

    def parquet_rows(self, path: str) -> int:
        """Return how many rows one segment has, of which only the end is read."""

        def rows() -> int:
            with self._segment(path) as file:
                return int(file.metadata.num_rows)

        return self._read(path, rows)

    def parquet_batches(self, path: str, rows: int) -> "Iterator[pa.RecordBatch]":
        """Return the rows of one segment in file order, so many at a time."""
        given = tries = 0
        while True:
            try:
                with self._segment(path) as file:
                    batches = file.iter_batches(batch_size=rows)
                    for batch in itertools.islice(batches, given, None):
                        yield batch
                        given, tries = given + 1, 0
            except OSError as cause:
                tries += 1
                self._refused(path, cause, tries)
            else:
                return

    @contextlib.contextmanager
    def _segment(self, path: str) -> "Iterator[parquet.ParquetFile]":
        from pyarrow import parquet

        with self._fs.open_input_file(self.path(path)) as stream:
            yield parquet.ParquetFile(stream, page_checksum_verification=True)

    def _read(self, path: str, read: Callable[[], Read]) -> Read:
        """Return what ``read`` does, which is called again where the SDK lost what the store said."""
        tries = 0
        while True:
            try:
                return read()
            except OSError as cause:
                tries += 1
                self._refused(path, cause, tries)

    def _refused(self, path: str, cause: OSError, tries: int) -> None:
        """Wait before a read that is tried again. Raises: FilesUnavailable where it is not."""
        if MISREAD not in str(cause) or tries >= self._attempts:
            raise self._failure(f"cannot give {path}", cause) from cause
        time.sleep(min(AGAIN_S * 2**tries, LONGEST_AGAIN_S))

    # --- writing ----------------------------------------------------------------------------------

    def create(self, path: str) -> Any:
        """Open ``path`` for writing, in place of what is there; close it, then `sync` it."""
        self.may_write()
        try:
            self._make_folder(path.rpartition("/")[0])
            if self.takes_over and self.local:
                # who lost the lease may have it open: what it writes there goes nowhere
                Path(self.path(path)).unlink(missing_ok=True)
            return self._opened(self.path(path))
        except OSError as cause:
            raise self._failure(f"refuses {path}", cause) from cause

    @contextlib.contextmanager
    def writing(self, path: str) -> Iterator[None]:
        """Turn what the filesystem refuses while ``path`` is written into a `FilesUnavailable`."""
        try:
            yield
        except OSError as cause:
            raise self._failure(f"refuses {path}", cause) from cause

    def sync(self, path: str, size: int = 0) -> None:
        """Have a closed file of ``size`` bytes, and the name of it, made durable before anything is
        published, or by `settle`. Small files wait for each other: see `_settle`."""
        if not self.local:
            return
        if size < LARGE_BYTES:
            self._files.add(path)
        else:
            try:
                sync(self.path(path))
            except OSError as cause:
                raise self._failure(f"cannot make {path} durable", cause) from cause
        self._unsynced.add(path.rpartition("/")[0])

    def forget_unsynced(self) -> None:
        """Give up what was handed to `sync` and never published."""
        self._files.clear()
        self._unsynced.clear()
        self._folders.clear()

    def settle(self) -> None:
        """Make durable now what was given to `sync`."""
        try:
            self._settle()
        except OSError as cause:
            raise self._failure("cannot make what was written durable", cause) from cause

    def _settle(self) -> None:
        """Make everything durable that waits for it.

        Each fsync alone waits for a write of the file system's journal; those that come together share
        one: 2,000 files of 2,000 folders took 56 s one by one, and take one second.
        """
        with self._settling:  # what others give meanwhile stays
            files, folders = set(self._files), set(self._unsynced)
            waiting = [*sorted(files), *sorted(folders)]
            if len(waiting) < MANY_FILES:
                for path in waiting:
                    sync(self.path(path))
            else:
                from concurrent.futures import ThreadPoolExecutor

                with ThreadPoolExecutor(SYNC_THREADS, "waltap-fsync") as pool:
                    for _ in pool.map(lambda path: sync(self.path(path)), waiting):
                        pass
            self._files -= files
            self._unsynced -= folders

    def publish(self, path: str, data: bytes) -> None:
        """Make a small file appear whole and durably, or not at all; before it, whatever `sync` was
        given is durable."""
        folder, _, name = path.rpartition("/")
        target = self.path(path)
        written = f"{self.path(folder)}/.{name}.tmp" if self._renames else target
        try:
            self._make_folder(folder)
            self._settle()
            with self._opened(written) as stream:
                stream.write(data)
            if self.local:
                sync(written)
            self.may_write()
            if self._renames:
                self._fs.move(written, target)
            if self.local:
                sync(self.path(folder))
        except OSError as cause:
            raise self._failure(f"refuses {path}", cause) from cause

    def put(self, path: str, data: bytes) -> None:
        """Make a file appear whole, or not at all; its name is durable after `settle`, or a `publish`.
        May be called by several threads at a time."""
        self.may_write()
        folder, _, name = path.rpartition("/")
        target = self.path(path)
        written = f"{self.path(folder)}/.{name}.tmp" if self._renames else target
        try:
            self._make_folder(folder)
            with self._opened(written) as stream:
                stream.write(data)
            if self.local:
                sync(written)
                self._unsynced.add(folder)
            if self._renames:
                self._fs.move(written, target)
        except OSError as cause:
            raise self._failure(f"refuses {path}", cause) from cause

    def delete(self, path: str) -> None:
        """Remove a file; one that is not there is removed already."""
        self.may_write()
        self._files.discard(path)
        try:
            self._fs.delete_file(self.path(path))
        except FileNotFoundError:
            return
        except OSError as cause:
            raise self._failure(f"cannot remove {path}", cause) from cause

    def delete_folder(self, path: str) -> None:
        """Remove a folder and all that is in it; one that is not there is removed already."""
        self.may_write()
        try:
            self._fs.delete_dir(self.path(path))
        except FileNotFoundError:
            return
        except OSError as cause:
            raise self._failure(f"cannot remove {path}", cause) from cause
        inside = f"{path}/"
        self._folders = {known for known in self._folders if not f"{known}/".startswith(inside)}
        self._unsynced = {known for known in self._unsynced if not f"{known}/".startswith(inside)}
        self._files = {known for known in self._files if not known.startswith(inside)}

    def make_folder(self, path: str) -> None:
        """Make a folder and those above it, durably; in an object store, what stands for it."""
        try:
            if self._objects:
                self._fs.create_dir(self.path(path), recursive=True)
            self._make_folder(path)
            self._settle()
        except OSError as cause:
            raise self._failure(f"refuses {path}", cause) from cause

    def _make_folder(self, path: str) -> None:
        if path in self._folders:
            return
        if self.local and not self._folders:
            self._private = lies_in_private(Path(self.path("")))
        if self._private:
            private_folder(Path(self.path(path)))
        elif not self._objects:  # an object store has names alone: nothing to make
            self._fs.create_dir(self.path(path), recursive=True)
        if self.local:
            steps = path.split("/") if path else []
            self._unsynced.update("/".join(steps[:count]) for count in range(len(steps) + 1))
        self._folders.add(path)

    def _opened(self, path: str) -> Any:
        """Return a stream that writes the file ``path`` anew: private in a private folder."""
        if self._private:
            os.close(private(path, os.O_WRONLY | os.O_CREAT))
        return self._fs.open_output_stream(path, compression=None)

    # --- one writer -------------------------------------------------------------------------------

    def check(self, name: str) -> None:
        """Look whether `lock` would succeed, and whether files could be written to a local disk;
        elsewhere, whether the bucket is there and lets itself be listed. Leaves nothing there.

        Raises: FilesInUse, FilesUnavailable.
        """
        if self.local:
            cause = refusal(Path(self.path("")), folder=True)
            if cause is not None:
                raise self._failure("cannot be written", cause) from cause
        else:
            self._check_bucket()
        path = self._lock_path(name)
        pid = None if path is None else holder(path)
        if pid is not None and not self.takes_over:
            raise self._in_use(pid)

    def _lock_path(self, name: str) -> Path | None:
        return Path(self.path(name)) if self.local else machine_lock(f"{self._named} {name}")

    def _check_bucket(self) -> None:
        """Raises: BucketMissing, AccessRefused, FilesAway."""
        if self._entries("") or not self._objects:
            return
        from pyarrow import fs

        bucket = self._base.partition("/")[0]
        try:
            found = self._fs.get_file_info(bucket)
        except OSError as cause:
            raise self._failure("cannot be reached", cause) from cause
        if found.type == fs.FileType.NotFound:
            raise BucketMissing(f"{self.location}: there is no bucket {bucket}", path=self.location)

    def _in_use(self, pid: str) -> FilesInUse:
        text = f"{self.location} is in use by process {pid}"
        return FilesInUse(text, path=self.path(""))

    def lock(self, name: str) -> None:
        """Hold the lock file ``name`` until `unlock` or the end of the process. Where the folder is on no
        local disk, processes of this user on this machine are seen, and no others: none where no file of
        this user can be locked.

        Raises: FilesInUse, with the holder's process id.
        """
        if self._lock is not None:
            return
        if self.local:
            self.make_folder("")
        path = self._lock_path(name)
        if path is None:
            return
        lock = LockFile(path)
        try:
            pid = lock.take()
            if pid is not None and self.takes_over:
                lock.take_over()
                pid = None
        except OSError as cause:
            if not self.local:
                return
            raise self._failure(f"refuses {name}", cause) from cause
        if pid is not None:
            raise self._in_use(pid)
        self._lock = lock

    def locked(self) -> bool:
        """Tell whether the lock that is held is still that of this folder, see `LockFile.stands`. One
        of the machine says nothing of the folder."""
        return self._lock is None or not self.local or self._lock.stands()

    def unlock(self) -> None:
        """Let go of the lock; may be called twice."""
        if self._lock is not None:
            self._lock.release()
            self._lock = None

    def _failure(self, what: str, cause: Exception) -> FilesUnavailable:
        kind = kind_of(cause, remote=self._remote)
        return kind(f"{self.location} {what}: {cause}", path=self.location)


def _unpacked(metadata: "parquet.FileMetaData", names: "Sequence[str]") -> float:
    """Return the bytes of the values of those columns; infinity where dictionaries hide them."""
    groups = (metadata.row_group(number) for number in range(metadata.num_row_groups))
    each = (group.column(number) for group in groups for number in range(group.num_columns))
    own = [one for one in each if one.path_in_schema in names]
    if any("DICTIONARY" in encoding for one in own for encoding in one.encodings):
        return math.inf
    return float(sum(one.total_uncompressed_size for one in own))
