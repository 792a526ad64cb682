"""Tables of lakes, read by other means than the sinks: Delta's log by hand, Iceberg by a catalogue of our own."""

import json
import urllib.parse
from pathlib import Path

import pyarrow as pa
from pyarrow import parquet

__all__ = ["catalog", "catalog_settings", "delta_rows", "iceberg_rows", "in_order"]


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


def catalog(folder: Path):
    """Open the catalogue; the caller closes it."""
    from pyiceberg.catalog import load_catalog

    return load_catalog("waltap", **catalog_settings(folder))


def iceberg_rows(folder: Path, name: str) -> pa.Table | None:
    """Return the rows of a table of the catalogue, None without it."""
    from pyiceberg.exceptions import NoSuchTableError

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
