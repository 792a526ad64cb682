"""Lakes in a folder: sinks into them, and their tables, read by other means than the sinks: Delta's log by hand,
Iceberg by a catalogue of our own."""

import contextlib
import json
import shutil
import urllib.parse
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
from deltalake import DeltaTable, write_deltalake
from pyarrow import parquet
from pyiceberg.catalog import Catalog, load_catalog
from pyiceberg.exceptions import NoSuchTableError
from pyiceberg.table import Table
from tests.harness.changelog import batch, context

from waltap.changes.transactions.position import Position, Positions
from waltap.ports.sink.sink import Sink
from waltap_lake.plugin import register_sinks
from waltap_lake.properties import DeltaLakeProperties, IcebergLakeProperties


def delta_rows(table: Path) -> pa.Table:
    """Return the rows of a Delta table on disk: the files that its log has added and not removed."""
    files, schema = {}, None
    for entry in sorted((table / "_delta_log").glob("*.json")):
        for line in entry.read_text().rstrip("\n").split("\n"):
            for action, about in json.loads(line).items():
                if action == "add":
                    assert not about.get("deletionVector")
                    files[about["path"]] = None
                elif action == "remove":
                    files.pop(about["path"], None)
                elif action == "metaData":
                    schema = json.loads(about["schemaString"])
    assert schema is not None, f"{table} is no Delta table"
    names = [field["name"] for field in schema["fields"]]
    parts = [parquet.read_table(table / urllib.parse.unquote(name)) for name in files]
    if not parts:
        return pa.table({name: pa.nulls(0) for name in names})
    return pa.concat_tables(parts, promote_options="permissive").select(names)


def catalog_settings(folder: Path) -> dict[str, str]:
    """Return the settings of a catalogue on SQLite, with its tables below ``folder``."""
    return {
        "type": "sql",
        "uri": f"sqlite:///{folder / 'catalog.db'}",
        "warehouse": f"file://{folder / 'warehouse'}",
    }


def catalog(folder: Path) -> Catalog:
    """Open the catalogue; the caller closes it."""
    return load_catalog("waltap", **catalog_settings(folder))


def iceberg_rows(folder: Path, name: str) -> pa.Table | None:
    """Return the rows of a table of the catalogue, None without it."""
    opened = catalog(folder)
    try:
        return opened.load_table(name).scan().to_arrow()
    except NoSuchTableError:
        return None
    finally:
        opened.close()


def in_order(rows: pa.Table) -> list[dict[str, object]]:
    """Return rows of changes in the order of the source; those of a snapshot, which have none, by id."""

    def order(row: dict[str, object]) -> object:
        read = row["_op"] == "r"
        return row["_commit_lsn"], row["_seq"], row["_sub"], row["id"] if read else 0

    return sorted(rows.to_pylist(), key=order)


