"""What a run reports elsewhere: traces and metrics at a receiver of OTLP, OpenLineage events to a file and a server, and a
real Prometheus, which answers every expression of the dashboard and the alert rules."""

import gzip
import importlib
import json
import os
import pkgutil
import re
from collections.abc import Iterator
from enum import Enum
from functools import cache
from pathlib import Path
from types import NoneType, UnionType
from typing import Any, Union, get_args, get_origin, get_type_hints
from urllib.parse import urlsplit

import attr
import pytest
import yaml
from opentelemetry.proto.collector.metrics.v1.metrics_service_pb2 import ExportMetricsServiceRequest
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest
from tests.harness.http_receiver import Receiver
from tests.harness.json_lines import records
from tests.harness.pipeline import PipelineRig, Run, until
from tests.harness.servers.child import ChildFailed
from tests.harness.servers.jars import MissingProgram
from tests.harness.servers.ports import free_ports
from tests.harness.servers.postgres import Database
from tests.harness.servers.prometheus import Prometheus, promtool
from tests.harness.servers.requirement import missing
from tests.harness.shop import Shop

import waltap
from waltap.cli.reference.pages import mbeans
from waltap.errors import SourceError
from waltap.services.monitor.metrics import METRICS, OBSERVED
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


def test_a_collector_that_is_away_holds_nothing_up(database, tmp_path, monkeypatch):
    monkeypatch.setattr("waltap.services.telemetry.otlp.END_S", 1)
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
    own = {
        "waltap.state.dir": str(tmp_path),
        "waltap.http": "127.0.0.1:0",
        "waltap.otel.endpoint": receiver.url,
        "waltap.openlineage.to": str(events),
    }
    source = Shop(tmp_path, database, **own).source
    shop = waltap.Pipeline({"name": "shop", "source": source, "sink": {"type": "null"}})
    for number in (1, 2):
        shop.run(waltap.Limits(max_records=1))
        database.execute("INSERT INTO t VALUES (%s)", 10 * number)
        kinds = [json.loads(line)["eventType"] for line in events.read_text().splitlines()]
        assert kinds.count("COMPLETE") == number
        delivered = [span for span in receiver.spans() if span.name == "waltap.delivery"]
        assert sum(attributes(span)["waltap.changes.events"] for span in delivered) == number


# --- OpenLineage ---------------------------------------------------------------------------------------


@cache  # its import takes a second of every worker that only collects the tests
def facet_classes() -> dict[str, type]:
    """Return the classes of facets that OpenLineage's own client has, which are made from its JSON schemas,
    by the address of the schema that each stands for."""
    from openlineage.client import generated
    from openlineage.client.generated.base import BaseFacet

    found = {}
    for module in pkgutil.iter_modules(generated.__path__):
        for each in vars(importlib.import_module(f"{generated.__name__}.{module.name}")).values():
            if isinstance(each, type) and issubclass(each, BaseFacet):
                found[each._get_schema()] = each
    return found


def holds(kind: Any, value: Any) -> None:
    """Hold a document against a class of OpenLineage's client: it has the fields that the standard has, all that
    are required, and no others, of the types it says; the class validates what it can."""
    from openlineage.client.generated.base import BaseFacet

    kinds = [each for each in get_args(kind) if each is not NoneType]
    if get_origin(kind) in (Union, UnionType):
        if value is not None and len(kinds) == 1:
            holds(kinds[0], value)
    elif get_origin(kind) is list:
        for each in value:
            holds(kinds[0], each)
    elif get_origin(kind) is dict:
        for each in value.values():
            holds(kinds[1], each)
    elif isinstance(kind, type) and issubclass(kind, Enum):
        kind(value)
    elif attr.has(kind):
        if issubclass(kind, BaseFacet):
            assert urlsplit(value["_producer"]).scheme
            kind = facet_classes()[value["_schemaURL"]]
        reported = {
            n: each for n, each in value.items() if not n.startswith("_") and n != "schemaURL"
        }
        known = {each.alias: each for each in attr.fields(kind) if each.init}
        assert reported.keys() <= known.keys(), f"{kind.__name__} has no such fields"
        required = {name for name, each in known.items() if each.default is attr.NOTHING}
        assert required <= {name for name, each in reported.items() if each is not None}
        types = get_type_hints(kind)
        for name, each in reported.items():
            holds(types[known[name].name], each)
        kind(**reported)
    elif kind in (str, bool):
        assert isinstance(value, kind)


def conforms(event: dict[str, Any]) -> None:
    assert "/2-0-2/OpenLineage.json#/$defs/RunEvent" in event["schemaURL"]
    from openlineage.client.generated.base import RunEvent

    holds(RunEvent, event)
    datasets = event["inputs"] + event["outputs"]
    assert all(each["namespace"] for each in datasets)


def lines(file: Path) -> list[dict[str, Any]]:
    found = records(file)
    for each in found:
        conforms(each)
    return found


