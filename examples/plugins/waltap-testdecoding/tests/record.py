"""Records tests/recordings.jsonl again: python tests/record.py "host=… dbname=a_scratch_database".

Needs psycopg and a PostgreSQL server with wal_level=logical. Read the result before you commit it.
"""

import re
import sys
from pathlib import Path

import psycopg
from rig import CONTEXT, SPEC

from waltap_testing.recording import FrameRecording, frames_of_slot, meant_by, save_recordings

HERE = Path(__file__).parent
OPTIONS = SPEC.factory(CONTEXT).start_options()


def main(dsn: str) -> None:
    parts = re.split(r"^-- @(\w+)\n", (HERE / "scenario.sql").read_text(), flags=re.M)[1:]
    recordings = []
    with psycopg.connect(dsn, autocommit=True) as connection:
        connection.execute("SET TimeZone = 'UTC'")
        version = connection.info.server_version
        for name, sql in zip(parts[::2], parts[1::2], strict=True):
            slot = f"record_{name}"
            connection.execute(
                "SELECT pg_create_logical_replication_slot(%s, 'test_decoding')", [slot]
            )
            try:
                for statement in sql.split(";\n"):
                    connection.execute(statement.encode())
                frames = frames_of_slot(lambda q: connection.execute(q.encode()), slot, OPTIONS)
            finally:
                connection.execute("SELECT pg_drop_replication_slot(%s)", [slot])
            if name != "setup":
                means = meant_by(SPEC.factory(CONTEXT), frames)
                recordings.append(
                    FrameRecording(name=name, frames=frames, means=means, version_num=version)
                )
    save_recordings(HERE / "recordings.jsonl", recordings)


if __name__ == "__main__":
    main(sys.argv[1])