class Lake:
    """A lake of one format, the sink that writes to it, and what the owner of its tables does to them by the format's
    own means."""

    def __init__(self, kind: str, folder: Path) -> None:
        self.kind, self.folder = kind, folder
        if kind == "delta":
            self.properties = {"path": str(folder / "lake")}
        else:
            given = catalog_settings(folder).items()
            self.properties = {f"catalog.{name}": value for name, value in given}
        self.writer = self.sink()

    def open(self, **more: Any) -> Position | Positions | None:
        """Close the sink, and open the next one."""
        self.writer.close()
        self.writer = self.sink(**more)
        return self.writer.open()

    def take(self, *parts: Any) -> Position | Positions | None:
        """Write transactions in one batch, and flush."""
        self.writer.write(batch(*parts))
        return self.writer.flush()

    def sink(self, **more: Any) -> Sink:
        """Return a sink, not opened."""
        given: Any
        if self.kind == "delta":
            given = DeltaLakeProperties.model_validate({**self.properties, **more})
        else:
            given = IcebergLakeProperties.model_validate({"catalog.NAME": self.properties, **more})
        specs = {spec.name: spec for spec in register_sinks()}
        return specs[self.kind].factory(given, context(self.folder, has_offset=True))

    def settings(self) -> dict[str, str]:
        return {"sink.type": self.kind} | {f"sink.{n}": v for n, v in self.properties.items()}

    def table(self, table: str = "t") -> pa.Table | None:
        if self.kind == "delta":
            path = self.path(table)
            return delta_rows(path) if path.is_dir() else None
        return iceberg_rows(self.folder, f"public.{table}")

    def rows(self, table: str = "t") -> list[dict[str, Any]]:
        found = self.table(table)
        assert found is not None
        return in_order(found)

    def ids(self, table: str = "t") -> list[int]:
        """Return the ids of the changes, sorted; none without the table."""
        found = self.table(table)
        return [] if found is None else sorted(found.column("id").to_pylist())

    def path(self, table: str) -> Path:
        return self.folder / "lake" / "public" / table

    def remove(self, table: str = "t") -> None:
        if self.kind == "delta":
            shutil.rmtree(self.path(table))
        else:
            with contextlib.closing(catalog(self.folder)) as opened:
                opened.drop_table(f"public.{table}")

    def rename_away(self, table: str = "t") -> None:
        """Give a table the name that it has, and ``_old``."""
        if self.kind == "delta":
            self.path(table).rename(self.path(f"{table}_old"))
        else:
            with contextlib.closing(catalog(self.folder)) as opened:
                opened.rename_table(f"public.{table}", f"public.{table}_old")

    def make_anew(self) -> None:
        """Make a table of the same name and columns, without rows."""
        if self.kind == "delta":
            schema = DeltaTable(self.path("t")).schema()
            self.remove()
            DeltaTable.create(self.path("t"), schema)
        else:
            with contextlib.closing(catalog(self.folder)) as opened:
                schema = opened.load_table("public.t").schema()
                opened.drop_table("public.t")
                opened.create_table("public.t", schema)

    def make_anew_and_fill(self) -> None:
        """Make a table of the same name and columns, with more commits than the one before."""
        commits = DeltaTable(self.path("t")).version() + 2 if self.kind == "delta" else 2
        self.make_anew()
        if self.kind == "delta":
            rows = DeltaTable(self.path("t")).to_pyarrow_table()
            for _ in range(commits):
                write_deltalake(self.path("t"), rows, mode="append")
        else:
            with self._iceberg() as found:
                for _ in range(commits):
                    found.append(found.scan().to_arrow())

    def current(self) -> int:
        """Return the version, or snapshot, that the table is at."""
        if self.kind == "delta":
            return DeltaTable(self.path("t")).version()
        with self._iceberg() as found:
            return found.metadata.current_snapshot_id or 0

    def restore(self, version: int | None = None) -> None:
        """Put the table back by one commit, or to ``version``."""
        if self.kind == "delta":
            table = DeltaTable(self.path("t"))
            table.restore(table.version() - 1 if version is None else version)
            return
        with self._iceberg() as found:
            snapshot = found.current_snapshot()
            assert snapshot is not None
            given = version or snapshot.parent_snapshot_id
            found.manage_snapshots().set_current_snapshot(snapshot_id=given).commit()

    def put_back(self) -> None:
        """Put a copy in the table's place that lacks the last commit; a catalogue restores it."""
        if self.kind == "delta":
            max((self.path("t") / "_delta_log").glob("*.json")).unlink()
        else:
            self.restore()

    def maintain(self) -> None:
        """Rewrite the rows in another commit, and drop what was before it, as an owner does."""
        if self.kind == "delta":
            table = DeltaTable(self.path("t"))
            table.optimize.compact()
            table.vacuum(0, dry_run=False, enforce_retention_duration=False)
            table.create_checkpoint()
            return
        with self._iceberg() as found:
            found.overwrite(found.scan().to_arrow())
            old = [each.snapshot_id for each in found.snapshots()]
            current = found.current_snapshot()
            assert current is not None
            old.remove(current.snapshot_id)
            found.maintenance.expire_snapshots().by_ids(old).commit()

    @contextlib.contextmanager
    def _iceberg(self) -> Iterator[Table]:
        with contextlib.closing(catalog(self.folder)) as opened:
            yield opened.load_table("public.t")
