"""Runs one variant of a corpus through one engine, in a database and slot of its own."""

import re
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Final

from tests.differential.corpus import Variant
from tests.differential.engines import Debezium, Engine, Waltap
from tests.differential.normalise import Record
from tests.harness.servers.postgres import Database, Server

PAUSE: Final = re.compile(r"^select pg_sleep\((.*)\) \\g /dev/null\n", re.MULTILINE)
"""A step of a workload that waits for the engine; it stands outside transactions."""


def capture(variant: Variant, server: Server, folder: Path, engine: str) -> list[Record]:
    """Return the records that ``engine`` (waltap or debezium) dumps for ``variant``, as dumped.

    The database has the name that the recorded events carry; one left behind is dropped first.
    ``folder`` keeps properties, log and dump. Raises: CaptureFailed.
    """
    name = variant.properties["database.dbname"]
    Database(server, name).drop(patience=0)
    database = server.create_database(name)
    try:
        database.psql(variant.setup)
        properties = {**variant.properties, **database.properties()}
        starts: dict[str, Callable[[], Engine]] = {
            "waltap": lambda: Waltap(folder, properties),
            "debezium": lambda: Debezium(folder, properties, variant.idle_seconds),
        }
        run = starts[engine]()

        def perform(workload: Path) -> None:
            steps = PAUSE.split(workload.read_text(encoding="utf-8"))
            for number, step in enumerate(steps):
                if number % 2:
                    run.pause(database, float(step), variant.collapse)
                else:
                    database.psql(step)

        try:
            run.wait_ready()
            with ThreadPoolExecutor(len(variant.workloads)) as pool:
                list(pool.map(perform, variant.workloads))
            known = variant.expected() if variant.recording.exists() else []
            run.finish(database, known, variant.collapse)
            return run.records()
        finally:
            run.stop()
    finally:
        database.drop()
