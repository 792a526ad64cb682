"""Show the tables of the newest commit, without Spark."""

import datetime as dt
import json
import math
from typing import TYPE_CHECKING, Final

import msgspec
from rich.markup import escape
from rich.table import Table

from waltap.base.files.errors import FilesUnavailable
from waltap.base.files.store import safe_name
from waltap_sinks.changelog.errors import ChangeLogExpired
from waltap_spark.errors import TypeChanged
from waltap_spark.formats.choice import PARQUET
from waltap_spark.formats.small_files.delta_log import FileList
from waltap_spark.planning.table_renames import DISPLACED
from waltap_spark.state.modes import describe_mode
from waltap_spark.state.output import OutputState, SparkOutput, TableState

if TYPE_CHECKING:
    from rich.console import Console


SNAPSHOT_ADVICE: Final = (
    "`waltap spark verify OUTPUT --dsn …` shows whether rows differ. `waltap snapshot PROFILE TABLE "
    "--blocking` reads a table again while the pipeline runs, and replaces its rows."
)
RESUME_ADVICE: Final = (
    "When that is mended, `waltap spark resume {output} {table}` tries it at once."
)
EXPIRY_ADVICE: Final = (
    "`waltap spark resume {output} {table} --full-refresh` empties it and continues where the log begins; "
    "then take a new snapshot of the table."
)
EXPIRY_ADVICE_IN_PLACE: Final = (
    "Only a new output has its rows again: set another sink.path, and run `waltap run PROFILE --set "
    "snapshot.mode=always` until it streams."
)
DAMAGE_ADVICE: Final = (
    "It continues as soon as the file is restored; `waltap spark resume {output} {table} "
    "--skip-damaged` continues without its rows, until a new snapshot of the table."
)


class AppliedTable(msgspec.Struct, frozen=True, kw_only=True):
    """One table of the newest commit."""

    table: str
    # Mode, and the source in a shared target.
    mode: str
    key: tuple[str, ...]
    # The position up to which the table has the source's changes.
    position: str
    # None when the format's metadata does not say: a table in a catalogue, or a shared target.
    rows: int | None
    # Changes that Parquet joins at reading. ``rows`` is without them.
    pending: int
    # Sets and changes of a Parquet table's history, None where it is in no set.
    change_sets: int | None
    changes: int | None
    # Versions of a table in Delta Lake or Iceberg by kind: current, changes.
    versions: dict[str, int]
    # What SQL calls them.
    places: dict[str, str]
    # Why the table is suspended, "" when it is not.
    suspended: str
    damaged: bool
    # Why the table needs a new snapshot.
    stale: tuple[str, ...]
    notes: tuple[str, ...]


class AppliedOutput(msgspec.Struct, frozen=True, kw_only=True):
    """The newest commit of an output."""

    output: str
    format: str
    commit: int
    position: str
    # Milliseconds since 1970 UTC.
    committed_ms: int
    tables: tuple[AppliedTable, ...]


def status_of(output: SparkOutput, state: OutputState) -> AppliedOutput:
    """Return the status in ``state``, the newest commit of ``output``."""
    return AppliedOutput(
        output=output.location,
        format=state.format,
        commit=state.number,
        position=str(state.log_position),
        committed_ms=round(state.committed_at * 1000),
        tables=tuple(
            _table(output, state, name, each) for name, each in sorted(state.tables.items())
        ),
    )


def _table(output: SparkOutput, state: OutputState, name: str, table: TableState) -> AppliedTable:
    place = table.place
    of = "" if place is None else f", source {place.source} of {place.name}"
    at = table.log_position if table.failed and table.log_position else state.log_position
    parquet = not table.stored_table.targets
    return AppliedTable(
        table=name,
        mode=describe_mode(table.mode) + of,
        key=table.key,
        position=str(at),
        rows=stored_rows(output, table, state.format),
        pending=sum(change.rows for change in table.pending),
        change_sets=len(table.changes) if parquet else None,
        changes=sum(each.rows for each in table.changes)
        if parquet and table.mode.history
        else None,
        versions={what: target.version for what, target in table.stored_table.targets.items()},
        places={what: target.at for what, target in table.stored_table.targets.items()},
        suspended=table.failed,
        damaged=bool(table.damaged),
        stale=table.stale,
        notes=(*table.widened, *table.split_nulls),
    )