@pytest.fixture(autouse=True)
def patience(monkeypatch) -> None:
    """A busy machine is waited for: what came too late would come again, or not at all."""
    monkeypatch.setattr("waltap.services.telemetry.lineage.END_S", 90.0)
    monkeypatch.setattr("waltap.services.telemetry.lineage.TIMEOUT_S", 90.0)
    monkeypatch.setattr("waltap.services.telemetry.otlp.END_S", 90)


pytestmark = pytest.mark.pipeline(
    sql="CREATE TABLE t (id int PRIMARY KEY, v text, secret text); CREATE TABLE other (id int PRIMARY KEY);"
    "INSERT INTO t VALUES (1, 'a', 'hidden-77')",
    settings={"column.mask.hash.SHA-256.with.salt.x": "public.t.secret"},
)


def test_a_run_shows_its_tables_and_their_columns(pipeline, tmp_path):
    file = tmp_path / "lineage.jsonl"
    pipeline.branches = [{"type": "jsonl", "name": "lines", "path": str(tmp_path / "events")}]
    run = Run(pipeline, limits=None, settings={"waltap.openlineage.to": str(file)})
    with observed(run.engine, run.host):
        with run:
            run.until(lambda: run.engine.state == "streaming", "streaming")
            pipeline.database.execute("INSERT INTO t VALUES (2, 'b', 'hidden-77')")
            pipeline.database.execute("INSERT INTO other VALUES (1)")
            run.until(lambda: file.exists() and ".other" in file.read_text(), "the tables")
            pipeline.database.execute("ALTER TABLE t ADD COLUMN w numeric(8,2)")
            pipeline.database.execute("INSERT INTO t VALUES (3, 'c', 'hidden-77', 1)")
            run.until(lambda: "numeric" in file.read_text(), "the new column")
    events = lines(file)
    kinds = [each["eventType"] for each in events]
    assert (kinds[0], kinds[-1], set(kinds[1:-1])) == ("START", "COMPLETE", {"RUNNING"})
    assert len({each["run"]["runId"] for each in events}) == 1
    assert events[0]["job"]["name"] == "p"
    assert (events[0]["inputs"], events[-1]["inputs"]) == ([], [])
    named = [each["name"].rpartition(".")[2] for event in events for each in event["inputs"]]
    assert sorted(named) == ["other", "t", "t"], "a table is reported once, and with its new column"
    (taken,), (given,) = events[-2]["inputs"], events[-2]["outputs"]
    assert taken["namespace"].startswith("postgres://")
    assert taken["name"] == f"{pipeline.database.name}.public.t"
    fields = [each["name"] for each in taken["facets"]["schema"]["fields"]]
    assert fields == ["id", "v", "secret", "w"]
    assert given["namespace"] == f"file:{tmp_path / 'events'}"
    came = given["facets"]["columnLineage"]["fields"]
    assert set(came) == set(fields)
    assert came["v"]["inputFields"][0]["field"] == "v"
    masked = {
        name: each["inputFields"][0]["transformations"][0]["masking"] for name, each in came.items()
    }
    assert masked == {"id": False, "v": False, "secret": True, "w": False}
    assert "hidden-77" not in file.read_text()


def test_a_run_that_fails_says_so_to_a_server(pipeline):
    with Receiver() as server:
        settings = {
            "waltap.openlineage.to": server.url,
            "database.password": "wrong-88",
            "database.port": 1,
        }
        run = Run(pipeline, limits=None, settings=settings)
        with observed(run.engine, run.host), pytest.raises(SourceError), run:
            run.join()
        until(lambda: len(server.taken) == 2, "both events")
    reported = [json.loads(body) for _, body in server.taken]
    for each in reported:
        conforms(each)
    assert [each["eventType"] for each in reported] == ["START", "FAIL"]
    assert "WT-2" in reported[1]["run"]["facets"]["errorMessage"]["message"]
    assert "wrong-88" not in json.dumps(reported)


# --- Prometheus ----------------------------------------------------------------------------------------


FILES = Path(__file__).parents[2] / "examples/monitoring"
ALERTS = FILES / "alerts.yml"
NAME = re.compile(r"\bwaltap_\w+")
SUFFIXES = ("_bucket", "_sum", "_count", "")
ABSENT = ("waltap_slot_full_seconds", "waltap_failures_total", "waltap_unflushed_seconds")
"""What has no value while all is well."""


def dashboard() -> list[str]:
    text = json.loads((FILES / "grafana-dashboard.json").read_text())
    found = [target["expr"] for panel in text["panels"] for target in panel.get("targets", ())]
    found += [each["expr"] for each in text["annotations"]["list"]]
    return [each.replace("$pipeline", ".*").replace("$__rate_interval", "10s") for each in found]


def rules() -> list[str]:
    groups = yaml.safe_load(ALERTS.read_text())["groups"]
    return [rule["expr"] for group in groups for rule in group["rules"]]


def of_debezium() -> list[str]:
    reported = {name: text for listing in mbeans().values() for name, text in listing.items()}
    spans = re.findall(r"`([^`]+)`", " ".join(reported.values()))
    return [span for span in spans if "waltap_" in span]


