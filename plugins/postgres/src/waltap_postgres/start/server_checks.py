"""Checks of the server's version and of settings for streaming.

Each remedy suffices. For a hosted server it names the service's own switch.
"""

import re
import tomllib
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field, replace
from functools import cache
from importlib.resources import files

from waltap.base.text import duration, size, sql_word
from waltap.errors import SourceError, WaltapError
from waltap.ports.source.connector import PreflightCheck
from waltap_postgres.catalog.catalogue import PostgresCatalogue
from waltap_postgres.errors import (
    WAL_LEVEL_SQL,
    ConnectionsUsedUp,
    OutputPluginUnavailable,
    WalLevelTooLow,
)


@dataclass(frozen=True, slots=True, kw_only=True)
class HostedService:
    """Describe one hosting service, and a server that it hosts.

    One setting, role, schema or function of the service is enough to recognise a server.
    """

    name: str
    # Objects that only the service's servers have.
    settings: Sequence[str] = ()
    roles: Sequence[str] = ()
    schemas: Sequence[str] = ()
    functions: Sequence[str] = ()
    # Pattern of the servers' names, for servers without such objects.
    hosts: str | None = None
    # Instruction that sets ``wal_level`` to logical.
    switch: str
    # The service's own setting behind ``switch``, if it has one.
    switched_by: str | None = None
    # Instruction that puts ``switch`` into effect.
    restart: str = "restart the server"
    # The place of other settings.
    where: str
    # Role whose members grant, and publish as superusers do; empty if there is none.
    admin: str
    # Role whose members may replicate.
    granted: str | None = None
    # The service's rule for slots that an operator must know.
    mind: str | None = None
    # The evidence on a server, for an operator.
    evidence: str = ""
    # The service's own settings on that server.
    there: dict[str, str] = field(default_factory=dict)

    def grant(self, user: str) -> str:
        if self.granted is not None and self.granted.startswith("rds_"):
            return f"GRANT {self.granted} TO {sql_word(user)}"
        return f"ALTER ROLE {sql_word(user)} WITH REPLICATION"

    def wal_level_remedy(self) -> str:
        """Return the instruction that sets ``wal_level`` to logical."""
        name = self.switched_by
        # The switch is on, but the server has not restarted since.
        if name is not None and self.there.get(name, "").lower() in ON:
            return f"On {self.name}: {name} is on already: {self.restart}, it waits for that"
        return f"On {self.name}: {self.switch}"

    def checks(self) -> Iterator[PreflightCheck]:
        """Yield the check that reports the service and its rule for slots."""
        found = f"{self.name}, recognized by {self.evidence}"
        if self.mind is None:
            yield PreflightCheck.ok("hosted by", found)
            return
        yield PreflightCheck.warning(
            "hosted by",
            f"{found}: {self.mind}",
            "Watch that the pipeline runs, and repair a gap with `waltap repair FILE`",
        )


@cache
def services() -> tuple[HostedService, ...]:
    """Return the services of ``hosting.toml``."""
    text = files(__package__).joinpath("hosting.toml").read_text("utf-8")
    return tuple(HostedService(**row) for row in tomllib.loads(text)["service"])


FACTS_SQL = """
SELECT ARRAY(SELECT rolname::text FROM pg_roles WHERE rolname = ANY(%s)),
       ARRAY(SELECT nspname::text FROM pg_namespace WHERE nspname = ANY(%s)),
       ARRAY(SELECT DISTINCT proname::text FROM pg_proc WHERE proname = ANY(%s))
"""
SETTINGS_SQL = """
SELECT name, current_setting(name, true) FROM unnest(%s::text[]) name
 WHERE current_setting(name, true) IS NOT NULL
"""
ON = frozenset({"on", "1", "true", "yes"})


def hosting(catalogue: PostgresCatalogue) -> HostedService | None:
    """Return the service that hosts a server, None if unknown. Raises: SourceError."""
    ((roles, schemas, functions),) = catalogue.query(
        FACTS_SQL,
        tuple(
            sorted({name for service in services() for name in getattr(service, kind)})
            for kind in ("roles", "schemas", "functions")
        ),
    )
    settings: dict[str, str] = {}
    names = sorted({name for service in services() for name in service.settings})
    with suppress(WaltapError):  # a server may hide a setting from this role
        settings = dict(catalogue.query(SETTINGS_SQL, (names,)))
    there = {"settings": settings, "roles": roles, "schemas": schemas, "functions": functions}
    for service in services():
        for kinds, present in there.items():
            found = next((name for name in getattr(service, kinds) if name in present), None)
            if found is not None:
                evidence = f"{kinds.removesuffix('s')} {found}"
                return replace(service, evidence=evidence, there=settings)
    # The name counts only if the server has none of the services' objects.
    for service in services():
        for each in catalogue.properties.hostname.split(","):
            name = each.strip().rstrip(".")
            if service.hosts is not None and re.search(service.hosts, name, re.IGNORECASE):
                return replace(service, evidence=f"its name {name}")
    return None


