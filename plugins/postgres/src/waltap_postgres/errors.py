"""Errors of PostgreSQL by SQLSTATE, with remedies.

Source: PostgreSQL manual, appendix A (error codes), and `replication/slot.c`, `walsender.c`,
`pgoutput.c` for the texts that share a code.
"""

import re
from collections import defaultdict

from waltap.base.text import sql_word
from waltap.errors import (
    NOT_UTF8,
    ConnectionLost,
    OffsetError,
    RetryVerdict,
    SnapshotError,
    SourceError,
)

DENIED = re.compile(
    r"permission denied for (database|schema|table|relation|view|foreign table|sequence|function) "
    r'"?([^"]+)"?$'
)
# Right that reading needs of a kind of object; SELECT of others.
GRANTS = {
    "database": "CONNECT ON DATABASE {name}",
    "schema": "USAGE ON SCHEMA {name}",
    "sequence": "USAGE ON SEQUENCE {name}",
    "function": "EXECUTE ON FUNCTION {name}",
}
# What the server says, or its function, where WAL or a library is missing.
WAL_GONE = re.compile("wal segment|segment_?open")
LIBRARY = re.compile("could not (access|load)|load_library")
OWNED = re.compile(r'must be (?:the )?owner of (\w+(?: table)?) "?([^"]+)"?$')


def grant_for(message: str, user: str, function: str, *, rights: str = "SELECT") -> str:
    """Return the SQL that grants the right in the server's ``message``.

    The server names an object without its schema. ``rights`` are the needed ones of a table. A
    message without an object is in another language, or about replication.
    """
    role = sql_word(user)
    denied = DENIED.search(message)
    if denied is not None:
        kind, name = denied[1], sql_word(denied[2])
        what = GRANTS.get(kind, rights + " ON {name}").format(name=name)
        return f"GRANT {what} TO {role}"
    owned = OWNED.search(message)
    if owned is not None:
        return f"ALTER {owned[1].upper()} {sql_word(owned[2])} OWNER TO {role}"
    if function.startswith("aclcheck_error"):
        return f"GRANT {rights} ON … TO {role}"
    return f"ALTER ROLE {role} WITH REPLICATION"


SnapshotReadFailed = SnapshotError.define("SnapshotReadFailed", "WT-4001")
SnapshotInterrupted = SnapshotError.define("SnapshotInterrupted", "WT-4002")
TableOvertaken = SnapshotError.define("TableOvertaken", "WT-4003", retry=RetryVerdict.RECONNECT)
SnapshotNotShared = SnapshotError.define(
    "SnapshotNotShared", "WT-4004", retry=RetryVerdict.RECONNECT
)
SnapshotModeUnclear = SnapshotError.define("SnapshotModeUnclear", "WT-4005")
# Another session holds a conflicting lock, or the role may not take it.
SnapshotLockRefused = SnapshotError.define("SnapshotLockRefused", "WT-4006")
# The read took longer than the server's ``old_snapshot_threshold`` (PostgreSQL before 17).
SnapshotTooOld = SnapshotError.define("SnapshotTooOld", "WT-4007", retry=RetryVerdict.RECONNECT)
# Without them the published rows are unknown, and other rows would never get a delete.
SnapshotSelectNarrow = SnapshotError.define("SnapshotSelectNarrow", "WT-4008")


# Reason why the server invalidated a slot → its prevention.
PREVENTION = {
    "wal_removed": "raise max_slot_wal_keep_size above what is written in the longest time that waltap is "
    "down, and set waltap.wal.budget below it, so that waltap warns before.",
    "rows_removed": "on a standby, hot_standby_feedback = on, with a physical slot between primary and "
    "standby: vacuum removed rows of catalogue tables that decoding needed.",
    "wal_level_insufficient": "keep wal_level = logical, on the primary too: it was lowered.",
    "idle_timeout": "raise idle_replication_slot_timeout above the longest time that waltap is down, or "
    "set it to 0.",
    "conflicting": "on a standby, hot_standby_feedback = on and wal_level = logical on the primary.",
    "": "the server's log says why it invalidated the slot.",
}

