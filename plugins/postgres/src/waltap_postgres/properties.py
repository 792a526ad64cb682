"""Properties of the PostgreSQL connector.

They have Debezium's names where the meaning is the same.
"""

import re
import shlex
from collections.abc import Callable, Iterator, Sequence
from typing import Annotated, Any, ClassVar, Literal, Self

from pydantic import AfterValidator, PrivateAttr, ValidationInfo, field_validator

from waltap.base.placeholder import SecretMissing
from waltap.base.property import (
    Maybe,
    MaybeList,
    Positive,
    Properties,
    Switch,
    Whole,
    declare,
    declare_family,
)
from waltap.base.redaction import Secret, hide_passing
from waltap.changes.capture.java_regex import PatternList, java_pattern
from waltap.ports.source.password import Password, PasswordFileUnreadable, printed_password
from waltap_postgres.errors import INSERTS_SUFFIX, ErrorMeanings
from waltap_postgres.jdbc_options import OPTION_NAMES, libpq_of, refusal_of

# Properties that may be followed by a table's name.
OF_TABLES = "snapshot.select.statement.overrides", "snapshot.max.threads.multiplier"


def _slot_name(value: str) -> str:
    if not re.fullmatch(r"[a-z0-9_]{1,63}", value):
        raise ValueError("a slot name has 1 to 63 characters of a-z, 0-9 and _")
    return value


SlotName = Annotated[str, AfterValidator(_slot_name)]