def stored_rows(output: SparkOutput, table: TableState, format_name: str) -> int | None:
    """Return the number of rows, None without metadata of it.

    A table that shares its target has no rows of its own here. For a table in a catalogue only the
    catalogue knows the metadata's location.
    """
    if not table.stored_table.targets:
        return table.base_rows
    target = table.stored_table.targets.get("current")
    if target is None or table.place is not None:
        return None
    try:
        if format_name == "delta":
            log = FileList(output.store, f"{table.target_folder}/delta/current", math.inf)
            files = log.at(target.version)
            return None if files is None else sum(file.rows for file in files)
        if format_name == "iceberg":
            parts = "/".join(map(safe_name, table.storage))
            return _iceberg(output, f"iceberg/{parts}/current/metadata", target.version)
    except (FilesUnavailable, ValueError, KeyError, TypeError):
        return None  # another layout, such as a checkpoint of a later version
    return None


def _iceberg(output: SparkOutput, folder: str, snapshot: int) -> int | None:
    """Read the summary of a snapshot in the newest metadata."""
    newest = int(output.store.read(f"{folder}/version-hint.text"))
    metadata = json.loads(output.store.read(f"{folder}/v{newest}.metadata.json"))
    for each in metadata["snapshots"]:
        if each["snapshot-id"] == snapshot:
            summary = each["summary"]
            deleted = int(summary.get("total-position-deletes", 0))
            return int(summary["total-records"]) - deleted
    return None


def draw(status: AppliedOutput, console: "Console") -> None:
    """Print the tables, and actions for the operator."""
    console.print(_drawn(status))
    for each in status.tables:
        if each.suspended:
            still = f"[bold red]{escape(each.table)} is suspended[/] at {each.position}:"
            console.print(still, escape(each.suspended))
            if advice := _advice(each, status.format):
                console.print(advice.format(output=status.output, table=each.table), markup=False)
        for snapshot_reason in each.stale:
            how = "was displaced" if snapshot_reason == DISPLACED else "needs a new snapshot"
            console.print(f"[yellow]{escape(each.table)} {how}[/]:", escape(snapshot_reason))
        for text in each.notes:
            console.print(text, style="yellow", markup=False, highlight=False)
    if any(set(each.stale) - {DISPLACED} for each in status.tables):
        console.print(SNAPSHOT_ADVICE, highlight=False)
    at = dt.datetime.fromtimestamp(status.committed_ms / 1000, dt.UTC)
    console.print(f"commit {status.commit} of {at:%Y-%m-%d %H:%M:%S} UTC")


def _advice(table: AppliedTable, format_name: str) -> str:
    """Return the advice for a suspended table."""
    if TypeChanged.code in table.suspended:
        return ""  # the reason has its commands
    if ChangeLogExpired.code in table.suspended:
        return EXPIRY_ADVICE if format_name == PARQUET else EXPIRY_ADVICE_IN_PLACE
    return DAMAGE_ADVICE if table.damaged else RESUME_ADVICE


def _drawn(status: AppliedOutput) -> Table:
    parquet = status.format == PARQUET
    table = Table(title=escape(f"{status.output} at {status.position}"))
    for title in ("table", "mode", "key"):
        table.add_column(title)
    numbers = ("rows in the base", "pending changes", "change sets", "changes")
    for title in numbers if parquet else ("rows",):
        table.add_column(title, justify="right")
    for each in status.tables:
        cells = [escape(each.table), escape(each.mode), escape(", ".join(each.key) or "none")]
        counts = [each.rows, each.pending, each.change_sets, each.changes]
        shown = ["" if count is None else f"{count:,}" for count in counts]
        table.add_row(*cells, *(shown if parquet else shown[:1]))
    return table
