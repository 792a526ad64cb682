"""Store files below one folder on any pyarrow filesystem.

On a local disk a file is durable once its content and its name are synchronised. An object store shows
a complete object when the upload ends, so it needs no synchronisation.
"""

import contextlib
import fcntl
import hashlib
import itertools
import math
import os
import tempfile
import urllib.parse
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from threading import Lock
from typing import Any, Final, TypeVar

from waltap.base.files.durable_file import lies_in_private, private, private_folder, sync
from waltap.base.files.errors import BucketMissing, FilesInUse, FilesUnavailable, kind_of
from waltap.base.files.location import opened, refusal
from waltap.base.files.lock_file import LockFile, holder
from waltap.base.files.properties import StorageProperties
from waltap.base.import_rules import fs, pa, parquet
from waltap.base.network.retry import RetryBackoff, waiting
from waltap.errors import SinkError

# Locks for locations whose storage keeps none, among the processes of one user on one machine.
#
# A killed engine leaves its Spark process, which applies the remaining changes and ends. The next
# engine starts another one at once, which must wait for the first, wherever the files are.


def machine_lock(destination: str) -> Path | None:
    """Return the lock file for writers of ``destination``.

    Its folder exists. The result is None if this user cannot keep or lock such a file; then other
    writers stay unknown.
    """
    state = Path(os.environ.get("XDG_STATE_HOME", ""))
    name = hashlib.sha256(destination.encode()).hexdigest()[:32]
    try:
        # The XDG specification says to ignore a relative path.
        base = state if state.is_absolute() else Path.home() / ".local/state"
        folder = base / "waltap/locks"
        private_folder(folder)
        with tempfile.TemporaryFile(dir=folder) as file:  # a home on a network may lack locks
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except (OSError, RuntimeError):  # RuntimeError: the user has no home
        return None
    return folder / name


Read = TypeVar("Read")

# Filesystems that rename atomically. Elsewhere an upload itself is atomic.
RENAMING: Final = frozenset({"local", "hdfs", "viewfs", "mock"})

# Object stores have no folders.
OBJECTS: Final = frozenset({"s3", "gcs", "abfs"})

# From this size on a file is synchronised at once and does not wait for others.
LARGE_BYTES: Final = 8 << 20

# Amazon's SDK gives up with this text if a refusal is longer than the requested bytes, since
# pyarrow gives it a buffer for those bytes alone.
MISREAD: Final = "Failed to flush response stream"

# Longest wait before such a read is repeated, in seconds.
LONGEST_AGAIN_S: Final = 5.0

# From this number on files are synchronised by several threads.
MANY_FILES: Final = 16
SYNC_THREADS: Final = 8


def safe_name(text: str) -> str:
    """Return ``text`` as a file name, percent-encoded.

    Letters, digits, _ and - stay.
    """
    return urllib.parse.quote(text, safe="").replace(".", "%2E").replace("~", "%7E")


def unfinished(path: str) -> str:
    """Return the path of a file's incomplete content."""
    folder, slash, name = path.rpartition("/")
    return f"{folder}{slash}.{name}.tmp"


def _anyone() -> None:
    """Permit every write."""


