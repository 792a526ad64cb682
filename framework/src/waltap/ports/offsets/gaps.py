"""Record capture gaps: changes that a pipeline could not deliver.

A gap certificate is a JSON file in the folder ``gaps`` beside the offset, with a text file for
people. A gap is open until its tables were read again or the destination was restored.
"""

from datetime import UTC, datetime
from pathlib import Path

import msgspec

from waltap.base.files.durable_file import StateDocument, replace_durably
from waltap.errors import OffsetError
from waltap.ports.offsets.state_folder import GAPS

GapsUnusable = OffsetError.define("GapsUnusable", "WT-6401")


class GapEnd(msgspec.Struct, frozen=True, kw_only=True):
    """One end of a capture gap."""

    # LSN as PostgreSQL prints it, such as 16/B374D848.
    lsn: str
    timeline: int
    system_id: str
    # ISO 8601 in UTC; "" if unknown.
    time: str = ""


class RereadTable(msgspec.Struct, frozen=True, kw_only=True):
    """The result of reading one table of a gap again."""

    # Rows that were read again; 0 if the comparison found no difference.
    rows: int
    # Whether a comparison with the destination found the table equal.
    compared: bool = False


class CaptureGap(msgspec.Struct, frozen=True, kw_only=True):
    """A WAL range whose changes the sink may miss.

    The range covers changes that committed after ``begin``, up to ``end``.
    """

    identifier: str
    pipeline: str
    database: str
    slot: str
    # Code and text of the error that reported the gap.
    code: str
    why: str
    begin: GapEnd
    end: GapEnd
    # When the pipeline found the gap.
    found: str
    # Captured tables (schema.table); () if unknown.
    tables: tuple[str, ...] = ()
    # The position that the destination had, if the destination lost it.
    had: str = ""
    # When the gap was closed; "" while it is open.
    closed: str = ""
    # What closed the gap: repair, snapshot, or a restored destination.
    by: str = ""
    # What the repair could not read again.
    remark: str = ""
    reread: dict[str, RereadTable] = {}

    @property
    def open(self) -> bool:
        """Return whether the gap still needs a repair."""
        return not self.closed


class GapCertificates:
    """The gap certificates of one pipeline.

    Raises, from every method: GapsUnusable.
    """

    def __init__(self, state_dir: Path) -> None:
        self.folder = state_dir / GAPS

    def all(self) -> list[CaptureGap]:
        """Return every certificate, the oldest first."""
        documents = map(self._document, sorted(self.folder.glob("gap-*.json")))
        return [gap for document in documents if (gap := document.load()) is not None]

    def open(self) -> list[CaptureGap]:
        """Return the open gaps, the oldest first."""
        return [gap for gap in self.all() if gap.open]

    def keep(self, gap: CaptureGap) -> Path:
        """Write or replace one certificate durably; return its JSON file."""
        document = self._document(self.folder / f"gap-{gap.identifier}.json")
        path = document.path.with_suffix(".txt")
        try:
            # The text comes first: `all` lists only the JSON file, so each listed gap has both.
            replace_durably(path, text_of(gap).encode())
        except OSError as error:
            raise GapsUnusable(f"{path} cannot be written: {error.strerror}", path=path) from error
        document.save(gap)
        return document.path

    @staticmethod
    def _document(path: Path) -> StateDocument[CaptureGap]:
        return StateDocument(path, CaptureGap, GapsUnusable, indented=True)

    def note(self, gap: CaptureGap, *, every_table: bool = False) -> CaptureGap:
        """Record a new gap, or extend the open gap that it repeats.

        ``every_table``: its tables are unknown, so it is about all. Return the recorded gap.
        """
        for known in self.open():
            # A start that fails and is retried finds the same gap each time.
            source = (known.slot, known.begin.system_id) == (gap.slot, gap.begin.system_id)
            again = bool(gap.tables) and (known.code, known.tables) == (gap.code, gap.tables)
            if source and (again or known.begin.lsn == gap.begin.lsn):
                # A certificate without names is about all tables.
                named = () if every_table else known.tables and (*known.tables, *gap.tables)
                tables = tuple(dict.fromkeys(named))
                merged = msgspec.structs.replace(known, end=gap.end, tables=tables)
                self.keep(merged)
                return merged
        self.keep(gap)
        return gap


def moment(ms: int | None) -> str:
    """Return a time in ms since 1970 UTC as ISO 8601 text.

    Return "" for None, and for times that no calendar has.
    """
    if ms is None or not 0 <= ms < 253402300800000:
        return ""
    return datetime.fromtimestamp(ms / 1000, UTC).isoformat(timespec="milliseconds")


def text_of(gap: CaptureGap) -> str:
    """Return a certificate as text for people."""
    state = f"closed {gap.closed} by {gap.by}" if gap.closed else "open"
    lines = [
        f"Gap {gap.identifier} of pipeline {gap.pipeline}: {state}",
        "",
        f"database   {gap.database}, slot {gap.slot}",
        f"found      {gap.found}",
        f"why        {gap.code} {gap.why}",
        f"from       {_end(gap.begin)}",
        f"to         {_end(gap.end)}",
        f"tables     {', '.join(gap.tables) or 'not known: all that are captured'}",
        "",
        "Changes that committed behind the first position, up to the second, may be missing at the sink.",
    ]
    for name, table in gap.reread.items():
        seen = "; the destination is equal to the source" if table.compared else ""
        lines.append(f"{name}: {table.rows} rows were read again{seen}.")
    if gap.remark:
        lines.append(gap.remark)
    if gap.open:
        lines.append(
            "`waltap repair FILE` reads these tables again and closes this certificate, or names the way "
            "that does."
        )
    return "\n".join(lines) + "\n"


def _end(end: GapEnd) -> str:
    when = f", {end.time}" if end.time else ""
    return f"LSN {end.lsn} of timeline {end.timeline} of system {end.system_id}{when}"
