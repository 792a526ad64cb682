"""Errors of YugabyteDB in addition to PostgreSQL's.

Source: yugabyte-db, ``yb_virtual_wal_client.c``, ``walsender.c``, ``slotfuncs.c``.
"""

import re

from waltap.errors import ConnectionLost, OffsetError, RetryVerdict, SourceError
from waltap_postgres.errors import ErrorMeanings, SlotInvalidated

NotYugabyte = SourceError.define(
    "NotYugabyte",
    "WT-2150",
    "The server does not identify itself as YugabyteDB.",
    "For PostgreSQL: [source] type = 'postgres'. If a proxy hides YugabyteDB: "
    "yb.server.check=warn.",
)
ChangeRefused = SourceError.define(
    "ChangeRefused",
    "WT-2151",
    "pgoutput streams no table with the replica identity CHANGE.",
    "Consider using output plugin yboutput instead: plugin.name=yboutput, with a new slot.name. "
    "Or give the tables another identity and create the slot again, since a slot keeps the "
    "identities of its creation: ALTER TABLE … REPLICA IDENTITY DEFAULT; `waltap slot drop FILE`; "
    "`waltap offsets clear FILE`.",
)
CommandsOff = SourceError.define(
    "CommandsOff",
    "WT-2152",
    "The cluster refuses replication commands.",
    "Set the flags ysql_yb_enable_replication_commands and ysql_yb_enable_replica_identity of the "
    "nodes (yb-tserver) to true.",
)
ReadTimeRefused = SourceError.define(
    "ReadTimeRefused",
    "WT-2153",
    "The role may not read tables as of the slot's time.",
    "As a superuser, in a schema of the role's search_path: CREATE PROCEDURE "
    "set_yb_read_time(value TEXT) LANGUAGE plpgsql AS $$ BEGIN EXECUTE 'SET LOCAL yb_read_time = "
    "' || quote_literal(value); END $$ SECURITY DEFINER SET search_path = pg_catalog, pg_temp; "
    "CREATE PROCEDURE disable_catalog_version_check() LANGUAGE plpgsql AS $$ BEGIN EXECUTE 'SET "
    "yb_disable_catalog_version_check = true'; END $$ SECURITY DEFINER SET search_path = "
    "pg_catalog, pg_temp. Or yb.consistent.snapshot=false, with which rows that change during the "
    "snapshot come twice.",
)
TimeTooOld = SourceError.define(
    "TimeTooOld",
    "WT-2156",
    "The cluster no longer has the tables as of the slot's time.",
    "Start with a new slot: `waltap slot drop FILE`, `waltap offsets clear FILE`; where it "
    "happens again raise timestamp_history_retention_interval_sec of the nodes above the time "
    "that the snapshot takes.",
)
SlotStillActive = SourceError.define(
    "SlotStillActive",
    "WT-2154",
    "The server drops a slot only minutes after its last reader.",
    "Try again later: the cluster counts a slot as read for "
    "ysql_cdc_active_replication_slot_window_ms (5 minutes) after its last reader.",
    retry=RetryVerdict.NEVER,
)


class SlotRead(SourceError):
    """Another process reads the slot.

    The cluster would send every change to both and count either one's confirmation.
    """

    code = "WT-2159"
    retry = RetryVerdict.RECONNECT
    remedy = (
        "Stop the other process ({reader}), or choose another slot.name. If it is dead, the "
        "node ends its session; SELECT pg_terminate_backend({pid}) ends it immediately."
    )


# The cluster has dropped the changes that the slot would need of them. With such a table no
# stream of the slot would start.
TableTooLate = SourceError.define(
    "TableTooLate",
    "WT-2160",
    "Tables would join the publication of a slot that is too old.",
    "Exclude {names} from the profile (table.exclude.list, or a table.include.list without). To "
    "capture them, begin with a new slot and a new snapshot: `waltap slot drop FILE`, `waltap "
    "offsets clear FILE`, and start again. Where the cluster keeps such tables for longer "
    "(cdcsdk_tablet_not_of_interest_timeout_secs), or leaves them out by itself, "
    "yb.table.interest.ms says until when they may join.",
    retry=RetryVerdict.NEVER,
)
SlotsUsedUp = ConnectionLost.define(
    "SlotsUsedUp",
    "WT-2155",
    "The node already streams as many slots as it may.",
    "Name other nodes in database.hostname, or raise cdc_max_virtual_wal_per_tserver of the node.",
)


# Texts of errors that another attempt after a reconnect may not meet.
PASSING = re.compile(
    r"catalog version mismatch|schema version mismatch|snapshot too old: no|the tablet \S+ (was )?split"
    r"|restart read|could not serialize|conflicts with|not the leader|timed out|try again",
    re.IGNORECASE,
)


class YugabyteMeanings(ErrorMeanings):
    """Translate the server's errors.

    PostgreSQL's meanings apply to all others.
    """

    def of_query(self, sqlstate: str, message: str, **facts: str) -> SourceError | OffsetError:
        text = message.strip().rstrip(".")
        if text.startswith("replica identity CHANGE"):
            return ChangeRefused(text)
        if "is unavailable" in text or "ysql_yb_enable_replication_commands" in text:
            return CommandsOff(text)
        if "max capacity reached" in text:
            return SlotsUsedUp(text)
        if "expired" in text and ("slot" in text or "stream" in text.lower()):
            return SlotInvalidated(text, slot=facts.get("slot", ""), reason="")
        if sqlstate == "55006":
            return SlotStillActive(text)
        if "yb_read_time" in text or "disable_catalog_version_check" in text:
            return ReadTimeRefused(text)
        if text.lower().startswith("snapshot too old"):
            return TimeTooOld(text)
        if sqlstate in {"40001", "40P01", "57P01", "57P03"} or PASSING.search(text):
            return ConnectionLost(f"{text} (SQLSTATE {sqlstate})")
        return super().of_query(sqlstate, message, **facts)
