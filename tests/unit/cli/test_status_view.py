"""What `waltap status` and `waltap top` draw of a pipeline."""

import dataclasses
import io
from typing import Any

import msgspec
import pytest
from rich.console import Console, RenderableType

from waltap.base.text import ago, full_in, size
from waltap.changes.transactions.position import Position
from waltap.cli.commands.status import members, report
from waltap.plugins.host import Host
from waltap.ports.sink.roles import DownstreamProgress, DownstreamTable
from waltap.services.monitor.counts import SnapshotTableProgress, TableStatus
from waltap.services.monitor.status import (
    PartitionStatus,
    PipelineStatus,
    RecentFailure,
    SchemaChange,
    status_document,
)
from waltap.services.monitor.views import overview, run_view

AT = 1_000_000_000


def partitions(lag_bytes: int) -> tuple[PartitionStatus, ...]:
    position = Position(0x100)
    part = PartitionStatus(
        name="", received_lsn=0x300, written=position, durable=position, confirmed_lsn=0x100,
        server_lsn=0x400, lag_bytes=lag_bytes, lag_ms=65_000,
    )  # fmt: skip
    return (part,)


def document(name: str, **changes: Any) -> dict[str, Any]:
    status = PipelineStatus(
        pipeline=name, at_ms=AT, started_ms=AT - 7_200_000, state="streaming",
        state_since_ms=AT - 90_000, partitions=partitions(0x300), events=1234, transactions=7,
        events_per_second=((3, 10.0), (60, 5.0)), captured_tables=("public.a", "public.b[x]"),
    )  # fmt: skip
    status = dataclasses.replace(status, **changes)
    return msgspec.json.decode(msgspec.json.encode(status_document(status)))


def drawn(view: RenderableType) -> str:
    out = io.StringIO()
    Console(file=out, width=200, highlight=False).print(view)
    return out.getvalue()


def line(name: str, run: dict[str, Any] | None, problem: str = "") -> dict[str, Any]:
    return {"pipeline": name, "run": run, "stored_ms": None, "problem": problem}


def test_a_run_shows_where_it_is_and_what_went_wrong():
    failure = RecentFailure(
        at_ms=AT - 5000, code="WT-2001", problem="the link [broke]", retried=True
    )
    tables = (
        SnapshotTableProgress(table="public.big", rows=500, estimate=1000),
        SnapshotTableProgress(table="public.a", rows=3, estimate=3, complete=True),
    )
    failure = dataclasses.replace(failure, remedy="Mend it.", times=3)
    spark = DownstreamProgress(
        stage="spark", lsn=0x80, lag_bytes=0x80, current=False, committed_ms=AT - 30_000,
        tables=(DownstreamTable(table="public.a", lsn=0x70, failed="no [key]"),),
    )  # fmt: skip
    busy = TableStatus(
        table="public.a", creates=5, updates=6, deletes=7, truncates=0, reads=3,
        commit_lsn=0x90, committed_ms=AT - 3000,
    )  # fmt: skip
    ddl = SchemaChange(at_ms=AT - 60_000, table="public.b[x]", what="c: added (text)")
    reported = drawn(
        run_view(
            document(
                "shop", failures=(failure,), snapshot=tables, reconnects=2, downstream=(spark,),
                tables=(busy,), schema_changes=(ddl,), dead_letters=2, left_out=4, open_gaps=1,
            )
        )
    )  # fmt: skip
    for said in (
        "streaming for 90 s", "1,234 events (0 from snapshots)", "started 2 h ago",
        "768 bytes; the last change came 65 s after its commit",
        "server 0/400, received 0/300", "WT-2001 5 s ago, 3 times, retried: the link [broke]", "Mend it.",
        "0/80, 128 bytes behind the sink, its last commit is 30 s old; 1 table suspended: no [key]",
        "5 inserts, 6 updates, 7 deletes; 3 s ago at 0/90", "public.b[x] c: added (text), 60 s ago",
        "4 events, 2 stored as dead letters", "waltap repair",
        "500 rows of about 1,000", "1 table read", "2 reconnects", "public.b[x]",
    ):  # fmt: skip
        assert said in reported


def test_a_stage_without_a_commit_is_not_compared():
    spark = DownstreamProgress(stage="spark", lsn=0, lag_bytes=None, current=False)
    reported = drawn(run_view(document("shop", downstream=(spark,))))
    assert "nothing applied yet" in reported
    assert "behind the sink" not in reported


@pytest.mark.parametrize(
    ("order", "names"), [("name", "abc"), ("lag", "cab"), ("rate", "acb"), ("state", "bac")]
)
def test_the_order_of_lines(order, names):
    found = [
        line("a", document("a", partitions=partitions(5), events_per_second=((3, 9.0),))),
        line("b", None),
        line("c", document("c", partitions=partitions(7), events_per_second=((3, 1.0),))),
    ]
    reported = [
        text.split()[0] for text in drawn(overview(found, order)).splitlines()[3:] if text.strip()
    ]
    assert "".join(reported) == names


def test_spans_and_sizes():
    assert [ago(ms) for ms in (-5, 1500, 600_000, 7_200_000, 864_000_000)] == [
        "0 s", "2 s", "10 min", "2 h", "10 days",
    ]  # fmt: skip
    assert [size(octets) for octets in (None, 7, 2048, 3 << 40)] == [
        "?",
        "7 bytes",
        "2.0 KiB",
        "3.0 TiB",
    ]


def test_a_folder_has_the_pipelines_of_its_profiles_or_of_its_states(tmp_path):
    profiles, states = tmp_path / "profiles", tmp_path / "profiles" / ".waltap"
    (states / "old").mkdir(parents=True)
    (states / "old" / "offset.json").write_text("{}")
    (states / "empty").mkdir()
    source = "[source]\ntype = 'postgres'\n'database.hostname' = 'h'\n'database.dbname' = 'd'\n"
    (profiles / "one.toml").write_text(f"name = 'first'\n{source}'database.user' = 'u'\n")
    (profiles / "torn.toml").write_text("[source]\nnothing")
    (profiles / "other.toml").write_text("[project]\nname = 'x'\n")
    found = {each.name: each for each in members(profiles, Host())}
    assert set(found) == {"first", "torn"}
    assert found["first"].state_dir == states / "first"
    assert report(found["torn"])["problem"]
    assert report(found["first"]) | {"origin": ""} == {
        "pipeline": "first", "origin": "", "run": None, "stored_ms": None, "problem": "",
    }  # fmt: skip
    (old,) = members(states, Host())
    assert (old.name, report(old)["stored_ms"] is not None) == ("old", True)


def test_a_forecast_of_more_than_a_year_says_nothing():
    assert full_in(102_921 * 86_400.0) == "not full within a year"
    assert full_in(7200) == "full in 2 h"
    assert size(195_673_608) == "186.6 MiB"
