"""A plugin gives the password of each connection, as an identity service does whose tokens expire."""

from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.harness.examined import examine
from tests.harness.pipeline import PipelineRig, Run
from tests.harness.servers.own_server import own_server
from tests.harness.servers.postgres import Cluster

from waltap.config.layers import read_debezium
from waltap.errors import ConfigurationError, ConnectionLost
from waltap.plugins.hookspecs import hookimpl
from waltap.plugins.host import Host
from waltap.ports.source.password import PasswordUnavailable

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
    """Return a server of this module's own."""
    with own_server() as made:
        yield made


def role_with(server: Cluster, password: str) -> None:
    """Make the role anew, or give it another password: tests before this one left what it owns."""
    known = server.execute(f"SELECT 1 FROM pg_roles WHERE rolname = '{ROLE}'")
    verb = "ALTER" if known else "CREATE"
    server.execute(f"{verb} ROLE {ROLE} LOGIN SUPERUSER REPLICATION PASSWORD '{password}'")


def only_by_password(server: Cluster) -> None:
    """Let the role in with its password only."""
    ((path,),) = server.execute("SHOW hba_file")
    hba = Path(path)
    rules = f"host all {ROLE} all scram-sha-256\nhost replication {ROLE} all scram-sha-256\n"
    hba.write_text(rules + hba.read_text())
    server.reload()


def unavailable(run: Run) -> bool:
    return any(isinstance(error, PasswordUnavailable) for error, _ in run.notices.failures)


def test_each_connection_gets_the_token_of_its_moment(
    private_server: Cluster, tmp_path: Path
) -> None:
    role_with(private_server, "token-1")
    only_by_password(private_server)
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
        run.until(lambda: unavailable(run), "the failure to be reported")
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
    private_server: Cluster, tmp_path: Path, named: str, value: str
) -> None:
    """The server has the new password before the file: until both agree the run tries again."""
    role_with(private_server, "of yesterday")
    only_by_password(private_server)
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
        run.until(lambda: pipeline.destination.ids("t") == [1, 2], "the second row", 60.0)
    reported = " ".join(str(error) for error, _ in run.notices.failures)
    assert "of yesterday" not in reported
    assert "of today" not in reported


def codes(run: Run) -> set[str]:
    return {error.code for error, _ in run.notices.failures}


def test_a_password_that_was_never_right_is_reported_at_the_start(
    private_server: Cluster, tmp_path: Path
) -> None:
    role_with(private_server, "r1ght-pw")
    only_by_password(private_server)
    database = private_server.create_database("never_right")
    for command, code in (("echo wr0ng-pw", "WT-2032"), ("no-such-program-of-ours", "WT-2029")):
        settings = {"database.user": ROLE, "database.password.command": command}
        with pytest.raises(ConnectionLost) as caught:
            PipelineRig(database, tmp_path, settings).run()
        assert caught.value.code == code
        assert "database.password.command" in caught.value.advice() or code == "WT-2032"


def test_a_command_is_one_and_is_meant_alone() -> None:
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


def test_the_factory_of_a_debezium_file_is_the_plugins_where_there_is_one() -> None:
    given = {
        "connector.class": "io.debezium.connector.postgresql.PostgresConnector",
        "topic.prefix": "t",
        "database.dbname": "d",
        "waltap.sink.type": "null",
        "database.connection.factory.class": "com.example.IamConnectionFactory",
    }
    with pytest.raises(ConfigurationError, match="choose_password"):
        examine(read_debezium(given), Host())
    host = Host()
    host.register(Tokens("x"), "tokens")
    assert examine(read_debezium(given), host).profile
