"""A YugabyteDB to look at: a real PostgreSQL with the output plugin ``yboutput``, behind a proxy that speaks
its protocol.

    with Yugabyte(yb_database) as server:
        …  # connect to server.port

**Verified against a protocol double built from published sources; no YugabyteDB server was run.**

What goes through it is answered as YugabyteDB does:

- functions, commands and system columns that it lacks are refused (`LACKING`), so that a pipeline that works
  has never asked for them; `Yugabyte.refused` lists what was;
- a slot is made by YugabyteDB's words; its position, those of its stream, and transaction ids are counted
  as YugabyteDB counts them, over restarts too (`wire.Numbering`), or are commit times (HYBRID_TIME);
- a slot comes with a hybrid time; ``yb_read_time`` of that time shows the rows as they were then. Behind it is
  a snapshot that PostgreSQL exported and a connection of the double keeps: any other time is "too old";
- ``hash_range`` of a stream, ``yb_hash_code``, several consumers of one slot one after the other, and the
  refusal of pgoutput for tables with CHANGE.

What it is not: several nodes, tablets, a clock of its own, expiry. That a slot follows its publication late
(``late``) and that minutes pass (`refresh`, `quiet`, ``ahead_s``), tests say.

It cannot show: whether YugabyteDB's parser takes the ``DO $$ … yb_read_time …`` blocks, which are answered
before any parser sees them; what a chunk costs with HASH keys, since keys are btrees that the
catalogue calls hashed; and ``before``
under DEFAULT with pgoutput, which is whole here.
"""

import contextlib
import re
import select
import socket
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import psycopg
from tests.harness.servers.postgres import Database, once_free
from tests.harness.yugabyte.wire import (
    EPOCH_US,
    FIRST_LSN,
    FIRST_XID,
    FLUSHED,
    Frame,
    Numbering,
    Started,
    hash_code,
    started,
)

from waltap.changes.transactions.position import lsn_text, parse_lsn
from waltap_testing.walsender import wire as protocol

SCHEMA = Path(__file__).parent / "schema.sql"
SETTINGS = "-c search_path=yb_double,pg_catalog,public"
VERSION = "15.12-YB-2025.2.4.0-b0"
PATIENCE_S = 120.0
CLOCK = "clock_timestamp()"
NEVER = 1 << 62
CANCEL = (80877102).to_bytes(4, "big")

LACKING: tuple[tuple[str, str, str], ...] = (
    (r"\bIDENTIFY_SYSTEM\b|\bTIMELINE_HISTORY\b", "0A000", "IDENTIFY_SYSTEM is not supported"),
    (
        r"\b(pg_current_wal_\w+|pg_last_wal_\w+|pg_wal_lsn_diff|pg_walfile_name|txid_\w+|pg_current_xact_id"
        r"|pg_current_snapshot|pg_xact_commit_timestamp|pg_export_snapshot|pg_control_\w+"
        r"|pg_logical_slot_\w+_changes|pg_replication_slot_advance|pg_copy_logical_replication_slot"
        r"|pg_logical_emit_message)\s*\(",
        "0A000",
        "function is not supported yet",
    ),
    (
        r"SET\s+TRANSACTION\s+SNAPSHOT",
        "0A000",
        "cannot export or import snapshot when ysql_enable_pg_export_snapshot is disabled.",
    ),
    (
        r"(?<![\w\"'])(?:\w+\.)?(?:xmin|xmax|cmin|cmax|ctid)(?![\w\"'])",
        "0A000",
        "System column with id -2 is not supported yet",
    ),
)
"""What YugabyteDB does not have: a regular expression of the statement, SQLSTATE and text."""

