"""The SQL sink on a database of the test's own, fed by hand."""

from pathlib import Path
from typing import Any

import msgspec

from tests.harness.changelog import context
from tests.harness.servers.postgres import Database
from waltap_sinks.sql import SqlProperties, SqlSink

SCHEMA = "replica"


def properties(url: str, **more: Any) -> SqlProperties:
    """Return properties; names are given with _ for the dot, or as fields are called."""
    given = {"url": url, "table.name.format": f"{SCHEMA}.{{table}}"}
    return SqlProperties.model_validate(
        given | {name.replace("_", "."): value for name, value in more.items()}
    )


def sink(database: Database, folder: Path, *, resumes: bool = True, **more: Any) -> SqlSink:
    """Return the sink into the schema ``replica`` of ``database``, not opened."""
    return SqlSink(properties(database.dsn, **more), context(folder, resumes=resumes))


def opened(database: Database, folder: Path, **more: Any) -> SqlSink:
    made = sink(database, folder, **more)
    made.open()
    return made


def texts(database: Database, table: str, *columns: str) -> list[tuple[str | None, ...]]:
    """Return the rows of ``replica.table`` as texts, sorted."""
    names = ", ".join(f'"{column}"::text' for column in columns)
    with database.connect() as connection:
        connection.execute("SET DateStyle = 'ISO, MDY'")
        connection.execute("SET TimeZone = 'UTC'")
        return sorted(connection.execute(f"SELECT {names} FROM {SCHEMA}.{table}"), key=str)


def model(rows: Any) -> list[tuple[str | None, ...]]:
    """Return the rows that the hand-made server has, sorted as `texts` gives them."""
    return sorted(map(tuple, rows), key=str)


def copy_of(part: Any) -> Any:
    """Return a part as it is delivered again."""
    return msgspec.structs.replace(part, changes=list(part.changes))
