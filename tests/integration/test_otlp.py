"""Traces and metrics at a receiver of OTLP, of a pipeline that runs."""

import gzip
import json
from collections.abc import Iterator
from typing import Any

import pytest
from opentelemetry.proto.collector.metrics.v1.metrics_service_pb2 import ExportMetricsServiceRequest
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest
from tests.harness.http_receiver import Receiver
from tests.harness.pipeline import PipelineRig, Run, until

import waltap
from waltap.services.monitor.metrics import METRICS
from waltap.services.telemetry.observers import observed


class Collector(Receiver):
    """Takes OTLP over HTTP: protobuf, gzipped or not."""

    @property
    def url(self) -> str:
        return super().url.partition("/hook")[0]

    def parsed(self, path: str, kind: Any) -> Iterator[Any]:
        for headers, body in self.taken:
            if headers[":path"] == path:
                packed = headers.get("content-encoding") == "gzip"
                yield kind.FromString(gzip.decompress(body) if packed else body)

    def traces(self) -> list[Any]:
        asked = self.parsed("/v1/traces", ExportTraceServiceRequest)
        return [each for request in asked for each in request.resource_spans]

    def spans(self) -> list[Any]:
        scopes = (scope for each in self.traces() for scope in each.scope_spans)
        return [span for scope in scopes for span in scope.spans]

    def points(self) -> dict[str, list[Any]]:
        """Return the newest points of each metric."""
        asked = self.parsed("/v1/metrics", ExportMetricsServiceRequest)
        scopes = (
            scope for r in asked for each in r.resource_metrics for scope in each.scope_metrics
        )
        metrics = (metric for scope in scopes for metric in scope.metrics)
        return {m.name: list(getattr(m, m.WhichOneof("data")).data_points) for m in metrics}


@pytest.fixture
def receiver() -> Iterator[Collector]:
    with Collector() as made:
        yield made


def attributes(span: Any) -> dict[str, Any]:
    return {a.key: a.value.string_value or a.value.int_value for a in span.attributes}


def test_each_delivery_is_a_trace_and_metrics_are_those_of_the_page(database, tmp_path, receiver):
    database.psql(
        "CREATE TABLE t (id int PRIMARY KEY); INSERT INTO t SELECT generate_series(1, 20)"
    )
    settings = {"waltap.otel.endpoint": receiver.url, "waltap.otel.interval.ms": 200}
    run = Run(PipelineRig(database, tmp_path), limits=None, settings=settings)
    with observed(run.engine, run.host), run:
        run.until(lambda: run.engine.state == "streaming", "streaming")
        database.execute("INSERT INTO t SELECT generate_series(100, 149)")
        run.until(lambda: run.engine.status().events == 70, "the changes")
        until(lambda: [p.as_double for p in receiver.points().get("waltap_events", ())] == [70], "the metric")  # fmt: skip
        database.execute(
            "SELECT pg_terminate_backend(active_pid) FROM pg_replication_slots WHERE slot_name = %s",
            run.pipeline.slot,
        )
        run.until(lambda: run.engine.status().reconnects >= 1, "the failure")
        database.execute("INSERT INTO t VALUES (999)")
        run.until(lambda: run.engine.status().events == 71, "the last change")
    spans = {span.span_id: span for span in receiver.spans()}
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
    about = {a.key: a.value.string_value for a in receiver.traces()[0].resource.attributes}
    assert (about["service.name"], about["waltap.pipeline"]) == ("waltap", "p")
    points = receiver.points()
    assert points["waltap_flush_seconds"][0].count >= 1
    known = {metric.name for metric in METRICS}
    assert {"waltap_lsn", "waltap_lag_bytes", "waltap_table_events", "waltap_state"} <= known & set(
        points
    )


def test_a_collector_that_is_away_holds_nothing_up(database, tmp_path):
    database.psql("CREATE TABLE t (id int PRIMARY KEY); INSERT INTO t VALUES (1)")
    settings = {"waltap.otel.endpoint": "http://127.0.0.1:9", "waltap.otel.interval.ms": 200}
    run = Run(PipelineRig(database, tmp_path), limits=None, settings=settings)
    with observed(run.engine, run.host), run:
        run.until(lambda: run.engine.state == "streaming", "streaming")
        database.execute("INSERT INTO t VALUES (2)")
        run.until(lambda: run.engine.status().events == 2, "the change")


def test_a_pipeline_of_a_program_is_observed_in_each_run(database, tmp_path, receiver):
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
        delivered = [span for span in receiver.spans() if span.name == "waltap.delivery"]
        assert sum(attributes(span)["waltap.changes.events"] for span in delivered) == number
