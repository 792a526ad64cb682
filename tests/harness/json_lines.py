"""Pipelines into files of JSON lines, and what they have written, also while the sink writes."""

import json
from pathlib import Path
from typing import Any

from tests.harness.pipeline import PipelineRig
from tests.harness.servers.postgres import Database

DECODERS: dict[str, dict[str, str]] = {
    "pgoutput": {},
    "wal2json": {"plugin.name": "wal2json"},
    "wal2json-1": {"plugin.name": "wal2json", "wal2json.format-version": "1"},
    "decoderbufs": {"plugin.name": "decoderbufs"},
}
"""What of a pipeline chooses each decoder and each form of its output."""


def records(path: Path) -> list[Any]:
    """Return the documents of the whole lines of a file, none where there is no file; the last line of a
    sink that is at work may be torn."""
    lines = path.read_bytes().split(b"\n")[:-1] if path.exists() else []
    return [json.loads(line) for line in lines]


class Lines(PipelineRig):
    """A pipeline into the file ``out``, keys and values with their schemas."""

    def __init__(self, database: Database, folder: Path, **settings: Any) -> None:
        own = {f"{side}.converter.schemas.enable": "true" for side in ("key", "value")}
        own |= {"sink.type": "jsonl", "sink.path": str(folder / "out"), "topic.prefix": "x"}
        super().__init__(database, folder, own | settings)
        self.out = folder / "out"

    def records(self, table: str) -> list[dict[str, Any]]:
        found = (r for r in records(self.out) if r["topic"] == f"x.public.{table}")
        return [record for record in found if record["value"] is not None]

    def keys(self, table: str) -> list[tuple[str, dict[str, Any] | None]]:
        return [
            (r["value"]["payload"]["op"], r["key"] and r["key"]["payload"])
            for r in self.records(table)
        ]

    def required(self, table: str) -> list[list[str]]:
        """Return, per record, the fields of a row that are not optional."""
        return [
            [f["field"] for f in r["value"]["schema"]["fields"][1]["fields"] if not f["optional"]]
            for r in self.records(table)
        ]
