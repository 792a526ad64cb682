"""Files that were written in vain are gone before the driver is: a table that stands still fills no disk."""

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from tests.harness.changelog import context, relation
from tests.harness.spark import Rig

from waltap.mapping.type_mapping import TypeOptions
from waltap.mapping.type_registry import TypeRegistry
from waltap_postgres.types import TYPE_SPECS
from waltap_sinks.changelog import ChangeLogProperties, ChangeLogSink
from waltap_spark import retries, small_sets
from waltap_spark.applier import OutputApplier
from waltap_spark.errors import RowsAwaited
from waltap_spark.formats.choice import PARQUET
from waltap_spark.formats.parquet import ParquetFormat
from waltap_spark.modes import ModeRules

pytestmark = pytest.mark.usefixtures("quick_plans")

NUMBER = relation("public.odd", [("id", "int4"), ("v", "int4")])
TEXT = relation("public.odd", [("id", "int4"), ("v", "text")])
OTHERS = relation("public.others", [("id", "int4"), ("name", "text")])


@pytest.fixture
def rig(spark: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Rig]:
    """Tables that stand still are tried with every commit."""
    monkeypatch.setattr(retries, "RETRY_S", 0.0)
    made = Rig(tmp_path, spark, fold_rows=0, fold_share=0.0)
    yield made
    made.applier.close()
    made.sink.close()


@pytest.mark.parametrize("way", ["alone", "spark"])
def test_each_try_of_a_table_that_stands_still_takes_its_files_away(
    rig: Rig, way: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    if way == "spark":
        monkeypatch.setattr(small_sets, "SMALL_ROWS", 0)
    rig.db.insert(NUMBER, ["1", "5"])
    rig.commit()
    rig.apply()
    rig.db.update(NUMBER, ["1"], id="2")  # applied, and folded at once, before what does not fit
    rig.commit()
    rig.db.insert(TEXT, ["3", "five"])
    rig.commit()
    for tries in range(3):
        rig.db.insert(OTHERS, [str(tries), "goes on"])
        rig.commit()
        rig.apply()
        assert "from integer to string" in rig.output.table("odd").failed
        assert rig.folders() == rig.named_folders()
    rig.check(OTHERS)
    rig.reopen(type_change="string")
    rig.apply()
    rig.check(TEXT, OTHERS)


def test_a_commit_that_cannot_be_made_takes_the_files_of_all_tables_away(
    rig: Rig, monkeypatch: pytest.MonkeyPatch
) -> None:
    rig.db.insert(NUMBER, ["1", "5"])
    rig.commit()
    original = OutputApplier._attempt

    def attempt(self: OutputApplier, *arguments: Any) -> Any:
        original(self, *arguments)
        raise RowsAwaited("nobody has them", changelog="", nobody=False)

    with monkeypatch.context() as patch:
        patch.setattr(OutputApplier, "_attempt", attempt)
        with pytest.raises(RowsAwaited):
            rig.apply()
    assert rig.folders() == set()
    rig.apply()
    rig.check(NUMBER)


def test_what_a_commit_itself_does_not_need_goes_with_it(spark: Any, tmp_path: Path) -> None:
    """Without a history changes that were folded in the commit that brought them are nothing."""
    rig = Rig(tmp_path, spark, modes=ModeRules(history=("none",)))
    for number in range(3):
        rig.db.insert(OTHERS, [str(number), "x"])
        rig.db.update(OTHERS, [str(number)], id=str(number + 100))
        rig.commit()
        rig.apply()
        assert rig.folders() == rig.named_folders()
    rig.check(OTHERS)
    rig.applier.close()
    rig.sink.close()


@pytest.mark.parametrize("table_format", [PARQUET, "delta"])
def test_copies_of_segments_that_spark_does_not_read_are_gone_with_their_commit(
    delta: Any, tmp_path: Path, table_format: str
) -> None:
    wide = relation("public.wide", [("id", "int4"), ("n", "numeric(60,10)")])
    rig = Rig(tmp_path, delta, table_format)
    rig.sink.close()
    options = TypeOptions(arrow_unconstrained_numeric="decimal256")
    settings = replace(context(tmp_path, resumes=True), types=TypeRegistry(TYPE_SPECS, options))
    rig.sink = ChangeLogSink(ChangeLogProperties(path=str(tmp_path / "log")), settings)
    rig.sink.open()
    rig.db.insert(wide, ["1", "9" * 40 + "." + "1" * 10])
    rig.commit()
    rig.apply()
    assert rig.folders() - {path for path in rig.folders() if "/delta/" in path} == (
        rig.named_folders()
    )
    rig.check(wide)
    rig.applier.close()
    rig.sink.close()


def test_upkeep_that_fails_leaves_nothing(rig: Rig, monkeypatch: pytest.MonkeyPatch) -> None:
    rig.db.insert(OTHERS, ["1", "x"])
    rig.commit()
    rig.apply()
    rig.db.update(OTHERS, ["1"], name="y")
    rig.commit()
    rig.applier.apply(list(rig.log.manifests(rig.applier.state.mark)))
    tended: list[set[str]] = []

    def fail(*_arguments: Any) -> Any:
        tended.append(rig.folders() - rig.named_folders())
        raise ArithmeticError

    with monkeypatch.context() as patch:
        patch.setattr(ParquetFormat, "_merge", fail)
        with pytest.raises(ArithmeticError):
            rig.applier.maintain()
    assert [len(each) for each in tended] == [1], "what was folded"
    assert rig.folders() == rig.named_folders()
    rig.apply()
    rig.check(OTHERS)