INSERTS_SUFFIX = "_inserts"
INSERTS_OPERATIONS = "insert, truncate"
WAL_LEVEL_SQL = "ALTER SYSTEM SET wal_level = 'logical'"


ServerUnreachable = ConnectionLost.define("ServerUnreachable", "WT-2002")
AuthenticationRefused = SourceError.define("AuthenticationRefused", "WT-2003")
OtherConnector = SourceError.define("OtherConnector", "WT-2021")
DatabaseMissing = SourceError.define("DatabaseMissing", "WT-2004")
PrivilegeMissing = SourceError.define("PrivilegeMissing", "WT-2005")
TableUnreadable = SourceError.define("TableUnreadable", "WT-2011")
WalLevelTooLow = SourceError.define("WalLevelTooLow", "WT-2006")
ServerLimit = SourceError.define("ServerLimit", "WT-2007")
ConnectionsUsedUp = ServerLimit.define("ConnectionsUsedUp", "WT-2010", retry=RetryVerdict.RECONNECT)
OutputPluginUnavailable = SourceError.define("OutputPluginUnavailable", "WT-2008")
NothingCaptured = SourceError.define("NothingCaptured", "WT-2116")
RowsHidden = SourceError.define("RowsHidden", "WT-2114")
SignalTableMissing = SourceError.define("SignalTableMissing", "WT-2115")
SlotActive = SourceError.define("SlotActive", "WT-2101", retry=RetryVerdict.RECONNECT)
SlotExists = SourceError.define("SlotExists", "WT-2102")
SlotMissing = OffsetError.define("SlotMissing", "WT-2103", loses=True)


class SlotInvalidated(SourceError):
    """The server invalidated the slot, and streaming cannot resume without a gap.

    The reason is the server's word (``invalidation_reason`` of PostgreSQL 17 and later): ``wal_removed``,
    ``rows_removed``, ``wal_level_insufficient``, ``idle_timeout``.
    """

    code = "WT-2104"
    loses = True
    remedy = (
        "`waltap repair FILE` makes a new slot and reads the tables again; "
        "snapshot.mode=when_needed takes a new snapshot instead (and `waltap slot drop FILE` "
        "removes slot {slot!r}). To prevent it: {prevention}"
    )

    def __init__(self, problem: str, *, slot: str, reason: str = "wal_removed") -> None:
        super().__init__(problem, slot=slot, prevention=PREVENTION.get(reason, PREVENTION[""]))


SlotUnfit = SourceError.define("SlotUnfit", "WT-2105")
# The publication was dropped, or the profile names another one than before. The server decodes
# with the catalogue of each change. So a publication that is created again does not exist for
# older changes, and this slot cannot be read further (PostgreSQL up to 17).
PublicationGone = SourceError.define("PublicationGone", "WT-2113")
# The slot cannot be read past these changes.
PublicationDropped = PublicationGone.define("PublicationDropped", "WT-2125", loses=True)
# That publication has the tables without a key (``publication.keyless.tables=inserts``). It was
# dropped, or created after the slot.
InsertsPublicationGone = PublicationGone.define("InsertsPublicationGone", "WT-2120")
# The snapshot mode takes a new snapshot then.
SlotUnreadable = SourceError.define("SlotUnreadable", "WT-2117", retry=RetryVerdict.RECONNECT)
EncodingNotConverted = SourceError.define("EncodingNotConverted", "WT-2119")
# Its creator would miss the changes that this pipeline reads.
SlotNotOurs = SourceError.define("SlotNotOurs", "WT-2112")
FailoverUnavailable = SourceError.define("FailoverUnavailable", "WT-2121")
# The slot cannot be read until the standby is promoted.
SlotSynchronized = SourceError.define("SlotSynchronized", "WT-2122", retry=RetryVerdict.RECONNECT)
PublicationMissing = SourceError.define("PublicationMissing", "WT-2106")
PublicationNotPermitted = SourceError.define("PublicationNotPermitted", "WT-2109")
IdentityMissing = SourceError.define("IdentityMissing", "WT-2107")
# It was dropped and created again, or another process advanced it.
PositionGap = OffsetError.define("PositionGap", "WT-6101", loses=True)
# The server was restored from an older copy, or an operator set the offset.
PositionAhead = OffsetError.define("PositionAhead", "WT-6103", loses=True)
ServerRestored = OffsetError.define("ServerRestored", "WT-6105", loses=True)
OtherServer = OffsetError.define("OtherServer", "WT-6102", loses=True)
OtherSlot = OffsetError.define("OtherSlot", "WT-6104")