@pytest.fixture(scope="module")
def scraped(server, tmp_path_factory) -> Iterator[Prometheus]:
    """A Prometheus that has scraped `waltap run` with two sinks while rows came."""
    folder, (port,) = tmp_path_factory.mktemp("scraped"), free_ports(1)
    database = server.create_database(f"waltap_scraped_{os.getpid()}")
    try:
        database.psql(
            "CREATE TABLE t (id int PRIMARY KEY, v text); INSERT INTO t SELECT generate_series(1, 50);"
            "CREATE TABLE left_out (id int); ALTER TABLE left_out REPLICA IDENTITY FULL"
        )
        shop = Shop(folder, database)
        shop.source |= {"status.update.interval.ms": 200, "skipped.operations": "none"}
        shop.sinks = [
            {"type": "jsonl", "name": "lines", "path": "events.jsonl"},
            {"type": "null", "name": "nowhere"},
        ]
        shop.more = '[[transforms]]\ntype = "filter"\ntables = "public.left_out"\n'
        with shop.process(f"run FILE --http=127.0.0.1:{port}"):
            try:
                made = Prometheus.create(targets=[f"127.0.0.1:{port}"], rules=ALERTS)
            except (MissingProgram, ChildFailed) as reason:
                missing(f"no Prometheus: {reason}")
            try:
                _fill(made, database)
                yield made
            finally:
                made.remove()
    finally:
        database.drop()


def _fill(made: Prometheus, database: Database) -> None:
    """Change rows until the rates of two scrapes are known."""
    at = iter(range(1000, 10**9))

    def known() -> bool:
        number = next(at)
        database.execute("INSERT INTO t VALUES (%s, 'x')", number)
        database.execute("UPDATE t SET v = 'y' WHERE id = %s", number)
        database.execute("DELETE FROM t WHERE id = %s", number)
        database.execute("INSERT INTO left_out VALUES (1)")
        database.execute("TRUNCATE t")
        return bool(made.query('rate(waltap_table_events_total{op="d"}[10s]) > 0'))

    until(lambda: made.query("up == 1"), "the first scrape")
    until(lambda: made.query('waltap_state{state="streaming"} == 1'), "streaming")
    until(known, "rates")
    until(lambda: made.query("waltap_slot_stalled_full_seconds"), "a forecast")


def test_every_expression_gives_a_result(scraped):
    assert len(dashboard()) > 40
    for expression in [*dashboard(), *of_debezium()]:
        if any(name in expression for name in (*ABSENT, "schema_changes")):
            scraped.query(expression)
        else:  # a scrape that took too long ends every series until the next
            until(lambda asked=expression: scraped.query(asked), expression)
    for expression in rules():
        assert isinstance(scraped.query(expression), list), expression


def test_the_rules_are_loaded_and_quiet(scraped):
    """A run that is well makes none of them fire."""

    def evaluated() -> bool:
        (group,) = scraped.ask("rules")["groups"]
        return all(rule["health"] == "ok" for rule in group["rules"])

    until(evaluated, "every rule evaluated")
    firing = [each["labels"]["alertname"] for each in scraped.ask("alerts")["alerts"]
              if each["state"] == "firing"]  # fmt: skip
    assert firing == []


def test_what_is_scraped_is_what_the_page_says(scraped):
    names = {name for name in scraped.ask("label/__name__/values") if name.startswith("waltap_")}
    declared = {each.shown for each in (*METRICS, *OBSERVED)}
    known = {f"{each}{suffix}" for each in declared for suffix in SUFFIXES} | {
        f"{each.removesuffix('_total')}_created" for each in declared
    }
    assert names <= known
    page = (FILES.parents[1] / "docs/reference/metrics.md").read_text()
    for expression in [*dashboard(), *rules(), *of_debezium()]:
        for used in NAME.findall(expression):
            base = next(used.removesuffix(end) for end in SUFFIXES if used.endswith(end))
            assert f"`{used}`" in page or f"`{base}`" in page, used
    unreported = {each for each in declared if each not in names and f"{each}_count" not in names}
    assert unreported <= {*ABSENT, "waltap_downstream_table_lsn", "waltap_downstream_table_stopped",
                      "waltap_last_transaction_id", "waltap_slot_stalled_full_seconds"}  # fmt: skip


def test_the_tool_is_content():
    try:
        checked = promtool("check", "rules", ALERTS)
        tested = promtool("test", "rules", FILES / "alerts_test.yml")
        configured = promtool("check", "config", FILES / "prometheus.yml")
    except MissingProgram as reason:
        missing(f"no promtool: {reason}")
    for done in (checked, tested, configured):
        assert done.returncode == 0, done.stdout + done.stderr


def test_each_rule_is_tested_and_says_what_to_do():
    groups = yaml.safe_load(ALERTS.read_text())["groups"]
    tests = yaml.safe_load((FILES / "alerts_test.yml").read_text())["tests"]
    cases: dict[str, list[int]] = {}
    for each in tests:
        for case in each["alert_rule_test"]:
            cases.setdefault(case["alertname"], []).append(len(case["exp_alerts"]))
    for rule in groups[0]["rules"]:
        assert set(cases[rule["alert"]]) == {0, 1}, rule["alert"]
        assert rule["annotations"]["remedy"]
