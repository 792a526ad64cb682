"""Properties of the YugabyteDB connector.

They are PostgreSQL's with other defaults, and its own. Source: Debezium's connector for
YugabyteDB, ``PostgresConnectorConfig.java``.
"""

import random
import re
from typing import ClassVar, Literal

from pydantic import field_validator, model_validator

from waltap.base.property import Maybe, MaybeList, Positive, Whole, declare
from waltap_postgres.properties import PostgresProperties
from waltap_yugabyte.errors import YugabyteMeanings

# The snapshot mode that reads hash ranges concurrently and streams nothing.
PARALLEL = "parallel"

# Number of hash codes; a range excludes its second number.
HASH_CODES = 65536

HOST = re.compile(r"[A-Za-z0-9_.-]+")


class YugabyteProperties(PostgresProperties):
    """The cluster, and the objects that waltap creates in it."""

    meanings: ClassVar[YugabyteMeanings] = YugabyteMeanings()
    start_options_pass: ClassVar[bool] = False  # a node's connection manager may drop them

    # --- PostgreSQL's, and the pipeline's, with other defaults or fewer values
    hostname: str = declare(
        "database.hostname",
        default="localhost",
        summary="Host of a node; or several with their ports, host:port,host:port, tried in this order.",
    )
    port: Positive = declare(
        "database.port",
        default=5433,
        le=65535,
        summary="Port of the node; hosts that have a port of their own do not use it.",
    )
    user: str = declare("database.user", default="yugabyte", summary="Role to connect as.")
    decoder: Literal["yboutput", "pgoutput"] = declare(
        "plugin.name",
        default="yboutput",
        summary="Decoder: the output plugin; pgoutput takes no table with replica identity CHANGE.",
    )
    decimal_handling_mode: Literal["double", "string"] = declare(
        "decimal.handling.mode",
        default="double",
        summary="How numeric and money are written; precise is not supported.",
    )
    max_retries: int = declare(
        "errors.max.retries",
        default=60,
        ge=-1,
        summary="How often a retriable error is answered by a reconnect; -1: without end.",
    )
    retry_delay_ms: Whole = declare(
        "retriable.restart.connector.wait.ms",
        default=30000,
        summary="Longest wait between two reconnects; the first waits are shorter and double.",
    )
    snapshot_mode: str = declare(
        "snapshot.mode",
        default="initial",
        summary="When a start reads the tables before it streams; parallel: read hash ranges by "
        "several connections (tasks.max), and stream nothing.",
    )
    publication_keyless_tables: Literal["publish", "refuse"] = declare(
        "publication.keyless.tables",
        default="publish",
        profile_default="refuse",
        summary="For captured tables without primary key, which slots leave out: publish them "
        "anyway, or refuse to start.",
    )
    slot_temporary: Literal[False] = declare(
        "slot.temporary", default=False, summary="The server has no temporary slots."
    )
    slot_failover: Literal[False] = declare(
        "slot.failover",
        default=False,
        summary="Without effect: slots belong to the cluster, not to a node.",
    )

    # --- its own
    tasks_max: Positive = declare(
        "tasks.max",
        default=1,
        summary="With snapshot.mode=parallel: connections that read, if more than snapshot.max.threads. "
        "Without effect otherwise: a slot has one reader.",
    )
    slot_lsn_type: Literal["SEQUENCE", "HYBRID_TIME"] = declare(
        "slot.lsn.type",
        default="SEQUENCE",
        summary="What positions of a new slot are: numbers that count its records, or times of commits.",
    )
    consistent_snapshot: bool = declare(
        "yb.consistent.snapshot",
        default=True,
        summary="Read the initial snapshot as of the slot's start. Otherwise rows that change "
        "between slot and reading come twice.",
    )
    load_balance: bool = declare(
        "yb.load.balance.connections",
        default=True,
        summary="Try the hosts of database.hostname, and the addresses of their names, in "
        "random order, to spread connections. Other nodes are not discovered.",
    )
    hash_columns: MaybeList = declare(
        "primary.key.hash.columns",
        summary="Columns of the hash part of the primary key, for tables read or streamed in "
        "hash ranges; by default from the catalogue.",
    )
    streaming_mode: Literal["default", "parallel"] = declare(
        "streaming.mode",
        default="default",
        summary="One slot, or several that stream hash ranges of one table each (parallel).",
    )
    slot_names: MaybeList = declare(
        "slot.names", summary="With streaming.mode=parallel: a slot for each range."
    )
    publication_names: MaybeList = declare(
        "publication.names", summary="With streaming.mode=parallel: the publication of each slot."
    )
    slot_ranges: Maybe[str] = declare(
        "slot.ranges",
        summary="With streaming.mode=parallel: the hash range of each slot, FROM,TO;FROM,TO and so on, "
        "from 0 to 65536 without a gap.",
    )
    streaming_order: Literal["none", "hybrid_time"] = declare(
        "yb.streaming.order",
        default="none",
        summary="With streaming.mode=parallel: deliver each range as it arrives (none), or "
        "transactions of all ranges by commit time (hybrid_time; slots with "
        "slot.lsn.type=HYBRID_TIME).",
    )
    merge_quiet_ms: Whole = declare(
        "yb.streaming.order.wait.ms",
        default=1000,
        summary="With yb.streaming.order=hybrid_time: how long a range may be silent before the others "
        "continue without it.",
    )
    event_form: Literal["cells", "plain"] = declare(
        "yb.event.form",
        default="cells",
        profile_default="plain",
        summary="cells: events of Debezium's connector for this database, with a mark on each "
        'value (`{"value": …, "set": true}`), with yboutput. plain: ordinary rows, with'
        " the names of missing fields in `unsent`.",
    )
    server_check: Literal["refuse", "warn"] = declare(
        "yb.server.check",
        default="refuse",
        summary="What to do where the server does not say that it is YugabyteDB.",
    )
    read_time_wait_ms: Whole = declare(
        "yb.read.time.wait.ms",
        default=1000,
        summary="Wait before a time is set to read at: a node refuses one that is ahead of its clock.",
    )
    publication_refresh_ms: Whole = declare(
        "yb.publication.refresh.ms",
        default=900_000,
        summary="How long a slot may take to follow its publication "
        "(cdcsdk_publication_list_refresh_interval_secs): a joining table is read after "
        "that. From 2026.1 on it follows immediately; leave this out.",
    )
    table_interest_ms: Whole = declare(
        "yb.table.interest.ms",
        default=14_400_000,
        summary="How long after a slot's creation an older table may still join its publication "
        "(cdcsdk_tablet_not_of_interest_timeout_secs). Later it would make the slot "
        "unusable, and is refused.",
    )
    slot_window_ms: Whole = declare(
        "yb.slot.retention.ms",
        default=28_800_000,
        summary="How long the cluster keeps what an idle slot needs (cdc_intent_retention_ms); for the "
        "forecast of when a slot expires.",
    )

    @field_validator("hostname")
    @classmethod
    def _hosts(cls, value: str) -> str:
        # Only the check counts here; the port may not be known yet.
        _addresses(value, 0)
        return value

    @model_validator(mode="after")
    def _parallel(self) -> "YugabyteProperties":
        given = {
            "slot.names": self.slot_names,
            "publication.names": self.publication_names,
            "slot.ranges": self.slot_ranges,
        }
        if self.streaming_mode == "default":
            for name, value in given.items():
                if value:
                    raise ValueError(f"{name} is only valid with streaming.mode 'parallel'")
            return self
        for name, value in given.items():
            if not value:
                raise ValueError(f"streaming.mode 'parallel' needs {name}")
        ranges = self.ranges
        if not len(self.slot_names) == len(self.publication_names) == len(ranges):
            raise ValueError(
                f"slot.names, publication.names and slot.ranges have {len(self.slot_names)}, "
                f"{len(self.publication_names)} and {len(ranges)} entries: they must have as many"
            )
        _chained(ranges)
        if len(set(self.slot_names)) < len(self.slot_names):
            raise ValueError("slot.names: a slot streams one range")
        if self.streaming_order == "hybrid_time" and self.slot_lsn_type != "HYBRID_TIME":
            raise ValueError("yb.streaming.order=hybrid_time needs slot.lsn.type=HYBRID_TIME")
        return self

    @property
    def publications(self) -> tuple[str, ...]:
        return tuple(self.publication_names) or super().publications

    @property
    def ranges(self) -> tuple[tuple[int, int], ...]:
        """Return the hash ranges in the order of the slots.

        Each one excludes its second number.
        """
        found = []
        for part in (self.slot_ranges or "").split(";"):
            if not part.strip():
                continue
            numbers = re.fullmatch(r"\s*(\d+)\s*,\s*(\d+)\s*", part)
            if numbers is None:
                raise ValueError(f"slot.ranges: {part.strip()!r} is not FROM,TO")
            low, high = int(numbers[1]), int(numbers[2])
            if not 0 <= low < high <= HASH_CODES:
                raise ValueError(
                    f"slot.ranges: {low},{high} is no range of hash codes (0 to {HASH_CODES})"
                )
            found.append((low, high))
        return tuple(found)

    @property
    def readers(self) -> int:
        """Return the number of connections that read a snapshot."""
        parallel = self.snapshot_mode.strip().casefold() == PARALLEL
        return max(self.snapshot_max_threads, self.tasks_max if parallel else 1)

    @property
    def addresses(self) -> tuple[str, str]:
        found = _addresses(self.hostname, self.port)
        # An older libpq tries hosts in the given order only.
        if self.load_balance and not balances():
            random.shuffle(found)
        hosts, ports = zip(*found, strict=True)
        return ",".join(hosts), ",".join(map(str, ports))

    @property
    def parameters(self) -> dict[str, str]:
        """Return libpq's parameters. The profile's own settings for libpq win."""
        own = {"load_balance_hosts": "random"} if self.load_balance and balances() else {}
        return own | super().parameters


