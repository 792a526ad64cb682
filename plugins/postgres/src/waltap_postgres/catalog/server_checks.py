"""Checks of the server's version and of settings for streaming.

Each remedy suffices. For a hosted server it names the service's own switch.
"""

from waltap.amounts import duration, size
from waltap.errors import SourceError
from waltap.source.connector import PreflightCheck
from waltap_postgres.catalog.hosting import ServerHosting
from waltap_postgres.catalog.server_setting import ServerSetting, wal_level_remedy
from waltap_postgres.errors import (
    WAL_LEVEL_SQL,
    ConnectionsUsedUp,
    OutputPluginUnavailable,
    WalLevelTooLow,
)

__all__ = [
    "StandbyCannotDecode",
    "failover",
    "output_plugin",
    "senders",
    "slot_limits",
    "standby",
    "version",
    "wal_level",
    "writer_delay",
]

# A delay from here on is worth a warning.
SLOW_MS = 1000


def slot_limits(
    settings: dict[str, str], hosting: ServerHosting | None, *, budgeted: bool
) -> list[PreflightCheck]:
    """Check the server's limits for slots without a reader.

    The server may invalidate such a slot, or nothing keeps the slot from filling the disk.
    ``budgeted``: the profile limits the slot's WAL.
    """
    idle = int(settings.get("idle_replication_slot_timeout", "0"))
    # -1 is no limit; servers before 13 do not have the setting.
    keep = int(settings.get("max_slot_wal_keep_size", "-1"))
    found = []
    if idle:
        found.append(
            PreflightCheck(
                name="slot limits",
                verdict="warning",
                found=f"idle_replication_slot_timeout is {duration(idle)}: a slot that nobody reads for "
                "longer is given up, and a pipeline that was down for so long has a gap",
                remedy="ALTER SYSTEM SET idle_replication_slot_timeout = 0; SELECT pg_reload_conf();"
                if hosting is None
                else hosting.set("idle_replication_slot_timeout = 0"),
            )
        )
    if keep >= 0:
        bound = size(keep << 20)
        text = f"max_slot_wal_keep_size is {bound}: a slot that keeps more WAL is given up"
        found.append(PreflightCheck(name="slot limits", verdict="ok", found=text))
    elif not budgeted and "max_slot_wal_keep_size" in settings:
        bound = "max_slot_wal_keep_size = '50GB'"
        # A timeout does not count: a slot that is read slowly is not idle.
        found.append(
            PreflightCheck(
                name="slot limits",
                verdict="warning",
                found="neither max_slot_wal_keep_size nor waltap.wal.budget bounds the WAL that the slot "
                "keeps: while nothing reads it, the server's disk can fill up",
                remedy=f"ALTER SYSTEM SET {bound}; SELECT pg_reload_conf();"
                if hosting is None
                else hosting.set(bound),
            )
        )
    return found


def failover(settings: dict[str, str], hosting: ServerHosting | None) -> PreflightCheck:
    """Check that the server delivers only changes that a standby has."""
    # The server waits only for standbys whose own slot this setting names.
    waits = settings.get("synchronized_standby_slots", "")
    if waits:
        found = f"the slot is copied to standbys, and changes wait for {waits}"
        return PreflightCheck(name="slot.failover", verdict="ok", found=found)
    return PreflightCheck(
        name="slot.failover",
        verdict="warning",
        found="the slot is copied to standbys, and changes wait for none of them: what a standby lacks "
        "when it is promoted has been delivered all the same",
        remedy="Name the slot that the standby itself streams from (its primary_slot_name): "
        + (
            "ALTER SYSTEM SET synchronized_standby_slots = 'SLOT'; SELECT pg_reload_conf();"
            if hosting is None
            else hosting.set("synchronized_standby_slots = 'SLOT'")
        ),
    )


def version(version_num: int) -> PreflightCheck:
    """Check the server's version."""
    text = f"PostgreSQL {version_num // 10000}.{version_num % 10000}"
    if version_num < 100000:
        return PreflightCheck(
            name="server version", verdict="error", found=text, remedy="Upgrade to 10 or later."
        )
    return PreflightCheck(name="server version", verdict="ok", found=text)


