"""Positions of the source as text mean one thing wherever they are given."""

from pathlib import Path
from typing import Any

import msgspec
import pytest

from waltap_sinks.changelog.manifest import LogPosition
from waltap_spark.errors import MomentUnread, VersionGone
from waltap_spark.live import LiveTables
from waltap_spark.output import SparkOutput
from waltap_spark.positions import parse_position
from waltap_spark.source.errors import SourceOption
from waltap_spark.source.options import LogBoundary, parse_options

NONE = ["/", "yesterday", "1A", "1A/XYZ", "1/2/3", "-1/5", "2026-03-01", "1-2", "1-2-x"]


@pytest.mark.parametrize("text", ["0001-000000000000001a-000002", " 0001-000000000000001A-000002 "])
def test_marks_are_read_as_they_are_printed(text: str) -> None:
    assert parse_position(text) == LogPosition(1, 0x1A, 2)
    assert parse_position(str(LogPosition(0x12345, 1 << 63, 1 << 30))) == LogPosition(
        0x12345, 1 << 63, 1 << 30
    )


def test_lsns_are_read_as_postgresql_prints_them() -> None:
    assert parse_position("1A/2b3C") == (0x1A << 32) + 0x2B3C


@pytest.mark.parametrize("text", NONE)
def test_what_is_neither_is_refused_where_it_is_given(tmp_path: Path, text: str) -> None:
    output, no_spark = SparkOutput(str(tmp_path)), Any
    state = msgspec.structs.replace(output.open("log", "id"), number=1, mark=LogPosition(1, 16, 0))
    output.commit(state)
    output.close()
    with pytest.raises(MomentUnread, match=f"WT-5264 '{text}' is neither an LSN nor a mark"):
        LiveTables(no_spark, output).at(text)
    with pytest.raises(VersionGone, match="LSN 11 was not applied yet"):
        LiveTables(no_spark, output).at("0/11")
    given = {"path": "log", "table": "public.people"}
    with pytest.raises(SourceOption, match=f"WT-5221 startingPosition is {text}, not earliest"):
        parse_options({**given, "startingPosition": text})
    assert parse_options({**given, "startingPosition": "0/11"}).start == LogBoundary(lsn=0x11)
