"""How connections are made: certificates that fit or do not, passwords that a plugin or a command gives, and poolers."""

import shutil
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.harness.command import run_program
from tests.harness.examined import examine
from tests.harness.pipeline import PipelineRig, Run, until
from tests.harness.servers.jars import MissingProgram
from tests.harness.servers.own_server import own_server
from tests.harness.servers.pgbouncer import PgBouncer
from tests.harness.servers.postgres import Cluster, Database
from tests.harness.servers.requirement import missing

from waltap.base.redaction import HIDDEN
from waltap.config.layers import read_debezium
from waltap.errors import ConfigurationError, StopRequested, WaltapError
from waltap.plugins.hookspecs import hookimpl
from waltap.plugins.host import Host
from waltap.ports.source.password import (
    PasswordCommandFailed,
    PasswordUnavailable,
    printed_password,
)

CERTIFIED = "certified"


class Authority:
    """Signs certificates with openssl; all are files of ``folder``."""

    def __init__(self, folder: Path, name: str) -> None:
        self.folder, self.name = folder, name
        self._openssl(
            f"req -new -x509 -days 2 -nodes -subj /CN={name} -out {name}.crt -keyout {name}.key"
        )

    def sign(self, name: str, subject: str, *, alternative: str = "", days: int = 2) -> None:
        """Make NAME.crt and NAME.key for ``subject``; with negative ``days`` it has expired."""
        self._openssl(f"req -new -nodes -subj /CN={subject} -out {name}.csr -keyout {name}.key")
        (self.folder / f"{name}.ext").write_text(f"subjectAltName={alternative or 'DNS:x'}\n")
        self._openssl(
            f"x509 -req -in {name}.csr -CA {self.name}.crt -CAkey {self.name}.key -CAcreateserial"
            f" -days {days} -extfile {name}.ext -out {name}.crt"
        )
        (self.folder / f"{name}.key").chmod(0o600)

    def _openssl(self, words: str) -> None:
        run_program("openssl", *words.split(), cwd=self.folder)


@pytest.fixture(scope="module")
def files(tmp_path_factory) -> Path:
    """Return a folder with an authority and what it signed, and another authority."""
    if shutil.which("openssl") is None:
        missing("there is no openssl to make certificates")
    folder = tmp_path_factory.mktemp("certificates")
    authority = Authority(folder, "authority")
    authority.sign("here", "here", alternative="IP:127.0.0.1")
    authority.sign("elsewhere", "elsewhere", alternative="DNS:elsewhere.example.com")
    authority.sign("expired", "expired", alternative="IP:127.0.0.1", days=-1)
    authority.sign("client", CERTIFIED)
    Authority(folder, "stranger").sign("forged", CERTIFIED)
    return folder


@pytest.fixture(scope="module")
def cluster(files) -> Iterator[Cluster]:
    """Return a server that takes the role by its certificate alone."""
    with own_server() as made:
        if made.execute("SHOW ssl_library") != [("OpenSSL",)]:
            missing("the server speaks no TLS")
        made.execute(f"CREATE ROLE {CERTIFIED} LOGIN SUPERUSER")
        shutil.copy(files / "authority.crt", made.folder / "data/authority.crt")
        rules = f"hostssl all {CERTIFIED} all cert\nhost all all all trust\nlocal all all trust\n"
        (made.folder / "data/pg_hba.conf").write_text(rules)
        made.execute("ALTER SYSTEM SET ssl_ca_file = 'authority.crt'")
        show(made, files, "here")
        yield made


def show(cluster: Cluster, files: Path, name: str) -> None:
    """Have the server show this certificate from now on."""
    data = cluster.folder / "data"
    shown = data / "server.crt"
    if shown.exists() and shown.read_bytes() == (files / f"{name}.crt").read_bytes():
        return
    for source, target in ((f"{name}.crt", "server.crt"), (f"{name}.key", "server.key")):
        shutil.copy(files / source, data / target)
        (data / target).chmod(0o600)
        if cluster.account is not None:
            shutil.chown(data / target, cluster.account)
    if cluster.account is not None:
        shutil.chown(data / "authority.crt", cluster.account)
    cluster.execute("ALTER SYSTEM SET ssl = on")
    cluster.stop()
    cluster.start()


@pytest.fixture(scope="module")
def shop(cluster) -> Iterator[Database]:
    made = cluster.create_database("shop")
    made.execute("CREATE TABLE t (id int PRIMARY KEY, v text); INSERT INTO t VALUES (0, 'a')")
    yield made


def pipeline(shop: Database, files: Path, folder: Path, **more: str) -> PipelineRig:
    settings = {
        "database.user": CERTIFIED, "database.sslmode": "verify-full",
        "database.sslrootcert": str(files / "authority.crt"),
        "database.sslcert": str(files / "client.crt"), "database.sslkey": str(files / "client.key"),
    }  # fmt: skip
    more = {f"database.{name}": value for name, value in more.items()}
    return PipelineRig(shop, folder, {k: v for k, v in (settings | more).items() if v != ""})


