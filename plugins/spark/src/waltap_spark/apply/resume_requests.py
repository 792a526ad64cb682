"""Requests to resume suspended tables.

The requester need not be the process that writes the tables: it writes a file below
``_waltap/requests``, and the applier reads the folder every few seconds and at its start.
"""

import logging
import time
from typing import Final, Literal, TypeVar

import msgspec

from waltap.base.files.durable_file import UNREADABLE
from waltap_spark.state.output import BasePart, ChangeSet, SparkOutput, StagedSegment, TableState

log = logging.getLogger(__name__)

# How a table resumes.
# `again`: only another attempt. `text`: columns of this table whose types do not fit become text from
# now on. `anew`: the table's rows are discarded; changes after its position are applied, and older
# rows come with a snapshot. `over`: the damaged segment is skipped; a snapshot repairs the
# difference.
How = Literal["again", "text", "anew", "over"]

Part = TypeVar("Part", BasePart, ChangeSet, StagedSegment)

FOLDER: Final = "_waltap/requests"
POLL_S: Final = 2.0

REFRESHED: Final = "it was emptied, earlier rows come with a snapshot"


class ResumeRequest(msgspec.Struct, frozen=True, kw_only=True):
    """A request for one table."""

    # ``schema.table``.
    table: str
    how: How


class ResumeRequests:
    """The requests for one output."""

    def __init__(self, output: SparkOutput) -> None:
        self._output = output
        self._next_poll = 0.0

    def ask(self, table: TableState, how: How) -> None:
        """Write a request for ``table``, which replaces an older one."""
        name = table.folder.replace("/", "-") + ".json"
        data = msgspec.json.encode(ResumeRequest(table=table.name, how=how)) + b"\n"
        self._output.store.publish(f"{FOLDER}/{name}", data)

    def found(self) -> dict[str, ResumeRequest]:
        """Return new requests by file.

        It looks every `POLL_S`, and returns nothing between.
        """
        now = time.monotonic()
        if now < self._next_poll:
            return {}
        self._next_poll = now + POLL_S
        found = {}
        for name in self._output.store.names(FOLDER):
            path = f"{FOLDER}/{name}"
            try:
                found[path] = msgspec.json.decode(self._output.store.read(path), type=ResumeRequest)
            except UNREADABLE as error:
                log.warning("%s is no request, and is removed: %s", path, error)
                self._output.store.delete(path)
        return found

    def answered(self, path: str) -> None:
        """Remove a request that a commit has answered."""
        self._output.store.delete(path)


def resumed(table: TableState, how: How) -> TableState:
    """Return ``table`` as the next attempt starts with it."""
    if how == "text":
        return msgspec.structs.replace(table, as_text=True)
    passed = (*table.passed, table.damaged) if table.damaged else table.passed
    if how == "over":
        snapshot_reason = f"segment {table.damaged} was skipped"
        stale = table.stale if not table.damaged else (*table.stale, snapshot_reason)
        return _broken(msgspec.structs.replace(table, passed=passed, stale=stale))
    if how == "anew":
        return TableState(
            schema=table.schema,
            table=table.table,
            staged=table.staged,
            stale=(REFRESHED,),
            failed=table.failed,
            log_position=table.log_position,
            waits=table.waits,
            incarnation=table.incarnation + 1,
            as_text=table.as_text,
            mode=table.mode,
            place=table.place,
            passed=passed,
        )
    return table


def _broken(table: TableState) -> TableState:
    """Return ``table`` with rows of no continuity id.

    Later rows do not continue where a skipped segment was.
    """

    def of_none(parts: tuple[Part, ...]) -> tuple[Part, ...]:
        return tuple(msgspec.structs.replace(part, continuity_id="") for part in parts)

    return msgspec.structs.replace(
        table.with_storage(continuity_id=""),
        base=of_none(table.base),
        pending=of_none(table.pending),
        changes=of_none(table.changes),
        staged=of_none(table.staged),
    )
