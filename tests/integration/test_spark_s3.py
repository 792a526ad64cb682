"""A change log and tables in S3, where Spark's filesystem has another name for it than everybody else."""

import contextlib
import json
import os
import sys
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka.admin import NewTopic
from tests.harness.changelog import Database, batch, context, relation
from tests.harness.command import run_program, waltap
from tests.harness.kafka import create
from tests.harness.pipeline import PipelineRig
from tests.harness.servers import spark_jars
from tests.harness.servers.fixtures import missing
from tests.harness.servers.jars import MissingProgram
from tests.harness.servers.s3 import ANYBODY, REGION, S3Server
from tests.harness.topics import event, produce

from waltap_sinks.changelog import ChangeLogProperties, ChangeLogSink
from waltap_spark.compact.small_sets import SMALL_ROWS

PEOPLE = relation("public.people", [("id", "int4"), ("name", "text")])
SMALL = relation("public.small", [("id", "int4"), ("name", "text")])

READ = """
import json, sys
import pyspark
from waltap_sinks.changelog import ChangeLog
from waltap_spark.apply.applier import OutputApplier
from waltap_spark.driver.follower import LogFollower
from waltap_spark.formats.choice import FormatChoice
from waltap_spark.read.live import open_tables
from waltap_spark.state.output import SparkOutput
from waltap_spark.session.session import prepare, start_session

changelog, tables, streamed, conf, kind, named = sys.argv[1:]
choice = FormatChoice(kind, json.loads(named))
settings = choice.settings(pyspark.__version__, json.loads(conf))
spark = start_session("s3", master="local[2]", settings=settings)
applier = OutputApplier(spark, ChangeLog(changelog), SparkOutput(streamed), None, choice)
applier.open()
LogFollower(ChangeLog(changelog), applier).once()
applier.close()
found = {}
for place in (tables, streamed):
    opened = open_tables(spark.newSession(), place)
    for name in ("people", "small"):
        rows = opened.current(name)
        found[place + " " + name] = [rows.count(), rows.where("name = 'changed'").count()]
    found[place + " changes"] = opened.changes("people").count()
print(json.dumps(found))
"""

FEED = """
import json, sys
from waltap_spark.kafka import KafkaFeed, KafkaTopics
from waltap_spark.session.session import start_session

changelog, bootstrap, topic, conf = sys.argv[1:]
spark = start_session("s3", master="local[2]", settings=json.loads(conf))
topics = KafkaTopics(bootstrap=bootstrap, topics=(topic,), columns={"inventory.items": "id INT"})
with KafkaFeed(spark, topics, changelog) as feed:
    manifest = feed.pull()
    (segment,) = [part for entry in manifest.tables for part in entry.segments]
    print(feed.log.store.read_parquet(segment.path)["id"].to_pylist())
"""


@pytest.fixture
def conf(s3) -> dict[str, str]:
    try:
        return spark_jars.s3_conf(s3.url)
    except MissingProgram as reason:
        missing(f"no S3 for Spark: {reason}")


def run(s3: S3Server, *command: str) -> str:
    env = {
        **os.environ,
        "AWS_ACCESS_KEY_ID": ANYBODY.key,
        "AWS_SECRET_ACCESS_KEY": ANYBODY.secret,
        "AWS_REGION": REGION,
    }
    return run_program(sys.executable, *command, env=env).stdout


def place(s3: S3Server, bucket: str, name: str) -> str:
    address = s3.url.rpartition("/")[2]
    return f"s3://{bucket}/{name}?scheme=http&endpoint_override={address}"


def command_lines() -> str:
    """Return the arguments of every process that there is, as every user of the machine sees them."""
    found = []
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        with contextlib.suppress(OSError):
            found.append(path.read_bytes().decode("utf-8", "replace"))
    return "\n".join(found)