MADE = re.compile(
    r'CREATE_REPLICATION_SLOT\s+"?(?P<name>\w+)"?\s+(?P<temporary>TEMPORARY\s+)?LOGICAL\s+"?(?P<plugin>\w+)"?'
    r"(?P<rest>.*)",
    re.IGNORECASE | re.DOTALL,
)
IMPORTED = re.compile(r"^SET TRANSACTION SNAPSHOT '", re.IGNORECASE)
READ_TIME = re.compile(r"\byb_read_time\s+TO\s+'(\d+) ht'", re.IGNORECASE)
ISOLATION = re.compile(r"BEGIN ISOLATION LEVEL SERIALIZABLE[A-Z ]*", re.IGNORECASE)
PLUGINS = {"yboutput", "pgoutput", "test_decoding", "wal2json"}


def through_double(sql: str) -> str:
    """Return ``sql`` with the double's own functions before the server's, where sessions of ours look."""
    return sql.replace("search_path = pg_catalog", "search_path = yb_double, pg_catalog")


@dataclass
class Yugabyte:
    """The double of one database. ``version`` is what ``version()`` says. ``superuser``: roles may set
    ``yb_read_time`` themselves; else only the procedure of that name can, where ``procedures`` says that there
    is one. ``words``: the release knows LSN types. ``exports``: slots come with an exported snapshot, as with
    ``ysql_enable_pg_export_snapshot``, rather than a hybrid time. ``locks``: there are advisory locks.
    ``managed``: a connection manager drops the options of start packets. ``stays_active``: a slot that was
    read counts as read, until `quiet` says that the minutes after it have passed. ``late``: a slot follows its
    publication when `refresh` says so. ``ahead_s``: how far the clock that nodes show is put forward.
    """

    database: Database
    version: str = f"PostgreSQL {VERSION} on x86_64-pc-linux-gnu"
    superuser: bool = True
    procedures: bool = False
    words: bool = True
    exports: bool = False
    locks: bool = True
    managed: bool = False
    stays_active: bool = False
    late: bool = False
    ahead_s: float = 0.0
    said: list[str] = field(default_factory=list)
    refused: list[str] = field(default_factory=list)
    streams: list[Started] = field(default_factory=list)
    flushed: list[tuple[str, int]] = field(default_factory=list)
    """(slot, LSN) of each position that a client said it had flushed."""
    nodes: list[int] = field(default_factory=list)
    """The port of each connection that was taken, in order."""
    forget_snapshots: bool = False
    before_read_time: Callable[[], object] = lambda: None
    after_copy: Callable[[int], object] = lambda _count: None
    """Called with the number of COPY that were asked for so far, when one was."""

    def __post_init__(self) -> None:
        self._links: list[_Link] = []
        self._keepers: dict[int, tuple[str, Any]] = {}
        self._lock = threading.Lock()
        self.closed, self._copies = False, 0
        self.numberings: dict[str, Numbering] = {}
        self._listeners: list[socket.socket] = []
        self._followed: dict[str, dict[int, int]] = {}
        self._confirmed: dict[str, list[tuple[int, int, int]]] = {}
        """Slot → (PostgreSQL's position, the slot's, id of the next transaction) of what was confirmed, in order."""

    # --- life ---

    def __enter__(self) -> Self:
        self.database.execute(SCHEMA.read_text())
        name = self.database.name
        self.database.execute(f"ALTER DATABASE \"{name}\" SET yb_double.version = '{self.version}'")
        self.port = self.another()
        return self

    def another(self) -> int:
        """Listen on one more port, as another node of the cluster; return it."""
        listener = socket.create_server(("127.0.0.1", 0))
        self._listeners.append(listener)
        threading.Thread(target=self._accept, args=(listener,), daemon=True).start()
        return int(listener.getsockname()[1])

    def __exit__(
        self,
        _kind: type[BaseException] | None,
        _error: BaseException | None,
        _trace: TracebackType | None,
    ) -> None:
        with self._lock:
            self.closed, links = True, list(self._links)
        for listener in self._listeners:
            listener.shutdown(socket.SHUT_RDWR)  # wakes the thread that accepts
            listener.close()
        for link in links:
            link.end()
        for link in links:
            link.thread.join(PATIENCE_S)
        for _, keeper in self._keepers.values():
            keeper.close()

    def cut(self, sqlstate: str = "57P01") -> None:
        """End every link, as a node that goes down does."""
        words = "terminating connection due to administrator command"
        with self._lock:
            links, self._links = self._links, []
        for link in links:
            link.end(protocol.error_response("FATAL", sqlstate, words))

    def execute(self, sql: str, *parameters: object) -> list[Any]:
        """Run SQL through the double."""

        def run() -> list[Any]:
            with self.connect() as connection:
                cursor = connection.execute(sql.encode(), parameters or None)
                return cursor.fetchall() if cursor.description else []

        return once_free(run)

    def refresh(self) -> None:
        """Have slots follow their publications: what is committed to new members from now on is streamed."""
        ((now,),) = self.database.execute(
            "SELECT (extract(epoch FROM clock_timestamp()) * 1000000)::int8"
        )
        members = self._members()
        for slot, followed in self._followed.items():
            self._followed[slot] = {table: followed.get(table, now) for table in members}

    def _members(self) -> list[int]:
        rows = self.database.execute(
            "SELECT DISTINCT format('%I.%I', schemaname, tablename)::regclass::oid::int8"
            " FROM pg_publication_tables"
        )
        return [oid for (oid,) in rows]

    def quiet(self) -> None:
        """Let the minutes pass for which a slot counts as read after its last reader."""
        self.database.execute("UPDATE yb_double.slots SET active = false")

    def connect(self) -> psycopg.Connection[Any]:
        return psycopg.connect(self.dsn(), autocommit=True)

    def dsn(self, user: str = "") -> str:
        server = self.database.server
        user = user or server.user
        return (
            f"host=127.0.0.1 port={self.port} user={user} dbname={self.database.name}"
            " sslmode=disable gssencmode=disable"
        )

    def properties(self) -> dict[str, Any]:
        """Return the properties that lead here."""
        return {
            **self.database.properties(),
            "database.hostname": "127.0.0.1",
            "database.port": self.port,
            "database.sslmode": "disable",
        }

    def starts(self, slot: str = "") -> list[Started]:
        return [each for each in self.streams if not slot or each.slot == slot]

    def asked(self, pattern: str) -> list[str]:
        """Return the statements in which a regular expression is found, in order."""
        return [said for said in list(self.said) if re.search(pattern, said, re.IGNORECASE)]

    def server_socket(self) -> socket.socket:
        """Connect to PostgreSQL."""
        server = self.database.server
        found = socket.create_connection((server.host, server.port), timeout=10)
        found.settimeout(None)
        return found

    def _accept(self, listener: socket.socket) -> None:
        with contextlib.suppress(OSError):
            while True:
                near, _ = listener.accept()
                self.nodes.append(near.getsockname()[1])
                link = _Link(self, near)
                with self._lock:
                    if self.closed:
                        near.close()
                        return
                    self._links = [each for each in self._links if each.thread.is_alive()]
                    self._links.append(link)
                    link.thread.start()

    # --- what is said ---

    def rewritten(self, sql: str) -> str:
        """Return what PostgreSQL is asked instead."""
        self.said.append(sql)
        if sql.startswith("COPY"):
            self._copies += 1
            self.after_copy(self._copies)
        found = READ_TIME.search(sql)
        if found:
            return self._read_time(found[1])
        if re.search("yb_disable_catalog_version_check", sql, re.IGNORECASE):
            if self.superuser or self.procedures:
                return "SET LOCAL lock_timeout = 0"
            return self._refusal(
                "42883", "procedure disable_catalog_version_check() does not exist"
            )
        if "yb_get_current_hybrid_time_lsn" in sql:
            return f"SELECT {self._now()}::int8"
        if CLOCK in sql:
            sql = sql.replace(CLOCK, f"({CLOCK} + interval '{self.ahead_s} s')")
        if self.exports and IMPORTED.search(sql):
            return sql
        if not self.locks and "pg_try_advisory_lock" in sql:
            words = "advisory locks are not yet implemented"
            return self._refusal("0A000", words, parameters=_parameters(sql))
        for pattern, sqlstate, words in LACKING:
            if re.search(pattern, sql, re.IGNORECASE):
                self.refused.append(sql)
                return self._refusal(sqlstate, words, parameters=_parameters(sql))
        sql = through_double(sql)
        if not self.superuser:
            sql = sql.replace("SELECT rolsuper", "SELECT false")
        # an imported snapshot is read in REPEATABLE READ
        return ISOLATION.sub("BEGIN ISOLATION LEVEL REPEATABLE READ READ ONLY", sql)

    def _now(self) -> int:
        """Return the hybrid time of now, at which can be read from then on."""
        keeper = psycopg.connect(self.database.dsn, autocommit=True)
        keeper.execute("BEGIN ISOLATION LEVEL REPEATABLE READ READ ONLY")
        ((snapshot,),) = keeper.execute("SELECT pg_export_snapshot()").fetchall()
        return self._keep(snapshot, keeper)

    def _keep(self, snapshot: str, keeper: "psycopg.Connection[Any]") -> int:
        """Give a snapshot that ``keeper`` exported a hybrid time of its own; return it."""
        with self._lock:
            commit_ht = (time.time_ns() // 1000) << 12
            while commit_ht in self._keepers:
                commit_ht += 1
            self._keepers[commit_ht] = snapshot, keeper
        return commit_ht

    def _read_time(self, commit_ht: str) -> str:
        if not (self.superuser or self.procedures):
            return self._refusal("42883", "procedure set_yb_read_time(unknown) does not exist")
        self.before_read_time()
        kept = self._keepers.get(int(commit_ht))
        if kept is None or self.forget_snapshots:
            text = f"Snapshot too old. Read point: {{ physical: {int(commit_ht) >> 12} }}"
            return self._refusal("72000", text)
        return f"SET TRANSACTION SNAPSHOT '{kept[0]}'"

    @staticmethod
    def _refusal(sqlstate: str, words: str, *, parameters: int = 0) -> str:
        given = ", ".join(f"${n}::text" for n in range(1, parameters + 1))
        tail = f" FROM (SELECT {given}) given" if given else ""
        words = words.replace("'", "''")
        return f"SELECT yb_double.refuse('{sqlstate}', '{words}'){tail}"

    # --- slots ---

    def create(self, sql: str) -> bytes:
        """Make a slot; return the answer's bytes."""
        self.said.append(sql)
        found = MADE.match(sql)
        if found is None:
            return _failed("42601", "syntax error")
        name, plugin, rest = found["name"], found["plugin"], found["rest"]
        words = set(re.findall(r"[A-Z_]{4,}", rest.upper()))
        refusal = self._unmade(found["temporary"], plugin, words, rest)
        if refusal is not None:
            return _failed(*refusal)
        keeper = psycopg.connect(f"{self.database.dsn}?replication=database", autocommit=True)
        try:
            ((_, _, snapshot, _),) = keeper.execute(
                f"CREATE_REPLICATION_SLOT {name} LOGICAL {plugin} (SNAPSHOT 'export')".encode()
            ).fetchall()
        except psycopg.Error as error:
            keeper.close()
            return _failed(error.sqlstate or "XX000", str(error.diag.message_primary))
        commit_ht = self._keep(snapshot, keeper)
        self.database.execute(
            "INSERT INTO yb_double.slots VALUES (%s, md5(random()::text), %s, %s, %s, %s, false, (SELECT"
            " jsonb_object_agg(c.oid, yb_double.identity_of(c.oid)) FROM pg_class c WHERE c.relkind = 'r'"
            " AND c.oid >= 16384))",
            name,
            "HYBRID_TIME" if "HYBRID_TIME" in words else "SEQUENCE",
            commit_ht,
            snapshot,
            FIRST_LSN,
        )
        self._followed[name] = dict.fromkeys(self._members(), 0)
        self._confirmed[name] = [(0, FIRST_LSN, FIRST_XID)]
        columns = [
            (c, 25) for c in ("slot_name", "consistent_point", "snapshot_name", "output_plugin")
        ]
        given = snapshot if self.exports else str(commit_ht)
        shown = None if words & {"NOEXPORT_SNAPSHOT", "NOTHING"} else given
        return (
            protocol.row_description(columns)
            + protocol.data_row([name, lsn_text(FIRST_LSN), shown, plugin])
            + protocol.command_complete("CREATE_REPLICATION_SLOT")
            + protocol.ready("I")
        )

    def _unmade(
        self, temporary: str | None, plugin: str, words: set[str], rest: str
    ) -> tuple[str, str] | None:
        if temporary:
            return "0A000", "Temporary replication slot is not yet supported"
        if plugin not in PLUGINS:
            return "58P01", f'could not access file "{plugin}": No such file or directory'
        exports = "EXPORT_SNAPSHOT" in words or "'export'" in rest
        if self.exports and not exports and "NOEXPORT_SNAPSHOT" not in words:
            use = "CREATE_REPLICATION_SLOT ... (SNAPSHOT 'use')"
            return "XX000", f"{use} must be called inside a transaction"
        if exports and not self.exports:
            return "0A000", "Exporting snapshot is not yet supported"
        lsn_words = words & {"SEQUENCE", "HYBRID_TIME"}
        if lsn_words and not self.words:
            return "42601", f'syntax error at or near "{lsn_words.pop()}"'
        return None

    def begin(self, begun: Started) -> str | bytes:
        """Return the command that starts the real stream, or an error's bytes."""
        self.streams.append(begun)
        rows = self.database.execute(
            "SELECT p.plugin, s.frozen FROM yb_double.slots s"
            " JOIN pg_replication_slots p ON p.slot_name = s.slot_name WHERE s.slot_name = %s",
            begun.slot,
        )
        if not rows:
            return _failed("42704", f'replication slot "{begun.slot}" does not exist')
        ((plugin, frozen),) = rows
        if plugin == "pgoutput":
            refusal = self._change_refused(begun, frozen)
            if refusal is not None:
                return refusal
        if self.stays_active:
            self.database.execute(
                "UPDATE yb_double.slots SET active = true WHERE slot_name = %s", begun.slot
            )
        options = {name: value for name, value in begun.options.items() if name != "hash_range"}
        listed = ", ".join(f"\"{name}\" '{value}'" for name, value in options.items())
        return f'START_REPLICATION SLOT "{begun.slot}" LOGICAL 0/0 ({listed})'

    def numbering(self, begun: Started) -> Numbering:
        """Return the numbers of a stream that has begun.

        They go on from what PostgreSQL knows to be confirmed: that of the connection before may have been on
        its way when this one asked for the stream, and may never have arrived.
        """
        ((kind, real),) = self.database.execute(
            "SELECT s.lsn_type, p.confirmed_flush_lsn::text FROM yb_double.slots s"
            " JOIN pg_replication_slots p ON p.slot_name = s.slot_name WHERE s.slot_name = %s",
            begun.slot,
        )
        arrived = [each for each in self._confirmed[begun.slot] if each[0] <= parse_lsn(real)]
        self._confirmed[begun.slot] = arrived
        _, confirmed, xid = arrived[-1]
        self._show_confirmed(begun.slot, confirmed)
        wanted = begun.options.get("hash_range")
        in_range = (lambda _payload: True) if wanted is None else _in_range(wanted)

        def takes(payload: bytes, stamp: int) -> bool:
            table = int.from_bytes(payload[1:5], "big")
            if self.late and self._followed[begun.slot].get(table, NEVER) > stamp + EPOCH_US:
                return False
            return bool(in_range(payload))

        made = Numbering(confirmed, xid, start=begun.lsn, hybrid=kind == "HYBRID_TIME", takes=takes)
        self.numberings[begun.slot] = made
        return made

    def _change_refused(self, begun: Started, frozen: dict[str, str]) -> bytes | None:
        names = [n.strip('" ') for n in begun.options.get("publication_names", "").split(",")]
        members = self.database.execute(
            "SELECT c.oid::int8 FROM pg_publication_tables p JOIN pg_class c ON c.oid ="
            " format('%%I.%%I', p.schemaname, p.tablename)::regclass WHERE p.pubname = ANY(%s)",
            names,
        )
        for (oid,) in members:
            if frozen.get(str(oid), "c") == "c":
                return protocol.error_response(
                    "ERROR",
                    "XX000",
                    f"replica identity CHANGE (for table: {oid}) is not supported for output plugin pgoutput",
                    H="Consider using output plugin yboutput instead. ",
                ) + protocol.ready("I")
        return None

    def acknowledged(self, slot: str, lsn: int, numbering: Numbering) -> int:
        """Move a slot; return PostgreSQL's position."""
        self.flushed.append((slot, lsn))
        real = numbering.confirm(lsn)
        if real:
            self._confirmed[slot].append((real, numbering.confirmed, numbering.next_xid))
            self._show_confirmed(slot, numbering.confirmed)
        return real

    def _show_confirmed(self, slot: str, position: int) -> None:
        self.database.execute(
            "UPDATE yb_double.slots SET confirmed = %s WHERE slot_name = %s", position, slot
        )


class _Link:
    """One client's connection: two sockets, one thread."""

    def __init__(self, double: Yugabyte, near: socket.socket) -> None:
        self._double, self._near = double, near
        self._far: socket.socket | None = None
        self._messages = protocol.FrontendMessages()
        self._slot = ""
        self._numbering: Numbering | None = None
        self._begun: Started | None = None
        self._real, self._reported = 0, b""
        self._answer = bytearray()
        self.thread = threading.Thread(target=self._serve, name="yugabyte", daemon=True)

    def end(self, last: bytes = b"") -> None:
        with contextlib.suppress(OSError):
            self._near.sendall(last)
        for side in (self._near, self._far):
            with contextlib.suppress(OSError, AttributeError):
                side.shutdown(socket.SHUT_RDWR)  # type: ignore[union-attr]

    def _serve(self) -> None:
        try:
            with contextlib.suppress(OSError):
                while True:
                    sides = [side for side in (self._near, self._far) if side is not None]
                    for side in select.select(sides, [], [], 5.0)[0]:
                        data = side.recv(1 << 16)
                        if not data:
                            return
                        if side is self._near:
                            self._from_client(data)
                        else:
                            self._from_server(data)
        except psycopg.Error:
            if not self._double.closed:  # else the database may have gone first
                raise
        finally:
            for side in (self._near, self._far):
                if side is not None:
                    side.close()

    # --- from the client ---

    def _from_client(self, data: bytes) -> None:
        if self._far is None and data[4:8] == CANCEL:
            self._far = self._double.server_socket()
            self._far.sendall(data)
            raise OSError("that was all")
        for each in self._messages.feed(data):
            if isinstance(each, protocol.StartupMessage):
                self._startup(each)
                continue
            kind, body = each
            if kind == b"Q":
                self._query(body[:-1].decode())
            elif kind == b"P":
                name, sql, rest = body.split(b"\0", 2)
                sql = self._double.rewritten(sql.decode()).encode()
                self._forward(b"P", name + b"\0" + sql + b"\0" + rest)
            elif kind == b"d" and body[:1] == b"r" and self._numbering is not None:
                self._feedback(body)
            else:
                self._forward(kind, body)

    def _startup(self, startup: protocol.StartupMessage) -> None:
        if startup.code in (80877103, 80877104):
            self._near.sendall(b"N")
            return
        self._far = self._double.server_socket()
        given = dict(startup.parameters)
        own = "" if self._double.managed else given.get("options", "")
        given["options"] = f"{own} {SETTINGS}".strip()
        body = startup.code.to_bytes(4, "big")
        for name, value in given.items():
            body += name.encode() + b"\0" + value.encode() + b"\0"
        body += b"\0"
        self._far.sendall((len(body) + 4).to_bytes(4, "big") + body)

    def _query(self, sql: str) -> None:
        words = sql.split(None, 1)
        command = words[0].upper() if words else ""
        if command == "CREATE_REPLICATION_SLOT":
            self._near.sendall(self._double.create(sql))
        elif command == "START_REPLICATION":
            self._double.said.append(sql)
            self._begun = started(sql)
            self._start()
        else:
            self._forward(b"Q", self._double.rewritten(sql).encode() + b"\0")

    def _start(self) -> None:
        assert self._begun is not None
        sql = self._double.begin(self._begun)
        if isinstance(sql, bytes):
            self._begun = None
            self._near.sendall(sql)
            return
        self._slot = self._begun.slot
        self._deadline = time.monotonic() + PATIENCE_S
        self._command = sql
        self._forward(b"Q", sql.encode() + b"\0")

    def _feedback(self, body: bytes) -> None:
        assert self._numbering is not None
        feedback = protocol.parse_feedback(body, 0.0)
        assert feedback is not None
        real = self._double.acknowledged(self._slot, feedback.flushed, self._numbering)
        self._real = real or self._real
        reported = protocol.STATUS.pack(
            b"r", self._real, self._real, self._real, 0, int(feedback.reply_requested)
        )
        self._forward(b"d", reported)

    def _forward(self, kind: bytes, body: bytes) -> None:
        assert self._far is not None
        self._far.sendall(kind + (len(body) + 4).to_bytes(4, "big") + body)

    # --- from the server ---

    def _from_server(self, data: bytes) -> None:
        self._answer += data
        out = bytearray()
        while len(self._answer) >= 5:
            size = int.from_bytes(self._answer[1:5], "big") + 1
            if len(self._answer) < size:
                break
            whole = bytes(self._answer[:size])
            del self._answer[:size]
            out += self._answered(whole[:1], whole[5:], whole)
        if out:
            self._near.sendall(out)

    def _answered(self, kind: bytes, body: bytes, whole: bytes) -> bytes:
        if kind == b"S" and body.startswith(b"server_version\0"):
            return protocol.parameter_status("server_version", _release(self._double.version))
        if kind == b"E" and b"C55006\0" in body and self._begun is not None:
            # PostgreSQL's own walsender of the last connection has still to end
            self._reported = b"busy"
            return b""
        if kind == b"Z" and self._reported == b"busy":
            self._reported = b""
            assert time.monotonic() < self._deadline, "the slot does not become free"
            time.sleep(0.02)
            self._forward(b"Q", self._command.encode() + b"\0")
            return b""
        if kind == b"W" and self._begun is not None:
            self._numbering = self._double.numbering(self._begun)
            self._begun = None
        if kind == b"d" and self._numbering is not None:
            return b"".join(map(protocol.copy_data, self._frames(body)))
        return whole

    def _frames(self, body: bytes) -> Iterator[bytes]:
        assert self._numbering is not None
        if body[:1] == b"k":
            yield b"k" + FLUSHED.to_bytes(8, "big") + body[9:]
            return
        for frame in self._numbering.feed(Frame.parse(body)):
            yield frame.encoded()


def _failed(sqlstate: str, words: str) -> bytes:
    return protocol.error_response("ERROR", sqlstate, words) + protocol.ready("I")


def _parameters(sql: str) -> int:
    return max((int(n) for n in re.findall(r"\$(\d+)", sql)), default=0)


def _release(version: str) -> str:
    found = re.match(r"PostgreSQL (\S+)", version)
    return found[1] if found else version


def _in_range(wanted: str) -> Any:
    low, high = (int(part) for part in wanted.split(","))

    def takes(payload: bytes) -> bool:
        # I and D begin with a tuple, as does U without an old one; the first column is the key
        value = payload[8:]
        assert value[:1] == b"t", "the key is the first column"
        size = int.from_bytes(value[1:5], "big")
        return low <= hash_code(value[5 : 5 + size].decode()) < high

    return takes