def test_both_connections_are_certified_both_ways(cluster, shop, files, tmp_path):
    """A burst larger than what TLS and libpq keep in their buffers comes whole, with nothing behind it."""
    show(cluster, files, "here")
    made = pipeline(shop, files, tmp_path)
    with made.running() as run:
        seen = shop.execute(
            "SELECT a.backend_type, bool_and(s.ssl AND s.client_dn = %s) FROM pg_stat_ssl s"
            " JOIN pg_stat_activity a USING (pid) WHERE a.usename = %s GROUP BY 1 ORDER BY 1",
            f"/CN={CERTIFIED}", CERTIFIED,
        )  # fmt: skip
        assert seen == [("client backend", True), ("walsender", True)]
        shop.execute("INSERT INTO t SELECT g, repeat('x', 5000) FROM generate_series(1, 1000) g")
        run.until(lambda: made.destination.ids("t") == list(range(1001)), "the burst")


def test_a_select_that_fails_leaves_an_encrypted_connection_usable(cluster, shop, files, tmp_path):
    """The other table of the blocking snapshot is read over it, and nothing repeats the request."""
    show(cluster, files, "here")
    shop.execute("CREATE TABLE IF NOT EXISTS u (id int PRIMARY KEY); INSERT INTO u VALUES (7)")
    made = pipeline(shop, files, tmp_path)
    made.settings |= {"slot.name": "asks", "publication.name": "asks", "snapshot.mode": "no_data"}
    fails = {
        "data-collection": "public.t",
        "filter": "SELECT * FROM public.t WHERE 1 / (id - id) > 0",
    }
    asked = {
        "data-collections": ["public.t", "public.u"],
        "type": "blocking",
        "additional-conditions": [fails],
    }
    with made.running() as run:
        assert run.engine.signal("execute-snapshot", asked).result(120).accepted
        ended = [("table_completed", "public.u"), ("completed", "")]
        run.until(
            lambda: ended == [(e, t) for e, t, _ in run.notices.snapshots][-2:], "the snapshot"
        )
        assert run.notices.failures == []
    assert made.destination.ids("u", "r") == [7]


REFUSED = {
    "another name": ("elsewhere", {}, "The server's certificate is of another name"),
    "expired": ("expired", {}, "and must not have expired"),
    "an unknown authority": (
        "here", {"sslrootcert": "stranger.crt"}, "signed by the authority that database.sslrootcert names",
    ),
    "no file of an authority": (
        "here", {"sslrootcert": "no.crt"}, "database.sslrootcert must name the file",
    ),
    "no certificate of ours": ("here", {"sslcert": "", "sslkey": ""}, "The server asks for a certificate"),
    "a certificate of ours that is forged": (
        "here", {"sslcert": "forged.crt", "sslkey": "forged.key"}, "The server does not take the certificate",
    ),
    "a key of another": ("here", {"sslkey": "here.key"}, "must belong together"),
}  # fmt: skip


@pytest.mark.parametrize("case", REFUSED)
def test_what_is_wrong_with_certificates_is_reported(cluster, shop, files, tmp_path, case):
    shown, more, way = REFUSED[case]
    show(cluster, files, shown)
    given = {name: value and str(files / value) for name, value in more.items()}
    with pytest.raises(WaltapError) as caught:
        pipeline(shop, files, tmp_path, **given).run()
    assert caught.value.code == "WT-2028", str(caught.value)
    assert way in caught.value.advice()


def test_verify_ca_takes_a_certificate_of_another_name(cluster, shop, files, tmp_path):
    show(cluster, files, "elsewhere")
    made = pipeline(shop, files, tmp_path, sslmode="verify-ca")
    made.settings |= {"slot.name": "by_authority", "publication.name": "by_authority"}
    with made.running():
        assert made.destination.ids("t")[:1] == [0]


# --- a PgBouncer is reported, whatever it lets through -------------------------------------------------


@pytest.fixture(
    params=["", "options", "options,replication"],
    ids=["as it is", "that takes our settings", "that drops the wish for replication"],
)
def through(request, database, tmp_path) -> Iterator[PipelineRig]:
    """Return a pipeline that is given a PgBouncer's address, which ignores ``request.param``."""
    database.execute("CREATE TABLE t (id int PRIMARY KEY)")
    try:
        pooler = PgBouncer.create(server=database.server, ignore_startup_parameters=request.param)
    except MissingProgram as reason:
        missing(str(reason))
    yield PipelineRig(database, tmp_path, {"database.port": pooler.port})
    pooler.remove()


