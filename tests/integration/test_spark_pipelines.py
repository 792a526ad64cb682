"""Declarative pipelines over a change log: AUTO CDC on Spark's own row-level catalogue, and Delta by history."""

import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.harness.changelog import Database, batch, context, relation
from tests.harness.profile_query import patiently
from tests.harness.servers import spark_catalogue

from waltap_sinks.changelog import ChangeLogProperties, ChangeLogSink
from waltap_spark import pipelines

ORDERS = relation("public.orders", [("id", "int4"), ("state", "text"), ("note", "text")])
CLIENT = Path(__file__).with_name("pipelines_client.py")


class Client:
    """A process that runs pipelines over a log, and the database behind that."""

    def __init__(self, address: str, folder: Path) -> None:
        self.db, self.log, self._said = Database(), folder / "log", folder / "client.log"
        self._log = ChangeLogSink(
            ChangeLogProperties(path=str(self.log)), context(folder, resumes=True)
        )
        self._log.open()
        (folder / "storage").mkdir()
        words = [address, self.log, folder / "storage", spark_catalogue.CATALOGUE]
        with self._said.open("w") as said:
            self._process = subprocess.Popen(
                [sys.executable, CLIENT, *words],
                stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=said, text=True,
            )  # fmt: skip

    def flush(self) -> None:
        self._log.write(batch(self.db.commit()))
        self._log.flush()

    def run(self, pipeline: str) -> dict[str, Any]:
        """Return what the target holds after a run, or its error; a run that a busy machine ended is
        followed by another, as people do."""
        while "failed to connect back" in str((answer := self._run(pipeline)).get("error", "")):
            pass
        return answer

    def _run(self, pipeline: str) -> dict[str, Any]:
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write(f"run {pipeline}\n")
        self._process.stdin.flush()
        line = self._process.stdout.readline()
        assert line, self._said.read_text()[-3000:]
        return json.loads(line)

    def model(self) -> list[list[Any]]:
        return sorted([int(str(row[0])), *row[1:]] for row in self.db.rows[ORDERS.name])

    def close(self) -> None:
        self._process.communicate(timeout=120)
        self._log.close()


@pytest.fixture
def client(spark_connect: str, delta: Any, tmp_path: Path) -> Iterator[Client]:
    made = Client(spark_connect, tmp_path)
    yield made
    made.close()


def test_pipelines_hold_what_the_source_holds_run_after_run(client: Client, delta: Any) -> None:
    """Upserts and deletes in the order of the source, whatever the run; what AUTO CDC would get wrong ends
    its stream, and the history with its view gets it right."""
    db = client.db
    db.insert(ORDERS, ["1", "new", "a"], ["2", "new", "b"], ["3", "new", "c"])
    db.update(ORDERS, ["2"], state="paid")
    client.flush()
    for pipeline in ("auto_cdc", "delta"):
        assert client.run(pipeline) == {"rows": client.model()}, pipeline
    db.delete(ORDERS, ["1"])
    db.update(ORDERS, ["3"], state="paid")
    db.update(ORDERS, ["3"], state="sent")
    client.flush()
    db.insert(ORDERS, ["1", "again", "d"])
    client.flush()
    assert client.run("auto_cdc") == {"rows": client.model()}
    db.update(ORDERS, ["3"], state="back", unsent=["note"])
    client.flush()
    assert client.run("delta") == {"rows": client.model()}

    def refused() -> None:
        wrong = pipelines.changes(str(client.log), "public.orders").writeStream.format("noop")
        wrong = wrong.option("checkpointLocation", str(client.log.parent / "wrong"))
        wrong.trigger(availableNow=True).start().awaitTermination(240)

    with pytest.raises(Exception, match="WT-5256 a change of public.orders lacks values"):
        patiently(refused)
