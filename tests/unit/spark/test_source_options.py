"""Options of ``format("waltap")`` are checked, each by its name."""

from pathlib import Path

import pytest
from tests.harness.changelog import Database, batch, context, relation

from waltap_sinks.changelog import ChangeLog, ChangeLogProperties, ChangeLogSink, LogPosition
from waltap_spark.source.catalogue import source_struct
from waltap_spark.source.errors import SourceOption
from waltap_spark.source.options import LogBoundary, parse_options

GOOD = {"path": "log", "table": "public.people"}


@pytest.mark.parametrize(
    ("given", "told"),
    [
        ({"table": "public.people"}, "no path"),
        ({"path": "log"}, "either table"),
        ({**GOOD, "tables": "*"}, "either table"),
        ({"path": "log", "table": "people"}, "no schema"),
        ({**GOOD, "maxRowsPerBatch": "0"}, "maxRowsPerBatch is 0"),
        ({**GOOD, "maxBytesPerBatch": "many"}, "maxBytesPerBatch is many"),
        ({**GOOD, "newColumns": "maybe"}, "newColumns is maybe, not fail or ignore"),
        ({**GOOD, "startingPosition": "now"}, "startingPosition is now, not earliest"),
        ({**GOOD, "startingPosition": "0/XYZ"}, "startingPosition is 0/XYZ"),
        ({**GOOD, "endingTime": "noon"}, "endingTime is noon, not a time"),
        ({**GOOD, "endingTime": "2026-01-01", "endingPosition": "latest"}, "not both"),
        ({**GOOD, "maxrows": "1"}, "option maxrows is not known"),
        ({**GOOD, "profile": "a.toml"}, "path is of a change log, not of a profile"),
        ({"profile": "a.toml", "table": "s.t", "reader": "x"}, "reader is of a change log"),
        ({**GOOD, "spool": "folder"}, "spool is where the engine of a profile writes"),
    ],
)
def test_what_is_wrong_is_named(given: dict[str, str], told: str) -> None:
    with pytest.raises(SourceOption, match="WT-5221") as caught:
        parse_options(given)
    assert told in str(caught.value)


def test_positions_are_words_lsns_marks_and_times() -> None:
    found = parse_options({**GOOD, "STARTINGPOSITION": "1/2A", "endingTime": "1970-01-01T00:00:01"})
    assert found.start == LogBoundary(lsn=(1 << 32) + 0x2A)
    assert found.end == LogBoundary(time=1_000_000)
    marked = parse_options({**GOOD, "startingPosition": str(LogPosition(2, 16, 3))})
    assert marked.start == LogBoundary(mark=LogPosition(2, 16, 3))
    assert parse_options(GOOD).end == LogBoundary("latest")


def test_profiles_are_files_with_commas_between() -> None:
    found = parse_options({"profile": "a.toml, b.toml", "table": "s.t", "spool": "s3://lake/spool"})
    assert (found.profiles, found.spool) == (("a.toml", "b.toml"), "s3://lake/spool")


def test_tables_are_wanted_by_pattern() -> None:
    found = parse_options({"path": "log", "tables": "public.a*, sales.x"})
    assert [n for n in ("public.ab", "public.b", "sales.x") if found.wants(n)] == [
        "public.ab",
        "sales.x",
    ]


@pytest.mark.parametrize("name", ["_epoch", "_generation"])
def test_a_column_called_as_one_of_the_data_sources_own_is_not_lost(
    tmp_path: Path, name: str
) -> None:
    people = relation("public.people", [("id", "int4"), (name, "text")])
    sink = ChangeLogSink(ChangeLogProperties(path=str(tmp_path / "log")), context(tmp_path))
    db = Database()
    sink.open()
    db.insert(people, ["1", "mine"])
    sink.write(batch(db.commit()))
    sink.flush()
    sink.close()
    log, path = ChangeLog(str(tmp_path / "log")), {"path": str(tmp_path / "log")}
    with pytest.raises(SourceOption, match=f"public.people has a column {name} itself: use tables"):
        source_struct(log, parse_options({**path, "table": people.name}))
    struct = source_struct(log, parse_options({**path, "tables": people.name}))
    assert struct[people.name].dataType[name].dataType.typeName() == "string"