def test_a_pooler_is_named_by_the_start_and_the_doctor(through):
    with pytest.raises(WaltapError) as caught:
        through.run()
    assert caught.value.code == "WT-2027", str(caught.value)
    assert "database.hostname" in caught.value.advice()
    try:
        found = [each.error for each in through.doctor().values() if each.error]
    except WaltapError as error:
        found = [error]
    assert [each.code for each in found] == ["WT-2027"]


# --- a plugin gives the password of each connection, as an identity service does whose tokens expire ---


ROLE = "token_user"


class Tokens:
    """Gives the token that is valid now; ``failures``: how often it has none, from now on."""

    def __init__(self, token: str) -> None:
        self.token, self.failures = token, 0
        self.asked: list[tuple[str, int, str, str]] = []

    @hookimpl
    def choose_password(self, host: str, port: int, user: str, database: str) -> str | None:
        self.asked.append((host, port, user, database))
        if self.failures:
            self.failures -= 1
            raise TimeoutError("the service is away")
        return self.token


@pytest.fixture(scope="module")
def private_server() -> Iterator[Cluster]:
    with own_server() as made:
        made.execute(f"CREATE ROLE {ROLE} LOGIN SUPERUSER REPLICATION")
        made.ask_for_password(ROLE)
        yield made


def test_each_connection_gets_the_token_of_its_moment(private_server, tmp_path):
    private_server.execute(f"ALTER ROLE {ROLE} PASSWORD 'token-1'")
    database = private_server.create_database("tokens")
    database.execute("CREATE TABLE t (id int PRIMARY KEY)")
    tokens = Tokens("token-1")
    pipeline = PipelineRig(
        database, tmp_path, {"database.user": ROLE, "database.password": "never valid"}
    )
    with pipeline.running(tokens) as run:
        database.execute("INSERT INTO t VALUES (1)")
        run.until(lambda: pipeline.destination.ids("t") == [1], "the first row")
        before = len(tokens.asked)
        private_server.execute(f"ALTER ROLE {ROLE} PASSWORD 'token-2'")
        tokens.token, tokens.failures = "token-2", 1_000_000  # whoever asks first
        private_server.execute(
            f"SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE usename = '{ROLE}'"
        )
        run.until(lambda: PasswordUnavailable.code in codes(run), "the failure to be reported")
        tokens.failures = 0
        database.execute("INSERT INTO t VALUES (2)")
        run.until(lambda: pipeline.destination.ids("t") == [1, 2], "the second row")
    assert len(tokens.asked) > before + 1
    address, port, user, name = tokens.asked[0]
    assert (port, user, name) == (private_server.port, ROLE, "tokens")
    assert address == private_server.host


@pytest.mark.parametrize(
    ("named", "value"),
    [
        pytest.param("database.password.command", "cat '{path}'", id="command"),
        pytest.param("database.password", "${{file:{path}}}", id="file"),
    ],
)
def test_a_password_that_is_changed_while_it_streams_is_found(
    private_server, tmp_path, named, value
):
    """The server has the new password before the file: until both agree the run tries again."""
    private_server.execute(f"ALTER ROLE {ROLE} PASSWORD 'of yesterday'")
    database = private_server.create_database(f"rotated_{len(named)}")
    database.execute("CREATE TABLE t (id int PRIMARY KEY)")
    token = tmp_path / "the token"
    token.write_text("of yesterday\n")
    given = {"database.user": ROLE, named: value.format(path=token)}
    pipeline = PipelineRig(database, tmp_path, given)
    with pipeline.running() as run:
        database.execute("INSERT INTO t VALUES (1)")
        run.until(lambda: pipeline.destination.ids("t") == [1], "the first row")
        private_server.execute(f"ALTER ROLE {ROLE} PASSWORD 'of today'")
        private_server.execute(
            f"SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE usename = '{ROLE}'"
        )
        run.until(lambda: "WT-2032" in codes(run), "the password of yesterday to be refused")
        token.unlink()
        gone = "WT-2029" if "command" in named else "WT-2031"
        run.until(lambda: gone in codes(run), "the file to be missed")
        token.write_text("of today\n")
        database.execute("INSERT INTO t VALUES (2)")
        run.until(lambda: pipeline.destination.ids("t") == [1, 2], "the second row")
    reported = " ".join(str(error) for error, _ in run.notices.failures)
    assert "of yesterday" not in reported
    assert "of today" not in reported


def codes(run: Run) -> set[str]:
    return {error.code for error, _ in run.notices.failures}


def test_a_command_is_one_and_is_meant_alone():
    given = {"connector.class": "postgres", "topic.prefix": "t", "database.dbname": "d"}
    given["waltap.sink.type"] = "null"
    for more, reported in (
        (
            {"database.password": "x", "database.password.command": "cat it"},
            "beside database.password",
        ),
        ({"database.password.command": "cat 'it"}, "no closing quotation"),
        ({"database.password.command": "  "}, "names no command"),
    ):
        with pytest.raises(ConfigurationError, match=reported):
            examine(read_debezium({**given, **more}), Host())


