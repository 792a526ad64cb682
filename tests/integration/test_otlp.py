"""Traces and metrics at a receiver of OTLP, of a pipeline that runs."""

import gzip
import json
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest
from opentelemetry.proto.collector.metrics.v1.metrics_service_pb2 import ExportMetricsServiceRequest
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest
from tests.harness.pipeline import PipelineRig, Run, until
from tests.harness.servers.postgres import Database

import waltap
from waltap.services.monitor.metrics import METRICS
from waltap.services.telemetry.observers import observed


class Receiver(ThreadingHTTPServer):
    """Takes OTLP over HTTP as a collector does: protobuf, gzipped or not."""

    daemon_threads = True

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), Taking)
        self.spans: list[Any] = []
        self.points: dict[str, list[Any]] = {}
        self.resources: list[dict[str, str]] = []

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_address[1]}"


class Taking(BaseHTTPRequestHandler):
    server: Receiver

    def do_POST(self) -> None:
        body = self.rfile.read(int(self.headers["content-length"]))
        if self.headers.get("content-encoding") == "gzip":
            body = gzip.decompress(body)
        if self.path == "/v1/traces":
            for each in ExportTraceServiceRequest.FromString(body).resource_spans:
                about = {a.key: a.value.string_value for a in each.resource.attributes}
                self.server.resources.append(about)
                for scope in each.scope_spans:
                    self.server.spans.extend(scope.spans)
        else:
            for each in ExportMetricsServiceRequest.FromString(body).resource_metrics:
                for scope in each.scope_metrics:
                    for metric in scope.metrics:
                        kind = getattr(metric, metric.WhichOneof("data"))
                        self.server.points[metric.name] = list(kind.data_points)
        self.send_response(200)
        self.send_header("Content-Length", "0")
        self.end_headers()

    def log_message(self, *_arguments: object) -> None: ...


@pytest.fixture
def receiver() -> Iterator[Receiver]:
    made = Receiver()
    threading.Thread(target=made.serve_forever, daemon=True).start()
    yield made
    made.shutdown()
    made.server_close()


def attributes(span: Any) -> dict[str, Any]:
    return {a.key: a.value.string_value or a.value.int_value for a in span.attributes}


def test_each_delivery_is_a_trace_and_metrics_are_those_of_the_page(
    database: Database, tmp_path: Path, receiver: Receiver
) -> None:
    database.psql(
        "CREATE TABLE t (id int PRIMARY KEY); INSERT INTO t SELECT generate_series(1, 20)"
    )
    settings = {"waltap.otel.endpoint": receiver.url, "waltap.otel.interval.ms": 200}
    run = Run(PipelineRig(database, tmp_path), limits=None, settings=settings)
    with observed(run.engine, run.host), run:
        run.until(lambda: run.engine.state == "streaming", "streaming")
        database.execute("INSERT INTO t SELECT generate_series(100, 149)")
        run.until(lambda: run.engine.status().events == 70, "the changes")
        until(lambda: "waltap_events" in receiver.points
              and receiver.points["waltap_events"][0].as_double == 70, "the metric")  # fmt: skip
        database.execute(
            "SELECT pg_terminate_backend(active_pid) FROM pg_replication_slots WHERE slot_name = %s",
            run.pipeline.slot,
        )
        run.until(lambda: run.engine.status().reconnects >= 1, "the failure")
        database.execute("INSERT INTO t VALUES (999)")
        run.until(lambda: run.engine.status().events == 71, "the last change")
    spans = {span.span_id: span for span in receiver.spans}
    roots = [span for span in spans.values() if not span.parent_span_id]
    deliveries = [span for span in roots if span.name == "waltap.delivery"]
    assert sum(attributes(span)["waltap.changes.events"] for span in deliveries) == 71
    batches = [span for span in spans.values() if span.name == "waltap.batch"]
    status = run.engine.status()
    assert len(batches) == status.batches < status.events, "by batch, not by row"
    for span in spans.values():
        assert span.start_time_unix_nano <= span.end_time_unix_nano
        if span.parent_span_id:
            assert spans[span.parent_span_id].name == "waltap.delivery"
            assert span.trace_id == spans[span.parent_span_id].trace_id
    names = {span.name for span in spans.values()}
    assert {"waltap.delivery", "waltap.batch", "waltap.flush", "waltap.commit"} <= names
    failed = [span for span in roots if span.status.code == 2]
    assert any("WT-2" in span.status.message for span in failed)
    assert receiver.resources[0]["service.name"] == "waltap"
    assert receiver.resources[0]["waltap.pipeline"] == "p"
    assert receiver.points["waltap_flush_seconds"][0].count >= 1
    known = {metric.name for metric in METRICS}
    assert {"waltap_lsn", "waltap_lag_bytes", "waltap_table_events", "waltap_state"} <= known & set(
        receiver.points
    )


def test_a_collector_that_is_away_holds_nothing_up(database: Database, tmp_path: Path) -> None:
    database.psql("CREATE TABLE t (id int PRIMARY KEY); INSERT INTO t VALUES (1)")
    settings = {"waltap.otel.endpoint": "http://127.0.0.1:9", "waltap.otel.interval.ms": 200}
    run = Run(PipelineRig(database, tmp_path), limits=None, settings=settings)
    with observed(run.engine, run.host), run:
        run.until(lambda: run.engine.state == "streaming", "streaming")
        database.execute("INSERT INTO t VALUES (2)")
        run.until(lambda: run.engine.status().events == 2, "the change")


def test_a_pipeline_of_a_program_is_observed_in_each_run(
    database: Database, tmp_path: Path, receiver: Receiver
) -> None:
    database.psql("CREATE TABLE t (id int PRIMARY KEY); INSERT INTO t VALUES (1)")
    events = tmp_path / "lineage.jsonl"
    shop = waltap.Pipeline({
        "name": "shop",
        "source": {
            "type": "postgres",
            **database.properties(),
            "slot.name": "otel_" + database.name[-20:],
            "waltap.state.dir": str(tmp_path),
            "waltap.http": "127.0.0.1:0",
            "waltap.otel.endpoint": receiver.url,
            "waltap.openlineage.to": str(events),
        },
        "sink": {"type": "null"},
    })  # fmt: skip
    for number in (1, 2):
        shop.run(waltap.Limits(max_records=1))
        database.execute("INSERT INTO t VALUES (%s)", 10 * number)
        kinds = [json.loads(line)["eventType"] for line in events.read_text().splitlines()]
        assert kinds.count("COMPLETE") == number
        delivered = [span for span in receiver.spans if span.name == "waltap.delivery"]
        assert sum(attributes(span)["waltap.changes.events"] for span in delivered) == number
