"""Errors of reading tables: WT-40xx."""

from waltap.errors import RetryVerdict, SnapshotError

__all__ = [
    "SnapshotInterrupted",
    "SnapshotLockRefused",
    "SnapshotModeUnclear",
    "SnapshotNotShared",
    "SnapshotReadFailed",
    "SnapshotSelectNarrow",
    "SnapshotTooOld",
    "TableOvertaken",
]


class SnapshotReadFailed(SnapshotError):
    """Rows of a table could not be read."""

    code = "WT-4001"
    remedy = (
        "Check that {table} can be read by the role (GRANT SELECT), and the SELECT that the profile may "
        "have for it; or leave it out with table.exclude.list. Start again: what was delivered "
        "counts where the sink takes that, else the snapshot starts over."
    )


class SnapshotInterrupted(SnapshotError):
    """The last run ended in its snapshot, and this mode takes no other."""

    code = "WT-4002"
    remedy = "Run with snapshot.mode=initial to take it anew, or `waltap offsets clear FILE`."


class TableOvertaken(SnapshotError):
    """DDL came between the snapshot's point and the reading of a table."""

    code = "WT-4003"
    retry = RetryVerdict.RECONNECT
    remedy = (
        "The snapshot starts over by itself; snapshot.locking.mode=shared keeps DDL waiting until "
        "{table} has been read."
    )


class SnapshotNotShared(SnapshotError):
    """A connection for a part of a snapshot does not see the same rows."""

    code = "WT-4004"
    retry = RetryVerdict.RECONNECT
    remedy = (
        "The snapshot is taken again by itself. Where something between waltap and the server hands "
        "connections to several servers, name one in database.hostname, or set snapshot.max.threads=1."
    )


class SnapshotModeUnclear(SnapshotError):
    """A plugin that decides how tables are read gave an answer that is none."""

    code = "WT-4005"
    remedy = (
        "This is a fault of {mode}; the SnapshotterSuite of waltap_testing finds it. Until it is "
        "mended: snapshot.mode=initial, without snapshot.query.mode and snapshot.locking.mode."
    )


class SnapshotLockRefused(SnapshotError):
    """A table's lock is not available, so nothing was read.
    Another session holds a conflicting lock, or the role may not take it.
    """

    code = "WT-4006"
    remedy = (
        "Who holds locks on tables: SELECT pid, relation::regclass, mode FROM pg_locks WHERE granted AND "
        "locktype = 'relation'; start again when they are gone, or raise snapshot.lock.timeout.ms "
        "({timeout} now). snapshot.locking.mode=none needs no such lock."
    )


class SnapshotTooOld(SnapshotError):
    """The server removed rows that the snapshot had not read yet.
    The read took longer than the server's ``old_snapshot_threshold`` (PostgreSQL before 17).
    """

    code = "WT-4007"
    retry = RetryVerdict.RECONNECT
    remedy = (
        "waltap reads the rest in a new snapshot by itself; chunks that are durable stay. Where tables "
        "take longer than the server allows it never ends: ALTER SYSTEM SET old_snapshot_threshold = -1; "
        "then restart the server, or read faster with snapshot.max.threads."
    )


class SnapshotSelectNarrow(SnapshotError):
    """A table's SELECT lacks columns of the publication's row filter.
    Without them the published rows are unknown, and other rows would never get a delete.
    """

    code = "WT-4008"
    remedy = (
        "Let snapshot.select.statement.overrides.{table} give the columns of the row filter, too, which "
        "is {rows}; a snapshot delivers those of its rows that are published."
    )