@dataclass(frozen=True, slots=True, kw_only=True)
class ServerSetting:
    """Hold one setting of the server."""

    value: str
    # A change of the setting waits for a restart.
    waiting: bool = False
    # The new value; None if this role may not read the configuration files.
    written: str | None = None


def server_settings(
    catalogue: PostgresCatalogue, names: tuple[str, ...]
) -> dict[str, ServerSetting]:
    """Return the settings that the server has. Raises: SourceError."""
    # ``pending_restart`` is set when the server reloads the files; before that only the files show
    # a change.
    rows = catalogue.query(
        "SELECT name, setting, pending_restart FROM pg_settings WHERE name = ANY(%s)",
        (list(names),),
    )
    ((readable,),) = catalogue.query(
        "SELECT has_function_privilege('pg_show_all_file_settings()', 'EXECUTE')"
    )
    written: dict[str, str] = {}
    if readable:
        found = catalogue.query(
            "SELECT name, setting FROM pg_file_settings WHERE name = ANY(%s) ORDER BY seqno",
            (list(names),),
        )
        written = {name: value for name, value in found if value is not None}
    settings = {}
    for name, value, pending in rows:
        new = written.get(name)
        waiting = pending or (new is not None and new != value)
        settings[name] = ServerSetting(value=value, waiting=waiting, written=new)
    return settings


def wal_level_remedy(setting: ServerSetting | None, hosting: HostedService | None = None) -> str:
    """Return the instruction that sets ``wal_level`` to logical.

    It is SQL and a restart, or the restart alone; for a hosted server, the service's own switch.
    """
    if hosting is not None:
        return hosting.wal_level_remedy()
    if setting is None or not setting.waiting:
        return f"{WAL_LEVEL_SQL}; then restart the server"
    if setting.written == "logical":
        return "wal_level = logical is set already: restart the server, it waits for that"
    if setting.written is None:
        return (
            "A change of wal_level waits for a restart: restart the server; if it was another one, "
            f"{WAL_LEVEL_SQL}; and restart again"
        )
    return f"{WAL_LEVEL_SQL} (a restart now would bring {setting.written}); then restart the server"


@contextmanager
def wal_level_explained(catalogue: PostgresCatalogue) -> Iterator[None]:
    """Add the remedy to a refusal for ``wal_level``.

    It says whether only a restart is missing. Raises: WalLevelTooLow.
    """
    try:
        yield
    except WalLevelTooLow as error:
        setting = server_settings(catalogue, ("wal_level",)).get("wal_level")
        service = hosting(catalogue)
        raise WalLevelTooLow(error.problem, sql=wal_level_remedy(setting, service)) from error


def status_interval(catalogue: PostgresCatalogue, wanted_ms: int) -> float:
    """Return the seconds between two status updates. Raises: SourceError."""
    rows = catalogue.query(
        "SELECT setting::int8 FROM pg_settings WHERE name = 'wal_sender_timeout'"
    )
    timeout_ms = int(rows[0][0]) if rows else 60000
    # The server ends the stream after ``wal_sender_timeout`` without a status; 0 switches it off.
    return min(wanted_ms, timeout_ms / 3 if timeout_ms else wanted_ms) / 1000


# A delay from here on is worth a warning.
SLOW_MS = 1000


def _set(hosting: HostedService | None, setting: str) -> str:
    """Return the SQL, or the service's own way, that sets ``setting``."""
    if hosting is not None:
        return f"On {hosting.name}, set {setting} {hosting.where}"
    return f"ALTER SYSTEM SET {setting}; SELECT pg_reload_conf();"


def slot_limits(
    settings: dict[str, str],
    hosting: HostedService | None,
    *,
    limits_wal: bool,
    wal_status: str = "",
) -> Iterator[PreflightCheck]:
    """Check the server's limits for slots without a reader.

    The server may invalidate such a slot, or nothing keeps the slot from filling the disk.
    ``limits_wal``: the profile limits the slot's WAL. ``wal_status``: as in `SlotStatus`.
    """
    idle = int(settings.get("idle_replication_slot_timeout", "0"))
    # -1 is no limit; servers before 13 do not have the setting.
    keep = int(settings.get("max_slot_wal_keep_size", "-1"))
    if idle:
        yield PreflightCheck.warning(
            "slot limits",
            f"idle_replication_slot_timeout is {duration(idle)}: a slot without a reader for "
            "longer is invalidated, and a pipeline that was down for so long has a gap",
            _set(hosting, "idle_replication_slot_timeout = 0"),
        )
    if keep >= 0:
        bound = size(keep << 20)
        if wal_status == "unreserved":
            yield PreflightCheck.warning(
                "slot limits",
                f"the slot keeps more WAL than max_slot_wal_keep_size, {bound}: the next checkpoint "
                "may invalidate it",
                f"Until the pipeline has caught up: {_set(hosting, 'max_slot_wal_keep_size = -1')}",
            )
            return
        text = f"max_slot_wal_keep_size is {bound}: a slot that keeps more WAL is invalidated"
        yield PreflightCheck.ok("slot limits", text)
    elif not limits_wal and "max_slot_wal_keep_size" in settings:
        # A timeout does not count: a slot that is read slowly is not idle.
        yield PreflightCheck.warning(
            "slot limits",
            "neither max_slot_wal_keep_size nor waltap.wal.budget bounds the WAL that the slot "
            "keeps: while nothing reads it, the server's disk can fill up",
            _set(hosting, "max_slot_wal_keep_size = '50GB'"),
        )


