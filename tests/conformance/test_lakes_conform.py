"""The sinks of lakes keep the kit's promises on real tables."""

import contextlib
import sqlite3
from collections.abc import Callable, Iterator
from pathlib import Path

import pyarrow as pa
import pytest
from tests.harness.lakes import catalog_settings, delta_rows, iceberg_rows, in_order

from waltap_lake.plugin import register_sinks
from waltap_lake.properties import DeltaLakeProperties, IcebergLakeProperties
from waltap_testing.sinks.losses import keeping
from waltap_testing.suites.sink import DeliveredChange, SinkRig, SinkSuite

SPECS = {spec.name: spec for spec in register_sinks()}
TABLES = ("items", "notes", "kinds")


def delivered(table: str, rows: pa.Table) -> list[DeliveredChange]:
    return [
        DeliveredChange(
            f"public.{table}",
            str(row["_op"]),
            {name: value for name, value in row.items() if not name.startswith("_")},
        )
        for row in in_order(rows)
    ]


@contextlib.contextmanager
def refusing(folder: Path) -> Iterator[None]:
    """Put a file where the tables were: nothing can be written there, not even by root."""
    away = folder.with_suffix(".away")
    folder.rename(away)
    folder.write_text("in the way")
    try:
        yield
    finally:
        folder.unlink()
        away.rename(folder)


def kept_catalog(path: Path) -> Callable[[], None]:
    """Keep a catalogue; the files that its tables name stay."""
    kept = sqlite3.connect(":memory:")
    with contextlib.closing(sqlite3.connect(path)) as there:
        there.backup(kept)

    def put_back() -> None:
        with contextlib.closing(sqlite3.connect(path)) as there:
            kept.backup(there)

    return put_back


class TestDelta(SinkSuite):
    @pytest.fixture
    def new_rig(self) -> Callable[[Path], SinkRig]:
        def make(folder: Path) -> SinkRig:
            lake = folder / "lake"

            def read_back() -> list[DeliveredChange]:
                there = [table for table in TABLES if (lake / "public" / table).is_dir()]
                return [d for t in there for d in delivered(t, delta_rows(lake / "public" / t))]

            return SinkRig(
                SPECS["delta"],
                DeltaLakeProperties(path=str(lake)),
                read_back,
                forks=False,  # delta-rs has threads of its own; tests/fault kills it for real
                asks=True,
                outage=lambda: refusing(lake),
                keep=keeping(lake),
            )

        return make


class TestIceberg(SinkSuite):
    @pytest.fixture
    def new_rig(self) -> Callable[[Path], SinkRig]:
        def make(folder: Path) -> SinkRig:
            settings = catalog_settings(folder)

            def read_back() -> list[DeliveredChange]:
                found = [(table, iceberg_rows(folder, f"public.{table}")) for table in TABLES]
                return [d for t, rows in found if rows is not None for d in delivered(t, rows)]

            given = {f"catalog.{name}": value for name, value in settings.items()}
            return SinkRig(
                SPECS["iceberg"],
                IcebergLakeProperties.model_validate({"catalog.NAME": given}),
                read_back,
                asks=True,
                outage=lambda: refusing(folder / "warehouse"),
                keep=lambda: kept_catalog(folder / "catalog.db"),
            )

        return make
