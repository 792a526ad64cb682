"""Secrets stay where they were given: work that goes well and work that fails, and nothing that either leaves
behind has one of them, in any form.

Each secret has a stem that no encoding of URLs, JSON or Python changes, and that nothing else has. It is
looked for as it is, in base64 wherever it may begin in it, and in hex.
"""

import base64
import contextlib
import json
import os
import pprint
import re
import shlex
import signal
import subprocess
import sys
import traceback
import urllib.error
import urllib.request
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler
from pathlib import Path
from typing import Any
from urllib.parse import quote

import psutil
import pytest
from tests.harness.command import run_program
from tests.harness.http_receiver import Receiver
from tests.harness.pipeline import profile_text, until
from tests.harness.servers.own_server import own_server
from tests.harness.servers.postgres import Cluster, Database

import waltap
from waltap.errors import ConfigurationError, WaltapError
from waltap.pipeline import Limits

NAMES = (
    "database", "sslkey", "http", "oauth", "header", "hmac", "hook", "page", "sasl", "registry", "bearer", "s3",
    "session", "sql", "redis", "nats", "kinesis",
)  # fmt: skip
STEMS = {
    name: f"cAnAry{number}x{name.upper()}x{number * 7919}" for number, name in enumerate(NAMES)
}
SECRETS = {name: f"{stem}/+:#'\"\\ %40{{}}" for name, stem in STEMS.items()}
PLAIN = {name: f"{stem}-7/w+b" for name, stem in STEMS.items()}
"""For places that take no quotes."""


