"""A stream of a change log, asked as Spark asks it: offsets, and the rows between two of them."""

from collections.abc import Iterator
from pathlib import Path

import pytest
from waltap_sinks.changelog import ChangeLog, ChangeLogProperties, ChangeLogSink
from waltap_spark.source.catalogue import source_struct
from waltap_spark.source.errors import SourceOption
from waltap_spark.source.options import parse_options
from waltap_spark.source.stream import ChangeLogStream

from tests.rigs.changelog import Database, batch, context, relation

PEOPLE = relation("public.people", [("id", "int4"), ("name", "text")])


class Log:
    """A change log, the server behind it, and streams over it."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.path, self.db = folder, str(folder / "log"), Database()
        self.sink = self.opened()

    def opened(self) -> ChangeLogSink:
        sink = ChangeLogSink(ChangeLogProperties(path=self.path), context(self.folder))
        sink.open()
        return sink

    def people(self, *names: str) -> None:
        """One flush, with a transaction for each name."""
        parts = []
        for name in names:
            self.db.insert(PEOPLE, [str(len(self.db.rows.get(PEOPLE.name, []))), name])
            parts.append(self.db.commit())
        self.sink.write(batch(*parts))
        self.sink.flush()

    def stream(self, **options: str) -> ChangeLogStream:
        given = parse_options({"path": self.path, "table": PEOPLE.name, **options})
        return ChangeLogStream(given, source_struct(ChangeLog(self.path), given))


@pytest.fixture
def log(tmp_path: Path) -> Iterator[Log]:
    made = Log(tmp_path)
    made.people("Ann")
    yield made
    made.sink.close()


@pytest.mark.parametrize(
    ("option", "value"),
    [("endingPosition", "0/1"), ("endingTime", "2026-01-01"), ("standing", "true")],
)
def test_what_is_of_a_batch_is_refused(log: Log, option: str, value: str) -> None:
    with pytest.raises(SourceOption, match=f"WT-5221 {option} is of a batch, not of a stream"):
        log.stream(**{option: value})
