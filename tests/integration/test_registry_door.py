"""A real schema registry behind a door: logins, TLS, a door that is shut for a while."""

import subprocess
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import httpx
import pytest

from tests.integration.test_schema_registry import Kept
from tests.harness.pipeline import PipelineRig, until
from tests.harness.registry_proxy import door
from tests.harness.servers.postgres import Database
from tests.harness.servers.registry import Registry
from waltap.errors import ConfigurationError, Retry
from waltap.format.converter import ConverterContext
from waltap.mapping.connect_schema import Field, Kind, Schema
from waltap.source.connector import StopRequested
from waltap_formats.avro.converter import AvroConverter
from waltap_formats.avro.properties import AvroProperties
from waltap_formats.errors import RegistryAway, RegistryLogin, SchemaIncompatible

ROW = Schema(kind=Kind.STRUCT, name="door.Value", fields=(Field("id", Schema(kind=Kind.INT32)),))


def written(
    url: str, topic: str, stopping: Callable[[], bool] = lambda: False, **more: Any
) -> bytes:
    """Return the bytes of a value whose schema is registered at ``url``."""
    given = {
        "schema.registry.url": url,
        "schema.registry.retry.timeout.ms": 0,
        "schema.registry.request.timeout.ms": 90_000,
        **more,
    }
    context = ConverterContext(side="value", stopping=stopping)
    made = AvroConverter(AvroProperties.model_validate(given), context)
    data = made.encoder(topic, ROW)({"id": 1})
    assert data is not None
    return data


@pytest.mark.parametrize(
    ("asked", "given"),
    [
        ("Basic am9lOnMzY3IzdA==", {"basic.auth.user.info": "joe:s3cr3t"}),
        ("Basic am9lOnMzY3IzdA==", {"in the address": "joe:s3cr3t@"}),
        ("Basic am9lOnA6QHNz", {"in the address": "joe:p%3A%40ss@"}),
        ("Bearer t0k3n", {"bearer.auth.token": "t0k3n"}),
    ],
    ids=["basic", "basic in the address", "basic with escapes", "bearer"],
)
def test_who_has_the_login_comes_in_and_nobody_else(
    registry: Registry, asked: str, given: dict[str, str]
) -> None:
    more = dict(given)
    with door(registry.url) as shut:
        shut.authorization = asked
        url = shut.url.replace("//", f"//{more.pop('in the address', '')}")
        assert written(url, "door", **more)[5:] == b"\x02"
        assert shut.passed
        with pytest.raises(RegistryLogin, match="door-value") as refused:
            written(shut.url, "door", **{"basic.auth.user.info": "joe:not-this"})
        assert refused.value.retry is Retry.NEVER
        assert "not-this" not in str(refused.value)


def certificate(folder: Path, name: str) -> tuple[Path, Path]:
    """Return a certificate of its own signature, and its key."""
    made, key = folder / f"{name}.crt", folder / f"{name}.key"
    subprocess.run(
        ["openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "2", "-subj",
         f"/CN={name}", "-addext", "subjectAltName=IP:127.0.0.1", "-keyout", str(key), "-out", str(made)],
        check=True, capture_output=True, timeout=120,
    )  # fmt: skip
    return made, key


def test_a_registry_is_asked_over_tls_by_a_client_that_it_knows(
    registry: Registry, tmp_path: Path
) -> None:
    ours, our_key = certificate(tmp_path, "client")
    theirs, their_key = certificate(tmp_path, "registry")
    trusted = {"schema.registry.ssl.truststore.location": str(theirs)}
    known = {
        "schema.registry.ssl.keystore.location": str(ours),
        "schema.registry.ssl.key.location": str(our_key),
    }
    with door(registry.url, theirs, their_key, clients=ours) as shut:
        assert written(shut.url, "tls", **trusted, **known)[5:] == b"\x02"
        with pytest.raises(RegistryAway, match="(?i)certificate") as unknown:
            written(shut.url, "tls", **known)
        assert "schema.registry.ssl.truststore.location" in str(unknown.value)
        with pytest.raises(RegistryAway):
            written(shut.url, "tls", **trusted)
        assert shut.passed == 1


def test_files_that_are_no_certificates_are_named(registry: Registry, tmp_path: Path) -> None:
    ours, _ = certificate(tmp_path, "client")
    text = tmp_path / "text.pem"
    text.write_text("no certificate")
    cases = {
        "schema.registry.ssl.truststore.location": (text, tmp_path / "nowhere.pem"),
        "schema.registry.ssl.keystore.location": (text, ours),  # the key is missing
    }
    for name, files in cases.items():
        for file in files:
            with pytest.raises(ConfigurationError, match=name) as refused:
                written("https://127.0.0.1:1", "tls", **{name: str(file)})
            assert str(file) in str(refused.value)


