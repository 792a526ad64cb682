"""``waltap run`` in a process of its own against a scripted walsender, into a file of JSON lines."""

from pathlib import Path
from typing import Any

from tests.harness.command import waltap
from tests.harness.json_lines import records
from tests.harness.pipeline import profile_text
from tests.harness.servers.postgres import Database


def run_scripted(
    connector: str,
    database: Database,
    slot: str,
    port: int,
    folder: Path,
    *options: str,
    **more: Any,
) -> Any:
    """Run the connector on the walsender at ``port``, whose catalogue is that of ``database``; ``more`` are
    properties of the source. Return the ended process, with what it said."""
    profile = folder / "profile.toml"
    source = {
        "type": connector,
        "database.hostname": "127.0.0.1",
        "database.port": port,
        "database.user": "postgres",
        "database.dbname": database.name,
        "database.sslmode": "disable",
        "slot.name": slot,
        "slot.takeover": True,
        "publication.name": "scripted",
        "publication.autocreate.mode": "disabled",
        "snapshot.mode": "no_data",
        "topic.prefix": "s",
        "retriable.restart.connector.wait.ms": 50,
        "waltap.state.dir": str(folder / "state"),
        **more,
    }
    sink = {"type": "jsonl", "path": str(folder / "out.jsonl")}
    profile.write_text(profile_text(slot, source, sink))
    return waltap("run", profile, "--max-seconds", "240", *options)


def records_of(folder: Path) -> list[dict[str, Any]]:
    return [record["value"] for record in records(folder / "out.jsonl")]