def failover(settings: dict[str, str], hosting: HostedService | None) -> PreflightCheck:
    """Check that the server delivers only changes that a standby has."""
    # The server waits only for standbys whose own slot this setting names.
    waits = settings.get("synchronized_standby_slots", "")
    if waits:
        found = f"the slot is copied to standbys, and changes wait for {waits}"
        return PreflightCheck.ok("slot.failover", found)
    return PreflightCheck.warning(
        "slot.failover",
        "the slot is copied to standbys, and changes wait for none of them: what a standby lacks "
        "when it is promoted has been delivered all the same",
        "Name the slot that the standby itself streams from (its primary_slot_name): "
        + _set(hosting, "synchronized_standby_slots = 'SLOT'"),
    )


def version(version_num: int) -> PreflightCheck:
    """Check the server's version."""
    text = f"PostgreSQL {version_num // 10000}.{version_num % 10000}"
    if version_num < 120000:  # the catalogue's queries read `attgenerated`
        return PreflightCheck(
            name="server version", verdict="error", found=text, remedy="Upgrade to 12 or later."
        )
    return PreflightCheck.ok("server version", text)


def wal_level(setting: ServerSetting | None, hosting: HostedService | None) -> PreflightCheck:
    """Check that the WAL has the data for logical decoding."""
    level = setting.value if setting else "unknown"
    if level != "logical":
        waits = (
            f", {setting.written or 'another'} from the next restart on"
            if setting and setting.waiting
            else ""
        )
        remedy = wal_level_remedy(setting, hosting)
        error = WalLevelTooLow(f"wal_level is {level}{waits}", sql=remedy)
        return PreflightCheck.failed("wal_level", error)
    # Decoding works now, but would fail after the next restart.
    if setting and setting.waiting and setting.written not in {None, "logical"}:
        return PreflightCheck.warning(
            "wal_level",
            f"logical, but {setting.written} from the next restart on",
            WAL_LEVEL_SQL if hosting is None else hosting.wal_level_remedy(),
        )
    return PreflightCheck.ok("wal_level", level)


StandbyCannotDecode = SourceError.define("StandbyCannotDecode", "WT-2124")


def standby(version_num: int, receives_from: str | None) -> list[PreflightCheck]:
    """Check that a standby can decode.

    ``receives_from`` is the address of its primary, if known.
    """
    if version_num >= 160000:
        return [PreflightCheck.ok("standby", "decodes while it is in recovery")]
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
    return PreflightCheck.ok("walsenders", found)


def output_plugin(settings: dict[str, str], plugin: str) -> PreflightCheck:
    """Check that the server may load the output plugin."""
    # Only some servers have this setting, which only some roles may read.
    listed = settings.get("output_plugin_libraries")
    if listed is None:
        unknown = "" if plugin == "pgoutput" else ": a new slot shows whether the server loads it"
        return PreflightCheck.ok("output plugin", plugin + unknown)
    allowed = [name.strip().strip('"') for name in listed.split(",") if name.strip()]
    names = [name.rpartition("/")[2] for name in allowed]
    if plugin in names or "*" in names:
        return PreflightCheck.ok("output plugin", f"{plugin} is allowed")
    found = f"output_plugin_libraries is {listed!r}, without {plugin}"
    # The server stores one text with commas in it as one name.
    wanted = ", ".join("'" + name.replace("'", "''") + "'" for name in [*allowed, plugin])
    error = OutputPluginUnavailable(found, plugin=plugin, libraries=wanted)
    return PreflightCheck.failed("output plugin", error)


def writer_delay(settings: dict[str, str], lazy: list[str]) -> list[PreflightCheck]:
    """Check settings that delay changes before the stream can send them.

    ``lazy`` are the roles and databases with ``synchronous_commit = off``.
    """
    delays = []
    # The stream sends only WAL that is on disk. Commits that do not wait for the disk are written
    # up to three times wal_writer_delay later.
    by_writer = 3 * int(settings.get("wal_writer_delay", "200"))
    if lazy:
        delays.append(
            f"synchronous_commit is off for {', '.join(lazy)}: their commits are written up to "
            f"{by_writer} ms later (three times wal_writer_delay), and are streamed only then"
        )
    delay = int(settings.get("commit_delay", "0")) / 1000
    if delay:
        delays.append(f"commit_delay adds up to {delay:g} ms to each commit while others commit")
    if not delays:
        return []
    slow = (by_writer if lazy else 0) + delay >= SLOW_MS
    return [
        PreflightCheck(
            name="latency",
            verdict="warning" if slow else "ok",
            found="; ".join(delays),
            remedy="Where changes are wanted sooner: a smaller wal_writer_delay (commit_delay), which "
            "takes a reload and costs writes"
            if slow
            else "",
        )
    ]
