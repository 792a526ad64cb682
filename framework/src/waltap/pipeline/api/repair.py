"""Repair gaps by a new slot and another reading.

The order makes it complete. The new slot comes first: later commits are streamed. Then the tables are
read, chunk by chunk beside the stream: the reading sees commits within the gap, and the stream has those
after it.
"""

import logging
import re
import threading
from collections.abc import Callable, Mapping

from waltap.changes.transactions.transaction import Notification
from waltap.config.profile import Profile
from waltap.errors import OffsetError, WaltapError
from waltap.pipeline.engine.engine import Engine
from waltap.pipeline.runtime.channels import INCREMENTAL
from waltap.pipeline.runtime.gap_notes import GapNotes
from waltap.plugins.host import Host
from waltap.ports.offsets.gaps import CaptureGap, GapCertificates, RereadTable
from waltap.ports.sink.verification import TableComparison

log = logging.getLogger(__name__)

POLL_S = 0.1
READ = frozenset({"SUCCEEDED", "EMPTY"})
# Words for the statuses of Debezium's notifications.
REASONS = {
    "SQL_EXCEPTION": "the query failed, as the log says",
    "NO_PRIMARY_KEY": "it has no key",
    "UNKNOWN_SCHEMA": "it is not captured",
    "SKIPPED": "it was left out, as the log says",
}
REMARK = (
    "Every row that there was then was read again. Rows that were deleted within the gap are not found by "
    "that: `waltap verify FILE` names those that a destination still has; the single changes are lost."
)

COMPARED_REMARK = (
    "The destination was compared with the source. The single changes within the gap are lost."
)
PATIENCE_S = 10.0

RepairIncomplete = OffsetError.define("RepairIncomplete", "WT-6402")


class GapRepair:
    """Repair the open gaps of a stopped pipeline.

    Differences of the destination are read again for ``patience_s``.
    """

    def __init__(self, profile: Profile, host: Host, *, patience_s: float = PATIENCE_S) -> None:
        self.engine, self._host = Engine(profile, host, repairs=True), host
        self._patience_s = patience_s
        self._state_dir = profile.state_dir
        self._ended = threading.Event()
        # The notifications of the snapshot with this identifier: rows read, and why tables were not.
        self._identifier, self._finished = "", False
        self._rows, self._failed = dict[str, int](), dict[str, str]()
        self._asked: list[str] = []
        self._equal = set[str]()
        self._refusal, self._gone = "", list[str]()

    def run(self, now_ms: Callable[[], int]) -> dict[str, RereadTable]:
        """Run until the tables are read, then close the certificates.

        Return the result of each table. Raises: RepairIncomplete, and the errors of a run.
        """
        engine = self.engine
        engine.on_notification(self._note)
        asking = threading.Thread(target=self._ask, name="waltap-repair", daemon=True)
        asking.start()
        try:
            engine.run()
        finally:
            self._ended.set()
            asking.join()
        if self._finished:
            for name in self._asked:
                if not (name in self._rows or name in self._equal):
                    self._failed.setdefault(name, "its reading was stopped, as the log says")
        if self._refusal or self._failed or not self._finished:
            reasons = "; ".join(
                f"{name} was read, and is {why}"
                if name in self._rows
                else f"{name} was not read: {why}"
                for name, why in self._failed.items()
            )
            why = self._refusal or (reasons or "it was stopped before its end")
            raise RepairIncomplete(f"the gap is not repaired: {why}")
        names = dict.fromkeys((*self._rows, *sorted(self._equal)))
        reread = {
            name: RereadTable(rows=self._rows.get(name, 0), compared=name in self._equal)
            for name in names
        }
        remark = COMPARED_REMARK if self._equal >= set(names) else REMARK
        if self._gone:
            remark += f" No longer captured, and not read: {', '.join(self._gone)}."
        GapNotes(self._state_dir, now_ms).close(reread, by="repair", remark=remark)
        return reread

    def _ask(self) -> None:
        """Request the tables when the stream runs, and stop after their reading."""
        engine = self.engine
        while engine.state != "streaming":
            if self._ended.wait(POLL_S):
                return
        captured = engine.status().captured_tables
        try:
            wanted = _tables(GapCertificates(self._state_dir).open()) or list(captured)
        except WaltapError as error:
            self._refuse(error.problem)
            return
        tables = [name for name in wanted if name in captured]
        self._gone = [name for name in wanted if name not in captured]
        self._identifier = identifier = f"repair-{engine.run_id}"
        # The stream runs by now, and has the changes after the comparison.
        found = self._compared(tables) if tables else {}
        self._equal |= {name for name in tables if name in found and found[name].equal}
        differing = [name for name in tables if name not in self._equal]
        if not differing:
            self._finished = True
            engine.stop()
            return
        self._asked = differing
        data = {"type": "incremental", "data-collections": [re.escape(name) for name in differing]}
        answer = engine.signal("execute-snapshot", data, identifier=identifier).result()
        if not answer.accepted:
            self._refuse(answer.reason)
            return
        while not (self._finished and engine.status().unflushed_ms is None):
            if self._ended.wait(POLL_S):
                return
        self._compare_again(differing)
        engine.stop()

    def _compare_again(self, tables: list[str]) -> None:
        """Record equal tables, and surplus rows at the destination."""
        for name, found in self._compared(tables).items():
            if found.equal:
                self._equal.add(name)
            elif name in self._rows:
                surplus = (
                    f": the source no longer has {', '.join(found.surplus)}"
                    if found.surplus
                    else ""
                )
                if found.location:
                    surplus += f"; {found.location} names all"
                self._failed[name] = f"still different at the destination{surplus}"

    def _compared(self, tables: list[str]) -> Mapping[str, TableComparison]:
        try:
            found = self._host.choose(
                "choose_comparison",
                profile=self.engine.profile,
                tables=tables,
                patience_s=self._patience_s,
            )
        except WaltapError as error:
            log.warning(
                "the destination cannot be compared, all rows count as different: %s", error
            )
            return {}
        return found or {}

    def _refuse(self, why: str) -> None:
        self._refusal = why
        self.engine.stop()

    def _note(self, notification: Notification) -> None:
        """Record the notifications of this snapshot, in the engine's thread."""
        data = notification.additional_data or {}
        if (
            notification.aggregate_type != INCREMENTAL
            or notification.identifier != self._identifier
        ):
            return
        if notification.kind == "TABLE_SCAN_COMPLETED":
            table, status = data["scanned_collection"], data["status"]
            if status in READ:
                self._rows[table] = int(data.get("total_rows_scanned", "0"))
            else:
                self._failed[table] = REASONS.get(status, status)
        elif notification.kind == "COMPLETED":  # also when nothing is left after a stop
            self._finished = True


def _tables(gaps: list[CaptureGap]) -> list[str]:
    """Return the tables of all gaps, none if one lacks them."""
    if any(not gap.tables for gap in gaps):
        return []
    return list(dict.fromkeys(name for gap in gaps for name in gap.tables))
