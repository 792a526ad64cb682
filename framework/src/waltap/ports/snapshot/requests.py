"""Tables of a signal, and their names in the log and notifications."""

import logging
from collections.abc import Mapping, Sequence

import msgspec

from waltap.base.text import cut
from waltap.ports.signals.signal import PartlyIgnored, SnapshotRequest, TableNotRead
from waltap.ports.snapshot.chunk_source import NamedTable

log = logging.getLogger(__name__)

# A signal is data from outside, so its part in a line of the log is limited.
LOGGED_NAMES = 10

NO_POSITION = (
    "the source has no WAL position that shows where the rows belong: signal.data.collection must name a "
    "table for watermarks, and read.only be false"
)
NOT_CAPTURED = "no such table is captured"
NO_KEY = (
    "the table has no key to read it by: `waltap snapshot FILE TABLE --blocking` needs none; else "
    "message.key.columns may name one for all, a signal's surrogate-key (--key) one for itself"
)


def as_streamed(
    wanted: list[SnapshotRequest], known: Mapping[tuple[str, str], Sequence[NamedTable]]
) -> list[SnapshotRequest]:
    """Replace tables by those under which their rows stream.

    Each table is requested once.
    """
    found: dict[tuple[str, str], SnapshotRequest] = {}
    for request in wanted:
        named = request.schema, request.table
        for schema, table, oid in known.get(named) or (NamedTable(*named),):
            made = msgspec.structs.replace(request, schema=schema, table=table, oid=oid)
            found.setdefault((schema, table), made)
    return list(found.values())


def without_key(request: SnapshotRequest) -> str:
    """Return why a table is not read that has no column to read it by."""
    chosen = request.surrogate_key
    return f"the table has no column {chosen!r}" if chosen else NO_KEY


def accepted_of(
    wanted: list[SnapshotRequest],
    waiting: list[SnapshotRequest],
    known: set[tuple[str, str]],
) -> list[SnapshotRequest]:
    """Return the new requests for known tables.

    Requests that wait already are ignored; those for unknown tables are logged.
    """
    queued = {(r.schema, r.table, r.condition) for r in waiting}
    new = [r for r in wanted if (r.schema, r.table, r.condition) not in queued]
    refused([r for r in new if (r.schema, r.table) not in known], NOT_CAPTURED)
    return [r for r in new if (r.schema, r.table) in known]


def refused(requests: list[SnapshotRequest], why: str) -> None:
    """Log once for all tables that they are not read."""
    if not requests:
        return
    log.warning(
        "table %s is not read as signal %s asks: %s",
        some(requests),
        cut(requests[0].signal),
        cut(why),
        extra={"table": requests[0].name, "error_code": TableNotRead.code},
    )


def refusals_text(reasons: Sequence[tuple[SnapshotRequest, str]]) -> str:
    """Say which tables are not read, by reason; "" is the reason of one that is."""
    by_reason = dict[str, list[SnapshotRequest]]()
    for request, why in reasons:
        if why:
            by_reason.setdefault(why, []).append(request)
    text = "; ".join(f"not read: {some(each)}: {why}" for why, each in by_reason.items())
    every = sum(map(len, by_reason.values())) == len({request for request, _ in reasons})
    return text if every else PartlyIgnored(text)


def some(requests: list[SnapshotRequest]) -> str:
    """Return the names of the first tables, and the number of others."""
    names = ", ".join(request.name for request in requests[:LOGGED_NAMES])
    more = len(requests) - LOGGED_NAMES
    return cut(names) + (f" and {more} more" if more > 0 else "")


def listed(requests: list[SnapshotRequest]) -> str:
    """Return the names of all tables in the form of notifications."""
    return ",".join(request.name for request in requests)


def text_of(value: object) -> str | None:
    """Return the stored form of a key's value."""
    return None if value is None else str(value)


def key_text(key: list[str | None] | None) -> str:
    """Return the parts of a key in the form of notifications."""
    return ",".join("<null>" if part is None else part for part in key or ())
