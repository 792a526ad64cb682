"""A pipeline on the double, whose records are JSON lines as Debezium's connector for YugabyteDB makes them."""

from pathlib import Path
from typing import Any

from tests.harness.json_lines import records
from tests.harness.pipeline import PipelineRig
from tests.harness.yugabyte.server import Yugabyte


def cell(value: Any) -> dict[str, Any]:
    return {"value": value, "set": True}


class YugabytePipeline(PipelineRig):
    """Runs ``connector yugabyte`` into a file; `records` has what arrived."""

    def __init__(
        self, server: Yugabyte, folder: Path, settings: dict[str, Any] | None = None
    ) -> None:
        own = {
            "type": "yugabyte",
            **server.properties(),
            "yb.event.form": "cells",
            "yb.read.time.wait.ms": 0,
            "publication.autocreate.mode": "filtered",
            "publication.keyless.tables": "publish",
            "sink.type": "jsonl",
            "sink.path": str(folder / "out.jsonl"),
            "topic.prefix": "dbserver",
        }
        super().__init__(server.database, folder, own | (settings or {}))
        self.server = server

    def records(self, table: str = "t") -> list[dict[str, Any]]:
        """Return the records of a table, in order: key, value (None for a tombstone), headers."""
        found = records(self.folder / "out.jsonl")
        return [r for r in found if r["topic"].endswith(f".{table}")]

    def events(self, table: str = "t") -> list[tuple[str, Any, Any, Any]]:
        """Return (op, key, before, after) of each event, without tombstones."""
        return [
            (r["value"]["op"], r["key"], r["value"]["before"], r["value"]["after"])
            for r in self.records(table)
            if r["value"] is not None
        ]

    def arrived(self, table: str) -> dict[Any, dict[str, Any]]:
        """Return, by ``id``, the rows that a consumer of plain events has: what was not sent stays."""
        rows: dict[Any, dict[str, Any]] = {}
        for record in self.records(table):
            place, value = record["key"]["id"], record["value"]
            if value is None or value["after"] is None:
                rows.pop(place, None)
                continue
            unsent = value["unsent"] or ()
            sent = {n: v for n, v in value["after"].items() if n not in unsent}
            rows[place] = rows.get(place, {}) | sent
        return rows

    def same(self, table: str) -> bool:
        """Tell whether a consumer has the rows of a table, which has ``id`` and ``v``."""
        rows = self.server.database.execute(f"SELECT id, v FROM {table}")
        return self.arrived(table) == {key: {"id": key, "v": v} for key, v in rows}

    def sources(self, table: str = "t") -> list[dict[str, Any]]:
        return [r["value"]["source"] for r in self.records(table) if r["value"] is not None]
