"""The status page of a pipeline that runs, asked as Prometheus, a browser and a probe ask."""

import json
import re
import urllib.error
import urllib.request
from collections.abc import Iterator

import pytest
from prometheus_client.parser import text_string_to_metric_families
from tests.harness.pipeline import Run

from waltap.services.monitor.metrics import METRICS
from waltap.services.monitor.server import MonitorServer

pytestmark = pytest.mark.pipeline(
    sql="CREATE TABLE t (id int PRIMARY KEY, v text); INSERT INTO t VALUES (1), (2);"
    "CREATE TABLE u (id int PRIMARY KEY)"
)


@pytest.fixture
def seen(pipeline) -> Iterator[tuple[Run, MonitorServer]]:
    with pipeline.monitored() as made:
        yield made


def ask(
    monitor: MonitorServer, path: str, body: object = None, **headers: str
) -> tuple[int, bytes]:
    text = body if isinstance(body, bytes) else json.dumps(body).encode()
    data = None if body is None else text
    if data is not None:
        headers.setdefault("Content-Type", "application/json")
    url = f"http://127.0.0.1:{monitor.port}{path}"
    request = urllib.request.Request(url, data=data, headers=headers)
    try:
        with urllib.request.urlopen(request, timeout=120) as answer:
            return answer.status, answer.read()
    except urllib.error.HTTPError as error:
        return error.code, error.read()


def samples(monitor: MonitorServer) -> dict[tuple[str, ...], float]:
    status, text = ask(monitor, "/metrics")
    assert status == 200
    return {
        (
            sample.name,
            *(v for k, v in sorted(sample.labels.items()) if k != "pipeline"),
        ): sample.value
        for family in text_string_to_metric_families(text.decode())
        for sample in family.samples
    }


def test_prometheus_reads_what_happened(pipeline, seen):
    run, monitor = seen
    pipeline.database.psql(
        "INSERT INTO t VALUES (3, 'x'), (4, 'y'); UPDATE t SET v = 'z' WHERE id = 3;"
        "DELETE FROM t WHERE id = 4; TRUNCATE u; ALTER TABLE t ADD w int; INSERT INTO t VALUES (5)"
    )
    run.until(lambda: pipeline.destination.ids("t", "c")[-1:] == [5], "the last change")
    run.until(lambda: samples(monitor)["waltap_events_total",] == 8, "all events")
    found = samples(monitor)
    assert found["waltap_snapshot_rows_total",] == 2
    assert found["waltap_table_events_total", "c", "public.t"] == 3
    assert found["waltap_table_events_total", "r", "public.t"] == 2
    assert found["waltap_table_events_total", "u", "public.t"] == 1
    assert found["waltap_table_events_total", "d", "public.t"] == 1
    assert found["waltap_table_events_total", "t", "public.u"] == 1
    assert found["waltap_state", "streaming"] == 1
    assert found["waltap_state", "failed"] == 0
    assert found["waltap_schema_changes_total",] >= 1
    assert found["waltap_batch_seconds_count",] >= 2
    assert found["waltap_flush_seconds_count",] >= 1
    assert found["waltap_event_lag_seconds_count",] >= 1
    assert found["waltap_table_lsn", "public.t"] <= found["waltap_lsn", "", "written"]
    assert found["waltap_snapshot_state", "completed"] == 1
    assert found["waltap_snapshot_tables",] == 2
    assert found["waltap_snapshot_tables_remaining",] <= 1  # an empty one may count as never begun
    assert found["waltap_lsn", "", "written"] >= found["waltap_lsn", "", "durable"] > 0
    assert found["waltap_captured_tables",] == 2
    assert 0 < found["waltap_slot_retained_bytes",] < found["waltap_slot_left_bytes",]
    assert found["waltap_slot_limit_bytes", "disk"] > 0  # the server is on this machine
    assert found["waltap_orphan_slots",] == found["waltap_open_gaps",] == 0
    names = {name for name, *_ in found}
    for metric in METRICS:
        optional = {
            "filtered_events",
            "unflushed_seconds",
            "estimate",
            "_full_seconds",
            "downstream",
        }
        assert metric.shown in names or any(word in metric.name for word in optional)


def test_signals_probes_and_strangers_are_answered(seen, caplog):
    caplog.set_level("INFO")
    run, monitor = seen
    kept = run.pipeline.offset_file.parent / "http-token"
    signal = {"type": "log", "data": {"message": "at {}"}}
    status, body = ask(monitor, "/api/signal", signal)
    assert (status, str(kept) in body.decode()) == (401, True)
    assert ask(monitor, "/api/status")[0] == 200
    assert not run.notices.signals
    by = {"Authorization": f"Bearer {kept.read_text().strip()}"}
    status, body = ask(monitor, "/api/signal", signal, **by)
    assert (status, json.loads(body)["taken"]) == (200, True)
    assert run.notices.signals[0][0] == "log"
    assert json.loads(ask(monitor, "/api/signal", {"type": "log"}, **by)[1])["taken"]
    assert re.findall(r"a log signal without a message, at [0-9A-F]+/[0-9A-F]+", caplog.text)
    status, body = ask(monitor, "/api/signal", {"type": "unheard-of"}, **by)
    assert status == 422
    assert json.loads(body)["reason"]
    assert ask(monitor, "/api/signal", {"kind": "log"}, **by)[0] == 400
    assert ask(monitor, "/api/signal", [1], **by)[0] == 400
    assert ask(monitor, "/api/signal", b'{"type": "\xff"}', **by)[0] == 400
    assert ask(monitor, "/healthz")[0] == ask(monitor, "/readyz")[0] == 200
    assert ask(monitor, "/nothing")[0] == 404
    run.stop()
    assert ask(monitor, "/readyz")[0] == 503
