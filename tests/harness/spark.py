"""A change log that is written by hand, and the Spark tables that follow it."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any, ClassVar

import pytest
from tests.harness.changelog import ALL, Database, batch, context
from tests.harness.simulated import Died, dying

from waltap.changes.decode.relation import Relation
from waltap_sinks.changelog import ChangeLog, ChangeLogProperties, ChangeLogSink
from waltap_spark.apply.applier import OutputApplier
from waltap_spark.config.options import ApplyOptions
from waltap_spark.formats.choice import PARQUET, FormatChoice
from waltap_spark.read.live import LiveTables
from waltap_spark.session.session import prepare
from waltap_spark.state.output import SparkOutput, TargetTable


def folder_of(target: TargetTable) -> Path:
    return Path(target.at.split("`")[1].removeprefix("file://"))


class Rig:
    """A database, the change log of it, and the tables that follow; it is closed when the test ends."""

    opened: ClassVar[list["Rig"]] = []

    def __init__(
        self, folder: Path, spark: Any, table_format: str | FormatChoice = "", **options: Any
    ) -> None:
        self.folder, self.spark = folder, prepare(spark)
        spark.conf.set("spark.sql.timeType.enabled", "true")  # plans are checked in any session
        self.options = ApplyOptions(**options)
        self.db, self.epoch = Database(), 1
        self.start_sink(has_offset=True)
        self.log = ChangeLog(str(folder / "log"))
        self.output = SparkOutput(str(folder / "out"))
        named = isinstance(table_format, str)
        self.choice = FormatChoice(table_format or PARQUET) if named else table_format
        self.applier = OutputApplier(self.spark, self.log, self.output, self.options, self.choice)
        self.applier.open()
        self.opened.append(self)

    @classmethod
    def close_all(cls) -> None:
        while cls.opened:
            rig = cls.opened.pop()
            rig.applier.close()
            rig.sink.close()

    def start_sink(self, **more: Any) -> None:
        """Start the engine's sink, which goes on where the change log ends; ``more`` is of its context."""
        properties = ChangeLogProperties(path=str(self.folder / "log"))
        self.sink = ChangeLogSink(properties, context(self.folder, gets_every_change=True, **more))
        self.sink.open()
        self.sink.begins(ALL)

    def commit(self) -> None:
        """COMMIT in the source, flushed to the change log."""
        self.sink.write(batch(self.db.commit()))
        self.sink.flush()

    def write(self, table: Relation, *rows: Sequence[str | None]) -> None:
        """INSERT, COMMIT, flushed to the change log."""
        self.db.insert(table, *rows)
        self.commit()

    def follow(self, *checked: Relation) -> None:
        """COMMIT in the source, and have the tables follow; those of ``checked`` have the source's rows then."""
        self.commit()
        self.apply(*checked)

    def insert(self, table: Relation, *rows: Sequence[str | None]) -> None:
        """INSERT, COMMIT, and have the tables follow."""
        self.write(table, *rows)
        self.apply()

    def update(self, table: Relation, *given: Any, **values: Any) -> None:
        """UPDATE, COMMIT, and have the tables follow."""
        self.db.update(table, *given, **values)
        self.follow()

    def snapshot(self, *tables: Relation) -> None:
        """Write a snapshot of tables to the change log, as the source has them now."""
        for batch_ in self.db.snapshot(*tables):
            self.sink.write(batch_)
        self.sink.flush()

    def start_over(self) -> None:
        """A new pipeline without its offset, which writes the same change log."""
        self.sink.close()
        self.start_sink()
        self.epoch += 1

    def apply(self, *checked: Relation) -> None:
        """Apply all of the change log that was not applied yet; maintain the tables' files; check some tables."""
        self.applier.apply(list(self.log.manifests(self.applier.state.log_position)))
        self.applier.maintain()
        self.check(*checked)

    def reopen(self, **options: Any) -> None:
        """A new driver process, as far as the files can show."""
        self.applier.close()
        self.output = SparkOutput(str(self.folder / "out"))
        options_now = ApplyOptions(**options) if options else self.options
        self.applier = OutputApplier(self.spark, self.log, self.output, options_now, self.choice)
        self.applier.open()

    def apply_and_die(self) -> None:
        """Apply as `apply`, by a driver that dies just before its commit; another follows."""

        with pytest.raises(Died), dying((self.output, "commit")):
            self.apply()
        self.reopen()

    def folders(self) -> set[str]:
        out = self.folder / "out"
        return {str(path.relative_to(out)) for path in out.glob("tables/*/*/*/*")}

    def named_folders(self) -> set[str]:
        """Return the folders that the newest commit names, also as garbage."""
        state = self.applier.state
        return {p for t in state.tables.values() for p in t.paths()} | self.output.garbage.paths()

    def target(self, table: Relation, which: str = "current") -> TargetTable:
        """Return a table of a format with tables of its own, as the last commit has it."""
        return self.output.table(table.table).stored_table.targets[which]

    def current(self, table: Relation) -> list[tuple[str | None, ...]]:
        tables = LiveTables(self.spark, self.output, allow_stale=True)
        frame = tables.current(table.name)
        names = [f"`{column.name}`" for column in table.columns]
        rows = frame.selectExpr(*[f"cast({name} as string)" for name in names]).collect()
        return sorted((tuple(row) for row in rows), key=str)

    def check(self, *tables: Relation) -> None:
        for table in tables:
            assert self.current(table) == sorted(self.db.rows[table.name], key=str), table.name
