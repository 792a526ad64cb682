"""Tables that keep their rows and not what happened to them, in any format: what everybody is promised."""

from pathlib import Path
from typing import Any

import msgspec
import pytest
from tests.harness.changelog import batch, relation
from tests.harness.spark import Rig

from waltap.transactions.transaction import TransactionPart
from waltap_spark.errors import HistoryNotKept
from waltap_spark.formats.choice import FormatChoice
from waltap_spark.live import LiveTables
from waltap_spark.modes import ModeRules

COLUMNS = [("id", "int4"), ("name", "text"), ("note", "text")]
ALONE = relation("public.alone", COLUMNS, numbers=(1, 2, 3))
BESIDE = relation("public.beside", COLUMNS, numbers=(1, 2, 3))
LISTED = relation("public.listed", COLUMNS[1:], numbers=(1, 2), key=())
VERSIONS = relation("public.versions", COLUMNS, numbers=(1, 2, 3))
RULES = ModeRules(
    modes=(r"public\.versions:scd2", "scd1"), history=(r"public\.beside:keep", "none")
)


class RowsAlone:
    """Four tables: one with its rows alone, one with its history, two that cannot be without."""

    def __init__(self, folder: Path, spark: Any, choice: FormatChoice) -> None:
        self.rig = Rig(folder, spark, choice, parallel=1, modes=RULES, fold_rows=0, merge_sets=2)
        self.spark = self.rig.spark

    def play(self) -> None:
        """Everything that rows go through; the same changes once more; a driver that dies."""
        rig, db = self.rig, self.rig.db
        for table in (ALONE, BESIDE, VERSIONS):
            db.insert(table, ["1", "a", "long"], ["2", "b", None], ["3", "c", "x"])
        db.insert(LISTED, ["a", "b"])
        parts = [self._commit()]
        rig.apply()
        self._check_what_cannot_be_without()
        self._check()
        for table in (ALONE, BESIDE):
            db.update(table, ["1"], unsent=["note"], name="a2")
            db.delete(table, ["2"])
        parts.append(self._commit())
        rig.apply_and_die()
        rig.apply()
        self._check()
        for table in (ALONE, BESIDE):
            db.insert(table, ["2", "again", "y"])
            db.update(table, ["3"], name="c2")
        parts.append(self._commit())
        rig.apply()
        self._check()
        rig.start_over()
        self._deliver(*parts[:2])
        rig.apply()
        assert rig.output.table(ALONE.name).stale == ()
        self._deliver(parts[2])
        rig.apply()
        self._check()
        self._wider()
        db.truncate(ALONE, BESIDE)
        for table in (ALONE, BESIDE):
            db.insert(table, ["9", "new", "z"])
        self._commit()
        rig.apply()
        self._check()
        self._moves_come_again()

    def _moves_come_again(self) -> None:
        """What a row kept under its old key is there no more: that is told, and a history knows better."""
        rig = self.rig
        for table in (ALONE, BESIDE):
            rig.db.update(table, ["9"], unsent=["note"], id="10")
        part = self._commit()
        rig.apply()
        self._check()
        self._come_again(part)

    def _come_again(self, part: TransactionPart) -> None:
        """``part`` lacks values that rows have: the history knows, and who has none says so."""
        rig = self.rig
        assert rig.output.table(ALONE.name).stale == ()
        rig.start_over()
        self._deliver(part)
        rig.apply()
        assert "came again" in rig.output.table(ALONE.name).stale[0]
        assert rig.output.table(BESIDE.name).stale == ()
        rig.check(BESIDE)

    def play_with_a_column_that_is_added(self) -> None:
        """A change comes again that is of before a column was added with a default."""
        rig, wider = self.rig, [*COLUMNS, ("more", "int4")]
        for table in (ALONE, BESIDE):
            rig.db.insert(table, ["1", "a", "x"])
        part = self._commit()
        rig.apply()
        tables = [
            relation(
                table.name, wider, numbers=(1, 2, 3, 4), oid=table.oid,
                more={"more": {"default": "7", "missing": "7"}},
            )
            for table in (ALONE, BESIDE)
        ]  # fmt: skip
        for now in tables:
            rig.db.rows[now.name] = [(*row, "7") for row in rig.db.rows[now.name]]
            rig.db.insert(now, ["2", "b", "y", "8"])
        self._commit()
        rig.apply()
        rig.check(*tables)
        rig.start_over()
        self._deliver(part)
        rig.apply()
        assert "came again" in rig.output.table(ALONE.name).stale[0]
        assert rig.output.table(BESIDE.name).stale == ()
        rig.check(tables[1])

    def _wider(self) -> None:
        """A column more, and a snapshot: neither looks for a history."""
        rig, wider = self.rig, [*COLUMNS, ("more", "int8")]
        for table in (ALONE, BESIDE):
            now = relation(table.name, wider, numbers=(1, 2, 3, 4), oid=table.oid)
            rig.db.rows[table.name] = [(*row, None) for row in rig.db.rows[table.name]]
            rig.db.update(now, ["1"], more="5")
            rig.db.update(now, ["1"], unsent=["note"], more="6")
        self._commit()
        rig.apply()
        stored = LiveTables(self.spark, rig.output).current(ALONE.name)
        assert {row["id"]: row["more"] for row in stored.collect()} == {1: 6, 2: None, 3: None}
        for table in (ALONE, BESIDE):
            now = relation(table.name, COLUMNS, numbers=(1, 2, 3), oid=table.oid)
            rig.db.rows[table.name] = [row[:3] for row in rig.db.rows[table.name]]
            for part in rig.db.snapshot(now):
                rig.sink.write(part)
        rig.sink.flush()
        rig.apply()
        self._check()

    def _commit(self) -> TransactionPart:
        part = self.rig.db.commit()
        self._deliver(part)
        return part

    def _deliver(self, *parts: TransactionPart) -> None:
        for part in parts:
            self.rig.sink.write(batch(msgspec.structs.replace(part, changes=list(part.changes))))
        self.rig.sink.flush()

    def _check(self) -> None:
        self.rig.check(ALONE, BESIDE)
        tables = LiveTables(self.spark, self.rig.output)
        with pytest.raises(HistoryNotKept) as refused:
            tables.changes(ALONE.name)
        assert "history = keep" in str(refused.value)
        assert tables.changes(BESIDE.name).count() >= 3
        assert "alone" in tables.register()
        assert self.spark.catalog.tableExists("beside_changes")
        assert not self.spark.catalog.tableExists("alone_changes")
        state = self.rig.output.table(ALONE.name)
        used = {each.path for each in (*state.base, *state.pending)}
        assert {each.path for each in state.changes} <= used
        if state.held is not None:
            assert set(state.held.targets) == {"current"}

    def _check_what_cannot_be_without(self) -> None:
        assert "it has no key, and its history" in self.rig.output.table(LISTED.name).failed
        assert "rows of the past" in self.rig.output.table(VERSIONS.name).failed

    def close(self) -> None:
        self.rig.applier.close()
        self.rig.sink.close()