class TextNotUtf8(SourceError):
    """The server cannot send the database's text as UTF-8."""

    code = "WT-2020"
    remedy = NOT_UTF8


QueryFailed = SourceError.define("QueryFailed", "WT-2009")
TableLocked = QueryFailed.define("TableLocked", "WT-2024")
PublicationLocked = ConnectionLost.define("PublicationLocked", "WT-2026")
IdentityLocked = ConnectionLost.define("IdentityLocked", "WT-2033")
DecodingStopped = ConnectionLost.define("DecodingStopped", "WT-2034")
QueryCancelled = ConnectionLost.define("QueryCancelled", "WT-2019")
# It may do more than compare values, or it takes too long.
ConditionRefused = SourceError.define("ConditionRefused", "WT-4104")


# Faults of a walsender; the next one mostly succeeds. A nested catalogue lookup during an uncommitted
# transaction confuses its check of the outer one; and its cache keeps "no such table" for the files of a
# TRUNCATE that it met too early.
FAULTS_OF_A_SESSION = ("call during logical decoding", "could not map filen")


class ErrorMeanings:
    """Translate the server's errors.

    The subclass of another server translates its own errors first. ``message`` is the server's
    primary text, in the language of its ``lc_messages``; ``function`` of its source reported it.
    """

    def of_query(
        self, sqlstate: str, message: str, *, function: str = "", **given: str
    ) -> SourceError | OffsetError:
        facts = defaultdict(str, given)
        slot, user, plugin = facts["slot"], facts["user"], facts["plugin"]
        text = message.strip().rstrip(".")
        # Only one of them names the object in every language.
        about = f"{text} {function}".lower()
        if sqlstate in {"28000", "28P01"}:
            if "replication" in text and "role" in text:
                return PrivilegeMissing(text, user=user, sql=grant_for(text, user, function))
            return AuthenticationRefused(text, way=_way_in(text, user, facts["database"]))
        if sqlstate == "3D000":
            return DatabaseMissing(text, database=facts["database"])
        if sqlstate == "55006":
            pid = next((word for word in text.split() if word.isdigit()), "?")
            return SlotActive(text, slot=slot, pid=pid)
        if sqlstate == "42704" and "publication" in about:
            create = f'CREATE PUBLICATION "{facts["publication"]}" FOR TABLE …'
            return PublicationMissing(text, sql=create)
        if sqlstate == "42704" and "slot" in about:
            return SlotMissing(text, position="the stored position")
        if sqlstate == "42710" and "slot" in about:
            return SlotExists(text, slot=slot)
        if sqlstate == "58P01" and WAL_GONE.search(about):
            return SlotInvalidated(text, slot=slot)
        if (sqlstate == "58P01" and LIBRARY.search(about)) or (
            sqlstate == "42501" and "output plugin" in text
        ):
            return OutputPluginUnavailable(text, plugin=plugin, libraries=f"'pgoutput', '{plugin}'")
        if sqlstate == "42501":
            return PrivilegeMissing(text, user=user, sql=grant_for(text, user, function))
        if sqlstate == "55000" and "wal_level" in text:
            return WalLevelTooLow(text, sql=f"{WAL_LEVEL_SQL}; then restart the server")
        if sqlstate == "55000" and ("can no longer" in text or "cannot read from" in text):
            return SlotInvalidated(text, slot=slot)
        if sqlstate == "55000" and text.startswith("cannot use replication slot"):
            return SlotSynchronized(text)
        if sqlstate == "55000" and "slot" in about:
            return SlotUnfit(text, slot=slot)
        if sqlstate in {"22021", "22P05"}:
            return TextNotUtf8(text)
        if sqlstate == "53300":
            return ConnectionsUsedUp(text)
        if sqlstate == "53400":
            return ServerLimit(text)
        if sqlstate == "55P03":
            return TableLocked(text, sqlstate=sqlstate, tables="relation")
        if sqlstate == "57014":
            return QueryCancelled(f"{text} (SQLSTATE {sqlstate})")
        # 08P01 is an answer, not a lost link: the server's parser met a parameter, say.
        lost = sqlstate[:2] in {"08", "57"} and sqlstate != "08P01"
        if lost or sqlstate in {"40001", "40P01"}:
            return ConnectionLost(f"{text} (SQLSTATE {sqlstate})" if sqlstate else text)
        return QueryFailed(text, sqlstate=sqlstate or "unknown")

    def of_stream(
        self, sqlstate: str, message: str, *, function: str = "", **facts: str
    ) -> SourceError | OffsetError:
        """Return the error for a walsender's message during decoding.

        The walsender uses the catalogue of the decoded change.
        """
        if sqlstate == "42704" and "publication" in f"{message} {function}":
            slot, publication = facts["slot"], facts["publication"]
            if publication + INSERTS_SUFFIX in message.partition("(")[0]:
                inserts = '"{}"'.format((publication + INSERTS_SUFFIX).replace('"', '""'))
                return InsertsPublicationGone(
                    f"{message.strip()}: slot {slot!r} has changes to decode from while it was missing",
                    inserts=inserts,
                    operations=INSERTS_OPERATIONS,
                )
            return PublicationGone(
                f"{message.strip()}: slot {slot!r} has changes to decode from while there was none",
                publication=publication,
            )
        if sqlstate == "XX000" and any(words in message for words in FAULTS_OF_A_SESSION):
            return DecodingStopped(f"the server stopped decoding: {message.strip()}")
        return self.of_query(sqlstate, message, function=function, **facts)