@pytest.mark.exhaustive
def test_the_sink_and_commands_of_its_profile_reach_a_store_that_asks_for_a_login(
    s3, bucket, conf, database, tmp_path, java, monkeypatch
):
    """The environment says nothing of the store, and no argument of a process has the secret."""
    for name in [name for name in os.environ if name.startswith("AWS_")]:
        monkeypatch.delenv(name)
    database.execute("CREATE TABLE t (id int PRIMARY KEY, name text, secret text)")
    database.execute("INSERT INTO t SELECT n, 'row', 'x' FROM generate_series(1, 100) n")
    login = s3.make_login()
    own = {
        **s3.properties(login=login),
        "type": "spark",
        "path": f"s3://{bucket}/lake",
        "spark.jars": conf["spark.jars"],
        "spark.master": "local[2]",
    }
    pipeline = PipelineRig(database, tmp_path)
    database.execute(f"CREATE PUBLICATION {pipeline.slot} FOR TABLE t (id, name) WHERE (id > 10)")
    pipeline.settings |= {f"sink.{name}": value for name, value in own.items()}
    pipeline.settings["publication.autocreate.mode"] = "disabled"
    pipeline.file()
    jars = ("--set", f"spark.jars={conf['spark.jars']}", "--master", "local[2]")
    tables = f"s3://{bucket}/lake"

    def spark(*words: object) -> str:
        done = waltap("spark", *words, cwd=tmp_path)
        assert done.returncode == 0, done.stdout + done.stderr
        assert login.secret not in done.stdout + done.stderr
        return done.stdout if "--json" in words else done.stdout + done.stderr

    s3.ask_for_login(True)
    try:
        with pipeline.running() as run:
            run.until(lambda: "org.apache.spark" in command_lines(), "Spark runs")
            assert "waltap_spark.driver.driver" in command_lines()
            assert login.secret not in command_lines()
        for reported in ("status", "top"):
            rest = ("--once",) if reported == "top" else ()
            assert "public.t" in spark(reported, tables, "--profile", "p.toml", *rest)
        (kept,) = json.loads(spark("maintain", tables, "--profile", "p.toml", "--json", *jars))
        assert (kept["table"], kept["skipped"]) == ("public.t", "")
        database.execute("INSERT INTO t VALUES (101, 'new', 'x')")
        pipeline.settings["sink.applier"] = "none"
        pipeline.catch_up()
        refused = waltap("spark", "status", tables, cwd=tmp_path)
        assert refused.returncode != 0, "the store lets in whoever comes"
        apply = ("--changelog", "p.toml", "--output", f"{tables}/tables", "--once", *jars)
        spark("apply", *apply)
        now = ("--profile", "p.toml", "--patience", "0")  # the profile gives the source, too
        (found,) = json.loads(spark("verify", tables, "--json", *now, *jars))
        assert [each["verdict"] for each in found["tables"]] == ["equal"]
    finally:
        s3.ask_for_login(False)


@pytest.mark.parametrize("kind", ["parquet", "delta"])
def test_tables_follow_a_change_log_in_s3(s3, bucket, conf, tmp_path, java, kind):
    if kind == "delta":
        conf["spark.jars"] += f",{spark_jars.delta()}"
    tables_follow(s3, bucket, conf, tmp_path, kind)


def tables_follow(
    s3: S3Server, bucket: str, conf: dict[str, str], tmp_path: Path, kind: str, catalogue: str = ""
) -> None:
    """Of few rows and of many: those go through Spark. By the command, and by a streaming query."""
    settings: dict[str, Any] = {"path": f"s3://{bucket}/log", **s3.properties()}
    sink = ChangeLogSink(ChangeLogProperties.model_validate(settings), context(tmp_path))
    sink.open()
    db, many = Database(), SMALL_ROWS + 1000
    db.insert(PEOPLE, *[[str(n), "new"] for n in range(many)])
    db.insert(SMALL, ["1", "new"], ["2", "new"])
    sink.write(batch(db.commit()))
    sink.flush()
    places = [place(s3, bucket, name) for name in ("log", "tables", "streamed")]
    named = {"format.catalog": catalogue} if catalogue else {}
    other = {"format.catalog": f"{catalogue}.streamed"} if catalogue else {}
    said = {**conf, "format": kind, **named}.items()
    given = [word for name, value in said for word in ("--set", f"{name}={value}")]
    apply = (
        "-m",
        "waltap",
        "spark",
        "apply",
        "--changelog",
        places[0],
        "--output",
        places[1],
        "--once",
    )
    run(s3, *apply, *given)
    db.update(PEOPLE, ["7"], name="changed")
    db.update(SMALL, ["2"], name="changed")
    sink.write(batch(db.commit()))
    sink.flush()
    sink.close()
    run(s3, *apply, *given)
    found = run(s3, "-c", READ, *places, json.dumps(conf),
                kind, json.dumps(other))  # fmt: skip
    counts = {"people": [many, 1], "small": [2, 1]}
    assert json.loads(found.splitlines()[-1]) == {
        f"{where} {name}": count for where in places[1:] for name, count in counts.items()
    } | {f"{where} changes": many + 1 for where in places[1:]}


def test_events_of_topics_become_a_change_log_in_s3(s3, bucket, conf, kafka):
    topic = kafka.topic_name()
    create(kafka.bootstrap, NewTopic(topic, 1))
    produce(kafka, topic, ({"id": 1}, event("c", 100, None, {"id": 1}, 90)))
    jars = f"{conf['spark.jars']},{spark_jars.kafka()}"
    found = run(s3, "-c", FEED, place(s3, bucket, "log"), kafka.bootstrap, topic,
                json.dumps({**conf, "spark.jars": jars}))  # fmt: skip
    assert found.splitlines()[-1] == "[1]"
