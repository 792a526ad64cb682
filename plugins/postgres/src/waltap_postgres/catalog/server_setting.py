"""Settings of the server: what holds now, and what a restart would bring."""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from waltap_postgres.catalog.catalogue import PostgresCatalogue
from waltap_postgres.catalog.hosting import ServerHosting, hosting
from waltap_postgres.errors import WAL_LEVEL_SQL, WalLevelTooLow

__all__ = [
    "ServerSetting",
    "server_settings",
    "status_interval",
    "wal_level_explained",
    "wal_level_remedy",
]


@dataclass(frozen=True, slots=True, kw_only=True)
class ServerSetting:
    """``waiting``: a change of it waits for a restart; ``written`` is then the new value, None where
    this role may not read the configuration files."""

    name: str
    value: str
    waiting: bool = False
    written: str | None = None


def server_settings(
    catalogue: PostgresCatalogue, names: tuple[str, ...]
) -> dict[str, ServerSetting]:
    """Return the settings that the server has. Raises: SourceError.

    ``pending_restart`` is set once the files were read anew; before that only they tell.
    """
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
        settings[name] = ServerSetting(name=name, value=value, waiting=waiting, written=new)
    return settings


def wal_level_remedy(setting: ServerSetting | None, hosting: ServerHosting | None = None) -> str:
    """Return what brings ``wal_level`` to logical: SQL and a restart, or the restart alone where it
    is all that is missing. Where a service hosts the server, its own switch."""
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
    """Say of a refusal for ``wal_level`` whether only a restart is missing. Raises: WalLevelTooLow."""
    try:
        yield
    except WalLevelTooLow as error:
        setting = server_settings(catalogue, ("wal_level",)).get("wal_level")
        service = hosting(catalogue, catalogue.properties.hostname)
        raise WalLevelTooLow(error.problem, sql=wal_level_remedy(setting, service)) from error


def status_interval(catalogue: PostgresCatalogue, wanted_ms: int) -> float:
    """Return how long the server may go without hearing from us, in seconds: ``wanted_ms``, or less where
    it would give up before. Raises: SourceError."""
    rows = catalogue.query(
        "SELECT setting::int8 FROM pg_settings WHERE name = 'wal_sender_timeout'"
    )
    timeout_ms = int(rows[0][0]) if rows else 60000
    return min(wanted_ms, timeout_ms / 3 if timeout_ms else wanted_ms) / 1000
