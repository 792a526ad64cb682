"""Gap certificates: what a pipeline could not deliver, from where to where, and what became of it.

A gap is kept where the pipeline's state is, in ``gaps``: as JSON, and beside it as a text for people. It
is open until what it lacks was read anew.
"""

from datetime import UTC, datetime
from pathlib import Path

import msgspec

from waltap.decode_errors import UNREADABLE
from waltap.errors import OffsetError
from waltap.offsets.durable_file import replace_durably
from waltap.offsets.state_folder import GAPS

__all__ = ["CaptureGap", "GapCertificates", "GapEnd", "GapsUnusable", "RereadTable", "moment"]


class GapsUnusable(OffsetError):
    """A gap certificate cannot be read, or cannot be written."""

    code = "WT-6401"
    remedy = (
        "Make {path} readable and writable; a certificate that is damaged may be moved away: it says what "
        "was lost, and nothing depends on it but `waltap repair`."
    )


class GapEnd(msgspec.Struct, frozen=True, kw_only=True):
    """One end of a gap. ``lsn`` as text; ``time`` ISO 8601 in UTC, "" where nobody knows."""

    lsn: str
    timeline: int
    system_id: str
    time: str = ""


class RereadTable(msgspec.Struct, frozen=True, kw_only=True):
    """What became of one table: rows that were read anew; ``compared``: it was compared with the
    destination, before and behind that, and is equal. Where it was equal before, nothing was read."""

    rows: int
    compared: bool = False


class CaptureGap(msgspec.Struct, frozen=True, kw_only=True):
    """One gap: changes that had committed behind ``begin``, up to ``end``, may not have been delivered.

    ``code`` and ``why`` are those of the error that told of it. ``tables`` (schema.table) are those that
    were captured. ``had`` is what the destination had, where it lost that. ``closed`` is when the gap was
    made good, "" while it is open; ``by`` by what: repair, snapshot, or destination, which was brought
    back. ``remark`` says what could not be made good.
    """

    identifier: str
    pipeline: str
    database: str
    slot: str
    code: str
    why: str
    begin: GapEnd
    end: GapEnd
    found: str
    tables: tuple[str, ...] = ()
    had: str = ""
    closed: str = ""
    by: str = ""
    remark: str = ""
    reread: dict[str, RereadTable] = {}

    @property
    def open(self) -> bool:
        """Tell whether it was not made good yet."""
        return not self.closed


class GapCertificates:
    """The certificates of one pipeline, whose state is in ``state_dir``.

    Raises, from every method: GapsUnusable.
    """

    def __init__(self, state_dir: Path) -> None:
        self.folder = state_dir / GAPS

    def all(self) -> list[CaptureGap]:
        """Return every certificate, the oldest first."""
        found = []
        for path in sorted(self.folder.glob("gap-*.json")):
            try:
                found.append(msgspec.json.decode(path.read_bytes(), type=CaptureGap))
            except (OSError, *UNREADABLE) as error:
                raise GapsUnusable(f"{path} cannot be read: {error}", path=path) from error
        return found

    def open(self) -> list[CaptureGap]:
        """Return those that were not made good, the oldest first."""
        return [gap for gap in self.all() if gap.open]

    def keep(self, gap: CaptureGap) -> Path:
        """Write a certificate, durably, or replace the one of its identifier; return the JSON file."""
        path = self.folder / f"gap-{gap.identifier}.json"
        try:
            replace_durably(path.with_suffix(".txt"), text_of(gap).encode())
            data = msgspec.json.format(msgspec.json.encode(gap), indent=1)
            replace_durably(path, data + b"\n")
        except OSError as error:
            raise GapsUnusable(f"{path} cannot be written: {error.strerror}", path=path) from error
        return path

    def note(self, gap: CaptureGap) -> CaptureGap:
        """Keep a gap that was found; return what is kept. An open one that begins where this one does, or
        has the same reason and tables, is the same, and is kept up to the later end."""
        for known in self.open():
            source = (known.slot, known.begin.system_id) == (gap.slot, gap.begin.system_id)
            again = bool(gap.tables) and (known.code, known.tables) == (gap.code, gap.tables)
            if source and (again or known.begin.lsn == gap.begin.lsn):
                tables = tuple(dict.fromkeys((*known.tables, *gap.tables)))
                kept = msgspec.structs.replace(known, end=gap.end, tables=tables)
                self.keep(kept)
                return kept
        self.keep(gap)
        return gap


def moment(ms: int | None) -> str:
    """Return a time, in ms since 1970 UTC, as certificates have it; "" for None."""
    if ms is None:
        return ""
    return datetime.fromtimestamp(ms / 1000, UTC).isoformat(timespec="milliseconds")


def text_of(gap: CaptureGap) -> str:
    """Return a certificate for people."""
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
        lines.append(f"{name}: {table.rows} rows were read anew{seen}.")
    if gap.remark:
        lines.append(gap.remark)
    if gap.open:
        lines.append(
            "`waltap repair FILE` reads these tables anew and closes this certificate, or names the way "
            "that does."
        )
    return "\n".join(lines) + "\n"


def _end(end: GapEnd) -> str:
    when = f", {end.time}" if end.time else ""
    return f"LSN {end.lsn} of timeline {end.timeline} of system {end.system_id}{when}"
