"""Two pipelines, each with a change log and an output of its own, whose tables are one in a catalogue."""

import random
import threading
from pathlib import Path
from typing import Any

import pytest
from tests.harness.shared_sources import COLUMNS, INTO, RULES, anything, check, of
from tests.harness.spark import Rig

from waltap_spark import idle_tables
from waltap_spark.formats.choice import FormatChoice

__all__ = ["write_one_target"]

KINDS = ("plain", "versions")
TURNS = 3


def write_one_target(
    folder: Path, spark: Any, choice: FormatChoice, called: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """At the same time: random work of each, a driver that dies, a snapshot, columns that only one has.
    Then one rests, while the other writes, and whoever removes old versions does. ``called``: what SQL
    calls the target of `KINDS` in the catalogue."""
    options = {"modes": RULES, "places": INTO, "parallel": 2, "grace_s": 0.0}
    rigs = {tenant: Rig(folder / tenant, spark, choice, **options) for tenant in ("1", "2")}
    told = {tenant: [of(tenant, kind) for kind in KINDS] for tenant in rigs}
    failed: list[BaseException] = []

    def work(tenant: str) -> None:
        rig, chance = rigs[tenant], random.Random(int(tenant))
        try:
            for turn in range(TURNS):
                if turn == 2 and tenant == "1":
                    for table in told["1"]:
                        rig.db.rows[table.name] = [("77", "snap", None)]
                    for part in rig.db.snapshot(*told["1"]):
                        rig.sink.write(part)
                    rig.sink.flush()
                if turn == 2 and tenant == "2":
                    told["2"] = [of("2", kind, [*COLUMNS, ("more", "int4")]) for kind in KINDS]
                    for table in told["2"]:
                        rows = rig.db.rows.get(table.name, [])
                        given = "7" if table.table == "plain" else None
                        rig.db.rows[table.name] = [(*row, given) for row in rows]
                anything(rig, chance, told[tenant])
                if turn == 1:
                    for table in told[tenant]:
                        rig.db.insert(table, ["6", "sure", None])
                    rig.commit()
                    rig.apply_and_die()
                rig.apply()
        except BaseException as error:
            failed.append(error)

    workers = [threading.Thread(target=work, args=(tenant,)) for tenant in rigs]
    for each in workers:
        each.start()
    for each in workers:
        each.join()
    for error in failed:
        raise error
    for tenant, rig in rigs.items():
        check(rig, {tenant: told[tenant]}, KINDS)
    monkeypatch.setattr(idle_tables, "REST_S", 0.0)
    chance = random.Random(3)
    for _turn in range(TURNS):
        anything(rigs["1"], chance, told["1"])
        rigs["1"].apply()
        rigs["2"].apply()
    for tenant, rig in rigs.items():
        rig.reopen()
        check(rig, {tenant: told[tenant]}, KINDS)
    anything(rigs["2"], chance, told["2"])
    rigs["2"].apply()
    check(rigs["2"], {"2": told["2"]}, KINDS)
    for kind in KINDS:
        rows = spark.table(called.format(kind)).groupBy("_source").count().collect()
        wanted = {
            f"tenant {tenant}": rig.applier.state.tables[f"t{tenant}.{kind}"]
            for tenant, rig in rigs.items()
        }
        held = {
            source: rigs[source[-1]].applier.format.read(spark, table, "current").count()
            for source, table in wanted.items()
        }
        assert dict(map(tuple, rows)) == {source: count for source, count in held.items() if count}
    for rig in rigs.values():
        rig.applier.close()
        rig.sink.close()