# --- what becomes of a command that gives the password: its output, its failures, and what is ---------

SECRET = "s3cret of-the-moment"


def printed(*words: str, timeout_s: float = 60.0, folder: Path | None = None) -> str:
    return printed_password(words, folder=folder, timeout_s=timeout_s, stopping=lambda: False)


def failure(*words: str, timeout_s: float = 60.0) -> str:
    with pytest.raises(PasswordCommandFailed) as caught:
        printed(*words, timeout_s=timeout_s)
    assert SECRET not in f"{caught.value} {caught.value!r}"
    assert "Run database.password.command by hand" in caught.value.advice()
    return caught.value.problem


@pytest.mark.parametrize(
    ("script", "password"),
    [
        pytest.param("echo secret", "secret", id="a line"),
        pytest.param("printf secret", "secret", id="no end of line"),
        pytest.param(r"printf 'secret\r\n'", "secret", id="a line of Windows"),
        pytest.param("printf ' a b  '", " a b  ", id="blanks belong to it"),
        pytest.param("echo s€cret; echo a warning >&2", "s€cret", id="standard error is no part"),
        pytest.param("sleep 600 & echo secret", "secret", id="something left running"),
        pytest.param("cat", "", id="no input"),
    ],
)
def test_what_it_prints_is_the_password(script, password):
    if not password:
        assert "printed none" in failure("sh", "-c", script)
    else:
        assert printed("sh", "-c", script) == password


def test_it_runs_in_the_folder_of_the_profile(tmp_path):
    (tmp_path / "token.sh").write_text("#!/bin/sh\ncat token\n")
    (tmp_path / "token.sh").chmod(0o755)
    (tmp_path / "token").write_text("from the file\n")
    assert printed("./token.sh", folder=tmp_path) == "from the file"


@pytest.mark.parametrize(
    ("script", "reported"),
    [
        pytest.param("exit 3", "ended with status 3", id="status"),
        pytest.param("kill -TERM $$", "was ended by SIGTERM", id="signal"),
        pytest.param("echo no session >&2; exit 1", "status 1: no session", id="its last line"),
        pytest.param("true", "printed none", id="nothing"),
        pytest.param("echo; echo no ticket >&2", "printed none: no ticket", id="an empty line"),
        pytest.param(r"printf 'a\nb\n'", "several lines", id="several lines"),
        pytest.param(r"printf 'a\000b'", "several lines, or NUL", id="NUL"),
        pytest.param(r"printf '\377'", "not UTF-8", id="other bytes"),
        pytest.param("yes", "prints without end", id="without end"),
    ],
)
def test_a_failure_is_reported(script, reported):
    assert reported in failure("sh", "-c", script)


def test_what_is_not_there_or_no_program_is_reported(tmp_path):
    (tmp_path / "data").write_text("x")
    assert "does not start: No such file" in failure("no-such-program-of-ours")
    assert "does not start: Permission denied" in failure(str(tmp_path / "data"))


def test_what_it_says_of_a_failure_has_neither_its_output_nor_a_trace():
    said = failure("sh", "-c", f"echo {SECRET}; echo refused for '{SECRET}' >&2; exit 1")
    assert f"refused for {HIDDEN}" in said
    traced = failure("sh", "-xc", f"echo '{SECRET}' > /dev/null; exit 1")
    assert traced.endswith("ended with status 1")
    said = failure("sh", "-c", "echo 'at https://u:pw-of-u@host/x token=abcdefgh' >&2; exit 1")
    assert "pw-of-u" not in said
    assert "abcdefgh" not in said


def test_one_that_hangs_is_ended_with_all_that_it_started(tmp_path):
    script = f"sleep 600 & echo $! > {tmp_path}/pid; wait"
    pid = tmp_path / "pid"
    for seconds in (1.0, 10.0, 60.0):  # a busy machine may not have come to the second command
        assert f"gave none within {seconds:g} s" in failure("sh", "-c", script, timeout_s=seconds)
        if pid.exists() and pid.read_text().strip():
            break
    child = int(pid.read_text())
    until(lambda: not alive(child), "the end of what it started", 60)


def alive(pid: int) -> bool:
    """Return whether a process runs; one that has ended and that nobody asked for does not."""
    try:
        status = Path(f"/proc/{pid}/stat").read_text()
    except OSError:
        return False
    return status.rpartition(")")[2].split()[0] != "Z"


def test_a_stop_does_not_wait_for_it():
    with pytest.raises(StopRequested):
        printed_password(
            [sys.executable, "-c", "import time; time.sleep(600)"],
            folder=None,
            timeout_s=600.0,
            stopping=lambda: True,
        )
