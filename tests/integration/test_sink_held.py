"""A target that takes no more, and says nothing: the pipeline says so, and a stop ends it."""

import re
import signal
import socket
import subprocess
import urllib.error
import urllib.request
from contextlib import AbstractContextManager
from pathlib import Path
from urllib.parse import urlsplit

import psycopg
import pytest
from tests.harness.pipeline import until
from tests.harness.proxy import Proxy
from tests.harness.servers.child import free_ports
from tests.harness.servers.postgres import Database
from tests.harness.servers.s3 import ANYBODY, REGION, S3Server
from tests.harness.shop import Shop
from tests.harness.sql import replica

LOCKED = "LOCK TABLE replica.t IN ACCESS EXCLUSIVE MODE"


def run(
    database: Database, folder: Path, port: int, sink: dict[str, str]
) -> AbstractContextManager[subprocess.Popen[str]]:
    shop = Shop(folder, database)
    shop.source |= {
        "schema.include.list": "public", "status.update.interval.ms": 200, "waltap.stall.ms": 500,
        "waltap.stop.timeout.ms": 1000, "offset.flush.interval.ms": 0,
    }  # fmt: skip
    shop.sink = sink
    return shop.process(f"run FILE --http=127.0.0.1:{port}")


def ready(port: int) -> int:
    try:
        with urllib.request.urlopen(f"http://127.0.0.1:{port}/readyz", timeout=120) as answer:
            return int(answer.status)
    except urllib.error.HTTPError as error:
        return error.code
    except OSError:
        return 0


def metric(port: int, name: str) -> float:
    with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=120) as answer:
        found = re.findall(rf"^{name}(?:{{.*}})? (\S+)$", answer.read().decode(), re.MULTILINE)
    return max(map(float, found), default=-1.0)


def reported_and_stopped(process: subprocess.Popen[str], port: int, log: Path, kind: str) -> None:
    """See what is reported of a sink that hangs, and a stop end the process."""
    until(lambda: ready(port) == 503, "readiness to be withdrawn")
    until(lambda: metric(port, "waltap_write_in_flight_seconds") > 1, "the age of the write")
    reported = f"sink {kind} has not come to an end with"
    until(lambda: reported in log.read_text(), "a line of the log")
    process.send_signal(signal.SIGTERM)
    assert process.wait(120) == 1
    assert "WT-5004" in log.read_text()


def test_a_target_that_hangs_is_reported_and_does_not_hold_a_stop(database, tmp_path):
    database.psql(
        "CREATE SCHEMA replica; CREATE TABLE t (id int PRIMARY KEY, v text);"
        "INSERT INTO t SELECT generate_series(1, 5)"
    )
    (port,) = free_ports(1)
    sink = replica(database)

    def rows() -> int:
        made = database.execute("SELECT to_regclass('replica.t') IS NOT NULL")[0][0]
        return database.execute("SELECT count(*) FROM replica.t")[0][0] if made else 0

    with run(database, tmp_path, port, sink) as process:
        until(lambda: ready(port) == 200, "streaming")
        until(lambda: rows() == 5, "the snapshot")
        with psycopg.connect(database.dsn) as holder:
            holder.execute(LOCKED)
            database.psql(
                "INSERT INTO t SELECT i, repeat('x', 100) FROM generate_series(6, 2000) i"
            )
            until(lambda: metric(port, "waltap_lag_bytes") > 100_000, "the lag in bytes")
            until(lambda: metric(port, "waltap_lag_seconds") > 1, "the lag in seconds")
            reported_and_stopped(process, port, tmp_path / "stderr", "sql")
        assert rows() == 5
    with run(database, tmp_path, port, sink) as process:
        until(lambda: rows() == 2000, "what was not durable comes again")
        process.send_signal(signal.SIGTERM)
        assert process.wait(120) == 0