class PostgresProperties(Properties):
    """Configure the connection, the slot, the publication and the snapshot."""

    # Translates the errors of this kind of server.
    meanings: ClassVar[ErrorMeanings] = ErrorMeanings()
    # Whether settings in the startup packet reach the server; else each session sets them again.
    start_options_pass: ClassVar[bool] = True

    @property
    def addresses(self) -> tuple[str, str]:
        """Return libpq's comma lists of hosts and ports."""
        return self.hostname, str(self.port)

    hostname: str = declare(
        "database.hostname",
        default="localhost",
        summary="Host of the server; a comma list is tried in order; a folder means a Unix socket.",
    )
    port: Positive = declare("database.port", default=5432, le=65535, summary="Port of the server.")
    user: str = declare("database.user", default="postgres", summary="Role to connect as.")
    password: Maybe[str] = declare(
        "database.password",
        common=True,
        secret=True,
        renewed=True,
        summary="Password of the role. A file that it names is read again for each connection.",
    )
    password_command: Maybe[str] = declare(
        "database.password.command",
        secret=True,
        renewed=True,
        summary="Command that prints the password, run before each connection, for example a "
        "token or a vault's secret. It runs without a shell, in the profile's folder; "
        "quote words as in a shell.",
    )
    password_command_timeout_ms: Positive = declare(
        "database.password.command.timeout.ms",
        default=30000,
        summary="Longest time that it may take.",
    )
    dbname: str = declare("database.dbname", summary="Database to capture from.")
    sslmode: Literal["disable", "allow", "prefer", "require", "verify-ca", "verify-full"] = declare(
        "database.sslmode", default="prefer", summary="TLS mode, as libpq means it."
    )
    sslcert: Maybe[str] = declare("database.sslcert", summary="Client certificate file.", path=True)
    sslkey: Maybe[str] = declare("database.sslkey", summary="Client key file.", path=True)
    sslpassword: Maybe[str] = declare(
        "database.sslpassword", secret=True, summary="Password of the client key."
    )
    sslrootcert: Maybe[str] = declare(
        "database.sslrootcert", summary="Certificate authorities file.", path=("system",)
    )
    tcp_keepalive: bool = declare(
        "database.tcpKeepAlive", default=True, summary="TCP keep-alive probes."
    )
    query_timeout_ms: Whole = declare(
        "database.query.timeout.ms",
        default=600000,
        le=2**31 - 1,
        summary="Longest time a catalogue query may take; 0: without limit.",
    )
    receive_timeout_ms: Whole = declare(
        "waltap.receive.timeout.ms",
        default=60000,
        summary="Longest silence of the server before the connection counts as lost, as "
        "PostgreSQL's wal_receiver_timeout; after half of it waltap asks for a reply. "
        "0: wait forever.",
    )
    condition_timeout_ms: Positive = declare(
        "waltap.signal.condition.timeout.ms",
        default=60000,
        summary="Time limit of a signal's condition for one chunk, during which the stream "
        "waits. A request that needs more is ended with a warning.",
    )
    signal_role: Maybe[str] = declare(
        "waltap.signal.role",
        summary="Role whose rights apply to conditions and SELECTs of signals. The connection's "
        "role must be a member of it, and it must be able to read the tables.",
    )
    initial_statements: Maybe[str] = declare(
        "database.initial.statements",
        summary="SQL statements, separated by ;, run on each new connection that is not replication.",
    )
    libpq: dict[str, str] = declare_family(
        "driver.NAME",
        pattern=r"driver\.[A-Za-z].*",
        summary="Any libpq connection parameter, e.g. driver.target_session_attrs; of the JDBC "
        "driver's options, those with a libpq equivalent or only for Java.",
    )
    jdbc: dict[str, str] = declare_family(
        "database.OPTION",
        pattern=rf"database\.({'|'.join(sorted(OPTION_NAMES))})",
        summary="An option of the JDBC driver, as driver.OPTION.",
    )

    slot_name: SlotName = declare(
        "slot.name",
        common=True,
        default="debezium",
        pipeline_name=True,
        summary="Replication slot that retains WAL for this pipeline.",
    )
    slot_takeover: Switch = declare(
        "slot.takeover",
        summary="Whether an existing slot without a stored offset may be taken over from its "
        "maker. A Debezium file takes it over with a warning, as Debezium does. `waltap drop` leaves "
        "such a slot; `waltap slot drop` removes it.",
    )
    slot_temporary: Switch = declare(
        "slot.temporary", summary="Use a slot that the server drops when the connection ends."
    )
    slot_drop_on_stop: Switch = declare(
        "slot.drop.on.stop",
        aliases=("slot.drop_on_stop",),
        summary="Drop the slot on a clean stop; the next start then needs a snapshot.",
    )
    slot_failover: Switch = declare(
        "slot.failover",
        summary="Create the slot so that PostgreSQL 17 and later synchronize it to standbys.",
    )
    slot_stream_params: Maybe[str] = declare(
        "slot.stream.params",
        summary="Further options for the output plugin: name=value, separated by ;.",
    )
    slot_max_retries: Whole = declare(
        "slot.max.retries", default=6, summary="How often to try again when the slot is in use."
    )
    slot_retry_delay_ms: Whole = declare(
        "slot.retry.delay.ms", default=10000, summary="Wait between two such tries."
    )
    publication_name: str = declare(
        "publication.name",
        common=True,
        default="dbz_publication",
        pipeline_name=True,
        summary="Publication: the list of tables that the server sends.",
    )
    publication_autocreate_mode: Literal["all_tables", "disabled", "filtered", "no_tables"] = (
        declare(
            "publication.autocreate.mode",
            default="all_tables",
            profile_default="filtered",
            summary="Whether waltap creates the publication: not (disabled), for every table "
            "(all_tables), for the captured tables (filtered), or without tables "
            "(no_tables).",
        )
    )
    publication_keyless_tables: Literal["publish", "refuse", "inserts"] = declare(
        "publication.keyless.tables",
        default="publish",
        profile_default="refuse",
        summary="For captured tables whose replica identity cannot support updates: publish "
        "them anyway (the application's UPDATE and DELETE then fail), refuse to start, or publish "
        "only inserts and truncates, in a second publication: publication.name + _inserts.",
    )
    publication_drop_on_stop: Switch = declare(
        "publication.drop.on.stop",
        summary="Drop publications that this run created when it stops. Only for slot.temporary or "
        "slot.drop.on.stop: a slot that stays cannot be read past changes made without them.",
    )
    publish_via_partition_root: Switch = declare(
        "publish.via.partition.root",
        summary="Publish rows of partitions as rows of the partitioned table. PostgreSQL then publishes "
        "no TRUNCATE of a single partition: its rows stay at the destination.",
    )
    replica_identity_autoset_values: MaybeList = declare(
        "replica.identity.autoset.values",
        summary="Replica identities to set at start: schema.table-regex:DEFAULT|FULL|NOTHING|INDEX name. "
        "The role must own the tables; each is locked (ACCESS EXCLUSIVE). `waltap drop` does not set "
        "them back.",
        patterns="identities",
    )
    offset_mismatch_strategy: Literal[
        "no_validation", "trust_offset", "trust_slot", "trust_greater_lsn"
    ] = declare(
        "offset.mismatch.strategy",
        default="no_validation",
        summary="If offset and slot differ, an offset ahead counts. A slot ahead is a gap and refused, "
        "except with trust_slot or trust_greater_lsn. A slot that went back is of an older copy of the "
        "server and refused, except with a trust_ value.",
    )

    lsn_flush_mode: Literal["connector", "connector_and_driver", "manual"] = declare(
        "lsn.flush.mode",
        default="connector",
        summary="Which process confirms the slot. connector and connector_and_driver: waltap. "
        "manual: another process; the server keeps WAL until then, and a slot that is "
        "moved past the stored offset is a gap.",
    )
    xmin_fetch_interval_ms: Whole = declare(
        "xmin.fetch.interval.ms",
        default=0,
        summary="How often the slot is asked for its catalog_xmin, which becomes source.xmin of streamed "
        "events; 0: never, source.xmin is null.",
    )

    key_index: Literal["sound", "debezium"] = declare(
        "waltap.key.index",
        default="debezium",
        profile_default="sound",
        summary="Which unique index is the key of a table without primary key. sound: the first "
        "by name with NOT NULL columns, without WHERE, expressions and DEFERRABLE; the "
        "index of REPLICA IDENTITY USING INDEX wins if it lacks some of the key. "
        "debezium: the first that the JDBC driver lists, clustered ones first; deletes "
        "may then have a key that no row has (0 or an empty text).",
    )

    snapshot_isolation_mode: Literal[
        "serializable", "repeatable_read", "read_committed", "read_uncommitted"
    ] = declare(
        "snapshot.isolation.mode",
        default="serializable",
        summary="Isolation of a snapshot that cannot use a new slot's exported one; otherwise "
        "repeatable_read, as on a standby instead of serializable.",
    )
    snapshot_locking_mode: Literal["none", "shared", "custom"] = declare(
        "snapshot.locking.mode",
        default="none",
        summary="shared: lock every table (ACCESS SHARE) from before the snapshot until its "
        "end; DDL waits. none: lock a table while it is read, and read it again if DDL "
        "rewrote it before. custom: as the plugin snapshot.locking.mode.custom.name "
        "says.",
    )
    snapshot_lock_timeout_ms: Whole = declare(
        "snapshot.lock.timeout.ms",
        default=10000,
        le=2**31 - 1,
        summary="Longest wait for such a lock, and for the lock of a table that joins a publication. "
        "Later requests for the table wait behind it.",
    )
    snapshot_include_collection_list: PatternList = declare(
        "snapshot.include.collection.list",
        summary="Regular expressions over schema.table: read only these in the initial snapshot.",
        patterns="tables",
    )
    snapshot_select_overrides: MaybeList = declare(
        "snapshot.select.statement.overrides",
        summary="schema.table of tables that an initial snapshot reads by your own SELECT; "
        "without a SELECT the table is read completely, with a warning.",
    )
    snapshot_select_statements: dict[str, str] = declare_family(
        "snapshot.select.statement.overrides.SCHEMA.TABLE",
        pattern=r"snapshot\.select\.statement\.overrides\..+",
        summary="The SELECT that reads this table in an initial snapshot. Columns match by "
        "name; missing ones are null.",
    )
    snapshot_fetch_size: Positive = declare(
        "snapshot.fetch.size",
        deprecated={"rows.fetch.size": "snapshot.fetch.size"},
        default=10240,
        summary="Rows that go to the sink together in a snapshot.",
        unit="rows",
    )
    snapshot_max_threads: Positive = declare(
        "snapshot.max.threads",
        default=1,
        le=256,
        summary="Connections that read an initial snapshot in parallel: several tables, and "
        "ranges of large ones, all in one snapshot of the server.",
    )
    snapshot_threads_multiplier: Positive = declare(
        "snapshot.max.threads.multiplier",
        default=1,
        summary="Ranges that a large table is cut into, for each of several snapshot.max.threads.",
    )
    snapshot_threads_multipliers: dict[str, str] = declare_family(
        "snapshot.max.threads.multiplier.SCHEMA.TABLE",
        pattern=r"snapshot\.max\.threads\.multiplier\..+",
        summary="snapshot.max.threads.multiplier of one table.",
    )
    snapshot_order_by_row_count: Literal["disabled", "ascending", "descending"] = declare(
        "snapshot.tables.order.by.row.count",
        default="disabled",
        summary="Read tables with few rows first (ascending) or those with many (descending), else by "
        "table.include.list and name.",
    )
    snapshot_delay_ms: Whole = declare(
        "snapshot.delay.ms", default=0, summary="Wait before a snapshot."
    )
    heartbeat_action_query: Maybe[str] = declare(
        "heartbeat.action.query", summary="SQL that is run with each heartbeat."
    )

    _password: Password | None = PrivateAttr(default=None)

    @property
    def publications(self) -> tuple[str, ...]:
        """Return the publications that a stream may ask for."""
        name, inserts = self.publication_name, self.publication_keyless_tables == "inserts"
        return (name, name + INSERTS_SUFFIX) if inserts else (name,)

    def with_password(self, password: Password | None) -> Self:
        """Return the properties with a password source. Each connection asks it again."""
        if password is None:
            return self
        own = self.model_copy()
        own._password = password  # noqa: SLF001 - a copy of ours
        return own

    @property
    def changing_password(self) -> bool:
        """Return whether the next connection may have another password."""
        given = self.renewal("password")
        return bool(
            self._password or self.password_command or (given is not None and given.template)
        )

    def secret(self, stopping: Callable[[], bool] = lambda: False) -> str | None:
        """Return the password of the next connection.

        It comes from a plugin, a command or the profile. Raises: WaltapError, StopRequested.
        """
        found = None
        if self._password is not None:
            first = self.hostname.partition(",")[0]
            found = self._password(first, self.port, self.user, self.dbname)
        if found is None and self.password_command is not None:
            refresh = self.renewal("password_command")
            found = printed_password(
                shlex.split(self.password_command),
                folder=None if refresh is None else refresh.folder,
                timeout_s=self.password_command_timeout_ms / 1000,
                stopping=stopping,
            )
        given = self.renewal("password")
        if found is None and given is not None:
            try:
                found = given.now()
            except SecretMissing as error:
                raise PasswordFileUnreadable(f"database.password: {error}") from error
        if found is None:
            return self.password
        hide_passing(found)
        return Secret(found)

    def __getstate__(self) -> dict[Any, Any]:
        """Return the state for another process, with the present password."""
        # Another process has neither the plugin nor the command.
        if not self.changing_password:
            return super().__getstate__()
        fixed = self.model_copy(update={"password": self.secret(), "password_command": None})
        fixed._password, fixed._renewals = None, {}  # noqa: SLF001 - a copy of ours
        return fixed.__getstate__()

    @property
    def parameters(self) -> dict[str, str]:
        """Return the profile's additional connection parameters of libpq."""
        return libpq_of({**self.jdbc, **self.libpq})

    @field_validator("password_command")
    @classmethod
    def _command(cls, value: str | None, info: ValidationInfo) -> str | None:
        if value is None:
            return None
        if info.data.get("password") is not None:
            raise ValueError("is given beside database.password: which of them is meant?")
        try:
            words = shlex.split(value)
        except ValueError as error:
            raise ValueError(f"cannot be split into words: {str(error).lower()}") from None
        if not words:
            raise ValueError("names no command")
        return value

    @field_validator("libpq", "jdbc")
    @classmethod
    def _options(cls, value: dict[str, str]) -> dict[str, str]:
        refused = {name: refusal_of(name, text) for name, text in value.items()}
        problems = "; ".join(f"{name}: {why}" for name, why in refused.items() if why is not None)
        if problems:
            raise ValueError(problems)
        return value

    @property
    def stream_params(self) -> dict[str, str]:
        pairs = (pair.partition("=") for pair in (self.slot_stream_params or "").split(";"))
        return {name.strip(): value.strip() for name, equals, value in pairs if equals}

    def idle_names(self, names: Callable[[str], Sequence[str]]) -> Iterator[tuple[str, str]]:
        """Yield names of unknown tables, and SELECTs of unlisted tables."""
        overrides, multiplier = OF_TABLES
        for name in self.snapshot_select_overrides:
            database, _dot, rest = name.partition(".")
            inside = rest if database.casefold() == self.dbname.casefold() else name
            if not {name, inside} & {*names("tables")}:
                yield overrides, name
        for property_name in self.snapshot_select_statements:
            name = property_name.removeprefix(f"{overrides}.")
            if name not in self.snapshot_select_overrides and names("tables"):
                yield property_name, name
        for property_name in self.snapshot_threads_multipliers:
            name = property_name.removeprefix(f"{multiplier}.")
            if name not in names("tables"):
                yield property_name, name

    @field_validator("snapshot_threads_multipliers")
    @classmethod
    def _multipliers(cls, value: dict[str, str]) -> dict[str, str]:
        for name, text in value.items():
            if not re.fullmatch(r"[1-9][0-9]{0,4}", text.strip()):
                raise ValueError(f"{name} is {text!r}: a number from 1 to 99999")
        return value

    @field_validator("replica_identity_autoset_values")
    @classmethod
    def _identities(cls, value: tuple[str, ...]) -> tuple[str, ...]:
        for entry in value:
            if not re.fullmatch(r"[^:]+:(DEFAULT|FULL|NOTHING|INDEX\s+\S+)", entry, re.IGNORECASE):
                raise ValueError(
                    f"{entry!r} is not TABLE-REGEX:DEFAULT, FULL, NOTHING or INDEX name"
                )
            java_pattern(entry.rpartition(":")[0])
        return value
