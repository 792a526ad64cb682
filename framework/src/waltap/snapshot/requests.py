"""Which tables of a signal are read, and what the log and notifications say of them."""

import logging
from collections.abc import Mapping, Sequence

import msgspec

from waltap.signals.errors import TableNotRead
from waltap.signals.signal import SnapshotRequest

__all__ = ["accepted_of", "as_streamed", "cut", "key_text", "listed", "refused", "some"]

log = logging.getLogger(__name__)

LOGGED_NAMES = 10
LOGGED_CHARACTERS = 2000
"""A line of the log has no more of what a signal says."""


def as_streamed(
    wanted: list[SnapshotRequest], known: Mapping[tuple[str, str], Sequence[tuple[str, str]]]
) -> list[SnapshotRequest]:
    """Return the requests for the tables as which the stream brings the rows asked for, each once."""
    found: dict[tuple[str, str], SnapshotRequest] = {}
    for request in wanted:
        named = request.schema, request.table
        for schema, table in known.get(named) or (named,):
            made = msgspec.structs.replace(request, schema=schema, table=table)
            found.setdefault((schema, table), made)
    return list(found.values())


def accepted_of(
    wanted: list[SnapshotRequest],
    waiting: list[SnapshotRequest],
    known: set[tuple[str, str]],
) -> list[SnapshotRequest]:
    """Return those of ``wanted`` that do not wait already and are of known tables; tell of others."""
    queued = {(r.schema, r.table, r.condition) for r in waiting}
    new = [r for r in wanted if (r.schema, r.table, r.condition) not in queued]
    refused([r for r in new if (r.schema, r.table) not in known], "no such table is captured")
    return [r for r in new if (r.schema, r.table) in known]


def refused(requests: list[SnapshotRequest], why: str) -> None:
    """Say once, for all tables alike, that they are not read."""
    if not requests:
        return
    log.warning(
        "table %s is not read as signal %s asks: %s",
        some(requests),
        cut(requests[0].signal),
        cut(why),
        extra={"relation": requests[0].name, "error_code": TableNotRead.code},
    )


def some(requests: list[SnapshotRequest]) -> str:
    """Return the names of the first tables, and how many more there are."""
    names = ", ".join(request.name for request in requests[:LOGGED_NAMES])
    more = len(requests) - LOGGED_NAMES
    return cut(names) + (f" and {more} more" if more > 0 else "")


def listed(requests: list[SnapshotRequest]) -> str:
    """Return the names of all tables as notifications have them."""
    return ",".join(request.name for request in requests)


def key_text(key: list[str | None] | None) -> str:
    """Return the parts of a key as notifications have them."""
    return ",".join("<null>" if part is None else part for part in key or ())


def cut(text: str) -> str:
    """Return what the log has of ``text``."""
    return text if len(text) <= LOGGED_CHARACTERS else f"{text[:LOGGED_CHARACTERS]}…"
