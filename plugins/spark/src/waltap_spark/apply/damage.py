"""Find damaged segments, and skip them on request.

A segment belongs to one table. Only that table is suspended before the segment
(`SegmentDamaged`); other tables continue. Restoring the segment is enough, because the applier
retries suspended tables. The operator may also skip the segment's rows (`waltap spark resume
--skip-damaged`).

A damaged or missing manifest does not say which tables it has rows of. All tables then stop
before it (`waltap_spark.driver.follower`). Knows no Spark.
"""

from collections.abc import Iterable, Iterator
from typing import Final

import pyarrow as pa

from waltap.base.files.errors import (
    AccessRefused,
    BucketMissing,
    FilesUnavailable,
    ObjectStoreUnavailable,
)
from waltap.base.files.store import FileStore
from waltap.errors import SinkError
from waltap_spark.errors import SegmentDamaged
from waltap_spark.planning.plan import SegmentGroup

# Rows that are read at a time.
ROWS: Final = 65_536


def damage(store: FileStore, group: SegmentGroup, *, whole: bool) -> SinkError | None:
    """Return the damage of the first damaged segment of ``group``.

    The segments' sizes cost one request each. ``whole`` reads them, too, so callers use it only
    after a failure.

    Raises: FilesUnavailable, where the log cannot be reached at all.
    """
    for path, segment in group.segments.items():
        wrong = _wrong_size(store, path, segment.bytes)
        if whole and not wrong:
            wrong = _unreadable(store, path, segment.rows)
        if wrong:
            text = f"segment {path} {wrong}"
            return SegmentDamaged(text, path=store.uri(path), segment=path)
    return None


def _wrong_size(store: FileStore, path: str, size: int) -> str:
    # an unreachable store says nothing about the segment, and raises
    found = store.known_size(path)
    if found is None:
        return "is missing"
    return f"has {found} bytes, and should have {size}" if size and found != size else ""


def _unreadable(store: FileStore, path: str, rows: int) -> str:
    try:
        found = sum(batch.num_rows for batch in store.parquet_batches(path, ROWS))
    except (AccessRefused, BucketMissing, ObjectStoreUnavailable):
        raise  # the store failed: the segment itself was not read
    except (FilesUnavailable, pa.ArrowException, ValueError) as error:
        cause = error.__cause__ or error
        return f"cannot be read: {' '.join(str(cause).split())}"
    return f"has {found} rows, and should have {rows}" if rows != found else ""


def without(groups: Iterable[SegmentGroup], passed: Iterable[str]) -> list[SegmentGroup]:
    """Return ``groups`` without the skipped segments.

    A snapshot that lacks a segment is discarded, because replacing rows with a part of them would
    lose the rest. The table keeps its earlier rows.
    """
    gone = set(passed)
    groups = list(groups)
    for group in groups if gone else ():
        # any delete may have been in the skipped segment, so the run is no longer gap-free
        group.continuity_id = ""
    found: list[SegmentGroup] = []
    for run in _runs(groups):
        if gone.isdisjoint(path for group in run for path in group.segments):
            found += run
        elif not run[0].replaces:
            run[0].leave_out(gone)
            found += run if run[0].segments else []
    return found


def _runs(groups: Iterable[SegmentGroup]) -> Iterator[list[SegmentGroup]]:
    """Yield the groups of each snapshot together, all others alone."""
    run: list[SegmentGroup] = []
    for group in groups:
        if run and (group.replaces or group.streamed or not run[0].replaces):
            yield run
            run = []
        run.append(group)
    if run:
        yield run
