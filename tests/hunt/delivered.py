"""What a sink holds, read back as events in the order of delivery."""

import json
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

OWN: Final = ("_op", "_commit_lsn", "_seq", "_sub", "_lsn", "_commit_ts", "_xid", "_unchanged")


@dataclass(slots=True)
class Event:
    """One event; op ``g``: an initial snapshot of the table begins. ``snapshot``: "" for a change, else initial or incremental; ``first``: it begins an
    initial snapshot. ``key`` is None for a null key; ``at``: line or row number, for reports."""

    op: str
    table: str
    key: dict[str, Any] | None
    before: dict[str, Any] | None
    after: dict[str, Any] | None
    xid: int = 0
    snapshot: str = ""
    first: bool = False
    at: int = 0
    optional: dict[str, bool] | None = None
    """Field → whether its schema says optional; None without schemas."""
    moved: bool = False
    """Part of a key change: it says so."""
    unsent: tuple[str, ...] = ()


def from_lines(paths: Iterable[Path]) -> list[Event]:
    """Return the events of files of JSON lines, tombstones and other topics left out; a torn last
    line is not there yet."""
    found: list[Event] = []
    lines = (line for path in paths for line in path.read_bytes().split(b"\n")[:-1])
    for number, line in enumerate(lines):
        if (event := from_record(json.loads(line))) is not None:
            event.at = number
            found.append(event)
    return found


def from_record(record: dict[str, Any]) -> Event | None:
    """Return the event of one record as the JSON lines sink writes it, None for a tombstone."""
    value, key = record["value"], record["key"]
    if value is None:
        return None
    schema = None
    if "payload" in value and "schema" in value:
        schema, value = value["schema"], value["payload"]
    if key is not None and set(key) == {"schema", "payload"}:
        key = key["payload"]
    source = value.get("source", {})
    if value.get("op") not in ("r", "c", "u", "d", "t"):
        return None
    snapshot = source["snapshot"]
    names = [h["key"] for h in record.get("headers") or ()]
    return Event(
        op=value["op"],
        table=f"{source['schema']}.{source['table']}",
        key=key,
        before=value.get("before"),
        after=value.get("after"),
        xid=source["txId"] or 0,
        snapshot=""
        if value["op"] != "r"
        else "incremental"
        if snapshot == "incremental"
        else "initial",
        first=snapshot == "first",
        optional=None if schema is None else _optional(schema),
        moved=any(name in ("__debezium.newkey", "__debezium.oldkey") for name in names),
    )


def _optional(schema: dict[str, Any]) -> dict[str, bool] | None:
    for field in schema.get("fields", ()):
        if field["field"] == "after" and "fields" in field:
            return {column["field"]: column["optional"] for column in field["fields"]}
    return None


def from_change_log(folder: Path) -> list[Event]:
    """Return the events of a change log: by manifests, within one by position over all tables."""
    from waltap_sinks.changelog import ChangeLog
    from waltap_sinks.changelog.reader import complete_generations

    log = ChangeLog(str(folder))
    manifests = list(log.manifests()) if folder.exists() else []
    complete = complete_generations(manifests)
    found: list[Event] = []
    snapshots: set[tuple[str, int]] = set()
    numbers: set[int] = set()
    for manifest in manifests:
        rows: list[tuple[tuple[int, ...], Event]] = []
        for entry in manifest.tables:
            if entry.snapshot_id is not None and (entry.name, entry.snapshot_id) not in complete:
                continue
            number = entry.snapshot_id
            if number is not None and (entry.name, number) not in snapshots:
                snapshots.add((entry.name, number))
                begin = Event("g", entry.name, None, None, None, snapshot="initial")
                begin.first = number not in numbers
                numbers.add(number)
                found.append(begin)
            for segment in entry.segments:
                for row in log.store.read_parquet(segment.path).to_pylist():
                    position = (row["_commit_lsn"], row["_seq"], row["_sub"])
                    event = _logged(entry.name, entry.key, row, initial=number is not None)
                    rows.append((position, event))
        rows.sort(key=lambda item: item[0])
        found.extend(_merged(rows))
    for number, event in enumerate(found):
        event.at = number
    return found


def _logged(name: str, key: Iterable[str], row: dict[str, Any], *, initial: bool) -> Event:
    values = {n: v for n, v in row.items() if n not in OWN}
    op = row["_op"]
    reported = {n: values[n] for n in key}
    return Event(
        op=op,
        table=name,
        key=reported or None,
        before=values if op == "d" else None,
        after=None if op in "dt" else values,
        xid=row["_xid"] or 0,
        snapshot="" if op != "r" else "initial" if initial else "incremental",
        unsent=tuple(row["_unchanged"] or ()),
    )


def _merged(rows: Iterable[tuple[tuple[int, ...], Event]]) -> Iterator[Event]:
    """Put an update of a table without key together again: it is a delete and an update in the log."""
    held: tuple[tuple[int, ...], Event] | None = None
    for position, event in rows:
        if held is not None:
            same = held[0][:2] == position[:2] and held[1].table == event.table
            if same and event.op == "u" and event.key is None:
                event.before = held[1].before
                held = None
                yield event
                continue
            yield held[1]
            held = None
        if event.op == "d":
            held = position, event
        else:
            yield event
    if held is not None:
        yield held[1]