def balances() -> bool:
    """Return whether libpq itself spreads connections. It does from version 16 on."""
    from psycopg import pq

    return pq.version() >= 160000


def _addresses(text: str, port: int) -> list[tuple[str, int]]:
    """Return host and port of each node. Raises: ValueError."""
    if ":" not in text:
        if "," in text or not HOST.fullmatch(text):
            raise ValueError(
                f"{text!r} has invalid format (specify multiple hosts in the format "
                "ip1:port1,ip2:port2,ip3:port3)"
            )
        return [(text, port)]
    found = []
    for part in text.split(","):
        host, _, number = part.strip().rpartition(":")
        if not HOST.fullmatch(host) or not number.isdigit() or not 1 <= int(number) <= 65535:
            raise ValueError(f"{part.strip()!r} is not HOST:PORT")
        found.append((host, int(number)))
    return found


def _chained(ranges: tuple[tuple[int, int], ...]) -> None:
    """Check that ranges cover all hash codes once. Raises: ValueError."""
    end = 0
    for low, high in sorted(ranges):
        if low > end:
            raise ValueError(f"Tablet range starting from hash_code {end} is missing")
        if low < end:
            raise ValueError(f"slot.ranges: hash codes from {low} are in two ranges")
        end = high
    if end != HASH_CODES:
        raise ValueError(
            f"Incomplete ranges provided. Range starting from hash_code {end} is missing"
        )
