"""When tables at rest are looked at: not all of them in one go, where that takes long."""

from collections.abc import Mapping
from queue import SimpleQueue
from typing import Any, cast

import pytest

from waltap_sinks.changelog.manifest import NOTHING
from waltap_spark import idle_tables
from waltap_spark.formats import CommitContext, TableFormat
from waltap_spark.idle_tables import IdleTables
from waltap_spark.output import OutputState, TableState
from waltap_spark.session import SizedSession


class Looks:
    """Which tables a format was asked for."""

    def __init__(self) -> None:
        self.asked: list[str] = []

    def rested(
        self, _step: CommitContext, tables: Mapping[str, TableState]
    ) -> Mapping[str, TableState]:
        self.asked += tables
        return {name: each for name, each in tables.items() if name.endswith("3")}


class Session:
    """A session that only has settings: nothing is asked of Spark here."""

    _jvm = None

    def __init__(self) -> None:
        self.conf = self

    def get(self, _name: str) -> str:
        return ""


def test_what_takes_long_is_looked_at_in_turns_and_not_again_before_the_rest_is_over(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(idle_tables, "SHARE_S", 0.0)
    names = [f"t{number}" for number in range(25)]
    tables = {name: TableState(schema="public", table=name) for name in names}
    looks = Looks()
    state = cast(OutputState, type("State", (), {"number": 1, "mark": NOTHING, "tables": tables}))
    rests = IdleTables(cast(TableFormat, looks))
    spark = SimpleQueue[SizedSession]()
    spark.put(SizedSession(cast(Any, Session())))
    assert list(rests.found(spark, state)) == ["t3"]
    assert looks.asked == names[:10]
    del tables["t12"]
    assert list(rests.found(spark, state)) == ["t13"]
    assert list(rests.found(spark, state)) == ["t23"]
    assert looks.asked == [name for name in names if name != "t12"]
    assert rests.found(spark, state) == {}
    assert len(looks.asked) == len(tables)
    monkeypatch.setattr(idle_tables, "REST_S", 0.0)
    rests._next = 0.0
    rests.found(spark, state)
    assert looks.asked[-10:] == names[:10]