@pytest.mark.parametrize("url", ["registry:8081", "ftp://registry", "http://", "https:///path"])
def test_what_is_no_address_is_refused(url: str) -> None:
    with pytest.raises(ValueError, match="http://HOST:PORT"):
        AvroProperties.model_validate({"schema.registry.url": url})


@pytest.mark.parametrize("status", [429, 500, 503])
def test_a_registry_that_is_busy_is_asked_until_it_answers(registry: Registry, status: int) -> None:
    found: list[bytes] = []
    with door(registry.url) as shut:
        shut.answer = status

        def ask() -> None:
            patient = {"schema.registry.retry.timeout.ms": 90_000}
            found.append(written(shut.url, "busy", **patient))

        thread = threading.Thread(target=ask)
        thread.start()
        until(lambda: shut.refused >= 3, "three tries")
        assert not found
        shut.answer = None
        thread.join(90)
    assert found[0][5:] == b"\x02"


def test_a_stop_does_not_wait_for_the_registry(registry: Registry) -> None:
    ended: list[BaseException] = []
    stop = threading.Event()
    with door(registry.url) as shut:
        shut.answer = 503

        def ask() -> None:
            try:
                written(
                    shut.url, "stop", stop.is_set, **{"schema.registry.retry.timeout.ms": 600_000}
                )
            except BaseException as error:
                ended.append(error)

        thread = threading.Thread(target=ask)
        thread.start()
        until(lambda: shut.refused, "a try")
        stop.set()
        thread.join(90)
    assert isinstance(ended[0], StopRequested)


def pipeline(database: Database, folder: Path, url: str) -> PipelineRig:
    database.psql("CREATE TABLE items (id int PRIMARY KEY, name text)")
    settings = {
        "value.converter": "io.confluent.connect.avro.AvroConverter",
        "key.converter": "json",
        "value.converter.schema.registry.url": url,
        "value.converter.schema.registry.retry.timeout.ms": 0,
        "snapshot.mode": "no_data",
        "topic.prefix": database.name,
        "sink.type": "records",
    }
    return PipelineRig(database, folder, settings)


def wal_lsn(database: Database) -> int:
    """Return where WAL ends now."""
    return int(database.execute("SELECT pg_current_wal_lsn() - '0/0'::pg_lsn")[0][0])


def test_a_new_schema_waits_for_a_registry_that_went_away(
    database: Database, registry: Registry, tmp_path: Path
) -> None:
    kept = Kept()
    with door(registry.url) as shut:
        made = pipeline(database, tmp_path, shut.url)
        with made.running(kept) as run:
            database.psql("INSERT INTO items VALUES (1, 'one')")
            run.until(lambda: len(kept.records) == 1, "the first record")
            shut.answer = 503
            database.psql("INSERT INTO items VALUES (2, 'two')")  # of a schema that is known
            run.until(lambda: len(kept.records) == 2, "the second record")
            database.psql(
                "ALTER TABLE items ADD colour text; INSERT INTO items VALUES (3, '3', 'red')"
            )
            lost = wal_lsn(database)
            run.until(lambda: len(run.notices.failures) >= 2, "two failures")
            assert {type(error) for error, _ in run.notices.failures} == {RegistryAway}
            assert made.slot_lsns()[0] < lost, "it was not delivered, and is not to be confirmed"
            assert len(kept.records) == 2
            shut.answer = None
            run.until(lambda: len(kept.records) == 3, "the third record")
    assert [record.key for record in kept.records] == [b'{"id":%d}' % n for n in (1, 2, 3)]


def test_an_incompatible_schema_ends_the_run_until_it_is_allowed(
    database: Database, registry: Registry, tmp_path: Path
) -> None:
    kept = Kept()
    made = pipeline(database, tmp_path, registry.url)
    with made.running(kept) as run:
        database.psql("INSERT INTO items VALUES (1, 'one')")
        run.until(lambda: len(kept.records) == 1, "the first record")
    subject = f"{database.name}.public.items-value"
    rule = f"{registry.url}/config/{subject}"
    assert httpx.put(rule, json={"compatibility": "BACKWARD"}, timeout=90).status_code == 200
    database.psql("ALTER TABLE items ALTER name TYPE int USING 0")
    database.psql("INSERT INTO items VALUES (2, 5)")
    lost = wal_lsn(database)
    with pytest.raises(SchemaIncompatible) as refused, made.running(kept, ready=False) as run:
        until(lambda: run.ended, "the end")
    told = str(refused.value)
    assert f"the new schema of {subject} is not compatible with version 1: " in told
    assert "name" in told
    assert made.slot_lsns()[0] < lost, "it was not delivered, and is not to be confirmed"
    assert len(kept.records) == 1
    assert httpx.put(rule, json={"compatibility": "NONE"}, timeout=90).status_code == 200
    with made.running(kept) as run:
        run.until(lambda: len(kept.records) == 2, "the second record")
