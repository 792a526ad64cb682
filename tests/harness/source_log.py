"""A change log, the server behind it, and what the data source reads of it without a session."""

import json
import pickle
from pathlib import Path
from typing import Any

from pyspark.sql.types import StructType
from tests.harness.changelog import WrittenLog, relation

from waltap_sinks.changelog import ChangeLog
from waltap_spark.read.catalogue import source_struct
from waltap_spark.read.data_source import ChangeLogSource
from waltap_spark.read.options import parse_options
from waltap_spark.read.stream import ChangeLogStream

PEOPLE = relation("public.people", [("id", "int4"), ("name", "text")])
Offset = dict[str, Any]


class SourceLog(WrittenLog):
    """A change log, the server behind it, and streams over it."""

    def __init__(self, folder: Path) -> None:
        super().__init__(folder)
        self.open()

    def people(self, *names: str) -> None:
        """One flush, with a transaction for each name."""
        parts = []
        for name in names:
            self.db.insert(PEOPLE, [str(len(self.db.rows.get(PEOPLE.name, []))), name])
            parts.append(self.db.commit())
        self.flush(*parts)

    def stream(self, **options: str) -> ChangeLogStream:
        given = parse_options({"path": self.path, "table": PEOPLE.name, **options})
        return ChangeLogStream(given, source_struct(ChangeLog(self.path), given))

    def frame(self, **options: str) -> "Frame":
        return Frame({"path": self.path, "table": PEOPLE.name, **options})


class Frame:
    """What Spark keeps of `load()`: the source, as it was sent once its schema was asked for, and that
    schema. Every start and every action makes a reader of it."""

    def __init__(self, options: dict[str, str], schema: StructType | None = None) -> None:
        """``schema``: given by the user, who is not asked for one then."""
        source = ChangeLogSource(options)
        self.schema = source.schema() if schema is None else schema
        self.sent = pickle.dumps(source)

    def stream(self) -> Any:
        return pickle.loads(self.sent).streamReader(self.schema)

    def batch(self) -> Any:
        return pickle.loads(self.sent).reader(self.schema)

    def streamed(self) -> list[dict[str, Any]]:
        """What a stream has from its beginning to the log's end."""
        stream = self.stream()
        began = stream.initialOffset()
        end = stream.latestOffset(began, stream.getDefaultReadLimit())
        return of_tasks(stream, stream.partitions(*json.loads(json.dumps((began, end)))))

    def rows(self) -> list[dict[str, Any]]:
        reader = self.batch()
        return of_tasks(reader, reader.partitions())


def of_tasks(reader: Any, tasks: list[Any]) -> list[dict[str, Any]]:
    """The rows of tasks, which were sent to another process."""
    sent = pickle.loads(pickle.dumps(tasks))
    return [row for task in sent for part in reader.read(task) for row in part.to_pylist()]
