"""Segments of the change log that are not what their manifest promised: found, named, and passed over.

A segment belongs to one table, so only that one stands still (`SegmentDamaged`), at the mark before it,
and the others go on. It is tried again by itself: that a segment is restored is all it takes. Somebody
may also have the table go on without it (`waltap spark resume --skip-damaged`).

A manifest that is damaged or missing does not tell which tables it has rows of: all of them stop at the
mark before it (`waltap_spark.follower`). Knows no Spark.
"""

from collections.abc import Iterable, Iterator
from typing import Final

from waltap.base.files.errors import AccessRefused, BucketMissing, FilesAway, FilesUnavailable
from waltap.base.files.store import FileStore
from waltap_spark.errors import SegmentDamaged
from waltap_spark.plan import SegmentGroup

__all__ = ["damage", "require_sizes", "without"]

ROWS: Final = 65_536
"""Rows that are read at a time."""


def require_sizes(store: FileStore, group: SegmentGroup) -> None:
    """See that the segments of ``group`` have the bytes that their manifest says; costs a look each.

    Raises: SegmentDamaged, FilesUnavailable.
    """
    for path in group.segments:
        wrong = _wrong_size(store, path, _bytes(group, path))
        if wrong:
            raise _error(store, path, wrong)


def damage(store: FileStore, group: SegmentGroup) -> SegmentDamaged | None:
    """Return which segment of ``group`` cannot be read as its manifest says, None when all can be.

    Reads them whole: it is asked when something went wrong. Raises: FilesUnavailable, where the log
    cannot be reached at all.
    """
    for path in group.segments:
        told = group.known.get(path)
        wrong = _wrong_size(store, path, _bytes(group, path)) or _unreadable(
            store, path, -1 if told is None else told.rows
        )
        if wrong:
            return _error(store, path, wrong)
    return None


def _bytes(group: SegmentGroup, path: str) -> int:
    return group.known[path].bytes if path in group.known else 0


def _wrong_size(store: FileStore, path: str, size: int) -> str:
    try:
        found = store.size(path)
    except FilesUnavailable as error:
        if isinstance(error.__cause__, FileNotFoundError):
            return "is missing"
        raise
    return f"has {found} bytes, and should have {size}" if size and found != size else ""


def _unreadable(store: FileStore, path: str, rows: int) -> str:
    import pyarrow as pa

    try:
        found = sum(batch.num_rows for batch in store.parquet_batches(path, ROWS))
    except (AccessRefused, BucketMissing, FilesAway):
        raise  # nothing was seen of the segment
    except (FilesUnavailable, pa.ArrowException, ValueError) as error:
        cause = error.__cause__ or error
        return f"cannot be read: {' '.join(str(cause).split())}"
    return f"has {found} rows, and should have {rows}" if rows not in {-1, found} else ""


def _error(store: FileStore, path: str, wrong: str) -> SegmentDamaged:
    return SegmentDamaged(f"segment {path} {wrong}", path=store.uri(path), segment=path)


def without(groups: Iterable[SegmentGroup], passed: Iterable[str]) -> list[SegmentGroup]:
    """Return ``groups`` without the segments ``passed``. A snapshot that lacks one counts for nothing: the
    table keeps what it held. The others are of no stretch: any delete may have been in it."""
    gone = set(passed)
    groups = list(groups)
    for group in groups if gone else ():
        group.stretch = ""
    found: list[SegmentGroup] = []
    for run in _runs(groups):
        if gone.isdisjoint(path for group in run for path in group.segments):
            found += run
        elif not run[0].replaces:
            run[0].leave_out(gone)
            found += run if run[0].segments else []
    return found


def _runs(groups: Iterable[SegmentGroup]) -> Iterator[list[SegmentGroup]]:
    """Return the groups of each snapshot together, and each other one alone."""
    run: list[SegmentGroup] = []
    for group in groups:
        if run and (group.replaces or group.streamed or not run[0].replaces):
            yield run
            run = []
        run.append(group)
    if run:
        yield run