def wal_level(setting: ServerSetting | None, hosting: ServerHosting | None) -> PreflightCheck:
    """Check that the WAL has the data for logical decoding."""
    level = setting.value if setting else "unknown"
    if level != "logical":
        waits = (
            f", {setting.written or 'another'} from the next restart on"
            if setting and setting.waiting
            else ""
        )
        found, remedy = f"{level}{waits}", wal_level_remedy(setting, hosting)
        return PreflightCheck(
            name="wal_level",
            verdict="error",
            found=found,
            remedy=remedy,
            error=WalLevelTooLow(f"wal_level is {found}", sql=remedy),
        )
    # Decoding works now, but would fail after the next restart.
    if setting and setting.waiting and setting.written not in {None, "logical"}:
        return PreflightCheck(
            name="wal_level",
            verdict="warning",
            found=f"logical, but {setting.written} from the next restart on",
            remedy=WAL_LEVEL_SQL if hosting is None else hosting.wal_level_remedy(),
        )
    return PreflightCheck(name="wal_level", verdict="ok", found=level)


class StandbyCannotDecode(SourceError):
    """The server is a standby, and too old to decode there."""

    code = "WT-2124"
    remedy = (
        "Give database.hostname the primary's address ({primary}): standbys decode from PostgreSQL 16 "
        "on. `waltap doctor FILE` tells whether another address will do."
    )


def standby(version_num: int, receives_from: str | None) -> list[PreflightCheck]:
    """Check that a standby can decode.

    ``receives_from`` is the address of its primary, if known.
    """
    if version_num >= 160000:
        return [
            PreflightCheck(name="standby", verdict="ok", found="decodes while it is in recovery")
        ]
    found = f"PostgreSQL {version_num // 10000} does not decode on a standby, and this is one"
    primary = receives_from or "the server that answers false to SELECT pg_is_in_recovery()"
    return [PreflightCheck.failed("standby", StandbyCannotDecode(found, primary=primary))]


def senders(used: int, limit: int) -> PreflightCheck:
    """Check that a walsender is free."""
    found = f"{used} of {limit} in use"
    if used >= limit:
        return PreflightCheck.failed(
            "walsenders", ConnectionsUsedUp(f"{found}: no walsender is free")
        )
    return PreflightCheck(name="walsenders", verdict="ok", found=found)


def output_plugin(settings: dict[str, str], plugin: str) -> PreflightCheck:
    """Check that the server may load the output plugin."""
    # Only some servers have this setting; others load any plugin.
    listed = settings.get("output_plugin_libraries")
    if listed is None:
        return PreflightCheck(name="output plugin", verdict="ok", found=plugin)
    allowed = [name.strip().strip('"') for name in listed.split(",") if name.strip()]
    names = [name.rpartition("/")[2] for name in allowed]
    if plugin in names or "*" in names:
        return PreflightCheck(name="output plugin", verdict="ok", found=f"{plugin} is allowed")
    found = f"output_plugin_libraries is {listed!r}, without {plugin}"
    # The server stores one text with commas in it as one name.
    wanted = ", ".join("'" + name.replace("'", "''") + "'" for name in [*allowed, plugin])
    return PreflightCheck(
        name="output plugin",
        verdict="error",
        found=found,
        remedy=f"ALTER SYSTEM SET output_plugin_libraries = {wanted}; SELECT pg_reload_conf();",
        error=OutputPluginUnavailable(found, plugin=plugin, libraries=wanted),
    )


def writer_delay(settings: dict[str, str], lazy: list[str]) -> list[PreflightCheck]:
    """Check settings that delay changes before the stream can send them.

    ``lazy`` are the roles and databases with ``synchronous_commit = off``.
    """
    late = []
    # The stream sends only WAL that is on disk. Commits that do not wait for the disk are written
    # up to three times wal_writer_delay later.
    by_writer = 3 * int(settings.get("wal_writer_delay", "200"))
    if lazy:
        late.append(
            f"synchronous_commit is off for {', '.join(lazy)}: their commits are written up to "
            f"{by_writer} ms later, three times wal_writer_delay, and come by the stream no sooner"
        )
    delay = int(settings.get("commit_delay", "0")) / 1000
    if delay:
        late.append(f"commit_delay adds up to {delay:g} ms to each commit while others commit")
    if not late:
        return []
    slow = (by_writer if lazy else 0) + delay >= SLOW_MS
    return [
        PreflightCheck(
            name="latency",
            verdict="warning" if slow else "ok",
            found="; ".join(late),
            remedy="Where changes are wanted sooner: a smaller wal_writer_delay (commit_delay), which "
            "takes a reload and costs writes"
            if slow
            else "",
        )
    ]
