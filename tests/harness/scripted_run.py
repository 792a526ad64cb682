"""``waltap run`` in a process of its own against a scripted walsender, into a file of JSON lines."""

import json
from pathlib import Path
from typing import Any

from tests.harness.command import waltap
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
    settings = {
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
    lines = [f"{json.dumps(name)} = {json.dumps(value)}" for name, value in settings.items()]
    profile.write_text("\n".join(["[source]", f'type = "{connector}"', *lines]))
    out = f"jsonl:{folder / 'out.jsonl'}"
    return waltap("run", profile, "--sink", out, "--max-seconds", "240", *options)


def records_of(folder: Path) -> list[dict[str, Any]]:
    """Return the values of the records that `run_scripted` wrote into ``folder``."""
    out = folder / "out.jsonl"
    lines = out.read_text().splitlines() if out.exists() else []
    return [json.loads(line)["value"] for line in lines]