def forms(stem: str) -> Iterator[str]:
    yield stem
    yield stem.encode().hex()
    for before, dropped in enumerate((0, 2, 3)):
        whole = b"\0" * before + stem.encode()
        yield base64.b64encode(whole[: len(whole) // 3 * 3]).decode()[dropped:]


FORMS = {form.lower(): name for name, stem in STEMS.items() for form in forms(stem)}
ANY = re.compile("|".join(map(re.escape, FORMS)), re.IGNORECASE)


def reported(text: str) -> list[str]:
    return [
        f"{FORMS[found[0].lower()]}: …{text[max(0, found.start() - 90) : found.end() + 30]}…"
        for found in ANY.finditer(text)
    ]


def test_the_search_finds_every_form():
    secret = SECRETS["database"]
    for text in (
        secret, repr(secret), json.dumps(secret), quote(secret, safe=""), secret.encode().hex(),
        *(base64.b64encode(f"{user}:{secret}".encode()).decode() for user in ("u", "us", "use")),
        base64.urlsafe_b64encode(secret.encode()).decode(),
    ):  # fmt: skip
        assert reported(f"before {text} behind")
    assert not reported("cAnAry, *** and Y0FuQXJ5")


class Echo(Receiver):
    """An HTTP server that refuses everything, and quotes the request in its answer, as some do."""

    def _received(self, request: BaseHTTPRequestHandler) -> None:
        request.rfile.read(int(request.headers.get("content-length") or 0))
        said = f"not for you: {request.requestline}\n{request.headers}\n".encode()
        unknown = "token" in request.path or "subjects" in request.path
        request.send_response(401 if unknown else 400)
        request.send_header("Content-Length", str(len(said)))
        request.end_headers()
        request.wfile.write(said)


@pytest.fixture(scope="module")
def echo() -> Iterator[Echo]:
    with Echo() as made:
        yield made


ROLE = "canary"


@pytest.fixture(scope="module")
def cluster() -> Iterator[Cluster]:
    """Return a server that asks for passwords."""
    with own_server() as made:
        password = SECRETS["database"].replace("'", "''")
        made.execute(f"CREATE ROLE {ROLE} LOGIN SUPERUSER PASSWORD '{password}'")
        made.ask_for_password(ROLE)
        yield made


@pytest.fixture
def shop(cluster) -> Iterator[Database]:
    made = cluster.create_database("shop")
    made.execute("CREATE TABLE t (id int PRIMARY KEY, v text); INSERT INTO t VALUES (1, 'a')")
    yield made
    made.drop()


def source(database: Database, **more: Any) -> dict[str, Any]:
    found = {"type": "postgres", **database.properties(), "database.user": ROLE}
    found |= {"database.password": SECRETS["database"], "errors.max.retries": 0}
    return found | {name.replace("__", "."): value for name, value in more.items()}


LINES = {"type": "jsonl", "path": "lines.jsonl"}
HTTP = {"type": "http", "url": "http://ECHO/in", "retry.timeout.ms": 0}
NOBODY = "127.0.0.1:1"
NO_PASSWORD = {"database.password": None}
TOLD = f"echo {shlex.quote(SECRETS['sslkey'])}"
WEBHOOK = {
    "notification.enabled.channels": "webhook",
    "notification.webhook.url": f"http://ECHO/{PLAIN['hook']}",
    "notification.webhook.max.retries": 0,
    "notification.webhook.secret": SECRETS["hmac"],
}
AVRO = {
    "value.converter": "avro",
    "key.converter": "avro",
    "value.converter.schema.registry.url": "http://ECHO",
    "key.converter.schema.registry.url": "http://ECHO",
}
JAAS = "org.apache.kafka.common.security.plain.PlainLoginModule required"
KAFKA = {
    "type": "kafka",
    "bootstrap.servers": NOBODY,
    "producer.security.protocol": "SASL_PLAINTEXT",
    "producer.sasl.mechanism": "PLAIN",
    "producer.sasl.jaas.config": f'{JAAS} username="u" password="{PLAIN["sasl"]}";',
    "stop.wait.ms": 500,
    "producer.message.timeout.ms": 1500,
    "producer.socket.connection.setup.timeout.ms": 1000,
}
S3 = {
    "type": "files",
    "path": "s3://bucket/here",
    "storage.endpoint": f"http://{NOBODY}",
    "storage.access.key": "AK",
    "storage.secret.key": SECRETS["s3"],
    "storage.session.token": SECRETS["session"],
    "storage.region": "eu-central-1",
    "storage.max.attempts": 1,
    "storage.connect.timeout.ms": 500,
}
SQL = f"postgresql://{ROLE}:{quote(SECRETS['sql'], safe='')}"
NATS = {
    "type": "nats-jetstream",
    "url": f"nats://u:{quote(SECRETS['nats'], safe='')}@{NOBODY}",
    "auth.user": "u",
    "auth.password": SECRETS["nats"],
    "create-stream": True,
}
CASES: dict[str, tuple[dict[str, Any], dict[str, Any]]] = {
    "wrong password": ({"database.password": SECRETS["sslkey"]}, LINES),
    "wrong by a command": (NO_PASSWORD | {"database.password.command": TOLD}, LINES),
    "a command that fails": (
        NO_PASSWORD
        | {
            "database.password.command": "sh -xc "
            + shlex.quote(f"{TOLD} | tee /dev/stderr; exit 3")
        },
        LINES,
    ),
    "wrong host": ({"database.port": 1}, LINES),
    "by libpq's names": ({"database.password": "", "driver.password": SECRETS["sslkey"]}, LINES),
    "a key that is none": (
        {
            "database.sslpassword": SECRETS["sslkey"],
            "database.sslkey": "no.key",
            "database.sslcert": "no.crt",
            "database.sslmode": "require",
        },
        LINES,
    ),
    "http": (
        WEBHOOK | {"errors.tolerance": "all", "waltap.http.token": SECRETS["page"]},
        HTTP
        | {
            "url": f"http://u:{quote(PLAIN['http'], safe='')}@ECHO/in?key={PLAIN['hook']}",
            "header.X-Own": PLAIN["header"],
            "auth.token": PLAIN["bearer"],
        },
    ),
    "http at a torn address": ({}, {"type": "http", "url": f"http://u:{PLAIN['http']}@ECHO/in"}),
    "http by basic authentication": (
        {},
        HTTP | {"auth.user": "u", "auth.password": SECRETS["http"]},
    ),
    "http by oauth": (
        {},
        HTTP
        | {
            "auth.oauth2.token.url": "http://ECHO/token",
            "auth.oauth2.client.id": "c",
            "auth.oauth2.client.secret": SECRETS["oauth"],
        },
    ),
    "kafka": ({}, KAFKA),
    "registry": (
        AVRO
        | {
            "value.converter.basic.auth.user.info": f"u:{PLAIN['registry']}",
            "key.converter.schema.registry.url": f"http://v:{quote(PLAIN['bearer'], safe='')}@ECHO",
        },
        {"type": "null"},
    ),
    "registry by a token": (
        AVRO | {"value.converter.bearer.auth.token": PLAIN["registry"]},
        {"type": "null"},
    ),
    "s3": ({}, S3),
    "sql at nobody": ({}, {"type": "sql", "url": f"{SQL}@{NOBODY}/d"}),
    "sql with a wrong password": ({}, {"type": "sql", "url": f"{SQL}@SERVER/shop"}),
    "redis": (
        {},
        {"type": "redis", "address": NOBODY, "user": "u", "password": SECRETS["redis"]},
    ),
    "nats": ({}, NATS),
}
"""Work that fails, each where another secret is at hand: what is changed of the source, and the sink. ECHO and
SERVER stand for addresses."""


def tables_of(case: str, database: Database, echo: Echo) -> dict[str, dict[str, Any]]:
    changed, sink = CASES[case]
    server = f"{database.server.host}:{database.server.port}"

    def filled(values: dict[str, Any]) -> dict[str, Any]:
        return {
            name: value.replace("ECHO", echo.address).replace("SERVER", server)
            if isinstance(value, str)
            else value
            for name, value in values.items()
            if value is not None
        }

    return {"source": filled(source(database) | changed), "sink": filled(sink)}


SEVERAL = """
import sys
import waltap_kafka.client
from waltap.cli.application import run
waltap_kafka.client.REACH_S = 0.5
for words in {commands!r}:
    sys.argv = ["waltap", *words]
    try:
        run()
    except SystemExit as end:
        print("ended with", end.code, *words)
"""


def commands(*lines: list[str], cwd: Path, **variables: str) -> str:
    """Run command lines one after the other in one process, reported all they show; return it."""
    environment = {
        **os.environ, "COLUMNS": "250", "WALTAP_TRACEBACK": "1", "WALTAP_LOG_LEVEL": "debug",
        "PYTHONFAULTHANDLER": "1", **variables,
    }  # fmt: skip
    code = SEVERAL.format(commands=lines)
    done = run_program(sys.executable, "-c", code, cwd=cwd, env=environment)
    return done.stdout + done.stderr


@contextlib.contextmanager
def process(
    folder: Path, *words: str, end: int = signal.SIGTERM, **variables: str
) -> "Iterator[subprocess.Popen[bytes]]":
    """Run a command line as a process from its beginning while the block lasts; what it says is in ``log``."""
    with (folder / "log").open("wb") as log:
        started = subprocess.Popen(
            [sys.executable, "-X", "faulthandler", "-m", "waltap", *words],
            cwd=folder, env={**os.environ, **variables}, stdout=log, stderr=log,
        )  # fmt: skip
    try:
        yield started
    finally:
        started.send_signal(end)
        started.wait(120)


def of_family(running: "subprocess.Popen[bytes]") -> list[str]:
    """Return what a list of processes shows of a process and of its children: command line and environment."""
    family = [running.pid, *(each.pid for each in psutil.Process(running.pid).children(True))]
    files = [f"/proc/{pid}/{name}" for pid in family for name in ("cmdline", "environ")]
    return [Path(file).read_text() for file in files]


def until_first_row(folder: Path) -> None:
    lines = folder / "lines.jsonl"
    until(lambda: lines.exists() and '"id":1' in lines.read_text(), "the first row")


def left_behind(folder: Path, *given: Path) -> str:
    files = [path for path in folder.rglob("*") if path.is_file() and path not in given]
    return "\n".join(f"{path}: {path.read_bytes().decode('utf-8', 'replace')}" for path in files)


@pytest.mark.parametrize("case", CASES)
def test_work_that_fails_shows_no_secret(case, shop, echo, tmp_path, monkeypatch):
    """Doctor, plan, explain and run, at level debug with tracebacks, and what they leave in files. And
    objects and tracebacks with locals, as a debugger, a notebook or a reporter of crashes shows them."""
    monkeypatch.setattr("waltap_kafka.client.REACH_S", 0.5)
    tables = tables_of(case, shop, echo)
    profile = tmp_path / "p.toml"
    profile.write_text(profile_text("p", **tables, more='[engine]\n"waltap.state.dir" = "state"\n'))
    said = commands(
        ["explain", "p.toml"], ["doctor", "p.toml"], ["doctor", "p.toml", "--json"], ["plan", "p.toml"],
        ["run", "p.toml", "--max-seconds", "4", "--until-idle", "1"],
        ["dead-letters", "list", "p.toml"],
        ["drop", "p.toml", "--yes"],
        cwd=tmp_path,
    )  # fmt: skip
    assert "WT-" in said or "dead letter" in said
    assert reported(said) == []
    assert reported(left_behind(tmp_path, profile)) == []
    tables["engine"] = {"waltap.state.dir": str(tmp_path / "state"), "name": "canary"}
    try:
        pipeline = waltap.Pipeline(tables)
    except ConfigurationError as error:
        assert reported(str(error) + repr(error)) == []
        return
    assert [found for text in shown(pipeline) for found in reported(text)] == []


def shown(pipeline: waltap.Pipeline) -> Iterator[str]:
    """Give what can be seen of a pipeline and of its failure."""
    profile = pipeline._profile
    yield from (repr(profile), pprint.pformat(profile), str(profile))
    yield from (repr(pipeline), pipeline._repr_html_(), repr(vars(pipeline)))
    try:
        pipeline.run(Limits(until_idle=1.0, max_seconds=4.0))
    except WaltapError as error:
        trace = traceback.TracebackException.from_exception(error, capture_locals=True)
        yield from ("".join(trace.format()), repr(error), str(error), repr(vars(error)))
    yield from (repr(pipeline.status()), repr(vars(pipeline._engine)))


def test_a_run_that_goes_well_and_crashes_shows_no_secret(shop, echo, tmp_path):
    """Its page, metrics, status, files, processes, and the dump of its crash."""
    (tmp_path / "password").write_text(SECRETS["database"])
    settings = (
        source(shop, database__password="${file:password}")
        | {"waltap.http": "127.0.0.1:0", "waltap.http.token": "${env:PAGE}",
           "notification.enabled.channels": "webhook", "snapshot.max.threads": 2,
           "notification.webhook.url": f"http://{echo.address}/{PLAIN['hook']}",
           "notification.webhook.secret": SECRETS["hmac"], "offset.flush.interval.ms": 0,
           "waltap.state.dir": "state"}
    )  # fmt: skip
    profile = tmp_path / "p.toml"
    profile.write_text(profile_text("p", settings, LINES))
    variables = {"PAGE": SECRETS["page"], "WALTAP_LOG_LEVEL": "debug"}
    log = tmp_path / "log"
    with process(tmp_path, "run", "p.toml", end=signal.SIGABRT, **variables) as running:
        until_first_row(tmp_path)
        (address,) = re.findall(r"http://127\.0\.0\.1:\d+", log.read_text())[:1]
        shown = []
        for token in (SECRETS["page"], PLAIN["page"]):
            for path in (
                "/",
                "/metrics",
                "/api/status",
                "/healthz",
                "/nowhere",
                f"/?token={quote(token)}",
            ):
                request = urllib.request.Request(address + path)
                request.add_header("Authorization", f"Bearer {token}")
                try:
                    with urllib.request.urlopen(request, timeout=120) as answer:
                        shown += [answer.read().decode(), str(answer.headers)]
                except urllib.error.HTTPError as error:
                    shown += [error.read().decode(), str(error.headers)]
        shown += [text.replace(f"PAGE={SECRETS['page']}", "") for text in of_family(running)]
        shown.append(commands(["status", "p.toml"], cwd=tmp_path, PAGE=SECRETS["page"]))
    assert "Fatal Python error: Aborted" in log.read_text()
    shown.append(left_behind(tmp_path, profile, tmp_path / "password"))
    assert [found for text in shown for found in reported(text)] == []


@pytest.mark.parametrize("how", ["address", "--set"])
def test_the_list_of_processes_shows_no_password_of_a_command_line(how, shop, tmp_path):
    host, port = shop.server.host, shop.server.port
    word = SECRETS["database"]
    asked = {
        "address": [f"postgres://{ROLE}:{quote(word, safe='')}@{host}:{port}/shop"],
        "--set": [f"postgres://{ROLE}@{host}:{port}/shop", "--set", f"database.password={word}"],
    }[how]
    with process(tmp_path, "tail", *asked) as running:
        until(lambda: any(shop.slots().values()), "the stream")
        shown = Path(f"/proc/{running.pid}/cmdline").read_text()
        assert reported(shown) == []
        assert "tail" in shown
        assert f"{port}" in shown
        shop.execute("INSERT INTO t VALUES (2, 'b')")
    assert reported(left_behind(tmp_path)) == []


def test_many_pipelines_hand_their_secrets_on_unseen(shop, tmp_path):
    """``run --all --set``: each process gets what was set, and none shows it."""
    (tmp_path / "all").mkdir()
    settings = source(shop, database__password="not this", waltap__state__dir="../state")
    text = profile_text("p", settings, {"type": "jsonl", "path": "../lines.jsonl"})
    (tmp_path / "all/p.toml").write_text(text)
    word = f"database.password={SECRETS['database']}"
    with process(tmp_path, "run", "--all", "all", "--set", word) as running:
        until_first_row(tmp_path)
        shown = of_family(running)
        assert len(shown) > 2
    assert [found for text in shown for found in reported(text)] == []
    assert reported(left_behind(tmp_path)) == []


def test_a_recording_has_no_secret(shop, tmp_path):
    profile = tmp_path / "p.toml"
    profile.write_text(profile_text("p", source(shop), {"type": "null"}))
    said = commands(
        ["record", "p.toml", "recording", "--max-seconds", "1"],
        ["replay", "recording", "--sink", "terminal"],
        cwd=tmp_path,
    )
    assert (tmp_path / "recording").exists(), said
    assert reported(said) == []
    assert reported(left_behind(tmp_path, profile)) == []
