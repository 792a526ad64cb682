"""A real Prometheus scrapes a real run, and answers every expression of the dashboard and the alert rules."""

import json
import os
import re
from collections.abc import Iterator
from pathlib import Path

import pytest
import yaml
from tests.harness.pipeline import until
from tests.harness.servers.child import ChildFailed, free_ports
from tests.harness.servers.jars import MissingProgram
from tests.harness.servers.postgres import Database
from tests.harness.servers.prometheus import Prometheus, promtool
from tests.harness.servers.requirement import missing
from tests.harness.shop import Shop

from waltap.cli.reference.pages import mbeans
from waltap.services.monitor.metrics import METRICS, OBSERVED

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
