"""Count rows from the formats' metadata, without Spark.

Delta Lake's log has the rows of each file, and how many of them a deletion vector deletes.
Iceberg's metadata has the rows of each snapshot, and the deletes that apply to them. For a table in
a catalogue only the catalogue knows the metadata's location.
"""

import json
from collections.abc import Mapping
from typing import Any, Final

from waltap.base.files.errors import FilesUnavailable
from waltap.base.files.store import safe_name
from waltap_spark.state.output import SparkOutput, TableState

_BATCH: Final = 10_000


def stored_rows(output: SparkOutput, table: TableState, format_name: str) -> int | None:
    """Return the number of rows, None if the metadata lacks it.

    A table that shares its target has no rows of its own here.
    """
    if not table.stored_table.targets:
        return table.base_rows
    target = table.stored_table.targets.get("current")
    if target is None or table.place is not None:
        return None
    try:
        if format_name == "delta":
            return _delta(output, f"{table.target_folder}/delta/current/_delta_log", target.version)
        if format_name == "iceberg":
            parts = "/".join(map(safe_name, table.storage))
            return _iceberg(output, f"iceberg/{parts}/current/metadata", target.version)
    except (FilesUnavailable, ValueError, KeyError, TypeError):
        return None  # another layout, such as a checkpoint of a later version
    return None


def _delta(output: SparkOutput, folder: str, version: int) -> int | None:
    """Replay the log from the newest checkpoint."""
    names = output.store.names(folder)
    checkpoints: dict[int, list[str]] = {}
    for name in names:
        if name.endswith(".parquet") and ".checkpoint." in name:
            checkpoints.setdefault(int(name[:20]), []).append(name)
    begin = max((each for each in checkpoints if each <= version), default=-1)
    rows: dict[tuple[str, str], int] = {}
    for name in checkpoints.get(begin, ()):
        for batch in output.store.parquet_batches(f"{folder}/{name}", _BATCH):
            for action in batch.select(["add"]).to_pylist():
                _replay(rows, action)
    for number in range(begin + 1, version + 1):
        for line in output.store.read(f"{folder}/{number:020d}.json").splitlines():
            _replay(rows, json.loads(line) if line.strip() else {})
    return sum(rows.values()) if rows or version >= 0 else None


def _replay(rows: dict[tuple[str, str], int], action: Mapping[str, Any]) -> None:
    """Apply one action of Delta's log to the rows of each file."""
    removed, added = action.get("remove"), action.get("add")
    if removed:
        rows.pop((removed["path"], _vector(removed)), None)
    if added:
        deleted = (added.get("deletionVector") or {}).get("cardinality") or 0
        rows[added["path"], _vector(added)] = json.loads(added["stats"])["numRecords"] - deleted


def _vector(file: Mapping[str, Any]) -> str:
    """Return the name of a file's deletion vector, "" without one."""
    found = file.get("deletionVector")
    return f"{found['pathOrInlineDv']}@{found.get('offset')}" if found else ""


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