def _way_in(text: str, user: str, database: str) -> str:
    """Return the step that lets a role in, by the server's message."""
    if "no password supplied" in text:
        return (
            "the server asks for a password, and the profile gives none. Write there "
            '"database.password" = "${env:WALTAP_PASSWORD}", and export WALTAP_PASSWORD=…; or use '
            "~/.pgpass"
        )
    return f"on the server: {_role_step(text, user, database)}"


def _role_step(text: str, user: str, database: str) -> str:
    """Return the statement or setting that lets a role in."""
    role = sql_word(user)
    if "does not exist" in text:
        return f"CREATE ROLE {role} WITH LOGIN REPLICATION PASSWORD '…'; there is no such role"
    if "pg_hba.conf" in text:
        return (
            f"a line for it in pg_hba.conf, e.g. host {database} {user} ADDRESS scram-sha-256, and "
            "SELECT pg_reload_conf()"
        )
    if "PAM authentication" in text:
        return (
            f"an identity service decides: on RDS and Aurora GRANT rds_iam TO {role}, for replication "
            "rds.iam_auth_for_replication = 1, and a token of the last 15 minutes, which "
            "database.password.command gets for each connection"
        )
    if "not permitted to log in" in text:
        return f"ALTER ROLE {role} WITH LOGIN"
    return (
        f"ALTER ROLE {role} WITH LOGIN PASSWORD '…', or CREATE ROLE where there is none, and a line "
        "in pg_hba.conf that asks for a password. A password ends at the role's VALID UNTIL, "
        f"which a new password does not change: ALTER ROLE {role} VALID UNTIL 'infinity'"
    )
