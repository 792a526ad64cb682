"""Settings of the server: the present values and those after a restart."""

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
    """Hold one setting of the server."""

    name: str
    value: str
    # A change of the setting waits for a restart.
    waiting: bool = False
    # The new value; None if this role may not read the configuration files.
    written: str | None = None


def server_settings(
    catalogue: PostgresCatalogue, names: tuple[str, ...]
) -> dict[str, ServerSetting]:
    """Return those of the settings that the server has.

    Raises: SourceError.
    """
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
        settings[name] = ServerSetting(name=name, value=value, waiting=waiting, written=new)
    return settings


def wal_level_remedy(setting: ServerSetting | None, hosting: ServerHosting | None = None) -> str:
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
        service = hosting(catalogue, catalogue.properties.hostname)
        raise WalLevelTooLow(error.problem, sql=wal_level_remedy(setting, service)) from error


def status_interval(catalogue: PostgresCatalogue, wanted_ms: int) -> float:
    """Return the seconds between two status updates.

    Raises: SourceError.
    """
    rows = catalogue.query(
        "SELECT setting::int8 FROM pg_settings WHERE name = 'wal_sender_timeout'"
    )
    timeout_ms = int(rows[0][0]) if rows else 60000
    # The server ends the stream after ``wal_sender_timeout`` without a status; 0 switches it off.
    return min(wanted_ms, timeout_ms / 3 if timeout_ms else wanted_ms) / 1000
