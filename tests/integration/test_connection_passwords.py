"""A plugin gives the password of each connection, as an identity service does whose tokens expire."""

from pathlib import Path

import pytest

from tests.rigs.pipeline import Pipeline
from tests.servers.postgres import Cluster
from waltap.config.layers import read_debezium
from waltap.config.resolve import examine
from waltap.errors import ConfigurationError
from waltap.hookspecs import hookimpl
from waltap.host import Host
from waltap.source.password import PasswordUnavailable

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


def only_by_password(server: Cluster) -> None:
    """Let the role in with its password only."""
    ((path,),) = server.execute("SHOW hba_file")
    hba = Path(path)
    rules = f"host all {ROLE} all scram-sha-256\nhost replication {ROLE} all scram-sha-256\n"
    hba.write_text(rules + hba.read_text())
    server.execute("SELECT pg_reload_conf()")


def test_each_connection_gets_the_token_of_its_moment(
    private_server: Cluster, tmp_path: Path
) -> None:
    private_server.execute(f"CREATE ROLE {ROLE} LOGIN SUPERUSER REPLICATION PASSWORD 'first'")
    only_by_password(private_server)
    database = private_server.create_database("tokens")
    database.execute("CREATE TABLE t (id int PRIMARY KEY)")
    tokens = Tokens("first")
    pipeline = Pipeline(
        database, tmp_path, {"database.user": ROLE, "database.password": "never valid"}
    )
    with pipeline.running(tokens) as run:
        database.execute("INSERT INTO t VALUES (1)")
        run.until(lambda: pipeline.destination.ids("t") == [1], "the first row")
        before = len(tokens.asked)
        private_server.execute(f"ALTER ROLE {ROLE} PASSWORD 'second'")
        tokens.token, tokens.failures = "second", 1
        private_server.execute(
            f"SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE usename = '{ROLE}'"
        )
        database.execute("INSERT INTO t VALUES (2)")
        run.until(lambda: pipeline.destination.ids("t") == [1, 2], "the second row")
    assert len(tokens.asked) > before + 1
    address, port, user, name = tokens.asked[0]
    assert (port, user, name) == (private_server.port, ROLE, "tokens")
    assert address == private_server.host
    failures = [error for error, _ in run.notices.failures]
    assert any(isinstance(error, PasswordUnavailable) for error in failures)


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