def in_s3(kind: str, s3: S3Server, bucket: str, url: str, folder: Path) -> dict[str, str]:
    """Return a sink whose tables or files are in a bucket of the server at ``url``."""
    place = f"s3://{bucket}/orders"
    if kind in {"files", "changelog"}:
        often = {"file.max.age.ms": "500"} if kind == "files" else {}  # a minute otherwise
        return {"type": kind, "path": place, **often, **s3.properties(url=url)}
    key, secret = ANYBODY.key, ANYBODY.secret
    if kind == "delta":
        storage = {
            "aws_endpoint": url, "aws_allow_http": "true", "aws_region": REGION,
            "aws_access_key_id": key, "aws_secret_access_key": secret,
            "aws_s3_allow_unsafe_rename": "true",
        }  # fmt: skip
        return {"type": kind, "path": place, **{f"storage.{n}": v for n, v in storage.items()}}
    catalog = {
        "type": "sql", "uri": f"sqlite:///{folder / 'catalog.db'}", "warehouse": place,
        "s3.endpoint": url, "s3.region": REGION, "s3.access-key-id": key,
        "s3.secret-access-key": secret,
    }  # fmt: skip
    return {"type": kind, **{f"catalog.{name}": value for name, value in catalog.items()}}


@pytest.mark.parametrize("kind", ["files", "changelog", "delta", "iceberg"])
def test_an_object_store_that_hangs_is_reported_and_does_not_hold_a_stop(
    database, tmp_path, s3, bucket, kind
):
    database.psql("CREATE TABLE t (id int PRIMARY KEY)")
    (port,) = free_ports(1)
    log, address = tmp_path / "stderr", urlsplit(s3.url)
    confirmed = (
        "SELECT confirmed_flush_lsn >= %s::pg_lsn FROM pg_replication_slots WHERE slot_name = %s"
    )

    def durable() -> bool:
        return database.execute(confirmed, end, database.name[:60]) == [(True,)]

    with Proxy(address.hostname or "", address.port or 0) as proxy:
        sink = in_s3(kind, s3, bucket, f"http://127.0.0.1:{proxy.port}", tmp_path)
        with run(database, tmp_path, port, sink) as process:
            until(lambda: ready(port) == 200, "streaming")
            database.psql("INSERT INTO t VALUES (1)")
            ((end,),) = database.execute("SELECT pg_current_wal_lsn()::text")
            until(durable, "the first change")
            proxy.swallow(all_of_them=True)
            database.psql("INSERT INTO t SELECT generate_series(2, 2000)")
            reported_and_stopped(process, port, log, kind)
        # the checks of a sink come first; a library that keeps the interpreter's lock would hold all
        with run(database, tmp_path, port, sink) as process:
            reported = f"sink {kind} has not come to an end with"
            until(lambda: reported in log.read_text(), "a line of the log")
            until(lambda: ready(port) == 503, "an answer")
            process.send_signal(signal.SIGTERM)
            process.wait(120)
        proxy.pass_again()
        ((end,),) = database.execute("SELECT pg_current_wal_lsn()::text")
        with run(database, tmp_path, port, sink) as process:
            until(durable, "what was not durable")
            process.send_signal(signal.SIGTERM)
            assert process.wait(120) == 0


@pytest.mark.pipeline(sql="CREATE TABLE t (id int PRIMARY KEY)")
def test_a_registry_that_hangs_is_named_without_its_login(pipeline, caplog):
    """It is what the pipeline waits for, not the sink; a stop ends the wait."""
    with socket.create_server(("127.0.0.1", 0)) as deaf:
        url = f"http://127.0.0.1:{deaf.getsockname()[1]}"
        pipeline.settings |= {
            "sink.type": "null", "key.converter": "json", "value.converter": "avro",
            "waltap.stall.ms": 500,
            "value.converter.schema.registry.url": url.replace("//", "//user:secret-of-registry@"),
        }  # fmt: skip
        with pipeline.running() as run:
            pipeline.database.execute("INSERT INTO t VALUES (1)")
            words = f"the schema registry {url} has not answered for "
            run.until(lambda: words in caplog.text, "a line of the log")
            assert run.engine.status().stalled
    assert "has not come to an end" not in caplog.text
    assert "secret-of-registry" not in caplog.text
