"""From a real PostgreSQL to Spark: an engine that runs until it is idle, and an applier."""

import contextlib
import os
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from tests.harness.command import start, waltap
from tests.harness.pipeline import PipelineRig
from tests.harness.servers.postgres import Database

from waltap_sinks.changelog import ChangeLog
from waltap_spark.apply.applier import OutputApplier
from waltap_spark.config.options import ApplyOptions
from waltap_spark.formats.choice import PARQUET, FormatChoice
from waltap_spark.read.live import LiveTables
from waltap_spark.session.session import prepare
from waltap_spark.state.output import SparkOutput


class Lake:
    """A profile, the change log it writes, and the tables that follow."""

    def __init__(
        self,
        database: Database,
        folder: Path,
        spark: Any,
        table_format: str = PARQUET,
        *,
        source: Mapping[str, Any] = {},
        plugins: Sequence[Path] = (),
        **options: Any,
    ) -> None:
        """``source``: properties of the profile; ``plugins``: folders on the path of the engine."""
        self.folder, self.spark, self.database = folder, prepare(spark), database
        self._choice, self._options = FormatChoice(table_format), ApplyOptions(**options)
        path = [*map(str, plugins), os.environ.get("PYTHONPATH", "")]
        self._variables = {"PYTHONPATH": os.pathsep.join(path)} if plugins else {}
        spark.conf.set("spark.sql.timeType.enabled", "true")
        own = {"sink.type": "changelog", "sink.path": str(folder / "log")}
        own["publication.autocreate.mode"] = "all_tables"  # a table made anew is in it at once
        self._pipeline = PipelineRig(database, folder, {**own, **source})

    def run(self, *scripts: str, **settings: Any) -> str:
        """Execute ``scripts`` in the source, and run the engine until everything is delivered; return its log."""
        for script in scripts:
            self.database.psql(script)
        words = "run", self._pipeline.file(**settings), "--until-idle", 0.3
        done = waltap(*words, cwd=self.folder, **self._variables)
        assert done.returncode == 0, done.stderr
        return done.stderr

    def follow(self, *scripts: str) -> LiveTables:
        """Run, and apply; return the tables."""
        self.run(*scripts)
        return self.apply()

    @contextlib.contextmanager
    def running(self) -> Iterator[None]:
        """Run the engine for the block, and stop it as an operator does."""
        with (self.folder / "run.log").open("wb") as reported:
            process = start(
                "run", self._pipeline.file(), cwd=self.folder, out=reported, errors=reported
            )
            try:
                yield
                process.terminate()
                assert process.wait(120) == 0, (self.folder / "run.log").read_text()
            finally:
                process.close()

    def apply(self) -> LiveTables:
        """Apply the change log; return the tables."""
        log, output = ChangeLog(str(self.folder / "log")), SparkOutput(str(self.folder / "out"))
        applier = OutputApplier(self.spark, log, output, self._options, self._choice)
        applier.open()
        applier.apply(list(log.manifests(applier.state.log_position)))
        applier.close()
        return self.tables()

    def tables(self) -> LiveTables:
        return LiveTables(self.spark, SparkOutput(str(self.folder / "out")))
