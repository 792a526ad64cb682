"""``kill -9`` of a pipeline into an object store whose requests fail at random: nothing lost, nothing doubled.

Two sinks at once: Parquet files and the change log. ``make s3-trial KILLS=50`` is the long form; the moments
are drawn from a seed that a failure names, and ``WALTAP_TEST_SEED`` repeats it.
"""

import itertools
import os
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from pyarrow import dataset, fs
from tests.fault.lives import SEED, Lives
from tests.harness.changelog import logged_ids
from tests.harness.door import Door, s3_door
from tests.harness.meanwhile import meanwhile
from tests.harness.pipeline import until
from tests.harness.servers.postgres import Database
from tests.harness.servers.s3 import S3Server

from waltap.base.files.errors import ObjectStoreUnavailable
from waltap.base.files.properties import StorageProperties
from waltap.base.files.store import FileStore

KILLS = int(os.environ.get("WALTAP_TEST_S3_KILLS") or 2)
SHARE = 0.05
SINKS = ("rows", "log")
AWAY = 3
STARTS = 5
"""All tries of one request may fail before the pipeline has started, which ends it: its keeper starts it again."""


class Trial(Lives):
    """A profile with both sinks behind the door, and the lives of its pipeline."""

    def __init__(
        self, database: Database, folder: Path, s3: S3Server, bucket: str, door: Door
    ) -> None:
        self.s3, self.bucket = s3, bucket
        store = {**s3.properties(url=door.url), "storage.max.attempts": 3}
        rows = {"type": "files", "file.format": "parquet", "file.max.age.ms": 0}
        sinks = [
            {"name": name, **own, "path": f"s3://{bucket}/{name}", **store}
            for name, own in zip(SINKS, (rows, {"type": "changelog"}), strict=True)
        ]
        tries = {"errors.max.retries": -1, "retriable.restart.connector.wait.ms": 100}
        super().__init__(database, folder, *sinks, **tries)

    def commits(self) -> int:
        """Return how many commits and manifests there are."""
        selectors = [
            fs.FileSelector(f"{self.bucket}/{place}", allow_not_found=True, recursive=True)
            for place in ("rows/_waltap/commits", "log/manifests")
        ]
        files = self.s3.files()
        return sum(info.is_file for each in selectors for info in files.get_file_info(each))

    def killed(self) -> None:
        """Start the pipeline, and kill it a random moment after its first commit."""
        for _ in range(STARTS):
            before, process = self.commits(), self.start()
            until(lambda: self.commits() > before or process.poll() is not None, "a commit")
            time.sleep(self.random.random() * 0.5)  # the random moment itself
            running = process.poll() is None
            process.kill()
            _, said = process.communicate()
            if running:
                return
            assert process.returncode == AWAY and ObjectStoreUnavailable.code in said, (SEED, said)
        pytest.fail(f"no start got through: {SEED}")

    def rows(self) -> list[int]:
        """Return the ids in the Parquet files, as whoever reads every file has them. Rows of the snapshot
        may come twice where it broke off, as the page on files says: those count once."""
        found = dataset.dataset(
            f"{self.bucket}/rows", filesystem=self.s3.files(), partitioning="hive"
        ).to_table(columns=["id", "_op"])
        read = {row["id"] for row in found.to_pylist() if row["_op"] == "r"}
        changed = [row["id"] for row in found.to_pylist() if row["_op"] != "r"]
        return sorted([*read, *changed])

    def log(self) -> list[int]:
        """Return the ids in the change log, by its own reader."""
        storage = StorageProperties.model_validate(self.s3.properties())
        return sorted(logged_ids(FileStore(f"s3://{self.bucket}/log", storage)))


@contextmanager
def writing(database: Database, ids: Iterator[int]) -> Iterator[None]:
    """Insert rows in small transactions while the block lasts."""

    def write(stop: threading.Event) -> None:
        with database.connect() as connection:
            while not stop.wait(0.02):
                for n in itertools.islice(ids, 5):
                    connection.execute("INSERT INTO t VALUES (%s::int)", [n])

    with meanwhile(write):
        yield


@pytest.mark.timeout(600 + 60 * KILLS)
def test_kills_and_failing_requests_lose_and_double_nothing(database, tmp_path, s3, bucket):
    database.execute("CREATE TABLE t (id int PRIMARY KEY)")
    ids = itertools.count()
    with s3_door(s3.url, seed=SEED) as door:
        trial = Trial(database, tmp_path, s3, bucket, door)
        door.share = SHARE
        with writing(database, ids):
            for _ in range(KILLS):
                trial.killed()
        ((lsn,),) = database.execute("SELECT pg_current_wal_lsn()::text")
        for _ in range(STARTS):
            last = trial.start("--until-lsn", lsn)
            _, errors = last.communicate(timeout=300)
            if last.returncode != AWAY or ObjectStoreUnavailable.code not in errors:
                break
        assert last.returncode == 0, (SEED, errors)
        failed = door.failed
    expected = list(range(next(ids)))
    assert trial.rows() == expected, SEED
    assert trial.log() == expected, SEED
    assert failed > 0, "no request failed"
    print(f"{KILLS} kills, {failed} requests failed, {len(expected)} rows in each of two sinks")
