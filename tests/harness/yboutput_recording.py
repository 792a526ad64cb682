"""Recordings of yboutput under tests/golden/yboutput: how they are made, and what they mean.

    python -m tests.harness.yboutput_recording

records them anew on a server of its own. The plugin is the tests' double, built from published
sources (tests/harness/servers/yboutput); no YugabyteDB server was run.
"""

import re
import tempfile
from pathlib import Path

from tests.harness.servers import output_plugin
from tests.harness.servers.postgres import Cluster, Database
from tests.harness.yboutput_slot import Slot

from waltap_testing.recording import FrameRecording, load_recordings, save_recordings

FOLDER = Path(__file__).parents[1] / "golden" / "yboutput"
RECORDINGS = FOLDER / "recordings.jsonl"
WAYS: dict[str, tuple[bool, dict[str, str], dict[str, object]]] = {
    "text": (False, {}, {}),
    "old generation": (True, {}, {}),
}
"""Name → old generation, options of the plugin, options of the decoder."""


def recorded() -> dict[str, FrameRecording]:
    """Return the recordings by name: a way of `WAYS`, a colon and a part of the workload."""
    return {recording.name: recording for recording in load_recordings(RECORDINGS)}


def record(database: Database) -> list[FrameRecording]:
    """Run the workload on an empty database that knows yboutput; return what its slot sends."""
    text = (FOLDER / "workload.sql").read_text(encoding="utf-8")
    _, *parts = re.split(r"^-- @(\w+)\n", text, flags=re.M)
    named = dict(zip(parts[::2], parts[1::2], strict=True))
    with database.connect() as connection:
        connection.execute(named.pop("setup").encode())
    slot = Slot(database)
    found = []
    for part, statements in named.items():
        with database.connect() as connection:
            for line in statements.splitlines():
                for statement in line.split("; "):
                    connection.execute(statement.encode())
        for way, (old_generation, options, decoder_options) in WAYS.items():
            frames = slot.frames(old_generation=old_generation, **options)
            found.append(
                FrameRecording(
                    name=f"{way}: {part}",
                    frames=frames,
                    options=decoder_options,
                    version_num=database.server.version,
                )
            )
        slot.advance()
    return found


def main() -> None:
    """Write the recordings."""
    cluster = Cluster.create()
    try:
        with tempfile.TemporaryDirectory() as state:
            database = cluster.create_database("yboutput")
            output_plugin.prepare(database, output_plugin.built(Path(state)))
            save_recordings(RECORDINGS, record(database))
            output_plugin.remove(Path(state))
    finally:
        cluster.remove()


if __name__ == "__main__":
    main()