class FileStore:
    """Read and write files below one folder.

    Paths are relative to the folder and use ``/``. ``location`` is a path, or a URI such as
    ``s3://bucket/folder``, ``file:///…``, ``hdfs://…``, ``gs://…`` and ``abfs://…``. ``storage`` has the
    object store's address and credentials. Every method raises FilesUnavailable for a refusal.
    """

    def __init__(self, location: str, storage: StorageProperties | None = None) -> None:
        self.location, _mark, self._query = location.partition("?")
        self._remote = "://" in location
        self.storage = storage = storage or StorageProperties()
        self._attempts = storage.storage_attempts
        try:
            found = opened(location, storage)
        except (OSError, ValueError) as cause:  # pyarrow's errors are subclasses of these
            raise self._failure("cannot be opened", cause) from cause
        self._fs, base, self.location, host = found
        self._base = base.rstrip("/")
        self.local: bool = self._fs.type_name == "local"
        self._remote = not self.local
        self._named = f"{self._fs.type_name} {host} {self._base}"
        self._renames = self._fs.type_name in RENAMING
        self._objects = self._fs.type_name in OBJECTS
        self._folders: set[str] = set()
        self._private = False
        self._files: set[str] = set()
        self._syncing = Lock()
        # Folders whose entries, like the content of ``_files``, may not be durable yet.
        self._unsynced: set[str] = set()
        self._lock: LockFile | None = None
        self.takes_over = False
        # See `SinkContext`. It is called before a file is begun, appears or is removed.
        self.may_write: Callable[[], None] = _anyone

    def __getstate__(self) -> dict[str, Any]:
        """Return the state for another process, without the thread lock."""
        # Spark's tasks read files by a copy of this store.
        return {name: value for name, value in self.__dict__.items() if name != "_syncing"}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state, _syncing=Lock())

    def reached_alike(self, location: str) -> "FileStore":
        """Return the store of ``location`` with the settings of this one."""
        if self._query and "://" in location and "?" not in location:
            location = f"{location}?{self._query}"
        return FileStore(location, self.storage)

    def path(self, relative: str) -> str:
        return f"{self._base}/{relative}" if relative else self._base

    def uri(self, relative: str) -> str:
        """Return the path or URI of ``relative``, in the location's form."""
        if self.local:
            return self.path(relative)
        return f"{self.location.rstrip('/')}/{relative}"

    # --- reading ----------------------------------------------------------------------------------

    def names(self, folder: str) -> list[str]:
        """Return the sorted names of the files in ``folder``.

        A missing folder has none.
        """
        return [name for name, is_folder in self._entries(folder) if not is_folder]

    def folders(self, folder: str) -> list[str]:
        """Return the sorted names of the folders in ``folder``.

        A missing folder has none.
        """
        return [name for name, is_folder in self._entries(folder) if is_folder]

    def _entries(self, folder: str) -> list[tuple[str, bool]]:
        if self.local:
            return self._local_entries(folder)
        with self._refused("cannot be listed"):
            found = self._fs.get_file_info(fs.FileSelector(self.path(folder), allow_not_found=True))
        return sorted(
            (info.base_name, info.type == fs.FileType.Directory)
            for info in found
            if not info.base_name.startswith(".")
        )

    def _local_entries(self, folder: str) -> list[tuple[str, bool]]:
        # A change log is listed several times a second, so this saves a stat for each file.
        with (
            self._refused("cannot be listed"),
            contextlib.suppress(FileNotFoundError),
            os.scandir(self.path(folder)) as found,
        ):
            return sorted((entry.name, entry.is_dir()) for entry in found if entry.name[0] != ".")
        return []

    def read(self, path: str) -> bytes:
        def content() -> bytes:
            with self._fs.open_input_stream(self.path(path), compression=None) as stream:
                return bytes(stream.read())

        return self._read(path, content)

    def size(self, path: str) -> int:
        """Return the size of a file in bytes.

        Raises: FilesUnavailable, caused by FileNotFoundError if the file is missing.
        """
        with self._refused(f"cannot give {path}"):
            if (found := self.known_size(path)) is None:
                raise FileNotFoundError(f"there is no file {path}")
        return found

    def known_size(self, path: str) -> int | None:
        """Return a file's size in bytes, or None."""
        with self._refused(f"cannot give {path}"):
            found = self._fs.get_file_info(self.path(path))
        return int(found.size) if found.type == fs.FileType.File else None

    def has(self, path: str) -> bool:
        return self.known_size(path) is not None

    def read_parquet(self, path: str) -> "pa.Table":
        """Return the rows of one segment in file order."""
        return self._of_segment(path, lambda file: file.read())

    def parquet_columns(self, path: str, names: "Sequence[str]", most: int) -> "pa.Table | None":
        """Return columns of one segment, its rows in file order.

        The result is None if the values take more than ``most`` bytes, or if the file does not record
        their size.
        """

        def columns(file: "parquet.ParquetFile") -> "pa.Table | None":
            if _unpacked(file.metadata, names) > most:
                return None
            return file.read(columns=list(names)).select(list(names))

        return self._of_segment(path, columns)

    def parquet_schema(self, path: str) -> "pa.Schema":
        """Return the schema of one segment.

        Only the end of the file is read.
        """
        return self._of_segment(path, lambda file: file.schema_arrow)

    def parquet_rows(self, path: str) -> int:
        """Return the number of rows of one segment.

        Only the end of the file is read.
        """
        return self._of_segment(path, lambda file: int(file.metadata.num_rows))

    def parquet_batches(self, path: str, rows: int) -> "Iterator[pa.RecordBatch]":
        """Yield a segment's rows in order, ``rows`` at a time."""
        # After a failed read the batches that the caller has are skipped.
        given, waits = 0, self._waits()
        while True:
            try:
                with self._segment(path) as file:
                    batches = file.iter_batches(batch_size=rows)
                    for batch in itertools.islice(batches, given, None):
                        yield batch
                        given += 1
                        waits.succeeded()
            except OSError as cause:
                self._wait_again(path, cause, waits)
            else:
                return

    @contextlib.contextmanager
    def _segment(self, path: str) -> "Iterator[parquet.ParquetFile]":
        with self._fs.open_input_file(self.path(path)) as stream:
            yield parquet.ParquetFile(
                stream, page_checksum_verification=True, coerce_int96_timestamp_unit="us"
            )

    def _of_segment(self, path: str, read: "Callable[[parquet.ParquetFile], Read]") -> Read:
        def of_file() -> Read:
            with self._segment(path) as file:
                return read(file)

        return self._read(path, of_file)

    def _read(self, path: str, read: Callable[[], Read]) -> Read:
        """Return the result of ``read``, which is repeated for `MISREAD`."""
        waits = self._waits()
        while True:
            try:
                return read()
            except OSError as cause:
                self._wait_again(path, cause, waits)

    def _waits(self) -> RetryBackoff:
        return RetryBackoff(waiting(), retries=self._attempts - 1, ceiling_s=LONGEST_AGAIN_S)

    def _wait_again(self, path: str, cause: OSError, waits: RetryBackoff) -> None:
        """Wait before a read is repeated.

        Raises: FilesUnavailable if it is not repeated.
        """
        if MISREAD not in str(cause) or not waits.wait():
            raise self._failure(f"cannot give {path}", cause) from cause

    # --- writing ----------------------------------------------------------------------------------

    def create(self, path: str) -> Any:
        """Open ``path`` for writing and replace an existing file.

        The caller closes the file, then calls `sync`.
        """
        self.may_write()
        with self.writing(path):
            self._make_folder(path.rpartition("/")[0])
            if self.takes_over and self.local:
                # The instance that lost the lease may have the file open. Its writes must not reach
                # the new file.
                Path(self.path(path)).unlink(missing_ok=True)
            return self._opened(self.path(path))

    def writing(self, path: str) -> contextlib.AbstractContextManager[None]:
        """Raise `FilesUnavailable` for a failed write to ``path``."""
        return self._refused(f"refuses {path}")

    def sync(self, path: str, size: int = 0) -> None:
        """Make a closed file of ``size`` bytes durable before the next `publish`.

        `make_durable` makes it durable, too.
        """
        # Small files wait for each other, see `_make_durable`.
        if not self.local:
            return
        if size < LARGE_BYTES:
            self._files.add(path)
        else:
            with self._refused(f"cannot make {path} durable"):
                sync(self.path(path))
        self._unsynced.add(path.rpartition("/")[0])

    def forget_unsynced(self) -> None:
        """Forget files that were given to `sync` and never published."""
        self._files.clear()
        self._unsynced.clear()
        self._folders.clear()

    def make_durable(self) -> None:
        """Make the files given to `sync` durable now."""
        with self._refused("cannot make what was written durable"):
            self._make_durable()

    def _make_durable(self) -> None:
        # An fsync waits for a write of the filesystem's journal. Concurrent ones share that write:
        # 2,000 files of 2,000 folders took 56 s one by one, and take one second together.
        with self._syncing:  # files that other threads add meanwhile stay in the sets
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
        """Write a small file atomically and durably.

        Files given to `sync` are durable before it appears.
        """
        folder = path.rpartition("/")[0]
        with self.writing(path):
            self._make_folder(folder)
            self._make_durable()
            self._replace(path, data)
            if self.local:
                sync(self.path(folder))

    def put(self, path: str, data: bytes) -> None:
        """Write a file atomically.

        Its name is durable after `make_durable` or `publish`. Several threads may call this at a time.
        """
        folder = path.rpartition("/")[0]
        with self.writing(path):
            self._make_folder(folder)
            self._replace(path, data)
            if self.local:
                self._unsynced.add(folder)

    def _replace(self, path: str, data: bytes) -> None:
        target = self.path(path)
        written = self.path(unfinished(path)) if self._renames else target
        # An object store shows the file when the stream ends, a file system when it is renamed.
        self.may_write()
        stream = self._opened(written)
        try:
            stream.write(data)
        except BaseException:
            # An object store shows what was written so far when the stream ends.
            with contextlib.suppress(OSError):
                stream.close()
                self._fs.delete_file(written)
            raise
        stream.close()
        if self.local:
            sync(written)
        if self._renames:
            # The lease may have been lost since the file was begun.
            self.may_write()
            self._fs.move(written, target)

    def delete(self, path: str) -> None:
        """Remove a file, if it exists."""
        self.may_write()
        self._files.discard(path)
        with self._refused(f"cannot remove {path}"), contextlib.suppress(FileNotFoundError):
            self._fs.delete_file(self.path(path))

    def delete_folder(self, path: str) -> None:
        """Remove a folder and its content, if it exists."""
        self.may_write()
        with self._refused(f"cannot remove {path}"), contextlib.suppress(FileNotFoundError):
            self._fs.delete_dir(self.path(path))
        # A removed path cannot be synchronised, and must be created again before a write.
        inside = f"{path}/"
        self._folders = {known for known in self._folders if not f"{known}/".startswith(inside)}
        self._unsynced = {known for known in self._unsynced if not f"{known}/".startswith(inside)}
        self._files = {known for known in self._files if not known.startswith(inside)}

    def delete_empty_folders(self, path: str) -> None:
        """Remove the folders in ``path`` without files, and ``path`` itself.

        Only on a local disk: object stores have no folders.
        """
        if not self.local:
            return
        self.may_write()
        for folder, _folders, _files in os.walk(self.path(path), topdown=False):
            with contextlib.suppress(OSError):  # it is not empty
                Path(folder).rmdir()
                self._folders.discard(folder.removeprefix(f"{self._base}/"))

    def make_folder(self, path: str) -> None:
        """Create a folder and its parents durably."""
        with self.writing(path):
            # pyarrow makes a placeholder for the folder in an object store.
            if self._objects:
                self._fs.create_dir(self.path(path), recursive=True)
            self._make_folder(path)
            self._make_durable()

    def _make_folder(self, path: str) -> None:
        if path in self._folders:
            return
        if self.local and not self._folders:
            self._private = lies_in_private(Path(self.path("")))
        if self._private:
            private_folder(Path(self.path(path)))
        elif not self._objects:  # an object store needs no folder for its names
            self._fs.create_dir(self.path(path), recursive=True)
        if self.local:
            # Every parent has a new entry that must become durable.
            steps = path.split("/") if path else []
            self._unsynced.update("/".join(steps[:count]) for count in range(len(steps) + 1))
        self._folders.add(path)

    def _opened(self, path: str) -> Any:
        # A file in a private folder is created with private permissions, before it has content.
        if self._private:
            os.close(private(path, os.O_WRONLY | os.O_CREAT))
        return self._fs.open_output_stream(path, compression=None)

    # --- one writer -------------------------------------------------------------------------------

    def check(self, name: str) -> None:
        """Check that `lock` would succeed and that files can be written.

        In an object store the bucket must exist and be listed. The check leaves nothing behind.

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
        """Check that the bucket exists.

        Raises: BucketMissing, AccessRefused, ObjectStoreUnavailable.
        """
        # A listed object proves the bucket; an empty list may also mean a missing one.
        if self._entries("") or not self._objects:
            return
        bucket = self._base.partition("/")[0]
        with self._refused("cannot be reached"):
            found = self._fs.get_file_info(bucket)
        if found.type == fs.FileType.NotFound:
            raise BucketMissing(f"{self.location}: there is no bucket {bucket}", path=self.location)

    def _in_use(self, pid: str) -> SinkError:
        text = f"{self.location} is in use by process {pid}"
        return FilesInUse(text, path=self.path(""))

    def lock(self, name: str) -> None:
        """Hold the lock file ``name`` until `unlock` or the process ends.

        For a folder on another machine the lock excludes only this user's processes on this machine. It
        excludes none if this user cannot lock a file.

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
            # A lock of this machine is a help, not a condition.
            if not self.local:
                return
            raise self._failure(f"refuses {name}", cause) from cause
        if pid is not None:
            raise self._in_use(pid)
        self._lock = lock

    def locked(self) -> bool:
        """Return whether the held lock is still the folder's, see `LockFile.is_current`.

        A lock of this machine says nothing about the folder.
        """
        return self._lock is None or not self.local or self._lock.is_current()

    def unlock(self) -> None:
        """Release the lock. May be called twice."""
        if self._lock is not None:
            self._lock.release()
            self._lock = None

    @contextlib.contextmanager
    def _refused(self, what: str) -> Iterator[None]:
        """Raise `FilesUnavailable` for a refusal in the block."""
        try:
            yield
        except Exception as cause:
            # pyarrow has no class for some failures of Azure's library.
            if isinstance(cause, OSError) or type(cause) is pa.ArrowException:
                raise self._failure(what, cause) from cause
            raise

    def _failure(self, what: str, cause: Exception) -> FilesUnavailable:
        kind = kind_of(cause, remote=self._remote)
        return kind(f"{self.location} {what}: {cause}", path=self.location)


def _unpacked(metadata: "parquet.FileMetaData", names: "Sequence[str]") -> float:
    """Return the size of the columns' values in bytes."""
    groups = (metadata.row_group(number) for number in range(metadata.num_row_groups))
    each = (group.column(number) for group in groups for number in range(group.num_columns))
    own = [one for one in each if one.path_in_schema in names]
    # Dictionary encoding hides the size of the values, so it counts as infinite.
    if any("DICTIONARY" in encoding for one in own for encoding in one.encodings):
        return math.inf
    return float(sum(one.total_uncompressed_size for one in own))
