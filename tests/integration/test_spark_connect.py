"""A client of Spark Connect applies a change log, reads its tables, and reads it as a data source."""

import subprocess
import sys
from pathlib import Path

from tests.harness.changelog import Database, batch, context, relation
from tests.harness.servers.postgres import Database as Server
from tests.integration.test_spark_profiles import Shop

from waltap_sinks.changelog import ChangeLogProperties, ChangeLogSink

PEOPLE = relation("public.people", [("id", "int4"), ("name", "text")])
CLIENT = Path(__file__).with_name("connect_client.py")


def test_a_client_applies_and_reads(spark_connect: str, tmp_path: Path, database: Server) -> None:
    shop = Shop(database, tmp_path)
    shop.insert(1, 2)
    db, log = (
        Database(),
        ChangeLogSink(ChangeLogProperties(path=str(tmp_path / "log")), context(tmp_path)),
    )
    log.open()
    db.insert(PEOPLE, ["1", "Ann"], ["2", "Bob"])
    db.update(PEOPLE, ["2"], name="Bert")
    log.write(batch(db.commit()))
    log.flush()
    log.close()
    done = subprocess.run(
        [
            sys.executable,
            str(CLIENT),
            spark_connect,
            str(tmp_path / "log"),
            str(tmp_path / "out"),
            str(shop.file),
        ],
        capture_output=True,
        text=True,
        check=False,
        timeout=400,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    said = done.stdout.splitlines()
    assert said == [
        "applied 3",
        "views ['people']",
        "row 1 Ann",
        "row 2 Bert",
        "changes ['c', 'c', 'u']",
        "streamed 3",
        "captured [('r', 1, 'shop'), ('r', 2, 'shop')]",
        "streamed 2",
    ]
